"""Checks of all commands but the pushes: their texts, their order, and the forms they leave."""

import math
from copy import copy
from datetime import UTC, datetime

import msgpack
import pytest
from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\x00")


def sent(cmd: str, **fields: object) -> c.AnyCommand:
    """A command as a client sends it, decoded and checked; names are the wire's."""
    command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
    checked(command)
    return command


def refusal(cmd: str, **fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        sent(cmd, **fields)
    return str(caught.value)


@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
def test_pulls_have_defaults(cmd):
    command = sent(cmd, queue="q", timeout=None, lockTtl=UNDEFINED)

    assert (command.timeout, command.lock_ttl, command.owner) == (0, 30_000, None)


@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"queue": None}, "Queue name is required"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
        ({"queue": "x" * 257, "timeout": -1}, "Queue name too long (max 256 characters)"),
        ({"timeout": "5"}, "timeout must be a number"),
        ({"timeout": math.inf}, "timeout must be a finite number"),
        ({"timeout": -1, "lockTtl": 0}, "timeout must be at least 0"),
        ({"timeout": 60_001}, "timeout must be at most 60000"),
        ({"lockTtl": "5"}, "lockTtl must be a number"),
        ({"lockTtl": 0}, "lockTtl must be at least 1"),
        ({"lockTtl": -5}, "lockTtl must be at least 1"),
        ({"lockTtl": 86_400_001}, "lockTtl must be at most 86400000"),
    ],
)
def test_pulls_are_refused(cmd, fields, text):
    assert refusal(cmd, **{"queue": "q", **fields}) == text


@pytest.mark.parametrize(
    ("owner", "kept"),
    [("w", "w"), ("", None), (None, None), (0, None), (False, None), (5, "5"), (5.0, "5"), (True, "true"), ([1], "1")],
)
def test_any_truthy_owner_is_kept_as_text(owner, kept):
    assert sent("PULL", queue="q", owner=owner).owner == kept


@pytest.mark.parametrize(("detach", "kept"), [(1, True), (True, True), (0, False), (None, False), ("false", True)])
def test_detach_follows_javascript(detach, kept):
    assert sent("PULL", queue="q", detach=detach).detach is kept


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ("5", "count must be a number"),
        (math.nan, "count must be a finite number"),
        (1.5, "count must be an integer"),
        (0, "count must be at least 1"),
        (1_001, "count must be at most 1000"),
    ],
)
def test_counts_of_batches_are_refused(count, text):
    assert refusal("PULLB", queue="q", count=count) == text


@pytest.mark.parametrize(("count", "kept"), [(None, 1), (1, 1), (1_000, 1_000), (7.0, 7)])
def test_counts_of_batches_are_integers(count, kept):
    command = sent("PULLB", queue="q", count=count)

    assert command.count == kept
    assert type(command.count) is int


WITH_ID = ["ACK", "FAIL", "JobHeartbeat", "ExtendLock", "Progress"]


@pytest.mark.parametrize("cmd", WITH_ID)
@pytest.mark.parametrize("job_id", [None, 5, True, [], b"x", UNDEFINED], ids=repr)
def test_an_id_must_be_a_string(cmd, job_id):
    assert refusal(cmd, id=job_id, token=5, progress="x") == "id must be a string"


@pytest.mark.parametrize("cmd", WITH_ID[:4])
def test_tokens(cmd):
    assert sent(cmd, id="a", token="t").token == "t"
    assert sent(cmd, id="a", token="").token is None
    assert sent(cmd, id="a", token=None).token is None
    assert sent(cmd, id="a").token is None
    assert refusal(cmd, id="a", token=5) == "token must be a string"
    assert refusal(cmd, id="a", token=False) == "token must be a string"


def test_a_null_result_is_present():
    assert bytes(sent("ACK", id="a", result=None).result) == b"\xc0"
    assert sent("ACK", id="a").result is c.ABSENT


