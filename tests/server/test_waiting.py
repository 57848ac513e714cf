"""Parked pulls: order of arrival, deadlines, and that nothing is kept of those who have gone."""

import pytest

from bunqueue_trio.model.commands import Pull, PullBatch
from bunqueue_trio.model.replies import JobReply, JobsReply
from bunqueue_trio.server.waiting import Waiting, empty_reply


class Client:
    """Where a pull came from; answers are not delivered here."""

    id = 1

    def answer(self, waiter, reply):
        raise AssertionError


def park(waiting: Waiting, queue: str = "q", deadline: float = 100.0):
    return waiting.park(Client(), Pull(queue=queue), deadline)


def size_of(waiting: Waiting) -> int:
    """How many waiters are held on to, in whatever structure."""
    return len(waiting._deadlines) + sum(map(len, waiting._by_key.values())) + len(waiting._by_key)


def test_who_has_waited_longest_comes_first_whatever_the_deadlines():
    waiting = Waiting()
    waiters = [park(waiting, deadline=deadline) for deadline in (300, 100, 200)]

    served = []
    while (first := waiting.first("q")) is not None:
        waiting.release(first)
        served.append(first)

    assert served == waiters
    assert waiting.count == 0


def test_queues_do_not_mix():
    waiting = Waiting()
    park(waiting, "a")
    other = park(waiting, "b")

    assert waiting.first("b") is other
    assert waiting.first("c") is None


def test_a_released_waiter_is_gone_for_good():
    waiting = Waiting()
    first, second = park(waiting), park(waiting)

    client = first.client
    assert waiting.release(first) is client
    assert waiting.release(first) is None

    assert waiting.count == 1
    assert waiting.first("q") is second
    assert waiting.everyone() == [second]
    assert waiting.expired(1_000) == [second]


def test_deadlines_are_met_in_their_order_and_not_before():
    waiting = Waiting()
    late, early, same = park(waiting, deadline=200), park(waiting, deadline=100), park(waiting, deadline=200)
    assert waiting.next_deadline_mono_ms() == 100

    assert waiting.expired(99.9) == []
    assert waiting.expired(100) == [early]
    waiting.release(early)

    assert waiting.next_deadline_mono_ms() == 200
    assert waiting.expired(200) == [late, same]


def test_with_nobody_there_is_no_deadline():
    waiting = Waiting()
    assert waiting.next_deadline_mono_ms() == float("inf")

    waiting.release(park(waiting))

    assert waiting.next_deadline_mono_ms() == float("inf")


def test_everyone_is_told_by_queue_and_arrival():
    waiting = Waiting()
    waiters = [park(waiting, queue) for queue in ("a", "b", "a")]

    assert waiting.everyone() == [waiters[0], waiters[2], waiters[1]]


def test_pulls_that_time_out_on_an_idle_queue_leave_nothing_behind():
    waiting = Waiting()

    for moment in range(10_000):
        park(waiting, deadline=moment)
        for waiter in waiting.expired(moment):
            waiting.release(waiter)

    assert size_of(waiting) == 0


def test_pulls_served_long_before_their_deadlines_do_not_pile_up():
    waiting = Waiting()
    keeper = park(waiting, "idle", 60_000)

    for moment in range(10_000):
        waiting.release(park(waiting, deadline=60_000 + moment))

    assert size_of(waiting) <= 1_000 + 4
    assert waiting.first("idle") is keeper
    assert waiting.next_deadline_mono_ms() == 60_000


def test_a_patient_waiter_does_not_keep_the_impatient_ones_behind_it():
    waiting = Waiting()
    patient = park(waiting, deadline=1e9)

    for moment in range(5_000):
        park(waiting, deadline=moment)
        for waiter in waiting.expired(moment):
            waiting.release(waiter)

    assert size_of(waiting) <= 3
    assert waiting.first("q") is patient


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (Pull(queue="q"), JobReply(job=None)),
        (Pull(queue="q", owner="w"), JobReply(job=None, token=None)),
        (PullBatch(queue="q", count=2), JobsReply(jobs=[])),
        (PullBatch(queue="q", count=2, owner="w"), JobsReply(jobs=[], tokens=[])),
    ],
)
def test_a_pull_that_found_nothing_gets_the_shape_it_asked_for(command, reply):
    assert empty_reply(command) == reply
