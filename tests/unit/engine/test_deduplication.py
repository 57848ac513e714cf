"""Who answers for a push: every combination of options, against a holder of the key in every place.

Source: scheduling and flows, "Decision on push, after the custom-id check", "With custom ids"; SD-22 to SD-27, P-14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_trio.errors import StateError
from tests.engine_harness import EngineHarness

HELD_MS = 1_000  # how long the holder has its key, where that ends
NEVER = None
TTL = 5_000
CREATED, EXISTING, REPLACED, REFUSED = "created", "existing", "replaced", "refused"


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


# where the holder ``h`` of key ``k`` may be


def nowhere(harness: EngineHarness) -> None:
    pass


def waiting(harness: EngineHarness, **options: Any) -> None:
    harness.push(jobId="h", uniqueKey="k", data="old", **options)


def delayed(harness: EngineHarness) -> None:
    waiting(harness, delay=60_000)


def prioritized(harness: EngineHarness) -> None:
    waiting(harness, priority=2)


def retrying(harness: EngineHarness) -> None:
    waiting(harness)
    harness.fail(*harness.pull())


def active(harness: EngineHarness) -> None:
    waiting(harness)
    harness.pull()


def parked(harness: EngineHarness) -> None:
    waiting(harness, dependsOn=[harness.push("elsewhere")])


def expired(harness: EngineHarness) -> None:
    waiting(harness, dedup={"ttl": HELD_MS})
    harness.clock.advance(HELD_MS)


def expired_while_active(harness: EngineHarness) -> None:
    waiting(harness, dedup={"ttl": HELD_MS})
    harness.pull()
    harness.clock.advance(HELD_MS)


def completed(harness: EngineHarness) -> None:
    active(harness)
    harness.ack("h", harness.job("h").lease.token)


def dead(harness: EngineHarness) -> None:
    active(harness)
    harness.fail("h", harness.job("h").lease.token, unrecoverable=True)


QUEUED = (waiting, prioritized, delayed, retrying)
HELD_UP = (active, parked)
ABSENT = (nowhere, expired, expired_while_active, completed, dead)
PLACES = (*QUEUED, *HELD_UP, *ABSENT)

# what the push says; the outcome with a queued holder, with one that is active or parked, with none; and the time for
# which the key then belongs to who has it: "same" as before, or that of the push

ROWS: list[tuple[dict[str, Any] | None, str, str, Any, Any]] = [
    # dedup, queued holder, active or parked holder, the holder's key ends, the new job's key ends
    (None, EXISTING, EXISTING, "same", NEVER),
    ({}, EXISTING, EXISTING, "same", NEVER),
    ({"ttl": TTL}, EXISTING, EXISTING, "same", TTL),
    ({"ttl": 0}, EXISTING, EXISTING, "same", 0),
    ({"extend": True}, EXISTING, EXISTING, "same", NEVER),
    ({"extend": True, "ttl": 0}, EXISTING, EXISTING, "same", 0),
    ({"extend": True, "ttl": TTL}, EXISTING, REFUSED, TTL, TTL),
    ({"replace": True}, REPLACED, REPLACED, "same", NEVER),
    ({"replace": True, "ttl": TTL}, REPLACED, REPLACED, "same", TTL),
    ({"replace": True, "ttl": 0}, REPLACED, REPLACED, "same", 0),
    ({"replace": True, "extend": True, "ttl": TTL}, REPLACED, REPLACED, "same", TTL),
    ({"replace": False, "extend": False, "ttl": TTL}, EXISTING, EXISTING, "same", TTL),
]

Manner = Callable[[EngineHarness, dict[str, Any]], tuple[str, str] | None]


def push(harness: EngineHarness, fields: dict[str, Any]) -> tuple[str, str] | None:
    """Id and outcome; None when it was refused."""
    try:
        reply = harness.send("PUSH", queue="q", data="new", receipt=True, **fields)
    except StateError as error:
        return None if str(error) == "Duplicate unique_key (extended TTL)" else ("", str(error))
    return reply.id, reply.outcome


def push_durably(harness: EngineHarness, fields: dict[str, Any]) -> tuple[str, str] | None:
    return push(harness, {**fields, "durable": True})


def push_batch(harness: EngineHarness, fields: dict[str, Any], **more: Any) -> tuple[str, str] | None:
    """The same as the second of a batch of three."""
    jobs = [{"data": "x", **more}, {"data": "new", **fields, **more}, {"data": "x"}]
    reply = harness.send("PUSHB", queue="q", jobs=jobs, receipt=True)
    assert (reply.outcomes[0], reply.outcomes[2]) == (CREATED, CREATED)
    return reply.ids[1], reply.outcomes[1]


def push_batch_durably(harness: EngineHarness, fields: dict[str, Any]) -> tuple[str, str] | None:
    return push_batch(harness, fields, durable=True)


@pytest.mark.parametrize("manner", [push, push_durably, push_batch, push_batch_durably])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dedup", "queued", "held_up", "holder_ends", "own_ends"), ROWS, ids=[str(r[0]) for r in ROWS])
def test_the_table(
    harness: EngineHarness,
    dedup: dict[str, Any] | None,
    queued: str,
    held_up: str,
    holder_ends: Any,
    own_ends: Any,
    place: Callable[[EngineHarness], None],
    manner: Manner,
) -> None:
    place(harness)
    harness.commit()
    before = None if place is nowhere else harness.state("h")
    outcome = queued if place in QUEUED else held_up if place in HELD_UP else CREATED
    in_batch = manner in (push_batch, push_batch_durably)

    answer = manner(harness, {"uniqueKey": "k", **({} if dedup is None else {"dedup": dedup})})

    is_new = outcome in (CREATED, REPLACED)
    if outcome == REFUSED and not in_batch:  # SD-24: a batch is answered with the holder's id
        assert answer is None
    else:
        assert answer is not None
        assert answer[1] == (EXISTING if outcome == REFUSED else outcome)
        assert (answer[0] != "h") == is_new
    if before is not None:
        is_removed = outcome == REPLACED and place in QUEUED
        assert harness.state("h") == ("unknown" if is_removed else before)
        assert is_removed or harness.shown("h")["data"] == "old"
    holder = harness.engine.state.queues["q"].keys["k"]
    assert holder.record.id == (answer[0] if is_new and answer else "h")
    ends = own_ends if is_new else NEVER if holder_ends == "same" else holder_ends
    assert holder.key_expires_at == (None if ends is None else harness.now.wall_ms + ends)


@pytest.mark.parametrize("manner", [push, push_durably, push_batch, push_batch_durably])
@pytest.mark.parametrize("dedup", [row[0] for row in ROWS if row[0] is not None], ids=str)
def test_dedup_without_a_key_does_nothing(harness: EngineHarness, dedup: dict[str, Any], manner: Manner) -> None:
    waiting(harness)

    answer = manner(harness, {"dedup": dedup})

    assert answer is not None
    assert (answer[0] != "h", answer[1], harness.state("h")) == (True, CREATED, "waiting")
    assert manner(harness, {"uniqueKey": "", "dedup": dedup}) not in (None, ("h", EXISTING))


@pytest.mark.parametrize("manner", [push, push_durably, push_batch, push_batch_durably])
def test_debouncing_is_shown_and_has_no_effect(harness: EngineHarness, manner: Manner) -> None:
    answers = [manner(harness, {"debounceId": "d", "debounceTtl": 10_000}) for _ in range(2)]

    assert [answer and answer[1] for answer in answers] == [CREATED, CREATED]
    assert len({answer and answer[0] for answer in answers}) == 2
    shown = harness.shown(answers[1][0])
    assert (shown["debounceId"], shown["debounceTtl"], shown["uniqueKey"]) == ("d", 10_000, None)


# custom ids come first

CUSTOM = [
    # where the job of the custom id is, where the key's holder is, who answers, outcome, is the id's former life over
    (waiting, nowhere, "mine", EXISTING),
    (delayed, waiting, "mine", EXISTING),
    (active, waiting, "mine", EXISTING),
    (parked, waiting, "mine", EXISTING),
    (nowhere, waiting, "holder", EXISTING),
    (completed, waiting, "holder", EXISTING),
    (dead, waiting, "holder", EXISTING),
    (completed, nowhere, "mine", CREATED),
    (dead, nowhere, "mine", CREATED),
    (nowhere, nowhere, "mine", CREATED),
]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("mine", "holder", "who", "outcome"), CUSTOM)
def test_a_live_job_of_the_custom_id_answers_before_the_key_is_looked_at(
    harness: EngineHarness,
    mine: Callable[[EngineHarness], None],
    holder: Callable[[EngineHarness], None],
    who: str,
    outcome: str,
    batch: bool,
    durable: bool,
) -> None:
    mine(harness)
    if holder is waiting:
        harness.push("r", jobId="holder", uniqueKey="k")
    harness.commit()
    before = harness.state("h")

    fields = {"uniqueKey": "k", "durable": durable, "data": "new"}
    if batch:
        reply = harness.send("PUSHB", queue="r", jobs=[{"customId": "h", **fields}], receipt=True)
        answer = (reply.ids[0], reply.outcomes[0])
    else:
        reply = harness.send("PUSH", queue="r", jobId="h", receipt=True, **fields)
        answer = (reply.id, reply.outcome)

    assert answer == ({"mine": "h"}.get(who, who), outcome)
    if outcome == EXISTING:
        assert harness.state("h") == before  # SD-27: the former job is not retired, the id not reserved
    else:
        assert harness.shown("h")["data"] == "new"


@pytest.mark.parametrize("durable", [False, True])
def test_a_parked_entry_keeps_its_place_when_a_later_one_of_its_batch_takes_its_key(
    harness: EngineHarness, durable: bool
) -> None:
    harness.push("elsewhere", jobId="dep")
    jobs = [
        {"data": 1, "customId": "first", "uniqueKey": "k", "dependsOn": ["dep"], "durable": durable},
        {"data": 1, "customId": "second", "uniqueKey": "k", "dedup": {"replace": True}},
    ]

    harness.send("PUSHB", queue="q", jobs=jobs)

    assert [harness.state("first"), harness.state("second")] == ["waiting-children", "waiting"]
    assert harness.push(uniqueKey="k") == "second"


def test_should_the_batch_fail_both_are_gone_and_the_key_is_free(harness: EngineHarness) -> None:
    harness.push("elsewhere", jobId="dep")
    jobs = [
        {"data": 1, "customId": "first", "uniqueKey": "k", "dependsOn": ["dep"], "durable": True},
        {"data": 1, "customId": "second", "uniqueKey": "k", "dedup": {"replace": True}},
    ]
    with harness.pending():
        harness.send("PUSHB", queue="q", jobs=jobs)
        harness.reject()

    assert [harness.state("first"), harness.state("second")] == ["unknown", "unknown"]
    assert harness.push(uniqueKey="k", jobId="third") == "third"