@pytest.mark.parametrize("cmd", ["ACKB", "JobHeartbeatB", "ExtendLocks"])
def test_ids_are_a_list_of_strings(cmd):
    for ids in (None, 5, "a", {}, UNDEFINED):
        assert refusal(cmd, ids=ids) == "ids must be an array"
    assert refusal(cmd, ids=["a", 5]) == "ids[1] must be a string"


@pytest.mark.parametrize("cmd", ["ACKB", "JobHeartbeatB", "ExtendLocks"])
def test_token_lists(cmd):
    more = {"durations": []} if cmd == "ExtendLocks" else {}
    command = sent(cmd, ids=["a", "b", "c"], tokens=["t", "", None], **more)

    assert command.tokens == ["t", None, None]
    assert refusal(cmd, ids=["a"], tokens=5) == "tokens must be an array"
    assert refusal(cmd, ids=["a", "b"], tokens=["t", 5]) == "tokens[1] must be a string"


def test_lists_of_a_batch_match_its_ids():
    assert refusal("ACKB", ids=["a"], tokens=["t", "u"]) == "tokens must match ids length"
    assert refusal("ACKB", ids=["a"], tokens=[]) == "tokens must match ids length"
    assert refusal("ACKB", ids=["a"], results=[1, 2]) == "results must match ids length"
    assert refusal("ACKB", ids=["a"], results=[]) == "results must match ids length"
    assert refusal("ACKB", ids=["a"], results={}) == "results must be an array"
    assert refusal("ACKB", ids=["a"], tokens=5, results={}) == "tokens must be an array"
    assert refusal("ACKB", ids=5, results={}) == "ids must be an array"


def test_a_batch_of_acks_keeps_what_was_sent():
    command = sent("ACKB", ids=["a", "b"], results=[1, UNDEFINED])
    empty = sent("ACKB", ids=[])

    assert command.results == [Raw(b"\x01"), c.ABSENT]
    assert command.tokens is None
    assert (empty.ids, empty.tokens, empty.results) == ([], None, None)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("boom", "boom"),
        ("", ""),
        (None, None),
        (UNDEFINED, None),
        (5, "5"),
        (True, "true"),
        ({"message": "x", "n": [1, None]}, '{"message":"x","n":[1,null]}'),
        ({1: 2}, '{"1":2}'),
        (math.nan, "null"),
    ],
)
def test_errors_are_kept_as_text(error, kept):
    assert sent("FAIL", id="a", error=error).error == kept


def test_an_error_that_has_no_text_is_refused():
    command = c.Fail(id="a", error={(1, 2): 3})

    with pytest.raises(ValidationError, match="error must be a string"):
        checked(command)


@pytest.mark.parametrize(("value", "kept"), [(True, True), (1, True), ("x", True), (0, False), (None, False)])
def test_unrecoverable_follows_javascript(value, kept):
    assert sent("FAIL", id="a", unrecoverable=value).unrecoverable is kept


@pytest.mark.parametrize(
    ("stack", "kept"),
    [
        (["  at a\n", "\ufeffat b\u2003", "", "  "], ["at a", "at b"]),
        ([1, "x", None, {}], ["x"]),
        (["", " \t"], []),
        ([1], []),
        ([], None),
        (None, None),
        ("at a", None),
        ({}, None),
        ([str(n) for n in range(150)], [str(n) for n in range(100)]),
        ([" "] * 100 + ["x"], []),
    ],
)
def test_stacks_are_trimmed(stack, kept):
    assert sent("FAIL", id="a", stack=stack).stack == (None if kept is None else tuple(kept))


@pytest.mark.parametrize("cmd", ["JobHeartbeat", "ExtendLock"])
def test_durations(cmd):
    assert sent(cmd, id="a", duration=5_000.0).duration == 5_000
    assert sent(cmd, id="a", duration=None).duration is None
    assert refusal(cmd, id="a", duration="5") == "duration must be a number"
    assert refusal(cmd, id="a", duration=math.nan) == "duration must be a finite number"
    assert refusal(cmd, id="a", duration=0) == "duration must be at least 1"
    assert refusal(cmd, id="a", duration=86_400_001) == "duration must be at most 86400000"


