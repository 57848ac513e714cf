"""The route table: every row reaches its command with every field, and answers with its status."""

import json

import msgpack
import pytest
import trio

from bunqueue_trio.errors import StateError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.web.openapi import document_text
from bunqueue_trio.web.routes import ROUTES, Body
from tests.server.fakes import Rig
from tests.server.http import Http

PUSH = {
    "data": {"a": [1, None]},
    "priority": 1,
    "delay": 2,
    "maxAttempts": 4,
    "backoff": {"type": "fixed", "delay": 5},
    "timeout": 6,
    "jobId": "j",
    "removeOnComplete": True,
    "removeOnFail": False,
    "durable": "fsync",
    "ttl": 7,
    "uniqueKey": "u",
    "groupId": "g",
    "dependsOn": ["d"],
    "tags": ["t"],
    "lifo": True,
    "repeat": {"every": 8},
    "receipt": True,
    "name": "n",
}
CRON = {
    "name": "c",
    "queue": "q",
    "data": {"a": 1},
    "schedule": "* * * * *",
    "repeatEvery": 1,
    "priority": 2,
    "maxLimit": 3,
    "timezone": "UTC",
    "uniqueKey": "u",
    "dedup": {"ttl": 4},
    "skipMissedOnRestart": True,
    "immediately": True,
    "skipIfNoWorker": True,
    "preventOverlap": False,
    "jobOptions": {"ttl": 5},
    "jobName": "n",
}
HOOK = {"url": "https://example.com/h", "events": ["job.failed"], "queue": "q", "secret": "s"}
WORKER = {
    "name": "w",
    "queues": ["q"],
    "concurrency": 2,
    "workerId": "i",
    "hostname": "h",
    "pid": 3,
    "startedAt": 4,
}
COUNTERS = {"activeJobs": 1, "processed": 2, "failed": 3}
CONFIG = {"enabled": False, "maxStalls": "9"}

