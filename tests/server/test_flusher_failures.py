"""When the file refuses: promises, order, delays, the alarm, recovery, and rows that can never be stored.

Source: R84 to R89, K19, K20, PD-6.
"""

import pytest
import trio

from bunqueue_trio.errors import DiskFullError, StorageError
from bunqueue_trio.server import flusher as flusher_module
from bunqueue_trio.server.flusher import log_critical
from tests.server.fakes import FULL, QUEUE, Rig, pull, pushes, settle_down, wait_for

DISK_ERROR = "disk I/O error"


def numbered(count: int, prefix: str = "j") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def rounded(times: list[float], start: float) -> list[float]:
    return [round(time - start, 6) for time in times]


@pytest.mark.parametrize("text", [DISK_ERROR, "database is locked", "attempt to write a readonly database"])
async def test_promises_of_a_failed_flush_are_refused_in_sqlites_words_and_leave_no_trace(rig: Rig, mock_clock, text):
    rig.push("held")
    worker = rig.talker()
    worker.segment(pull())
    token = worker.take()[0]["token"]
    rig.store.fail_next.append(StorageError(text))
    pusher, admin = rig.talker(), rig.talker()
    pusher.segment(*pushes(["durable"], durable=True, uniqueKey="k"))
    worker.say("ACK", id="held", token=token)
    admin.say("Pause", queue=QUEUE)
    await settle_down()

    refusal = [{"ok": False, "error": text}]
    assert (pusher.replies, worker.replies, admin.replies) == (refusal, refusal, refusal)
    assert rig.state("durable") == "unknown"
    assert rig.state("held") == "active"
    assert rig.call("IsPaused", queue=QUEUE)["paused"] is False
    rig.check()

    mock_clock.jump(0.1)
    await settle_down()
    assert rig.store.states == {"held": "active"}
    pusher.segment(*pushes(["durable"], durable=True, uniqueKey="k"))
    worker.say("ACK", id="held", token=token)
    await settle_down()
    assert pusher.replies[1:] == [{"ok": True, "id": "durable"}]
    assert worker.replies[1:] == [{"ok": True}]
    assert rig.store.states == {"held": "completed", "durable": "waiting"}


async def test_buffered_jobs_of_a_failed_flush_go_back_in_front_of_newer_ones(rig: Rig, mock_clock):
    rig.store.fail_next.append(StorageError(DISK_ERROR))
    rig.store.close_gate()
    talker = rig.talker()
    talker.segment(*pushes(numbered(100, "old")))
    await settle_down()
    talker.segment(*pushes(numbered(30, "new")))
    rig.store.open_gate()
    await settle_down()
    assert [job.record.id for job in rig.engine.state.changes.jobs] == [*numbered(100, "old"), *numbered(30, "new")]
    assert rig.store.ids == []

    mock_clock.jump(0.1)
    await settle_down()

    assert rig.store.ids == [*numbered(100, "old"), *numbered(30, "new")]
    assert rig.store.commit_count == 1


async def test_a_job_that_changed_since_is_written_in_its_last_state(rig: Rig, autojump_clock):
    rig.store.fail_next.append(StorageError(DISK_ERROR))
    talker = rig.talker()
    talker.segment(*pushes(["a", "b"]))
    await trio.sleep(0.05)
    assert rig.health.is_degraded
    talker.segment(pull())
    await trio.sleep(0.2)

    assert rig.store.states == {"a": "active", "b": "waiting"}


