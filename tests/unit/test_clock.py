"""The clocks: whole milliseconds, and which of the two a jump moves."""

import time

import pytest
import trio

from bunqueue_trio.clock import BEAT_MS, ManualClock, SystemClock, TrioClock
from bunqueue_trio.model.instant import Now


def test_system_clock_gives_whole_milliseconds_as_floats():
    now = SystemClock().now()

    assert isinstance(now.wall_ms, float)
    assert isinstance(now.mono_ms, float)
    assert now.wall_ms.is_integer()
    assert now.mono_ms.is_integer()
    assert now.wall_ms > 1_700_000_000_000


def test_system_clock_never_goes_back_on_the_monotonic_side():
    clock = SystemClock()

    readings = [clock.now().mono_ms for _ in range(1000)]

    assert readings == sorted(readings)


def test_manual_clock_stands_still_until_told_to_move():
    clock = ManualClock(wall_ms=1000, mono_ms=50)

    assert clock.now() == clock.now() == Now(1000.0, 50.0)
    assert clock.advance(7) == clock.now() == Now(1007.0, 57.0)


def test_the_stopwatch_tells_fractions_of_a_millisecond():
    clock = SystemClock()

    readings = [clock.stopwatch_ms() for _ in range(1000)]

    assert readings == sorted(readings)
    assert 0 < readings[-1] - readings[0] < 1_000
    assert not all(reading.is_integer() for reading in readings)


async def test_the_stopwatches_of_tests_follow_their_clocks(autojump_clock):
    manual, virtual = ManualClock(mono_ms=50), TrioClock()
    start_ms = virtual.stopwatch_ms()
    manual.advance(7)
    manual.skew(1_000)
    await trio.sleep(0.25)

    assert manual.stopwatch_ms() == 57
    assert virtual.stopwatch_ms() - start_ms == pytest.approx(250)


@pytest.mark.parametrize("ms", [-3_600_000, 3_600_000])
def test_skew_moves_the_wall_clock_only(ms):
    clock = ManualClock(wall_ms=10_000_000, mono_ms=50)

    clock.skew(ms)

    assert clock.now() == Now(10_000_000.0 + ms, 50.0)


def test_manual_clock_does_not_advance_backwards():
    clock = ManualClock()
    before = clock.now()

    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)

    assert clock.now() == before


async def test_trio_clock_follows_virtual_time(autojump_clock):
    clock = TrioClock(wall_ms=5000)
    start = clock.now()

    await trio.sleep(0.1)
    await trio.sleep(0.2)

    assert start.wall_ms == 5000
    assert clock.now() == Now(start.wall_ms + 300, start.mono_ms + 300)


async def test_trio_clock_skew_moves_the_wall_clock_only(autojump_clock, trio_clock):
    start = trio_clock.now()

    trio_clock.skew(-60_000)
    await trio.sleep(1)

    assert trio_clock.now() == Now(start.wall_ms - 59_000, start.mono_ms + 1000)


class Machine:
    """The clocks of an operating system, and a process that may stand still below them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 5_000
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.ms * 1_000_000)
        monkeypatch.setattr(time, "time_ns", lambda: (self.ms + 1_800_000_000_000) * 1_000_000)


def test_time_in_which_the_process_stood_still_does_not_count(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    assert clock.beat() == 0

    machine.ms += 60_000
    found = clock.now()
    assert found.mono_ms == start.mono_ms + BEAT_MS
    assert found.wall_ms == start.wall_ms + 60_000
    machine.ms += 5
    assert clock.now().mono_ms == found.mono_ms  # until whoever watches has seen it too

    assert clock.beat() == 60_005 - BEAT_MS
    machine.ms += 1_000
    assert clock.now().mono_ms == found.mono_ms + 1_000
    assert clock.beat() == 0


def test_a_process_that_lives_loses_no_time(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    for _ in range(100):
        assert clock.beat() == 0
        machine.ms += 1_900
        assert clock.now() is not None

    assert clock.now().mono_ms == start.mono_ms + 190_000


@pytest.mark.parametrize("beats", [0, 1])
def test_where_nobody_watches_all_time_counts(monkeypatch, beats):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    for _ in range(beats):
        clock.beat()
        clock.rest()

    machine.ms += 60_000

    assert clock.now().mono_ms == start.mono_ms + 60_000


async def test_the_clocks_of_tests_never_stand_still(autojump_clock):
    for clock in (ManualClock(), TrioClock()):
        before = clock.now()
        clock.rest()
        assert clock.beat() == 0
        assert clock.now() == before