# method, path, what is sent, the command, its fields, the status of a refusal
CASES = {
    ("POST", "/queues/:queue/jobs"): ("/queues/a%20b/jobs", PUSH, c.Push, {"queue": "a b", **PUSH}, 400),
    ("POST", "/queues/:queue/jobs/bulk"): (
        "/queues/q/jobs/bulk",
        {"jobs": [{"data": 1, "customId": "x"}, {"data": 2, "attempts": 3}], "receipt": 1},
        c.PushBatch,
        {"queue": "q", "jobs": [{"data": 1, "customId": "x"}, {"data": 2, "attempts": 3}], "receipt": 1},
        400,
    ),
    ("GET", "/queues/:queue/jobs"): ("/queues/q/jobs?timeout=12abc", None, c.Pull, {"queue": "q", "timeout": 12}, 200),
    ("POST", "/queues/:queue/jobs/pull-batch"): (
        "/queues/q/jobs/pull-batch",
        {"count": 2, "timeout": 3, "owner": "w", "lockTtl": 4},
        c.PullBatch,
        {"queue": "q", "count": 2, "timeout": 3, "owner": "w", "lockTtl": 4},
        200,
    ),
    ("GET", "/queues/:queue/jobs/list"): (
        "/queues/q/jobs/list?state=waiting&status=,delayed,&states=active,%20failed&states=paused&limit=5&offset=6",
        None,
        c.GetJobs,
        {"queue": "q", "state": ["waiting", "delayed", "active", "failed", "paused"], "limit": 5, "offset": 6},
        200,
    ),
    ("GET", "/jobs/:id"): ("/jobs/a%2Fb", None, c.GetJob, {"id": "a/b"}, 404),
    ("DELETE", "/jobs/:id"): ("/jobs/a%20b", None, c.Cancel, {"id": "a b"}, 200),
    ("GET", "/jobs/custom/:customId"): ("/jobs/custom/x%C3%BC", None, c.GetJobByCustomId, {"customId": "xü"}, 404),
    ("GET", "/jobs/:id/state"): ("/jobs/j/state", None, c.GetState, {"id": "j"}, 404),
    ("GET", "/jobs/:id/result"): ("/jobs/j/result", None, c.GetResult, {"id": "j"}, 404),
    ("GET", "/jobs/:id/progress"): ("/jobs/j/progress", None, c.GetProgress, {"id": "j"}, 404),
    ("GET", "/jobs/:id/children"): ("/jobs/j/children", None, c.GetChildrenValues, {"id": "j"}, 404),
    ("GET", "/jobs/:id/explain"): ("/jobs/a%20b/explain", None, c.Explain, {"id": "a b"}, 404),
    ("POST", "/jobs/:id/ack"): (
        "/jobs/j/ack",
        {"result": {"r": 1}, "token": "t"},
        c.Ack,
        {"id": "j", "result": {"r": 1}, "token": "t"},
        400,
    ),
    ("POST", "/jobs/:id/fail"): (
        "/jobs/j/fail",
        {"error": "e", "token": "t", "unrecoverable": True, "stack": ["s", 3]},
        c.Fail,
        {"id": "j", "error": "e", "token": "t", "unrecoverable": True, "stack": ["s", 3]},
        400,
    ),
    ("POST", "/jobs/ack-batch"): (
        "/jobs/ack-batch",
        {"ids": ["a"], "results": [1], "tokens": ["t"]},
        c.AckBatch,
        {"ids": ["a"], "results": [1], "tokens": ["t"]},
        400,
    ),
    ("POST", "/jobs/extend-locks"): (
        "/jobs/extend-locks",
        {"ids": ["a"], "tokens": ["t"], "durations": [5]},
        c.ExtendLocks,
        {"ids": ["a"], "tokens": ["t"], "durations": [5]},
        400,
    ),
    ("POST", "/jobs/heartbeat-batch"): (
        "/jobs/heartbeat-batch",
        {"ids": ["a"], "tokens": ["t"]},
        c.JobHeartbeatBatch,
        {"ids": ["a"], "tokens": ["t"]},
        400,
    ),
    ("POST", "/jobs/:id/heartbeat"): (
        "/jobs/j/heartbeat",
        {"token": "t", "duration": 5},
        c.JobHeartbeat,
        {"id": "j", "token": "t", "duration": 5},
        400,
    ),
    ("POST", "/jobs/:id/extend-lock"): (
        "/jobs/j/extend-lock",
        {"duration": 5, "token": "t"},
        c.ExtendLock,
        {"id": "j", "duration": 5, "token": "t"},
        400,
    ),
    ("POST", "/jobs/:id/promote"): ("/jobs/j/promote", None, c.Promote, {"id": "j"}, 400),
    ("PUT", "/jobs/:id/data"): ("/jobs/j/data", {"data": [1]}, c.Update, {"id": "j", "data": [1]}, 400),
    ("POST", "/jobs/:id/progress"): (
        "/jobs/j/progress",
        {"progress": 5, "message": "m"},
        c.Progress,
        {"id": "j", "progress": 5, "message": "m"},
        400,
    ),
    ("PUT", "/jobs/:id/priority"): (
        "/jobs/j/priority",
        {"priority": 5, "lifo": True},
        c.ChangePriority,
        {"id": "j", "priority": 5, "lifo": True},
        400,
    ),
    ("PUT", "/jobs/:id/delay"): ("/jobs/j/delay", {"delay": 5}, c.ChangeDelay, {"id": "j", "delay": 5}, 400),
    ("POST", "/jobs/:id/move-to-delayed"): (
        "/jobs/j/move-to-delayed",
        {"delay": 5},
        c.MoveToDelayed,
        {"id": "j", "delay": 5},
        400,
    ),
    ("POST", "/jobs/:id/move-to-wait"): ("/jobs/j/move-to-wait", None, c.MoveToWait, {"id": "j"}, 400),
    ("POST", "/jobs/:id/discard"): ("/jobs/j/discard", None, c.Discard, {"id": "j"}, 400),
    ("GET", "/jobs/:id/logs"): ("/jobs/j/logs?start=1", None, c.GetLogs, {"id": "j"}, 200),
    ("POST", "/jobs/:id/logs"): (
        "/jobs/j/logs",
        {"message": "m", "level": "warn"},
        c.AddLog,
        {"id": "j", "message": "m", "level": "warn"},
        400,
    ),
    ("DELETE", "/jobs/:id/logs"): ("/jobs/j/logs", None, c.ClearLogs, {"id": "j"}, 200),
    ("POST", "/jobs/:id/wait"): ("/jobs/j/wait", {"timeout": 5}, c.WaitJob, {"id": "j", "timeout": 5}, 200),
    ("GET", "/queues"): ("/queues", None, c.ListQueues, {}, 200),
    ("GET", "/queues/:queue/counts"): ("/queues/q%2F/counts", None, c.GetJobCounts, {"queue": "q/"}, 200),
    ("GET", "/queues/:queue/count"): ("/queues/q/count", None, c.Count, {"queue": "q"}, 200),
    ("GET", "/queues/:queue/priority-counts"): (
        "/queues/q/priority-counts",
        None,
        c.GetCountsPerPriority,
        {"queue": "q"},
        200,
    ),
    ("GET", "/queues/:queue/paused"): ("/queues/q/paused", None, c.IsPaused, {"queue": "q"}, 200),
    ("POST", "/queues/:queue/pause"): ("/queues/q/pause", None, c.Pause, {"queue": "q"}, 200),
    ("POST", "/queues/:queue/resume"): ("/queues/q/resume", None, c.Resume, {"queue": "q"}, 200),
    ("POST", "/queues/:queue/drain"): ("/queues/q/drain", None, c.Drain, {"queue": "q"}, 200),
    ("POST", "/queues/:queue/obliterate"): ("/queues/q/obliterate", None, c.Obliterate, {"queue": "q"}, 200),
    ("POST", "/queues/:queue/clean"): (
        "/queues/q/clean",
        {"grace": 5, "state": "failed", "limit": 6},
        c.Clean,
        {"queue": "q", "grace": 5, "state": "failed", "limit": 6},
        200,
    ),
    ("POST", "/queues/:queue/promote-jobs"): (
        "/queues/q/promote-jobs",
        {"count": 5},
        c.PromoteJobs,
        {"queue": "q", "count": 5},
        200,
    ),
    ("POST", "/queues/:queue/retry-completed"): (
        "/queues/q/retry-completed",
        {"id": "j"},
        c.RetryCompleted,
        {"queue": "q", "id": "j"},
        200,
    ),
    ("POST", "/queues/:queue/dlq/retry"): (
        "/queues/q/dlq/retry",
        {"jobId": "j", "count": 3},
        c.RetryDlq,
        {"queue": "q", "jobId": "j"},
        200,
    ),
    ("POST", "/queues/:queue/dlq/replay"): (
        "/queues/q/dlq/replay",
        {"count": 3},
        c.RetryDlq,
        {"queue": "q", "count": 3},
        200,
    ),
    ("POST", "/queues/:queue/dlq/purge"): ("/queues/q/dlq/purge", None, c.PurgeDlq, {"queue": "q"}, 200),
    ("PUT", "/queues/:queue/rate-limit"): (
        "/queues/q/rate-limit",
        {"limit": 5, "duration": 6, "ttl": 7},
        c.RateLimit,
        {"queue": "q", "limit": 5, "duration": 6, "ttl": 7},
        200,
    ),
    ("DELETE", "/queues/:queue/rate-limit"): ("/queues/q/rate-limit", None, c.RateLimitClear, {"queue": "q"}, 200),
    ("PUT", "/queues/:queue/concurrency"): (
        "/queues/q/concurrency",
        {"concurrency": 5, "limit": 6},
        c.SetConcurrency,
        {"queue": "q", "limit": 5},
        200,
    ),
    ("DELETE", "/queues/:queue/concurrency"): ("/queues/q/concurrency", None, c.ClearConcurrency, {"queue": "q"}, 200),
    ("GET", "/queues/:queue/stall-config"): ("/queues/q/stall-config", None, c.GetStallConfig, {"queue": "q"}, 200),
    ("PUT", "/queues/:queue/stall-config"): (
        "/queues/q/stall-config",
        {"config": CONFIG},
        c.SetStallConfig,
        {"queue": "q", "config": CONFIG},
        200,
    ),
    ("GET", "/queues/:queue/dlq-config"): ("/queues/q/dlq-config", None, c.GetDlqConfig, {"queue": "q"}, 200),
    ("PUT", "/queues/:queue/dlq-config"): (
        "/queues/q/dlq-config",
        {"maxEntries": 5},
        c.SetDlqConfig,
        {"queue": "q", "config": {"maxEntries": 5}},
        200,
    ),
    ("GET", "/crons"): ("/crons", None, c.CronList, {}, 200),
    ("POST", "/crons"): ("/crons", CRON, c.Cron, CRON, 400),
    ("GET", "/crons/:name"): ("/crons/a%2Fb", None, c.CronGet, {"name": "a/b"}, 404),
    ("DELETE", "/crons/:name"): ("/crons/a%20b", None, c.CronDelete, {"name": "a b"}, 404),
    ("GET", "/webhooks"): ("/webhooks", None, c.ListWebhooks, {}, 200),
    ("POST", "/webhooks"): ("/webhooks", HOOK, c.AddWebhook, HOOK, 400),
    ("DELETE", "/webhooks/:id"): ("/webhooks/i", None, c.RemoveWebhook, {"webhookId": "i"}, 404),
    ("PUT", "/webhooks/:id/enabled"): (
        "/webhooks/i/enabled",
        {"enabled": True},
        c.SetWebhookEnabled,
        {"id": "i", "enabled": True},
        400,
    ),
    ("GET", "/workers"): ("/workers", None, c.ListWorkers, {}, 200),
    ("POST", "/workers"): ("/workers", WORKER, c.RegisterWorker, WORKER, 400),
    ("DELETE", "/workers/:id"): ("/workers/i", None, c.UnregisterWorker, {"workerId": "i"}, 404),
    ("POST", "/workers/:id/heartbeat"): (
        "/workers/i/heartbeat",
        COUNTERS,
        c.WorkerHeartbeat,
        {"id": "i", **COUNTERS},
        200,
    ),
    ("GET", "/ping"): ("/ping", None, c.Ping, {}, 200),
    ("GET", "/storage"): ("/storage", None, c.StorageStatus, {}, 200),
}
COMMAND_ROUTES = {(route.method, route.pattern): route for route in ROUTES if not route.look}
LOOKS = {(route.method, route.pattern): route for route in ROUTES if route.look}


