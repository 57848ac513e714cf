"""Fuzz target: cron expressions in time zones. Only a refusal may come out; what is taken fires later and later."""

from __future__ import annotations

import random
import time

from harness import Choices, instrumented, run

with instrumented():
    from bunqueue_trio.engine.cron.dialect import parse
    from bunqueue_trio.engine.cron.pattern import Pattern
    from bunqueue_trio.engine.cron.zones import find_zone
    from bunqueue_trio.errors import ValidationError

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Nowhere")
PARTS = (
    "*",
    "0",
    "1",
    "5",
    "59",
    "23",
    "31",
    "12",
    "*/5",
    "1-5",
    "0-59/7",
    "1,2,3",
    "L",
    "L-3",
    "15W",
    "LW",
    "1#2",
    "5L",
)
PARTS += ("JAN", "MON-FRI", "?", "@daily", "@hourly", "H", "*/0", "60", "-1", "2-1", "", "2099", "R", "1970-2099/50")
SOUND = ("*", "*", "*/2", "1", "2,5", "1-6/2", "3-5")
START_S = 1_800_000_000
MAX_STEPS = 5
MAX_CPU_S = 2.0


def check(data: bytes) -> int:
    """Read one expression and ask for some runs; returns 1 when it was taken.

    Raises:
        Exception: whatever is no refusal; an AssertionError for a run that does not lie later, or takes too long.
    """
    choices = Choices(data)
    zone_name = choices.pick(ZONES)
    after_ms = float(START_S + choices.number(65_536) * 40_000) * 1_000
    text = data[3:].decode("utf-8", "replace")
    try:
        pattern = Pattern(parse(text), find_zone(zone_name))
    except ValidationError:
        return 0
    began = time.process_time()
    for _ in range(MAX_STEPS):
        next_ms = pattern.next_run(after_ms)
        if next_ms is None:
            break
        assert next_ms > after_ms, (text, zone_name, after_ms, next_ms)
        assert next_ms % 1_000 == 0, (text, zone_name, after_ms, next_ms)
        assert pattern.next_run((after_ms + next_ms) // 2) == next_ms, (text, zone_name, after_ms, next_ms)
        after_ms = next_ms
    assert time.process_time() - began < MAX_CPU_S, (text, zone_name)
    return 1


def make(dice: random.Random) -> bytes:
    """An expression of likely parts, now and then damaged."""
    parts = PARTS if dice.randrange(2) else SOUND
    text = " ".join(dice.choice(parts) for _ in range(dice.choice((5, 5, 5, 6, 6, 7, 1, 4))))
    letters = bytearray(text.encode())
    if letters and not dice.randrange(4):
        letters[dice.randrange(len(letters))] = dice.randrange(256)
    return dice.randbytes(3) + bytes(letters)


if __name__ == "__main__":
    run("cron", check, make)
