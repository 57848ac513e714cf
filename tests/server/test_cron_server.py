"""Crons in a running server: how exactly they fire, for whom, and when no more."""

import pytest
import trio

from bunqueue_trio.errors import StorageError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.flusher import WINDOW_MS as FLUSH_WINDOW_MS
from tests.server.fakes import QUEUE, Rig, pull, settle_down, wait_for

WINDOW_MS = 20  # how late a job may be there: the flush that carries it


def put(rig: Rig, name: str = "c", /, **fields) -> None:
    talker = rig.talker()
    talker.say("Cron", name=name, queue=QUEUE, data=1, **fields)


def shown(rig: Rig, name: str = "c"):
    return rig.call("CronGet", name=name)["cron"]


async def test_a_cron_is_answered_after_its_commit(rig: Rig, autojump_clock):
    talker = rig.talker()
    rig.store.close_gate()
    talker.say("Cron", name="c", queue=QUEUE, repeatEvery=60_000)
    await settle_down()
    assert talker.replies == []

    rig.store.open_gate()
    await settle_down()

    [reply] = talker.replies
    assert (reply["ok"], reply["cron"]["nextRun"]) == (True, rig.clock.now().wall_ms + 60_000)


@pytest.mark.parametrize("fields", [{"repeatEvery": 1_000}, {"schedule": "* * * * * *"}])
async def test_a_waiting_pull_gets_each_job_at_its_time(rig: Rig, autojump_clock, fields):
    put(rig, preventOverlap=False, **fields)
    await trio.sleep(0.01)
    start_ms = shown(rig)["nextRun"]
    talker = rig.talker()

    for n in range(5):
        talker.segment(pull(timeout=5_000))
        await wait_for(lambda: talker.replies)
        [reply] = talker.take()
        assert 0 <= rig.clock.now().wall_ms - (start_ms + n * 1_000) <= WINDOW_MS
        talker.say("ACK", id=reply["job"]["id"], token=reply["token"])
        await trio.sleep(0.02)
        assert talker.take() == [{"ok": True}]

    assert shown(rig)["executions"] == 5


async def test_the_flush_that_carries_a_run_waits_for_no_others(rig: Rig, autojump_clock):
    put(rig, repeatEvery=1_000)
    await trio.sleep(0.5)
    due_ms = shown(rig)["nextRun"]
    talker = rig.talker()
    talker.segment(pull(timeout=5_000))

    await wait_for(lambda: talker.replies)

    assert rig.clock.now().wall_ms - due_ms < FLUSH_WINDOW_MS / 2


async def test_an_immediate_one_does_not_wait_for_the_next_look_at_the_clock(rig: Rig, autojump_clock):
    await trio.sleep(0.5)
    talker = rig.talker()
    talker.segment(pull(timeout=5_000))
    put(rig, repeatEvery=60_000, immediately=True)

    await trio.sleep(2 * WINDOW_MS / 1_000)

    assert talker.replies[0]["job"]["uniqueKey"] == "cron:c"


async def test_a_durable_push_with_a_delay_is_ready_at_its_time_without_anybody_asking(rig: Rig, autojump_clock):
    await trio.sleep(0.5)
    talker, producer = rig.talker(), rig.talker()
    talker.segment(pull(timeout=5_000))
    await trio.sleep(0.001)
    producer.say("PUSH", queue=QUEUE, data=1, delay=200, durable=True)

    await trio.sleep(0.25)

    assert [reply["job"]["queue"] for reply in talker.replies] == [QUEUE]


async def test_a_jump_of_the_clock_is_noticed_within_a_second(rig: Rig, autojump_clock):
    put(rig, schedule="0 * * * *")
    await trio.sleep(0.1)
    rig.clock.skew(3_600_000)
    await trio.sleep(1.1)

    assert shown(rig)["executions"] == 1


async def test_a_file_that_refuses_is_tried_again_with_pauses_and_the_run_is_made_once(rig: Rig, autojump_clock):
    put(rig, repeatEvery=60_000, preventOverlap=False)
    await trio.sleep(0.1)
    rig.store.fail_always = StorageError("disk trouble")
    await trio.sleep(65)
    assert shown(rig)["executions"] == 0
    assert rig.flusher.failed_count < 30
    rig.store.heal()

    await trio.sleep(40)

    assert (shown(rig)["executions"], rig.call("Count", queue=QUEUE)["count"]) == (1, 1)
    [(executions,)] = rig.store.connection.execute("SELECT executions FROM cron_jobs")
    assert executions == 1