class Recorder:
    """Stands in front of a broker: notes what is executed, and answers plain ok or refuses."""

    def __init__(self, rig: Rig, refusal: str = "") -> None:
        self.commands: list = []
        self._refusal = refusal
        rig.broker.execute = self.execute  # type: ignore[method-assign]
        rig.broker.waits_for_commit = False

    def execute(self, command, client, now):
        self.commands.append(command)
        if self._refusal:
            raise StateError(self._refusal)
        return Reply()


def wire_command(kind, fields):
    """The command as it would have come over TCP."""
    return decode_command(msgpack.packb({"cmd": kind.__struct_config__.tag, **fields}))


def test_every_row_has_its_case_and_none_is_stale():
    assert set(CASES) == set(COMMAND_ROUTES)


@pytest.mark.parametrize("row", CASES, ids=" ".join)
def test_each_field_of_a_row_is_in_its_case(row):
    _, sent, kind, fields, _ = CASES[row]
    route = COMMAND_ROUTES[row]

    assert route.kind is kind
    assert set(route.fields) <= set(sent or {})
    assert set(route.path.values()) <= set(fields)
    dropped = {"count"} if kind is c.RetryDlq else set()  # Wire: it is not passed on
    assert set(sent or {}) - dropped <= {*route.fields, *route.also} or "config" in route.also


