"""The task that lets time pass: exactly when something is due, at least once a second, and never in a loop."""

import pytest
import trio

from bunqueue_trio.clock import TrioClock
from bunqueue_trio.server.reaper import MAX_SLEEP_S, run_reaper
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down, wait_for


def count_ticks(rig: Rig) -> list[float]:
    """When `Broker.tick` is called from now on."""
    moments: list[float] = []
    tick = rig.broker.tick

    def counting(now):
        moments.append(round(now.mono_ms))
        tick(now)

    rig.broker.tick = counting  # type: ignore[method-assign]
    return moments


async def test_with_nothing_to_do_it_looks_once_a_second(rig: Rig, autojump_clock):
    await settle_down()
    moments = count_ticks(rig)
    await trio.sleep(10.5)

    assert moments == [n * 1_000 * MAX_SLEEP_S for n in range(1, 11)]


async def test_a_lease_ends_exactly_at_its_time(start_rig, autojump_clock):
    rig = await start_rig(lease_grace_ms=0)
    talker = rig.talker()
    talker.segment(*pushes(["a"], backoff=0, stallTimeout=0), pull(lockTtl=1_234))
    await trio.sleep(1.2335)
    assert rig.state("a") == "active"

    await trio.sleep(0.001)

    assert rig.state("a") == "waiting"


async def test_something_due_earlier_than_it_knows_wakes_it(rig: Rig, autojump_clock):
    await trio.sleep(0.5)
    moments = count_ticks(rig)
    talker = rig.talker()
    talker.segment(pull(timeout=20))
    await trio.sleep(0.4)

    assert 520 in moments
    assert len(talker.replies) == 1


async def test_what_a_commit_makes_due_wakes_it_too(start_rig, autojump_clock):
    rig = await start_rig()
    await trio.sleep(0.5)
    worker = rig.talker()
    worker.segment(pull(timeout=5_000))

    rig.talker().segment(*pushes(["a"], durable=True, delay=200))
    await trio.sleep(0.205)

    assert [reply["job"]["id"] for reply in worker.replies] == ["a"]


async def test_many_due_moments_are_met_one_by_one(rig: Rig, autojump_clock):
    talker = rig.talker()
    for delay in (30, 10, 20, 10):
        rig.push(f"d{delay}{len(talker.replies)}{rig.engine.state.next_seq}", delay=delay)
    moments = count_ticks(rig)
    await trio.sleep(0.05)

    assert {10, 20, 30} <= set(moments)
    assert len(moments) <= 6
    assert rig.call("GetJobCounts", queue=QUEUE)["counts"]["waiting"] == 4


async def test_a_forward_jump_of_the_wall_clock_is_noticed_within_a_second(rig: Rig, autojump_clock):
    talker = rig.talker()
    rig.push("a", delay=3_600_000)
    talker.segment(pull(timeout=60_000))
    await trio.sleep(10.3)
    rig.clock.skew(3_600_000)
    jumped_s = trio.current_time()
    await wait_for(lambda: talker.replies)

    assert trio.current_time() - jumped_s <= 1
    assert talker.replies[0]["job"]["id"] == "a"


async def test_after_a_backward_jump_nothing_runs_early(rig: Rig, autojump_clock):
    talker = rig.talker()
    rig.push("a", delay=5_000)
    talker.segment(pull(timeout=60_000))
    await trio.sleep(3)
    rig.clock.skew(-10_000)
    await trio.sleep(3)
    assert talker.replies == []
    await trio.sleep(9.1)

    assert [reply["job"]["id"] for reply in talker.replies] == ["a"]


@pytest.mark.parametrize(("by_ms", "is_told"), [(3_600_000, True), (-3_600_000, True), (1_000, True), (-999, False)])
async def test_a_jump_of_the_wall_clock_is_told_once(rig: Rig, autojump_clock, log, by_ms, is_told):
    await trio.sleep(3)
    assert log() == []

    rig.clock.skew(by_ms)
    await trio.sleep(3)

    told = [{"message": "The wall clock has jumped", "level": "warn", "data": {"byMs": by_ms}}] * is_told
    assert [{name: line[name] for name in ("message", "level", "data")} for line in log()] == told


async def test_a_process_that_stood_still_is_told_of_and_is_no_jump_of_the_wall_clock(
    rig: Rig, autojump_clock, log, monkeypatch
):
    await trio.sleep(3)
    still = [60_000.0]
    monkeypatch.setattr(TrioClock, "beat", lambda _clock: still.pop() if still else 0.0)

    rig.clock.skew(60_000)  # one clock goes on without the other
    await trio.sleep(3)

    assert [(line["message"], line["data"]) for line in log()] == [
        ("The process stood still; leases do not count that time", {"forMs": 60_000.0})
    ]


async def test_when_the_reaper_ends_all_time_counts_again(start_rig, nursery, autojump_clock, monkeypatch):
    rests = []
    monkeypatch.setattr(TrioClock, "rest", lambda clock: rests.append(clock))
    rig = await start_rig(reaper=False)
    with trio.move_on_after(5):
        await run_reaper(rig.broker, worker_cleanup_interval_ms=1_000)

    assert rests == [rig.clock]


async def test_leases_and_waits_do_not_mind_the_wall_clock(rig: Rig, autojump_clock):
    talker, other = rig.talker(), rig.talker()
    talker.segment(*pushes(["a"], backoff=0), pull(lockTtl=10_000))
    other.segment(pull(queue="other", timeout=10_000))
    await trio.sleep(1)
    rig.clock.skew(86_400_000)
    await trio.sleep(5)

    assert rig.state("a") == "active"
    assert other.replies == []


async def test_more_ended_leases_than_one_tick_takes_are_ended_in_the_next(start_rig, autojump_clock):
    rig = await start_rig(lease_grace_ms=0)
    talker = rig.talker()
    for _ in range(3):
        rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1, "backoff": 0}] * 1_000)
    for _ in range(3):
        talker.say("PULLB", queue=QUEUE, count=1_000, owner="w", lockTtl=1_000)
    assert rig.engine.active_count == 3_000
    await trio.sleep(1.01)

    assert rig.engine.active_count == 0


async def test_silent_workers_are_forgotten_after_three_times_their_timeout(start_rig, nursery, autojump_clock):
    rig = await start_rig(reaper=False)
    rig.engine.workers.timeout_ms = 10_000
    nursery.start_soon(lambda: run_reaper(rig.broker, worker_cleanup_interval_ms=1_000))
    silent, alive = rig.talker(), rig.talker()
    silent.say("RegisterWorker", name="s", queues=[QUEUE], workerId="s")
    alive.say("RegisterWorker", name="a", queues=[QUEUE], workerId="a")
    for _ in range(29):
        await trio.sleep(1)
        alive.say("Heartbeat", id="a")
    assert set(rig.engine.state.workers) == {"s", "a"}
    await trio.sleep(3)

    assert set(rig.engine.state.workers) == {"a"}