def test_missing_tokens_of_heartbeats_count_as_none():
    assert sent("JobHeartbeatB", ids=["a", "b"]).tokens == [None, None]
    assert sent("JobHeartbeatB", ids=["a", "b"], tokens=["t"]).tokens == ["t", None]
    assert sent("JobHeartbeatB", ids=["a"], tokens=["t", "u"]).tokens == ["t"]


def test_extending_several_locks_needs_all_lists():
    command = sent("ExtendLocks", ids=["a", "b"], tokens=["t"], durations=[5.0, None, 7])

    assert (command.tokens, command.durations) == (["t", None], [5, None])
    assert refusal("ExtendLocks", ids=["a"], durations=[5]) == "tokens must be an array"
    assert refusal("ExtendLocks", ids=["a"], tokens=["t"]) == "durations must be an array"
    assert refusal("ExtendLocks", ids=["a"], tokens=[], durations=[0]) == "durations[0] must be at least 1"


@pytest.mark.parametrize(
    ("progress", "kept"),
    [
        (50, 50),
        (12.5, 12.5),
        (-5, 0),
        (1e9, 100),
        (math.inf, 100),
        ("40", 40),
        (" 12.5 ", 12.5),
        ("1e1", 10),
        (2**60, 100),
    ],
)
def test_progress_is_clamped(progress, kept):
    assert sent("Progress", id="a", progress=progress).progress == kept


@pytest.mark.parametrize("progress", [None, True, "", "x", "0x10", "1_0", "1e999", "nan", [], {}, math.nan])
def test_progress_must_be_a_number(progress):
    assert refusal("Progress", id="a", progress=progress) == "progress must be a number"


def test_a_progress_message_may_be_null_or_absent():
    assert bytes(sent("Progress", id="a", progress=1, message=None).message) == b"\xc0"
    assert sent("Progress", id="a", progress=1, message=UNDEFINED).message is c.ABSENT


@pytest.mark.parametrize("cmd", ["GetState", "GetResult"])
def test_ids_that_are_echoed_are_fit_to_be_sent(cmd):
    assert sent(cmd, id="a").id == "a"
    assert sent(cmd).id is None
    assert sent(cmd, id=5).id == 5
    assert type(sent(cmd, id=2**40).id) is float
    assert sent(cmd, id={1: [2**40]}).id == {"1": [2.0**40]}


def test_an_id_that_cannot_be_sent_is_refused():
    with pytest.raises(ValidationError, match="id must be a string"):
        checked(c.GetState(id={(1, 2): 3}))


@pytest.mark.parametrize("cmd", ["GetJob", "Cancel", "GetProgress", "GetJobByCustomId", "Ping", "Hello", "ListQueues"])
def test_commands_without_checks_take_anything(cmd):
    assert type(sent(cmd, id=[5], customId=5)).__struct_config__.tag == cmd


WITH_ANY_QUEUE = ["Count", "GetJobCounts", "Pause", "Resume", "IsPaused", "Dlq", "SetStallConfig", "GetStallConfig"]


@pytest.mark.parametrize("cmd", WITH_ANY_QUEUE)
def test_queues_of_other_commands_may_be_any_string(cmd):
    for queue in ("q", "", "a b", "x" * 300):
        assert sent(cmd, queue=queue).queue == queue
    for queue in (None, UNDEFINED):
        assert refusal(cmd, queue=queue) == "Queue name is required"
    for queue in (0, 5, False, [], b"q"):
        assert refusal(cmd, queue=queue) == "queue must be a string"


@pytest.mark.parametrize(("count", "kept"), [(None, None), (0, None), (0.5, None), (3, 3), (2.9, 2)])
def test_dlq_counts(count, kept):
    assert sent("Dlq", queue="q", count=count).count == kept