@pytest.mark.parametrize("row", CASES, ids=" ".join)
async def test_a_request_becomes_the_command_that_it_would_be_on_the_wire(rig: Rig, row):
    path, sent, kind, fields, _ = CASES[row]
    recorder = Recorder(rig)

    assert await Http(rig).reply(row[0], path, json=sent) == {"ok": True}

    assert recorder.commands == [wire_command(kind, fields)]


@pytest.mark.parametrize("row", CASES, ids=" ".join)
async def test_a_refusal_has_the_status_of_its_group(rig: Rig, row):
    path, sent, _, _, status = CASES[row]
    Recorder(rig, "no, thanks")

    assert await Http(rig).ask(row[0], path, json=sent) == (status, {"ok": False, "error": "no, thanks"})


@pytest.mark.parametrize("row", [row for row in CASES if "config" not in CASES[row][3]], ids=" ".join)
async def test_nothing_but_the_fields_of_its_row_comes_from_a_body(rig: Rig, row):
    path, sent, kind, fields, _ = CASES[row]
    recorder = Recorder(rig)
    foreign = {"cmd": "Obliterate", "reqId": "r", "(plain)": True, "detach": True, "parentId": "p", "keepLogs": 1}

    await Http(rig).ask(row[0], path, json={**foreign, **(sent or {})})

    assert recorder.commands == [wire_command(kind, fields)]


