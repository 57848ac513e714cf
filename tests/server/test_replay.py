"""A stream that was cut off goes on where it stopped, or is told that it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from bunqueue_trio.model.events import JobEvent, SystemEvent
from bunqueue_trio.server.replay import Replay, parse_last_id


def job(name: str, **more) -> JobEvent:
    return JobEvent("pushed", "q", name, 0, **more)


def system(name: str = "queue:created") -> SystemEvent:
    return SystemEvent(name, 0, {})


def ids(missed):
    return [item.id for item in missed.events]


def test_numbers_count_all_events_and_begin_after_the_first():
    replay = Replay(100)

    numbered = replay.record([job("a"), system()]) + replay.record([job("b")])

    assert [item.id for item in numbered] == [101, 102, 103]
    assert [item.event for item in numbered] == [job("a"), system(), job("b")]
    assert replay.last_id == 103


def test_job_events_after_the_last_one_seen_are_given_in_order():
    replay = Replay()
    replay.record([job("a"), system(), job("b"), job("c")])

    missed = replay.since(1)

    assert [(item.id, item.event) for item in missed.events] == [(3, job("b")), (4, job("c"))]
    assert not missed.has_gap


@pytest.mark.parametrize("last_seen", [2, 4])
def test_who_is_up_to_date_has_missed_nothing(last_seen):
    replay = Replay()
    replay.record([job("a"), job("b"), system(), system()])

    missed = replay.since(last_seen)

    assert (missed.events, missed.has_gap) == ([], False)


def test_a_filter_leaves_out_what_does_not_concern_the_client():
    replay = Replay()
    replay.record([job("a"), job("b"), job("c")])

    assert ids(replay.since(1, lambda event: event.job_id != "b")) == [3]


def test_the_ring_is_bounded_and_says_so_when_it_has_lost_something():
    replay = Replay(max_events=3)
    replay.record([job(str(n)) for n in range(1, 6)])

    assert len(replay) == 3
    exact, late = replay.since(2), replay.since(1)

    assert (ids(exact), exact.has_gap) == ([3, 4, 5], False)  # 2 was seen, and all that came after is there
    assert (ids(late), late.has_gap) == ([3, 4, 5], True)  # 2 is lost


def test_system_events_push_nothing_out():
    replay = Replay(max_events=2)
    replay.record([job("a"), job("b"), *[system()] * 50])

    missed = replay.since(1)

    assert (ids(missed), missed.has_gap) == ([2], False)


def test_long_errors_are_bounded_too():
    replay = Replay(max_bytes=100)
    replay.record([job("a", error="x" * 60), job("b", error="x" * 40), job("c")])
    assert len(replay) == 3

    replay.record([job("d", error="x")])

    assert ids(replay.since(1)) == [2, 3, 4]
    assert replay.since(0).has_gap


def test_one_error_larger_than_the_bound_is_not_kept():
    replay = Replay(max_bytes=100)
    replay.record([job("a", error="x" * 101), job("b")])

    assert len(replay) == 1
    assert replay.since(0).has_gap


def test_payloads_are_sent_but_not_kept():
    replay = Replay(max_bytes=100)
    [now] = replay.record([job("a", data=Raw(b"x" * 1_000))])
    [kept] = replay.since(0).events

    assert now.event.data is not UNSET
    assert now.payload_bytes == 1_000
    assert kept.event == job("a")


@pytest.mark.parametrize("asked", [7, 99, 104, 10**15])
def test_a_number_of_another_life_is_a_gap(asked):
    replay = Replay(100)
    replay.record([job("a"), job("b"), job("c")])

    missed = replay.since(asked)

    assert (ids(missed), missed.has_gap) == ([101, 102, 103], True)


def test_the_number_before_the_first_is_no_gap():
    replay = Replay(100)
    replay.record([job("a")])

    assert not replay.since(100).has_gap


def test_a_while_without_recording_is_a_gap_even_for_who_was_up_to_date():
    replay = Replay()
    replay.record([job("a"), job("b")])

    replay.pause()
    assert len(replay) == 0
    assert replay.since(2).has_gap
    [item] = replay.record([job("c")])

    assert item.id == 4
    assert [(ids(missed), missed.has_gap) for missed in (replay.since(2), replay.since(4))] == [
        ([4], True),
        ([], False),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("", None), ("0", None), ("-3", None), ("junk", None), ("12", 12), (" 12 ", 12), ("12abc", 12),
     ("12.9", 12), ("007", 7), ("9" * 5_000, int("9" * 20)), ("¹2", None), ("٣", None)],
)  # fmt: skip
def test_the_header_is_read_up_to_what_is_no_digit(text, expected):
    assert parse_last_id(text) == expected


@given(
    st.lists(st.sampled_from(["job", "system", "pause"]), max_size=40),
    st.integers(1, 5),
    st.integers(-3, 60),
)
def test_without_a_gap_nothing_is_missing(story, max_events, last_seen):
    """Told what came after a number it really saw, a client knows every job event since, or that it does not."""
    replay = Replay(max_events=max_events)
    happened: list[int] = []
    seen: set[int] = {0}
    unrecorded_after: list[int] = []
    for step in story:
        if step == "pause":
            unrecorded_after.append(replay.last_id)
            replay.pause()
            continue
        [item] = replay.record([job("x") if step == "job" else system()])
        seen.add(item.id)
        if step == "job":
            happened.append(item.id)
        assert len(replay) <= max_events

    missed = replay.since(last_seen)

    if last_seen in seen and not missed.has_gap:
        assert ids(missed) == [number for number in happened if number > last_seen]
        assert all(last_seen > at for at in unrecorded_after)
    if last_seen not in range(replay.last_id + 1):
        assert missed.has_gap