def test_a_dlq_count_must_be_a_number():
    assert refusal("Dlq", queue="q", count="x") == "count must be a number"
    assert refusal("Dlq", queue="q", count=-1) == "count must be at least 0"


def test_valid_stall_settings_are_kept_under_their_names():
    config = {"enabled": False, "stallInterval": "5000", "maxStalls": 0, "gracePeriod": 2.0}

    assert sent("SetStallConfig", queue="q", config=config).config == {
        "enabled": False,
        "stall_interval": 5_000,
        "max_stalls": 0,
        "grace_period": 2,
    }


@pytest.mark.parametrize(
    "config",
    [
        None,
        5,
        [],
        {"other": 1},
        {"enabled": "yes"},
        {"enabled": None, "stallInterval": None, "maxStalls": None},
        {"stallInterval": 0},
        {"stallInterval": -1, "maxStalls": -1, "gracePeriod": -1},
        {"stallInterval": "soon", "maxStalls": True, "gracePeriod": math.nan},
        {"stallInterval": 1e300, "gracePeriod": math.inf},
    ],
)
def test_stall_settings_that_make_no_sense_are_dropped(config):
    assert sent("SetStallConfig", queue="q", config=config).config == {}


def test_a_worker_has_defaults():
    command = sent("RegisterWorker", name="w", hostname="", pid=0)

    assert (command.queues, command.concurrency) == ([], 1)
    assert (command.worker_id, command.hostname, command.pid, command.started_at) == (None, None, None, None)


def test_a_worker_is_taken_as_it_describes_itself():
    command = sent(
        "RegisterWorker", name="w", queues=["q"], concurrency=5.0, workerId="i", hostname="h", pid=7, startedAt=2**41
    )

    assert (command.queues, command.concurrency, command.worker_id, command.hostname) == (["q"], 5, "i", "h")
    assert (command.pid, command.started_at) == (7, 2.0**41)
    assert type(command.started_at) is float


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": None}, "Worker name is required"),
        ({"name": ""}, "Worker name is required"),
        ({"name": 5}, "name must be a string"),
        ({"queues": "q"}, "queues must be an array"),
        ({"queues": [5]}, "queues[0] must be a string"),
        ({"concurrency": "5"}, "concurrency must be a number"),
        ({"concurrency": -1}, "concurrency must be at least 0"),
        ({"workerId": 5}, "workerId must be a string"),
        ({"hostname": 5}, "hostname must be a string"),
        ({"pid": "5"}, "pid must be a number"),
        ({"startedAt": "now"}, "startedAt must be a number"),
        ({"name": "x" * 1_025}, "name too long (max 1024 characters)"),
        ({"workerId": "x" * 1_025}, "workerId too long (max 1024 characters)"),
        ({"hostname": "x" * 1_025}, "hostname too long (max 1024 characters)"),
        ({"queues": ["q", "x" * 1_025]}, "queues[1] too long (max 1024 characters)"),
        ({"queues": ["q"] * 1_001}, "Too many queues (max 1000)"),
        ({"queues": ["x" * 1_024] * 33}, "queues too long (max 32768 characters together)"),
    ],
)
def test_a_worker_is_refused(fields, text):
    assert refusal("RegisterWorker", **{"name": "w", **fields}) == text


def test_a_worker_may_say_so_much_of_itself():
    longest = "x" * 1_024

    few = sent("RegisterWorker", name=longest, workerId=longest, hostname=longest, queues=[longest] * 32)
    many = sent("RegisterWorker", name="w", queues=["x" * 32] * 1_000)

    assert (len(few.queues), len(many.queues)) == (32, 1_000)


def test_counters_of_a_worker():
    command = sent("Heartbeat", id="w", activeJobs=3.0, processed=None)

    assert (command.id, command.active_jobs, command.processed, command.failed) == ("w", 3, None, None)
    assert refusal("Heartbeat", id="w", failed="x") == "failed must be a number"
    assert refusal("Heartbeat", id="w", activeJobs=-1) == "activeJobs must be at least 0"