@pytest.mark.parametrize(
    ("path", "sent", "fields"),
    [
        ("/queues/q/jobs", {"data": 1, "attempts": 5}, {"maxAttempts": 5}),
        ("/queues/q/jobs", {"data": 1, "attempts": 5, "maxAttempts": 6}, {"maxAttempts": 6}),
        ("/queues/q/jobs", {"data": 1, "attempts": 5, "maxAttempts": None}, {"maxAttempts": 5}),
    ],
)
async def test_attempts_is_another_name(rig: Rig, path, sent, fields):
    recorder = Recorder(rig)

    await Http(rig).ask("POST", path, json=sent)

    assert recorder.commands == [wire_command(c.Push, {"queue": "q", "data": 1, **fields})]


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("", {}),
        ("?state=paused", {"state": "paused"}),
        ("?status=a&status=b", {"state": ["a", "b"]}),
        ("?state=,%20,", {}),
        ("?limit=7.9", {"limit": 7}),
        ("?limit=-1&offset=-2x", {"limit": -1, "offset": -2}),
    ],
)
async def test_what_is_listed(rig: Rig, query, fields):
    recorder = Recorder(rig)

    await Http(rig).ask("GET", f"/queues/q/jobs/list{query}")

    assert recorder.commands == [wire_command(c.GetJobs, {"queue": "q", **fields})]


@pytest.mark.parametrize(
    ("sent", "grace"),
    [({}, 0), ({"grace": None}, 0), ({"grace": 5}, 5), ({"grace": "5"}, "5"), ({"grace": True}, True)],
)
async def test_grace_may_be_missing_and_nothing_else(rig: Rig, sent, grace):
    recorder = Recorder(rig)

    await Http(rig).ask("POST", "/queues/q/clean", json=sent)

    assert recorder.commands == [wire_command(c.Clean, {"queue": "q", "grace": grace})]


async def test_a_grace_that_is_no_number_deletes_nothing(rig: Rig, autojump_clock):
    rig.push("a")

    status, body = await Http(rig).ask("POST", "/queues/q/clean", json={"grace": "3600000"})

    assert (status, body) == (200, {"ok": False, "error": "grace must be a number"})
    assert rig.state("a") == "waiting"


@pytest.mark.parametrize(("sent", "limit"), [({"limit": 6}, 6), ({"concurrency": None, "limit": 6}, 6), ({}, None)])
async def test_limit_is_another_name_for_concurrency(rig: Rig, sent, limit):
    recorder = Recorder(rig)

    await Http(rig).ask("PUT", "/queues/q/concurrency", json=sent)

    assert recorder.commands == [wire_command(c.SetConcurrency, {"queue": "q", "limit": limit})]


@pytest.mark.parametrize("query", ["timeout=", "timeout=abc", "timeout=-"])
async def test_a_timeout_that_is_no_number_is_refused(rig: Rig, query):
    reply = await Http(rig).reply("GET", f"/queues/q/jobs?{query}")

    assert reply == {"ok": False, "error": "timeout must be a finite number"}