async def test_retries_come_after_100_ms_doubling_to_30_s(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(180)

    assert rounded(rig.store.attempts_s, rig.store.attempts_s[0]) == [
        0,
        0.1,
        0.3,
        0.7,
        1.5,
        3.1,
        6.3,
        12.7,
        25.5,
        51.1,
        81.1,
        111.1,
        141.1,
        171.1,
    ]


async def test_no_regular_trigger_flushes_during_the_pause(rig: Rig, mock_clock):
    rig.store.fill_disk()
    rig.push("a")
    await settle_down()
    mock_clock.jump(0.010)
    await settle_down()
    assert len(rig.store.attempts_s) == 1

    rig.talker().segment(*pushes(numbered(300)))
    await settle_down()
    mock_clock.jump(0.099)
    await settle_down()
    assert len(rig.store.attempts_s) == 1

    mock_clock.jump(0.001)
    await settle_down()
    assert len(rig.store.attempts_s) == 2


async def test_promises_are_refused_at_once_during_the_pause(rig: Rig, mock_clock):
    rig.push("held")
    worker = rig.talker()
    worker.segment(pull())
    token = worker.take()[0]["token"]
    rig.store.fill_disk()
    await settle_down()
    mock_clock.jump(0.010)
    await settle_down()

    for command in (
        {"cmd": "PUSH", "queue": QUEUE, "data": 1, "jobId": "durable", "durable": True},
        {"cmd": "PUSHB", "queue": QUEUE, "jobs": [{"data": 1, "durable": True}]},
        {"cmd": "ACK", "id": "held", "token": token},
        {"cmd": "FAIL", "id": "held", "token": token},
        {"cmd": "Pause", "queue": QUEUE},
        {"cmd": "SetStallConfig", "queue": QUEUE, "config": {"maxStalls": 5}},
    ):
        worker.segment(command)
        assert worker.take() == [{"ok": False, "error": FULL}]
        rig.check()

    assert rig.state("durable") == "unknown"
    assert rig.state("held") == "active"
    assert rig.engine.state.changes.staged == []


@pytest.mark.parametrize("durable", [True, "fsync"])
async def test_a_durable_push_of_a_job_that_is_in_memory_only_is_refused_at_once_during_the_pause(
    rig: Rig, autojump_clock, durable
):
    """It stages nothing, and yet its reply would have to wait for a commit."""
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(1)
    assert rig.health.is_pausing

    pusher = rig.talker()
    pusher.segment(*pushes(["a"], durable=durable))
    assert pusher.take() == [{"ok": False, "error": FULL}]

    assert rig.state("a") == "waiting"
    rig.store.heal()
    await trio.sleep(10)
    pusher.segment(*pushes(["a"], durable=durable))
    assert pusher.take() == [{"ok": True, "id": "a"}]
    assert rig.store.ids == ["a"]


async def test_a_command_that_meets_the_run_of_a_cron_is_refused_at_once_during_the_pause(rig: Rig, autojump_clock):
    """The run of a cron is staged until the pause is over, which may take half a minute."""
    admin = rig.talker()
    admin.segment({"cmd": "Cron", "name": "c", "queue": QUEUE, "repeatEvery": 20_000})
    await trio.sleep(1)
    assert admin.take()[0]["ok"]
    rig.store.fill_disk()
    rig.push("buffered")
    await trio.sleep(22)  # it has become due during a pause
    assert rig.health.is_pausing
    assert rig.engine.state.changes.staged

    for command in (
        {"cmd": "CronDelete", "name": "c"},
        {"cmd": "Cron", "name": "c", "queue": QUEUE, "repeatEvery": 30_000},
    ):
        admin.segment(command)
        assert admin.take() == [{"ok": False, "error": FULL}]
        rig.check()

    rig.store.heal()
    await trio.sleep(31)
    admin.segment({"cmd": "CronDelete", "name": "c"})
    await settle_down()
    assert admin.take() == [{"ok": True}]


async def test_what_needs_no_promise_goes_on_during_the_pause(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(1)

    rig.push("b")
    talker = rig.talker()
    talker.segment(pull(), {"cmd": "Ping"}, {"cmd": "GetState", "id": "a"})

    replies = talker.take()
    assert replies[0]["job"]["id"] == "a"
    assert replies[1]["data"]["pong"] is True
    assert replies[2]["state"] == "active"
    talker.say("JobHeartbeat", id="a", token=replies[0]["token"])
    assert talker.take() == [{"ok": True, "data": {"ok": True}}]


async def test_a_promise_made_while_an_attempt_is_under_way_is_refused_when_that_fails(rig: Rig, mock_clock):
    rig.store.fill_disk()
    rig.store.close_gate()
    rig.push("a")
    await settle_down()
    mock_clock.jump(0.010)
    await settle_down()
    talker = rig.talker()
    talker.segment(*pushes(["durable"], durable=True))
    assert talker.replies == []

    rig.store.open_gate()
    await settle_down()

    assert talker.replies == [{"ok": False, "error": FULL}]
    assert rig.state("durable") == "unknown"


async def test_the_hook_is_called_once_after_ten_retries_and_tries_go_on(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.talker().segment(*pushes(numbered(5)))
    await trio.sleep(80)
    assert (len(rig.store.attempts_s), rig.alarms) == (10, [])
    rig.push("late")
    await trio.sleep(2)
    assert rig.alarms == [([*numbered(5), "late"], FULL, 11)]
    await trio.sleep(300)

    assert len(rig.alarms) == 1
    assert len(rig.store.attempts_s) == 21
    assert rig.flusher.critical_count == 1
    assert rig.flusher.failed_count == 21
    assert rig.health.is_degraded
    assert rig.health.is_disk_full


async def test_the_end_of_another_trouble_is_not_called_that_of_a_full_disk(rig: Rig, autojump_clock, log):
    rig.store.fail_next.append(StorageError(DISK_ERROR))
    rig.push("a")
    await trio.sleep(1)

    assert [line["message"] for line in log() if line["level"] == "info"] == [
        "Trouble with the file cleared - writes succeeding again"
    ]


async def test_each_time_of_trouble_has_its_own_alarm_and_its_own_delays(rig: Rig, autojump_clock):
    for job_id in ("a", "b"):
        rig.store.fill_disk()
        rig.push(job_id)
        await trio.sleep(200)
        rig.store.heal()
        await trio.sleep(31)
        assert not rig.health.is_degraded
        rig.store.attempts_s.clear()

    assert [ids for ids, _, _ in rig.alarms] == [["a"], ["b"]]
    rig.store.fail_next.append(StorageError(DISK_ERROR))
    rig.push("c")
    await trio.sleep(1)
    first, second = rig.store.attempts_s
    assert second - first == pytest.approx(0.1)


async def test_recovery_stores_everything_in_order_and_clears_health(rig: Rig, autojump_clock, log):
    rig.store.fill_disk()
    rig.talker().segment(*pushes(numbered(5)))
    await trio.sleep(200)
    rig.talker().segment(*pushes(numbered(5, "later")))
    log()
    rig.store.heal()
    await trio.sleep(31)

    assert rig.store.ids == [*numbered(5), *numbered(5, "later")]
    assert rig.store.commit_count == 1
    assert (rig.health.is_degraded, rig.health.is_disk_full, rig.health.is_pausing) == (False, False, False)
    assert [line["message"] for line in log()] == ["Disk full condition cleared - writes succeeding again"]


@pytest.mark.parametrize("is_alone", [False, True])
async def test_retries_come_though_the_wal_waits_to_be_folded_in(rig: Rig, autojump_clock, is_alone):
    """A full disk leaves a WAL that cannot be folded in. That is due all along, and must not come before a flush."""
    rig.store.fill_disk()
    rig.push("a")
    if is_alone:
        assert rig.flusher.commit_here()
    await wait_for(lambda: rig.store.attempts_s)
    rig.store.is_checkpoint_due = True
    await trio.sleep(1)
    assert rounded(rig.store.attempts_s, rig.store.attempts_s[0]) == [0, 0.1, 0.3, 0.7]
    rig.store.heal()
    await trio.sleep(31)

    assert rig.store.ids == ["a"]
    assert not rig.health.is_degraded
    assert not rig.store.is_checkpoint_due


async def test_on_a_full_disk_the_wal_is_folded_in_before_each_new_attempt(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(0.2)
    assert (len(rig.store.attempts_s), rig.store.checkpoints) == (2, ["PASSIVE"])
    rig.store.fail_checkpoints = DiskFullError(FULL)  # which keeps nobody from trying
    await trio.sleep(0.2)
    assert (len(rig.store.attempts_s), rig.store.checkpoints) == (3, ["PASSIVE"])
    rig.store.fail_checkpoints = None
    rig.store.fail_always = StorageError(DISK_ERROR)
    await trio.sleep(0.4)
    assert (len(rig.store.attempts_s), rig.store.checkpoints) == (4, ["PASSIVE"] * 2)
    await trio.sleep(10)  # other troubles have nothing to do with space
    assert (len(rig.store.attempts_s), rig.store.checkpoints) == (7, ["PASSIVE"] * 2)
    rig.store.heal()
    await trio.sleep(31)
    assert rig.store.ids == ["a"]


async def test_the_log_says_once_that_the_disk_is_full_and_counts_each_failure(rig: Rig, autojump_clock, log):
    rig.store.fill_disk()
    rig.talker().segment(*pushes(["a", "b"]))
    await trio.sleep(0.5)

    lines = log()
    assert [line["message"] for line in lines] == [
        "DISK FULL: SQLite cannot write, persistence degraded",
        *["Write buffer flush failed"] * 3,
    ]
    assert lines[1]["data"] == {"jobCount": 2, "error": FULL, "diskFull": True}


async def test_freed_space_ends_the_pause_within_a_second(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(120)
    rig.store.heal()
    healed_s = trio.current_time()
    rig.store.free += 65_537
    await wait_for(lambda: rig.store.commit_count)

    assert rig.store.attempts_s[-1] - healed_s <= 1
    assert not rig.health.is_degraded


async def test_a_little_space_and_another_trouble_leave_the_pause_alone(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(120)
    tried = len(rig.store.attempts_s)
    rig.store.free += 65_536
    await trio.sleep(15)
    assert len(rig.store.attempts_s) == tried

    rig.store.fail_always = StorageError(DISK_ERROR)
    await trio.sleep(30)
    tried = len(rig.store.attempts_s)
    rig.store.free += 1 << 30
    await trio.sleep(5)
    assert len(rig.store.attempts_s) == tried


async def test_a_disk_that_stays_full_for_long_stops_nothing(start_rig, autojump_clock, monkeypatch):
    rig = await start_rig(reaper=False)
    monkeypatch.setattr(flusher_module, "SPACE_CHECK_S", 30.0)
    monkeypatch.setattr(flusher_module, "log", _Silent())
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(9.5 * 3_600)
    assert rig.flusher.failed_count > 1_100
    rig.store.heal()
    await trio.sleep(31)

    assert rig.store.ids == ["a"]


class _Silent:
    """A log for thousands of lines that nobody reads."""

    def __getattr__(self, _name):
        return lambda *_args, **_fields: None


async def test_a_full_disk_is_noticed_to_be_free_again_though_nothing_waits_to_be_written(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    talker = rig.talker()
    talker.segment(*pushes(["durable"], durable=True))
    await trio.sleep(300)
    assert talker.take() == [{"ok": False, "error": FULL}]
    assert not rig.engine.state.changes
    assert rig.health.is_degraded  # an empty transaction would have succeeded
    assert rig.alarms == []
    rig.store.heal()
    await trio.sleep(31)

    assert not rig.health.is_degraded
    assert rig.store.ids == []
    talker.segment(*pushes(["durable"], durable=True))
    await trio.sleep(1)
    assert talker.take() == [{"ok": True, "id": "durable"}]


# a row that can never be stored


@pytest.mark.parametrize("is_slow", [True, False])
async def test_a_flush_of_somebody_else_that_is_refused_pauses_and_is_tried_again(
    rig: Rig, nursery, mock_clock, is_slow
):
    """A backup flushes too. When nothing is left to write, nobody else learns that the trouble is over."""
    rig.store.fail_next.append(DiskFullError(FULL))
    pusher = rig.talker()
    pusher.segment(*pushes(["durable"], durable=True))

    if is_slow:
        rig.store.close_gate()

        async def open_gate() -> None:
            await settle_down()  # the flusher has seen meanwhile that nothing is left to do
            rig.store.open_gate()

        nursery.start_soon(open_gate)
    await rig.flusher.flush_all()

    assert pusher.replies == [{"ok": False, "error": FULL}]
    assert rig.health.is_degraded
    assert not rig.engine.state.changes
    await settle_down()
    assert rig.health.is_pausing
    mock_clock.jump(0.1)
    await settle_down()
    assert not rig.health.is_degraded


async def test_a_flush_of_somebody_else_that_succeeds_ends_the_pause(rig: Rig, autojump_clock):
    rig.store.fail_always = StorageError(DISK_ERROR)
    rig.push("a")
    await trio.sleep(15)
    assert rig.health.is_pausing
    rig.store.heal()

    await rig.flusher.flush_all()

    pusher = rig.talker()
    pusher.segment(*pushes(["durable"], durable=True))
    await trio.sleep(1.1)
    assert pusher.replies == [{"ok": True, "id": "durable"}]
    assert rig.store.ids == ["a", "durable"]


async def test_a_row_that_can_never_be_stored_does_not_keep_the_others_out(rig: Rig, autojump_clock):
    rig.store.fail_next.append(StorageError("job 'j1' cannot be stored", transient=False, row_id="j1"))
    rig.talker().segment(*pushes(numbered(3)))
    await trio.sleep(1)

    assert rig.store.ids == ["j0", "j2"]
    assert rig.alarms == [(["j1"], "job 'j1' cannot be stored", 1)]
    assert rig.flusher.critical_count == 1
    assert not rig.health.is_degraded
    assert rig.state("j1") == "waiting"
    rig.check()


async def test_an_ejected_job_can_be_worked(rig: Rig, autojump_clock):
    rig.store.fail_next.append(StorageError("cannot be stored", transient=False, row_id="a"))
    talker = rig.talker()
    talker.segment(*pushes(["a"]))
    await trio.sleep(1)
    talker.segment(pull())
    token = talker.take()[1]["token"]
    talker.say("ACK", id="a", token=token)
    await trio.sleep(1)

    assert talker.take() == [{"ok": True}]
    assert rig.state("a") == "completed"


async def test_a_fault_of_a_row_that_is_no_job_ejects_nothing(rig: Rig, autojump_clock):
    rig.store.fail_next.append(StorageError("settings of queue 'x' cannot be stored", transient=False, row_id="x"))
    talker = rig.talker()
    rig.push("a")
    talker.say("Pause", queue="x")
    await trio.sleep(1)

    assert talker.take() == [{"ok": False, "error": "settings of queue 'x' cannot be stored"}]
    assert rig.store.ids == ["a"]
    assert rig.alarms == []


def test_the_default_hook_names_the_jobs(log):
    rows = [type("J", (), {"record": type("R", (), {"id": f"j{i}"})})() for i in range(101)]

    log_critical(rows, StorageError(DISK_ERROR), 11)

    [line] = log()
    assert line["level"] == "error"
    assert line["data"] == {"jobCount": 101, "attempts": 11, "error": DISK_ERROR, "ids": numbered(100)}