@pytest.mark.parametrize(
    ("cmd", "wire", "field"),
    [("Heartbeat", "id", "id"), ("UnregisterWorker", "workerId", "worker_id"), ("Auth", "token", "token")],
)
def test_an_id_or_token_that_is_no_string_is_none(cmd, wire, field):
    assert getattr(sent(cmd, **{wire: "x"}), field) == "x"
    for value in (None, 5, [], {}):
        assert getattr(sent(cmd, **{wire: value}), field) is None


def test_a_stack_may_hold_a_timestamp_and_is_still_read():
    moment = msgpack.packb(datetime(2026, 1, 1, tzinfo=UTC), datetime=True)
    body = b"\x83\xa3cmd\xa4FAIL\xa2id\xa1a\xa5stack\x92" + moment + b"\xa1x"
    command = decode_command(body)

    checked(command)

    assert command.stack == ("x",)


AGAIN = [
    {"cmd": "GetJobs", "queue": "q", "limit": -1},
    {"cmd": "GetJobs", "queue": "q", "limit": "7.5", "offset": -3, "state": []},
    {"cmd": "RetryDlq", "queue": "q"},
    {"cmd": "RetryDlq", "queue": "q", "count": None},
    {"cmd": "PromoteJobs", "queue": "q"},
    {"cmd": "PromoteJobs", "queue": "q", "count": "2.5"},
    {"cmd": "SetDlqConfig", "queue": "q", "config": {"autoRetry": True, "maxEntries": 0, "maxAge": None}},
    {"cmd": "SetStallConfig", "queue": "q", "config": {"stallInterval": "5", "maxStalls": 2}},
    {"cmd": "FAIL", "id": "j", "stack": [" "], "error": {"a": 1}},
    {"cmd": "FAIL", "id": "j", "stack": [], "error": 5},
    {"cmd": "Clean", "queue": "q", "grace": 0, "limit": -1, "state": 5},
    {"cmd": "Dlq", "queue": "q", "count": 0},
    {"cmd": "RateLimit", "queue": "q", "limit": True, "duration": -1, "ttl": "5"},
    {"cmd": "ClearLogs", "id": "j", "keepLogs": -1},
    {"cmd": "GetLogs", "id": "j", "start": "1.5", "end": -1},
    {"cmd": "DashboardQueue", "queue": "q", "jobsLimit": 0},
    {"cmd": "RetryCompleted", "queue": "q", "id": ""},
    {"cmd": "WaitJob", "id": "j", "timeout": 0},
    {"cmd": "PULL", "queue": "q", "owner": 0, "detach": "x"},
    {"cmd": "ACKB", "ids": ["j"], "tokens": [""]},
    {"cmd": "ExtendLocks", "ids": ["j"], "tokens": [], "durations": [1, 2]},
    {"cmd": "Progress", "id": "j", "progress": "500"},
    {"cmd": "Cron", "name": "n", "queue": "q", "data": 1, "repeatEvery": 5, "jobOptions": {"timeout": 5}, "dedup": {}},
    {"cmd": "Cron", "name": "n", "queue": "q", "data": 1, "schedule": "* * * * *", "maxLimit": 2.5, "immediately": 1},
    {"cmd": "PUSH", "queue": "q", "data": 1, "backoff": {"type": "fixed", "delay": 5}, "dedup": {"ttl": 5}},
    {"cmd": "PUSH", "queue": "q", "data": 1, "durable": 1, "repeat": {"every": 5, "startDate": "2030-01-01"}},
    {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1, "backoff": {"type": "fixed", "delay": 5}, "dependsOn": ["a"]}]},
]


@pytest.mark.parametrize("fields", AGAIN, ids=lambda fields: fields["cmd"])
def test_a_checked_command_stays_as_it_is_when_it_is_checked_again(fields):
    command = decode_command(msgpack.packb(fields))
    checked(command)
    once = copy(command)

    checked(command)

    assert command == once
