"""A thread for blocking work: in order, one at a time, never abandoned. On the real clock: it is a real thread."""

import threading
import time

import pytest
import trio

from bunqueue_trio.server.writer import WorkThread
from tests.server.fakes import settle_down, wait_for


@pytest.fixture
async def thread():
    made = WorkThread("test-thread")
    yield made
    made.stop()


async def test_results_and_errors_come_back(thread):
    assert await thread.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: "still there") == "still there"


async def test_everything_runs_in_one_thread_of_that_name(thread):
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(5)}

    assert names == {"test-thread"}


async def test_calls_run_in_their_order_and_one_at_a_time(thread):
    trail: list[int] = []

    def work(number):
        trail.append(number)
        time.sleep(0.001)
        trail.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(thread.run, lambda number=number: work(number))
            await settle_down()

    assert trail == sorted(trail)
    assert len(trail) == 20


async def test_the_loop_goes_on_meanwhile(thread, nursery):
    release = threading.Event()
    nursery.start_soon(thread.run, release.wait)

    for _ in range(5):
        await trio.lowlevel.checkpoint()

    release.set()


async def test_a_call_that_has_been_handed_over_is_waited_for(thread):
    began, release, done = threading.Event(), threading.Event(), []

    def work():
        began.set()
        release.wait()
        done.append(True)
        return "result"

    async def let_it_go():
        await wait_for(began.is_set)
        scope.cancel()
        await trio.lowlevel.checkpoint()
        assert done == []
        release.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(let_it_go)
            assert await thread.run(work) == "result"

    assert done == [True]


async def test_a_call_that_is_cancelled_before_is_not_made(thread):
    calls = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await thread.run(lambda: calls.append(1))

    assert scope.cancelled_caught
    await thread.run(lambda: None)
    assert calls == []


async def test_stopping_finishes_what_was_handed_over(nursery):
    thread, done = WorkThread("short-lived"), []

    def work():
        time.sleep(0.01)
        done.append(1)

    nursery.start_soon(thread.run, work)
    nursery.start_soon(thread.run, work)
    await settle_down()
    thread.stop()

    assert done == [1, 1]
    assert "short-lived" not in {t.name for t in threading.enumerate()}


# calls that are handed over


async def test_a_quick_call_is_over_while_the_loop_stands_still(thread):
    call = thread.hand_over(lambda: 42)

    assert call.is_over_within(5.0)
    assert call.result() == 42


async def test_who_waits_for_a_call_that_is_over_has_its_result(thread):
    call = thread.hand_over(lambda: 42)
    await thread.run(lambda: None)

    assert await call.wait() == 42


async def test_a_quick_call_hands_its_error_over(thread):
    call = thread.hand_over(lambda: 1 // 0)

    assert call.is_over_within(5.0)
    with pytest.raises(ZeroDivisionError):
        call.result()


async def test_a_call_that_outlasts_the_patience_is_waited_for_as_any_other(thread):
    release = threading.Event()
    call = thread.hand_over(lambda: release.wait() and "late")
    assert not call.is_over_within(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle_down)
        release.set()

    assert await call.wait() == "late"


async def test_it_makes_no_difference_in_which_moment_the_patience_ends(thread):
    for number in range(300):
        call = thread.hand_over(lambda number=number: time.sleep(0.0001) or number)
        is_over = call.is_over_within(0.0001)
        assert (call.result() if is_over else await call.wait()) == number
