"""Disk and memory growth: K1, K2, K4, M1, M3 of the field reports."""

from __future__ import annotations

import os
import time

import pytest

from tests.field.closing import check_closing, must_pull, pull, work_off
from tests.field.test_persistence import other_process
from tests.flows import tree
from tests.process import Client, ServerProcess, StartServer, wait_until
from tests.tiny_disk import MountDisk

MIB = 1024 * 1024
FULL = "database or disk is full"


def cycles(client: Client, rounds: int, batch: int, payload: str, *, durable: bool = False) -> None:
    """Push, pull and acknowledge *batch* jobs, *rounds* times. Only durable ones are sure to reach the file."""
    job = {"data": payload, "removeOnComplete": True, "durable": durable}
    for _ in range(rounds):
        client.ok("PUSHB", queue="q", jobs=[job] * batch)
        pulled = client.ok("PULLB", queue="q", count=batch, owner="w", lockTtl=60_000)
        client.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])


def wal_bytes(server: ServerProcess) -> int:
    path = f"{server.data_path}-wal"
    return os.stat(path).st_size if os.path.exists(path) else 0


@pytest.mark.slow
def test_k1_the_wal_shrinks_again_when_a_long_reader_has_gone(server: ServerProcess) -> None:
    """gotosocial #2808: it stayed at its peak. Shortened: larger payloads, fewer cycles."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, durable=True, jobId="kept", delay=86_400_000)
        with other_process(server, "BEGIN", 600):
            for _ in range(2_000):
                cycles(client, 1, 50, "x" * 20_000, durable=True)
                if wal_bytes(server) > 80 * MIB:
                    break
            assert wal_bytes(server) > 64 * MIB
            assert server.health()["wal"]["bytes"] > 64 * MIB
            # It is said at the end of a checkpoint, and a busy machine may have filled the WAL before that.
            wait_until(lambda: is_told(server, client), "the log says why the WAL grows")
            assert server.log.count("The WAL cannot be folded in") == 1
        wait_until(lambda: is_small(server, client), "the WAL is small again", 60)
        cycles(client, 100, 50, "x" * 2_000)
        assert wal_bytes(server) < 64 * MIB
    check_closing(server, ["q"], ["kept"])


def is_told(server: ServerProcess, client: Client) -> bool:
    cycles(client, 1, 1, "x")
    return "The WAL cannot be folded in" in server.log


def is_small(server: ServerProcess, client: Client) -> bool:
    client.ok("PUSH", queue="q", data=1, durable=True, jobId="kept")
    cycles(client, 1, 1, "x")
    return wal_bytes(server) < 64 * MIB


@pytest.mark.slow
def test_k2_what_a_full_disk_refuses_leaves_no_trace(start_server: StartServer, mount_disk: MountDisk) -> None:
    """bunqueue 2.8.56: a refused push was counted, blocked its id and was run."""
    disk = mount_disk(size_mb=16)
    server = start_server(data_path=disk.path / "jobs.db")
    with server.connect() as client, server.connect() as worker:
        client.ok("PUSH", queue="q", data=1, jobId="held", durable=True)
        _, token = must_pull(worker)
        disk.fill()
        assert FULL in worker.error("ACK", id="held", token=token, result="r" * 5_000_000)
        assert FULL in client.error("PUSH", queue="q", data="d" * 200_000, jobId="x", uniqueKey="y", durable=True)
        jobs = [{"data": "d" * 20_000, "customId": f"b{i}", "durable": True} for i in range(20)]
        assert FULL in client.error("PUSHB", queue="q", jobs=jobs)
        flow = tree("dad", *(f"k{i}" for i in range(4)))
        for job in flow:
            job["input"]["data"]["x"] = "d" * 40_000
        assert FULL in client.error("PUSHF", jobs=flow)

        assert {client.state(job["id"]) for job in flow} == {"unknown"}
        assert {client.state(job_id) for job_id in ("x", *(f"b{i}" for i in range(20)))} == {"unknown"}
        assert client.error("GetJob", id="x") == "Job not found"
        counts = client.ok("GetJobCounts", queue="q")["counts"]
        assert {state: count for state, count in counts.items() if count} == {"active": 1}
        assert pull(client) is None
        assert client.state("held") == "active"
        assert worker.ok("JobHeartbeat", id="held", token=token)
        disk.free()
        wait_until(lambda: server.get("/health")[0] == 200, "the server has healed", 15)
        worker.ok("ACK", id="held", token=token, result="r" * 2_000_000)
        assert (
            client.ok("PUSH", queue="q", data=2, jobId="x", uniqueKey="y", durable=True, receipt=True)["outcome"]
            == "created"
        )
        assert work_off(client) == ["x"]
        assert len(client.ok("GetResult", id="held")["result"]) == 2_000_000
    check_closing(server, ["q"], ["held", "x"])


@pytest.mark.slow
def test_k2_a_full_temporary_folder_is_not_a_full_disk(start_server: StartServer, mount_disk: MountDisk) -> None:
    """SQLite's temporary files must not need a folder of their own."""
    temporary = mount_disk("temporary", size_mb=1)
    server = start_server(SQLITE_TMPDIR=str(temporary.path))
    temporary.fill()
    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": "x" * 2_000, "durable": True} for _ in range(2_000)])["ids"]
        assert work_off(client)[:10] == ids[:10]
        assert server.health()["status"] == "healthy"
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_k4_failing_and_waiting_over_and_over_takes_no_space(server: ServerProcess) -> None:
    """beanstalkd #622: each release added records. The variant with FAIL: 300 jobs, 60 rounds."""
    count, rounds, settled = 300, 60, 20
    with server.connect() as client:
        jobs = [{"data": "x" * 100, "maxAttempts": 301, "backoff": 0} for _ in range(count)]
        ids = client.ok("PUSHB", queue="q", jobs=jobs)["ids"]
        sizes = []
        for _ in range(rounds):
            pulled = client.ok("PULLB", queue="q", count=count, owner="w", lockTtl=60_000)
            assert len(pulled["jobs"]) == count
            fails = [
                {"cmd": "FAIL", "id": job["id"], "token": token, "error": "again", "stack": ["a" * 100] * 20}
                for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True)
            ]
            assert all(reply["ok"] for reply in client.call_many(fails))
            sizes.append(os.stat(server.data_path).st_size + wal_bytes(server))

        assert max(sizes) - sizes[settled] < 50 * MIB
        job = client.ok("GetJob", id=ids[0])["job"]
        assert job["attempts"] == rounds
        assert len(job["timeline"]) <= 20
        assert len(job["stacktrace"]) <= 10
    check_closing(server, ["q"], ids)