# bodies

WITH_BODY = [row for row, route in COMMAND_ROUTES.items() if route.body is not Body.UNREAD]
REQUIRED = {
    ("POST", "/queues/:queue/jobs"),
    ("POST", "/queues/:queue/jobs/bulk"),
    ("PUT", "/jobs/:id/data"),
    ("POST", "/crons"),
    ("POST", "/webhooks"),
    ("POST", "/workers"),
}
LENIENT = {("POST", "/workers/:id/heartbeat")}
NO_OBJECTS = [b"{", b"null", b"[]", b"1", b'"x"', b"{'a':1}", b'{"a":1,}', b'{"a":NaN}', b"[" * 9999]
INVALID = (400, {"ok": False, "error": "Invalid JSON body"})


@pytest.mark.parametrize("row", [row for row in WITH_BODY if row not in LENIENT], ids=" ".join)
async def test_a_body_that_is_no_object_is_refused(rig: Rig, row):
    recorder = Recorder(rig)
    http = Http(rig)

    answers = [await http.ask(row[0], CASES[row][0], data=text) for text in NO_OBJECTS]

    assert answers == [INVALID] * len(NO_OBJECTS)
    assert recorder.commands == []


@pytest.mark.parametrize("row", WITH_BODY, ids=" ".join)
@pytest.mark.parametrize("text", [b"", b" \n\t "])
async def test_an_empty_body_is_an_empty_object_unless_one_is_required(rig: Rig, row, text):
    recorder = Recorder(rig)

    answer = await Http(rig).ask(row[0], CASES[row][0], data=text)

    assert (answer == INVALID) is (row in REQUIRED)
    assert len(recorder.commands) == (row not in REQUIRED)


@pytest.mark.parametrize("row", [row for row in CASES if row not in WITH_BODY], ids=" ".join)
async def test_a_body_that_no_field_comes_from_is_not_read(rig: Rig, row):
    recorder = Recorder(rig)

    await Http(rig).reply(row[0], CASES[row][0], data=b"not json")

    assert len(recorder.commands) == 1


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json", None])
async def test_the_type_of_the_body_does_not_matter(rig: Rig, autojump_clock, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}

    reply = await Http(rig).reply("POST", "/queues/q/jobs", data=b'{"data":1}', headers=headers)

    assert reply["ok"]


# paths


@pytest.mark.parametrize(
    "path", ["/jobs/%ZZ", "/jobs/%", "/jobs/a%2", "/jobs/%FF", "/queues/%C3/counts", "/jobs/%ED%A0%80"]
)
async def test_a_bad_escape_is_refused(rig: Rig, path):
    expected = (400, {"ok": False, "error": "Invalid percent-encoding in the path"})

    assert await Http(rig).ask("GET", path) == expected


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        ("/queues/a/../b/count", "b"),
        ("/x/y/../../queues/b/count", "b"),
        ("/queues/a/%2e%2E/b/./count", "b"),
        ("/../queues/b/count", "b"),
        ("/queues/b/count?x=/../../", "b"),
        ("/queues/%2e%2e%2f/count", "../"),
        ("/queues/a+b/count", "a+b"),
    ],
)
async def test_dots_are_resolved_before_anything_is_decoded(rig: Rig, path, queue):
    recorder = Recorder(rig)

    await Http(rig).ask("GET", path)

    assert recorder.commands == [wire_command(c.Count, {"queue": queue})]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/queues/"),
        ("GET", "//queues"),
        ("GET", "/queues//count"),
        ("GET", "/Queues"),
        ("GET", "/queues/q/count/"),
        ("GET", "/queues/q/count/."),
        ("GET", "/queues/a/b/count"),
        ("POST", "/queues"),
        ("PUT", "/queues/q/jobs"),
        ("PATCH", "/queues/q/pause"),
        ("HEAD", "/queues"),
        ("HEAD", "/ping"),
        ("GET", "/jobs"),
        ("POST", "/jobs/x"),
        ("GET", "/gc"),
        ("POST", "/stats"),
        ("POST", "/heapstats"),
        ("POST", "/prometheus"),
        ("GET", "/dashboard/queues/none/more"),
    ],
)
async def test_what_stands_in_no_row_is_not_found(rig: Rig, method, path):
    http = Http(rig)

    status, _ = await http.ask(method, path)

    assert status == 404
    assert "allow" not in http.headers


