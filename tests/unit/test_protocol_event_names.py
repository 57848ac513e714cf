"""Events as streams show them."""

import re
from pathlib import Path

import pytest
from msgspec import Raw

import bunqueue_trio
from bunqueue_trio.model.events import JobEvent, SystemEvent
from bunqueue_trio.protocol.event_names import SUBSCRIBABLE, Subscriptions, concerns, name_of, shown

PREFIXES = {
    "job", "queue", "dlq", "flow", "cron", "worker", "ratelimit", "concurrency", "webhook", "batch", "client", "auth",
    "cleanup", "health", "stats", "storage", "server", "memory", "config",
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (JobEvent("pulled", "q", "a", 1), "job:active"),
        (JobEvent("pushed", "q", "a", 1), "job:pushed"),
        (JobEvent("paused", "q", "", 1), "job:paused"),
        (SystemEvent("queue:created", 1, {}), "queue:created"),
    ],
)
def test_names(event, name):
    assert name_of(event) == name


def test_a_job_event_shows_what_it_has_in_the_order_of_the_wire_and_no_payload():
    event = JobEvent("failed", "q", "a", 7, Raw(b"\xc0"), error="e", progress=3, prev="active", delay=9)

    assert list(shown(event, has_timestamp=True).items()) == [
        ("queue", "q"), ("jobId", "a"), ("timestamp", 7), ("error", "e"), ("progress", 3), ("prev", "active"),
        ("delay", 9),
    ]  # fmt: skip
    assert shown(JobEvent("pushed", "q", "a", 7), has_timestamp=False) == {"queue": "q", "jobId": "a"}
    assert shown(JobEvent("progress", "q", "a", 7, progress=0), has_timestamp=False)["progress"] == 0


def test_other_events_show_their_data():
    assert shown(SystemEvent("webhook:added", 7, {"id": "w"}), has_timestamp=True) == {"id": "w"}


def test_a_stream_of_a_queue_shows_its_events_and_those_of_none():
    for event, expected in [
        (JobEvent("pushed", "q", "a", 1), True),
        (JobEvent("pushed", "r", "a", 1), False),
        (SystemEvent("queue:created", 1, {"queue": "q"}), True),
        (SystemEvent("queue:created", 1, {"queue": "r"}), False),
        (SystemEvent("stats:snapshot", 1, {}), True),
    ]:
        assert concerns(event, "q") is expected


def test_the_names_that_can_be_subscribed_to():
    assert {name.partition(":")[0] for name in SUBSCRIBABLE} == {*PREFIXES, "*"}
    assert all(f"{prefix}:*" in SUBSCRIBABLE for prefix in PREFIXES)
    assert len(SUBSCRIBABLE) == 1 + len(PREFIXES) + 86
    assert not {"job:waiting", "job:paused", "job:resumed", "job:duplicated", "job:*:*", "", "jobs"} & SUBSCRIBABLE


def test_every_event_that_is_made_can_be_subscribed_to():
    """Names are literals where events are made; a name that nobody can ask for is a slip."""
    made = set()
    for path in Path(bunqueue_trio.__file__).parent.rglob("*.py"):
        if path.name != "event_names.py":
            found = re.findall(rf'"((?:{"|".join(PREFIXES)}):[a-z-]+)"', path.read_text())
            made.update(found)

    assert len(made) > 30
    assert made <= SUBSCRIBABLE


def test_subscriptions_add_up_in_their_order():
    mine = Subscriptions()
    mine.add(["job:pushed", "queue:*"])
    mine.add(["dlq:added", "job:pushed"])

    assert mine.patterns == ["job:pushed", "queue:*", "dlq:added"]
    mine.remove(["job:pushed", "never", 5, None])
    assert mine.patterns == ["queue:*", "dlq:added"]
    mine.remove(None)
    assert mine.patterns == []


def test_unknown_patterns_are_named_in_their_order():
    assert Subscriptions.unknown(["job:*", "bogus:x", "foo", 5, ["*"], "*"]) == ["bogus:x", "foo", 5, ["*"]]


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ([], []),
        (["*"], ["job:active", "job:waiting", "queue:created"]),
        (["job:*"], ["job:active", "job:waiting"]),
        (["job:active"], ["job:active"]),
        (["queue:*", "job:pushed"], ["queue:created"]),
    ],
)
def test_a_pattern_is_everything_a_prefix_or_a_name(patterns, wanted):
    mine = Subscriptions()
    mine.add(patterns)
    events = [
        JobEvent("pulled", "q", "a", 1),
        JobEvent("waiting", "q", "a", 1),
        SystemEvent("queue:created", 1, {"queue": "q"}),
    ]

    assert [name_of(event) for event in events if mine.match(event)] == wanted