@pytest.mark.slow
@pytest.mark.long
def test_k4_releasing_with_a_delay_over_and_over_takes_no_space(server: ServerProcess) -> None:
    """As reported, with MoveToDelayed: 300 jobs, 60 rounds."""
    count, rounds, settled = 300, 60, 20
    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": "x" * 100} for _ in range(count)])["ids"]
        sizes = []
        for _ in range(rounds):
            seen = 0
            while seen < count:
                time.sleep(0.15)  # else they come in small parts, each with a commit of its own
                pulled = client.ok("PULLB", queue="q", count=count, owner="w", timeout=5_000, lockTtl=60_000)["jobs"]
                moves = [{"cmd": "MoveToDelayed", "id": job["id"], "delay": 100} for job in pulled]
                assert all(reply["ok"] for reply in client.call_many(moves))
                seen += len(pulled)
            sizes.append(os.stat(server.data_path).st_size + wal_bytes(server))

        assert max(sizes) - sizes[settled] < 50 * MIB
        job = client.ok("GetJob", id=ids[0])["job"]
        assert job["attempts"] == 0
        assert len(job["timeline"]) <= 20
    check_closing(server, ["q"], ids)


@pytest.mark.slow
@pytest.mark.long
def test_k4_logging_over_and_over_takes_no_space(server: ServerProcess) -> None:
    """The variant with AddLog: 1 KB per round, on 300 jobs, in 130 rounds: lines go once a job has a hundred."""
    count, rounds, settled = 300, 130, 20
    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(count)])["ids"]
        sizes, resident = [], []
        for number in range(rounds):
            lines = [{"cmd": "AddLog", "id": job_id, "message": f"{number} ".ljust(1_024, "x")} for job_id in ids]
            assert all(reply["ok"] for reply in client.call_many(lines))
            sizes.append(os.stat(server.data_path).st_size + wal_bytes(server))
            resident.append(server.rss_bytes())

        assert max(sizes) == sizes[settled]
        assert resident[-1] - resident[100] < 10 * MIB
        logs = client.ok("GetLogs", id=ids[0])["data"]
        assert logs["count"] == len(logs["logs"]) == 100
        assert [line["message"].split()[0] for line in logs["logs"]] == [str(n) for n in range(rounds - 100, rounds)]
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_m1_names_and_connections_that_are_gone_take_no_memory(server: ServerProcess) -> None:
    """bunqueue 2.8.14: a small record per queue name was kept. Shortened: 10,000 names, 1,000 connections, TCP only."""
    with server.connect() as client:
        run_names(client, range(500))
        descriptors, before = server.descriptor_count(), server.rss_bytes()
        run_names(client, range(500, 10_500))
        for _ in range(1_000):
            with server.connect() as passing:
                passing.ok("Ping")
        wait_until(lambda: client.ok("ListQueues")["queues"] == [], "the names are forgotten", 60)
        wait_until(lambda: server.descriptor_count() <= descriptors, "the descriptors are closed")

        assert server.rss_bytes() - before < 40 * MIB
        assert server.health()["connections"]["tcp"] == 1
    check_closing(server, [], [])