async def test_the_literal_paths_of_batches_win_for_post_only(rig: Rig):
    assert await Http(rig).ask("GET", "/jobs/ack-batch") == (404, {"ok": False, "error": "Job not found"})


# the whole way, over a real broker


@pytest.mark.parametrize("job_id", ["nobody", "waiting", "done"])
async def test_a_result_that_is_not_there_is_null(rig: Rig, autojump_clock, job_id):
    rig.push("done")
    rig.talker().segment({"cmd": "PULL", "queue": "q"}, {"cmd": "ACK", "id": "done"})
    rig.push("waiting")

    assert await Http(rig).reply("GET", f"/jobs/{job_id}/result") == {"ok": True, "id": job_id, "result": None}


async def test_a_job_through_its_life(rig: Rig, autojump_clock):
    http = Http(rig)
    made = await http.reply("POST", "/queues/q/jobs", json={"data": {"to": "a", "big": 2**40}, "durable": True})
    job_id = made["id"]

    pulled = await http.reply("GET", "/queues/q/jobs")
    assert "token" not in pulled
    assert pulled["job"]["data"] == {"to": "a", "big": 2**40}
    assert (await http.reply("POST", f"/jobs/{job_id}/progress", json={"progress": 50}))["ok"]
    acked = await http.reply("POST", f"/jobs/{job_id}/ack", json={"result": [1.0, 2.5]})

    assert acked == {"ok": True}
    assert await http.reply("GET", f"/jobs/{job_id}/result") == {"ok": True, "id": job_id, "result": [1, 2.5]}
    assert await http.reply("GET", f"/jobs/{job_id}/state") == {"ok": True, "id": job_id, "state": "completed"}


async def test_a_worker_with_locks(rig: Rig, autojump_clock):
    http = Http(rig)
    await http.reply("POST", "/queues/q/jobs/bulk", json={"jobs": [{"data": 1}, {"data": 2}]})

    pulled = await http.reply("POST", "/queues/q/jobs/pull-batch", json={"count": 5, "owner": "w"})

    ids = [job["id"] for job in pulled["jobs"]]
    assert len(pulled["tokens"]) == len(ids) == 2
    wrong = await http.ask("POST", f"/jobs/{ids[0]}/ack", json={"token": "x"})
    assert wrong == (400, {"ok": False, "error": f"Invalid or expired lock token for job {ids[0]}"})
    assert (await http.reply("POST", "/jobs/ack-batch", json={"ids": ids, "tokens": pulled["tokens"]}))["ok"]


async def test_binary_is_marked_in_both_directions(rig: Rig, autojump_clock):
    http = Http(rig)
    rig.push("over-tcp", data={"blob": b"\x00\xff"})
    await http.reply("POST", "/queues/q/jobs", json={"data": {"blob": {"$binary": "AP8="}}, "jobId": "over-http"})

    shown = [await http.reply("GET", f"/jobs/{job_id}") for job_id in ("over-tcp", "over-http")]

    assert [reply["job"]["data"] for reply in shown] == [{"blob": {"$binary": "AP8="}}] * 2
    assert rig.call("GetJob", id="over-http")["job"]["data"] == {"blob": b"\x00\xff"}


async def test_a_large_payload_goes_both_ways(rig: Rig):
    http = Http(rig)
    data = {str(number): [number, 0.5, "x" * 20] for number in range(20_000)}

    made = await http.reply("POST", "/queues/q/jobs", json={"data": data})

    assert (await http.reply("GET", f"/jobs/{made['id']}"))["job"]["data"] == data


async def test_data_beyond_the_limit_are_refused(rig: Rig):
    status, body = await Http(rig).ask("POST", "/queues/q/jobs", json={"data": "x" * 10_485_759})

    assert (status, body) == (400, {"ok": False, "error": "Job data too large (max 10MB)"})


