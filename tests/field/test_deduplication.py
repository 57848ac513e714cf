"""Deduplication and idempotency: D1, D3, D5 of the field reports, and Q4 on order."""

from __future__ import annotations

import time

import pytest

from tests.field.closing import check_closing, must_pull, pull
from tests.process import ServerProcess

GONE = ("RemoveDlqJob", "PurgeDlq")


@pytest.mark.slow
def test_d1_an_id_whose_job_has_died_can_be_used_again(server: ServerProcess) -> None:
    """asynq #1055: an archived task blocked its id for ever. The part about crons is in `test_crons`."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data={"v": 1}, jobId="k", maxAttempts=1, durable=True)
        _, token = must_pull(client)
        client.ok("FAIL", id="k", token=token, error="dead", stack=["line 1", "line 2"])
        assert client.state("k") == "failed"
        assert client.ok("PUSH", queue="q", data={"v": 2}, jobId="k")["id"] == "k"

        assert client.ok("Dlq", queue="q")["jobs"] == []
        job, token = must_pull(client)
        assert (job["data"], job["attempts"], job["stacktrace"]) == ({"v": 2}, 0, None)
        client.ok("ACK", id="k", token=token)
    check_closing(server, ["q"], ["k"])


@pytest.mark.slow
def test_d1_nothing_of_a_completed_predecessor_is_left(server: ServerProcess) -> None:
    """The same for a job that was completed with progress and a result; before and after a restart."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data={"v": 1}, jobId="k", durable=True)
        _, token = must_pull(client)
        client.ok("Progress", id="k", progress=80, message="nearly")
        client.ok("AddLog", id="k", message="of the old one")
        client.ok("ACK", id="k", token=token, result={"old": True})
        assert client.ok("GetResult", id="k")["result"] == {"old": True}
    server.restart()
    with server.connect() as client:
        client.ok("PUSH", queue="q", data={"v": 2}, jobId="k", durable=True)
        assert "result" not in client.ok("GetResult", id="k")
        job = client.ok("GetJob", id="k")["job"]
        assert (job["data"], job["progress"], job["progressMessage"], job["attempts"]) == ({"v": 2}, 0, None, 0)
        assert job["completedAt"] is None
        client.ok("PUSH", queue="q", data=1, jobId="l")
        client.ok("AddLog", id="l", message="of the old one")
        client.ok("Cancel", id="l")
        client.ok("PUSH", queue="q", data=2, jobId="l", durable=True)
        for job_id in ("k", "l"):
            assert client.ok("GetLogs", id=job_id)["data"] == {"logs": [], "count": 0}
    server.crash_and_restart()
    with server.connect() as client:
        assert client.state("k") == "waiting"
        assert "result" not in client.ok("GetResult", id="k")
        assert client.ok("GetJobCounts", queue="q")["counts"]["completed"] == 0
    check_closing(server, ["q"], ["k", "l"])


@pytest.mark.slow
def test_d3_the_key_of_a_running_job_outlives_every_housekeeping(server: ServerProcess) -> None:
    """bunqueue #80: after ten seconds the queue was taken for empty and its keys were dropped."""
    with server.connect() as client:
        first = client.ok("PUSH", queue="q", data=1, uniqueKey="u", durable=True)["id"]
        _, token = must_pull(client, lock_ttl=120_000)
        began = time.monotonic()
        for moment in (2, 12, 25, 45):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            assert client.ok("PUSH", queue="q", data=2, uniqueKey="u")["id"] == first
            counts = client.ok("GetJobCounts", queue="q")["counts"]
            assert (counts["active"], counts["waiting"]) == (1, 0)
            client.ok("JobHeartbeat", id=first, token=token)
        client.ok("ACK", id=first, token=token)

        second = client.ok("PUSH", queue="q", data=3, uniqueKey="u")["id"]
        assert second != first
    check_closing(server, ["q"], [first, second])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "pushed anew",
        "RemoveDlqJob",
        "PurgeDlq",
        "RetryDlq",
        "RetryDlq by id",
        "MoveToWait",
        "RetryCompleted",
        "restart",
        "crash",
    ],
)
def test_d5_what_becomes_of_an_older_job_does_not_touch_the_key_of_a_newer_one(server: ServerProcess, how: str) -> None:
    """bullmq PR 3236. The older job is purged, asked back, has its id used again, or stays."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="a", uniqueKey="u", maxAttempts=1, durable=True)
        _, token = must_pull(client)
        client.ok("FAIL", id="a", token=token)
        assert client.ok("PUSH", queue="q", data=2, jobId="b", uniqueKey="u", durable=True)["id"] == "b"
        if how == "pushed anew":
            client.ok("PUSH", queue="other", data=3, jobId="a", durable=True)
        if how == "RemoveDlqJob":
            assert client.ok(how, queue="q", jobId="a")["data"] == {"removed": True}
        if how in ("PurgeDlq", "RetryDlq", "RetryCompleted"):
            assert client.ok(how, queue="q")["count"] == (how == "PurgeDlq")
        if how == "RetryDlq by id":
            assert client.ok("RetryDlq", queue="q", jobId="a")["count"] == 0
        if how == "MoveToWait":
            assert "key" in client.error("MoveToWait", id="a")
    if how == "crash":
        server.crash_and_restart()
    if how == "restart":
        server.restart()
    with server.connect() as client:
        assert client.ok("PUSH", queue="q", data=4, jobId="c", uniqueKey="u")["id"] == "b"
        assert client.state("a") == {"pushed anew": "waiting", **dict.fromkeys(GONE, "unknown")}.get(how, "failed")
        assert client.state("c") == "unknown"
    check_closing(server, ["q", "other"], ["b"] if how in GONE else ["a", "b"])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["buffered", "mixed", "cancelled", "moved"])
def test_q4_equal_priorities_leave_in_the_order_sent(server: ServerProcess, variant: str) -> None:
    """stalker #4: a heap does not keep ties in order. One that is moved away and back keeps its turn."""
    ids = [f"j{number:03}" for number in range(200, 0, -1)]
    with server.connect() as client:
        jobs = [
            {"data": 1, "customId": job_id, "priority": 5, "durable": variant == "mixed" and i % 3 == 0}
            for i, job_id in enumerate(ids)
        ]
        client.ok("PUSHB", queue="q", jobs=jobs[:100])
        if variant == "mixed":
            replies = client.call_many([{"cmd": "PUSH", "queue": "q", "jobId": j["customId"], **j} for j in jobs[100:]])
            assert all(reply["ok"] for reply in replies)
        else:
            client.ok("PUSHB", queue="q", jobs=jobs[100:])
        client.ok("PUSHB", queue="q", jobs=[{"data": 1, "customId": "urgent", "priority": 9}])
        cancelled = ids[::4] if variant == "cancelled" else []
        for job_id in cancelled:
            client.ok("Cancel", id=job_id)
        if variant == "moved":
            for priority in (1, 5):
                client.ok("ChangePriority", id=ids[120], priority=priority)
        expected = ["urgent", *(job_id for job_id in ids if job_id not in cancelled)]
        got = take(server, 50)
        server.restart()
        got += take(server, len(expected))
        assert got == expected
    check_closing(server, ["q"], expected)


def take(server: ServerProcess, count: int) -> list[str]:
    with server.connect() as client:
        pulled = client.ok("PULLB", queue="q", count=count, owner="w", lockTtl=60_000)
        ids = [job["id"] for job in pulled["jobs"]]
        client.ok("ACKB", ids=ids, tokens=pulled["tokens"])
        assert len(ids) == count or pull(client) is None
    return ids