@pytest.mark.parametrize("command", [c.CronDelete(name="c"), c.Cron(name="c", queue=QUEUE, repeat_every=60_000)])
async def test_a_cron_that_is_hardly_ever_at_rest_can_be_removed_and_replaced(rig: Rig, autojump_clock, command):
    put(rig, repeatEvery=1, preventOverlap=False, jobOptions={"removeOnComplete": True})
    await trio.sleep(0.1)
    assert shown(rig)["executions"] > 20

    with trio.fail_after(5):
        reply = await rig.answer(command)
    assert reply.ok
    before = rig.call("Count", queue=QUEUE)["count"]
    await trio.sleep(1)

    assert rig.call("Count", queue=QUEUE)["count"] == before


async def test_while_the_server_stops_there_are_no_new_jobs(rig: Rig, autojump_clock):
    put(rig, repeatEvery=1_000)
    await trio.sleep(0.1)
    rig.broker.stop_pulls()

    await trio.sleep(5)

    assert (shown(rig)["executions"], rig.store.ids) == (0, [])


async def test_monitors_see_crons(rig: Rig, autojump_clock):
    put(rig, repeatEvery=60_000, immediately=True)
    await trio.sleep(0.1)

    assert "bunqueue_cron_jobs_total 1" in rig.call("Prometheus")["data"]["metrics"]
    [listed] = rig.call("DashboardOverview")["data"]["crons"]
    assert listed == {
        "name": "c",
        "queue": QUEUE,
        "schedule": None,
        "repeatEvery": 60_000,
        "nextRun": shown(rig)["nextRun"],
        "executions": 1,
    }


async def test_a_pattern_that_nobody_can_read_comes_before_what_is_wrong_behind_it(rig: Rig, autojump_clock):
    talker = rig.talker()
    talker.say("PUSHB", queue=QUEUE, jobs=[{"data": 1, "repeat": {"pattern": "x"}}, {"data": 1, "priority": "x"}])

    assert talker.replies[0]["error"].startswith("jobs[0]: Invalid cron expression: ")


# commands that had to wait


@pytest.mark.parametrize(
    "command",
    [
        {"cmd": "PUSH", "backoff": {"type": "fixed", "delay": 5}},
        {"cmd": "PUSH", "dedup": {"ttl": 5}},
        {"cmd": "PUSH", "repeat": {"every": 5}},
        {"cmd": "PUSHB", "jobs": [{"data": 1, "uniqueKey": "k", "backoff": {"type": "fixed", "delay": 5}}]},
    ],
)
async def test_a_command_that_has_waited_for_a_commit_is_not_checked_again(rig: Rig, autojump_clock, command):
    first, second = rig.talker(), rig.talker()
    rig.store.close_gate()
    first.say("PUSH", queue=QUEUE, data=1, uniqueKey="k", durable=True)
    hold = second.segment({"queue": QUEUE, "data": 1, "uniqueKey": "k", **command})
    assert hold is not None
    rig.store.open_gate()
    await settle_down()

    assert second.go_on() is None

    assert [reply["ok"] for reply in second.replies] == [True]


async def test_a_cron_that_has_waited_for_a_commit_keeps_its_options(rig: Rig, autojump_clock):
    first, second = rig.talker(), rig.talker()
    rig.store.close_gate()
    first.say("Cron", name="c", queue=QUEUE, repeatEvery=60_000)
    options = {"dedup": {"ttl": 5}, "jobOptions": {"backoff": {"type": "fixed", "delay": 5}}}
    assert second.say("Cron", name="c", queue=QUEUE, repeatEvery=60_000, **options) is not None
    rig.store.open_gate()
    await settle_down()

    second.go_on()
    await settle_down()

    assert second.replies[0]["ok"]
    job = rig.engine.state.crons.by_name["c"].job
    assert (job.dedup.ttl, job.options.backoff.delay) == (5, 5)