async def test_an_internal_error_is_500_and_says_nothing(rig: Rig, capsys):
    def fail(command, client, now):
        raise RuntimeError("secret")

    rig.broker.execute = fail  # type: ignore[method-assign]

    assert await Http(rig).ask("GET", "/queues") == (500, {"ok": False, "error": "Internal server error"})
    assert rig.broker.internal_errors == 1


# looks


# What a server without backups says to one is with the tests of backups.
@pytest.mark.parametrize("row", [row for row in LOOKS if row != ("POST", "/backups")], ids=" ".join)
async def test_every_look_answers(rig: Rig, autojump_clock, row):
    rig.push("a")
    method, pattern = row

    await Http(rig).reply(method, pattern.replace(":queue", "q"))


async def test_the_metrics_are_totals_only(rig: Rig, autojump_clock):
    rig.push("a")

    assert await Http(rig).reply("GET", "/metrics") == {
        "ok": True,
        "metrics": {"totalPushed": 1, "totalPulled": 0, "totalCompleted": 0, "totalFailed": 0},
    }


async def test_prometheus_is_text(rig: Rig, autojump_clock):
    http = Http(rig)
    rig.push("a")

    text = await http.reply("GET", "/prometheus")

    assert http.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'bunqueue_queue_jobs_waiting{queue="q"} 1\n' in text


@pytest.mark.parametrize(
    ("query", "names", "limit", "offset"),
    [
        ("", "abc", 100, 0),
        ("?limit=2", "ab", 2, 0),
        ("?limit=1&offset=1", "b", 1, 1),
        ("?limit=0", "abc", 100, 0),
        ("?limit=abc&offset=-3", "abc", 100, 0),
        ("?limit=-5", "a", 1, 0),
        ("?limit=9999", "abc", 500, 0),
        ("?offset=9", "", 100, 9),
    ],
)
async def test_pages_of_queues(rig: Rig, autojump_clock, query, names, limit, offset):
    for name in "abc":
        rig.push(name, queue=name)

    reply = await Http(rig).reply("GET", f"/dashboard/queues{query}")

    assert "".join(queue["name"] for queue in reply["queues"]) == names
    assert (reply["total"], reply["limit"], reply["offset"]) == (3, limit, offset)


@pytest.mark.parametrize(("query", "names"), [("", "abc"), ("?limit=1&offset=1", "b"), ("?limit=x", "abc")])
async def test_the_summary_is_a_bare_list(rig: Rig, autojump_clock, query, names):
    for name in "abc":
        rig.push(name, queue=name)

    assert "".join(queue["name"] for queue in await Http(rig).reply("GET", f"/queues/summary{query}")) == names


async def test_one_queue_of_the_dashboard(rig: Rig, autojump_clock):
    http = Http(rig)
    rig.push("a")

    shown = await http.reply("GET", "/dashboard/queues/q?includeJobs=true")
    without = await http.reply("GET", "/dashboard/queues/q?includeJobs=1")
    refused = await http.ask("GET", "/dashboard/queues/bad%20name")

    assert [job["id"] for job in shown["jobs"]["waiting"]] == ["a"]
    assert (shown["name"], shown["counts"]["waiting"]) == ("q", 1)
    assert "jobs" not in without
    assert refused == (400, {"ok": False, "error": "Queue name contains invalid characters"})


async def test_what_an_autoscaler_asks(rig: Rig, autojump_clock):
    rig.push("running", queue="a.b")
    rig.call("PULL", queue="a.b")
    rig.push("ready", queue="a.b")
    rig.call("RegisterWorker", name="w", queues=["a.b"], concurrency=4)
    await trio.sleep(2)

    shown = await Http(rig).reply("GET", "/queues/a%2Eb/scale")

    assert 2_000 <= shown.pop("oldestAgeMs") < 2_100
    assert shown == {"ok": True, "queue": "a.b", "depth": 1, "busy": 1, "capacity": 4}


async def test_the_document_of_the_api_is_served(rig: Rig, autojump_clock):
    assert await Http(rig).reply("GET", "/openapi.json") == json.loads(document_text())