@pytest.mark.slow
@pytest.mark.long
def test_m3_completed_jobs_level_off_in_memory_and_stay_known(server: ServerProcess) -> None:
    """bull #1909: finished jobs piled up until memory was gone. Shortened: 60,000 with a result of 1 KB."""
    rounds, batch = 120, 500
    with server.connect() as client:
        sample, resident = [], []
        for number in range(rounds):
            ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(batch)])["ids"]
            tokens = client.ok("PULLB", queue="q", count=batch, owner="w", lockTtl=60_000)["tokens"]
            results = [f"{number} ".ljust(1_024, "x")] * batch
            client.ok("ACKB", ids=ids, tokens=tokens, results=results)
            sample.append(ids[0])
            resident.append(server.rss_bytes())

        assert resident[-1] - resident[rounds // 2] < 15 * MIB  # 30,000 results and records would take 60
        assert client.ok("GetJobCounts", queue="q")["counts"]["completed"] == rounds * batch
        assert {client.state(job_id) for job_id in sample} == {"completed"}
        assert client.ok("GetResult", id=sample[3])["result"].startswith("3 ")
        assert client.ok("WaitJob", id=sample[0])["completed"] is True
        assert client.ok("GetJobs", queue="q", state="completed", limit=1)["jobs"][0]["id"] == sample[0]
    server.restart()
    with server.connect() as client:
        assert client.ok("GetJobCounts", queue="q")["counts"]["completed"] == rounds * batch
    server.assert_no_faults()


@pytest.mark.slow
def test_m3_old_completed_jobs_go_without_any_traffic(start_server: StartServer) -> None:
    """bull #840: age-based clean-up ran only when the next job finished."""
    server = start_server(COMPLETED_RETENTION_MS=5_000)
    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(100)])["ids"]
        assert work_off(client) == ids
        assert client.ok("GetJobCounts", queue="q")["counts"]["completed"] == 100
    time.sleep(30)
    with server.connect() as client:
        assert client.ok("GetJobCounts", queue="q")["counts"]["completed"] == 0
        assert {client.state(job_id) for job_id in ids} == {"unknown"}
    check_closing(server, ["q"], [])


@pytest.mark.slow
def test_m3_an_expired_job_of_a_paused_queue_is_never_delivered(server: ServerProcess) -> None:
    """bullmq #1353: and reads say that it is gone, also after a restart."""
    with server.connect() as client:
        client.ok("Pause", queue="q")
        client.ok("PUSH", queue="q", data=1, jobId="j", ttl=2_000, durable=True)
        time.sleep(10)
        client.ok("Resume", queue="q")
        assert pull(client, timeout=500) is None
        assert client.state("j") == "unknown"
        assert client.error("GetJob", id="j") == "Job not found"
        assert client.ok("Count", queue="q")["count"] == 0
    check_closing(server, ["q"], [])


def run_names(client: Client, numbers: range) -> None:
    """One job in a queue of its own for each number, pushed, pulled and completed."""
    for start in range(numbers.start, numbers.stop, 500):
        names = [f"user-{number}" for number in range(start, min(start + 500, numbers.stop))]
        client.call_many([{"cmd": "PUSH", "queue": name, "data": 1, "removeOnComplete": True} for name in names])
        pulls = client.call_many([{"cmd": "PULL", "queue": name, "owner": "w"} for name in names])
        acks = [{"cmd": "ACK", "id": reply["job"]["id"], "token": reply["token"]} for reply in pulls]
        assert all(reply["ok"] for reply in client.call_many(acks))
