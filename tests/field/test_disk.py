"""Disk and memory growth: K1, K2, K4, M1 of the field reports."""

from __future__ import annotations

import os

import pytest

from tests.field.closing import check_closing, must_pull, pull, work_off
from tests.field.test_persistence import other_process
from tests.process import Client, ServerProcess, StartServer, wait_until
from tests.tiny_disk import MountDisk

MIB = 1024 * 1024
FULL = "database or disk is full"


def cycles(client: Client, rounds: int, batch: int, payload: str) -> None:
    """Push, pull and acknowledge *batch* jobs, *rounds* times."""
    for _ in range(rounds):
        client.ok("PUSHB", queue="q", jobs=[{"data": payload, "removeOnComplete": True} for _ in range(batch)])
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
                cycles(client, 1, 50, "x" * 20_000)
                if wal_bytes(server) > 80 * MIB:
                    break
            assert wal_bytes(server) > 64 * MIB
            assert server.health()["wal"]["bytes"] > 64 * MIB
            assert server.log.count("The WAL cannot be folded in") == 1
        wait_until(lambda: is_small(server, client), "the WAL is small again", 60)
        cycles(client, 100, 50, "x" * 2_000)
        assert wal_bytes(server) < 64 * MIB
    check_closing(server, ["q"], ["kept"])


def is_small(server: ServerProcess, client: Client) -> bool:
    client.ok("PUSH", queue="q", data=1, durable=True, jobId="kept")
    cycles(client, 1, 1, "x")
    return wal_bytes(server) < 64 * MIB


@pytest.mark.slow
def test_k2_what_a_full_disk_refuses_leaves_no_trace(start_server: StartServer, mount_disk: MountDisk) -> None:
    """bunqueue 2.8.56: a refused push was counted, blocked its id and was run. Without flows."""
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


def run_names(client: Client, numbers: range) -> None:
    """One job in a queue of its own for each number, pushed, pulled and completed."""
    for start in range(numbers.start, numbers.stop, 500):
        names = [f"user-{number}" for number in range(start, min(start + 500, numbers.stop))]
        client.call_many([{"cmd": "PUSH", "queue": name, "data": 1, "removeOnComplete": True} for name in names])
        pulls = client.call_many([{"cmd": "PULL", "queue": name, "owner": "w"} for name in names])
        acks = [{"cmd": "ACK", "id": reply["job"]["id"], "token": reply["token"]} for reply in pulls]
        assert all(reply["ok"] for reply in client.call_many(acks))
