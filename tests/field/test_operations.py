"""Monitoring, shutdown and security: H1, H3, S1, S3, X2, Z1, Z3 of the field reports."""

from __future__ import annotations

import signal
import struct
import threading
import time

import pytest

from tests.field.closing import check_closing, must_pull, work_off
from tests.process import Client, ServerProcess, StartServer, frame

TOKEN = "the-right-token"


@pytest.mark.alone
@pytest.mark.slow
def test_h3_probes_are_quick_under_load_and_tell_the_truth(server: ServerProcess) -> None:
    """celery #4079: probes made orchestrators restart healthy processes. Shortened: 30,000 jobs, 5 s of load."""
    ids: list[str] = []
    with server.connect() as client:
        for _ in range(30):
            ids += client.ok("PUSHB", queue="stock", jobs=[{"data": "x" * 100} for _ in range(1_000)])["ids"]
    server.restart()
    assert server.get("/ready")[0] == 200
    stop = threading.Event()
    pushed: list[str] = []

    def load() -> None:
        with server.connect() as busy:
            while not stop.is_set():
                replies = busy.call_many([{"cmd": "PUSH", "queue": "load", "data": 1}] * 200)
                pushed.extend(reply["id"] for reply in replies)

    loading = threading.Thread(target=load)
    loading.start()
    times: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < 5:
        for path in ("/live", "/healthz", "/ready"):
            asked = time.monotonic()
            assert server.get(path)[0] == 200
            times.append(time.monotonic() - asked)
        time.sleep(0.2)
    stop.set()
    loading.join()
    times.sort()
    assert times[len(times) * 9 // 10] < 1.0  # 0.25 s is asked for on a quiet machine
    assert server.health()["queues"]["waiting"] == len(ids) + len(pushed)
    check_closing(server, ["stock", "load"], ids + pushed)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.long
def test_h1_watching_costs_the_same_with_many_jobs(server: ServerProcess) -> None:
    """riverui #106: counts scanned everything. Shortened: 100,000 jobs in 1,000 queues, what is watched over TCP."""
    watched: list[tuple[str, dict[str, object]]] = [
        ("Stats", {}), ("Metrics", {}), ("DashboardOverview", {}), ("DashboardQueues", {}), ("Prometheus", {}),
        ("GetJobCounts", {"queue": "stock"}), ("DashboardQueue", {"queue": "stock", "includeJobs": True}),
        ("GetJobs", {"queue": "stock", "limit": 50}), ("GetJobs", {"queue": "stock", "limit": 50, "offset": 40_000}),
        ("Dlq", {"queue": "stock", "count": 50}), ("GetCountsPerPriority", {"queue": "stock"}),
    ]  # fmt: skip
    with server.connect() as client:
        for _ in range(50):
            client.ok("PUSHB", queue="stock", jobs=[{"data": 1}] * 1_000)
            client.ok("PUSHB", queue="stock", jobs=[{"data": 1, "delay": 3_600_000}] * 1_000)
        client.call_many([{"cmd": "PUSH", "queue": f"user-{n}", "data": 1} for n in range(1_000)])
        times: list[float] = []
        for _ in range(20):
            for command, fields in watched:
                asked = time.monotonic()
                client.ok(command, **fields)
                times.append(time.monotonic() - asked)
        times.sort()

        assert times[len(times) * 95 // 100] < 0.1
        stats = client.ok("Stats")["stats"]
        assert (stats["waiting"], stats["delayed"]) == (51_000, 50_000)


@pytest.mark.slow
def test_s1_a_lease_can_be_renewed_and_its_job_finished_during_the_drain(start_server: StartServer) -> None:
    """bull #1615: renewal stopped first, so a job that ended well was run again. Ten seconds of drain."""
    server = start_server(SHUTDOWN_TIMEOUT_MS=40_000)
    with server.connect() as first, server.connect() as second:
        first.ok("PUSH", queue="q", data=1, jobId="j", durable=True)
        first.ok("PUSH", queue="q", data=1, jobId="next", durable=True)
        job, token = must_pull(first, lock_ttl=3_000)
        server.signal(signal.SIGTERM)
        for _ in range(10):
            time.sleep(1)
            assert first.ok("JobHeartbeatB", ids=["j"], tokens=[token])["data"]["count"] == 1
            assert second.ok("PULL", queue="q", owner="w", timeout=100)["job"] is None
        assert second.error("PUSH", queue="q", data=1) == "Server is shutting down"
        with pytest.raises(ConnectionError):
            server.connect()
        assert job["id"] == "j"
        first.ok("ACK", id="j", token=token, result="well")
        acked = time.monotonic()
        assert server.wait_exit() == 0
        assert time.monotonic() - acked < 10  # three seconds on a quiet machine; the drain may last forty
    server.start()
    with server.connect() as client:
        job = client.ok("GetJob", id="j")["job"]
        assert (job["state"], job["attempts"]) == ("completed", 0)
        assert client.ok("GetResult", id="j")["result"] == "well"
        assert work_off(client) == ["next"]
    check_closing(server, ["q"], ["j", "next"])


@pytest.mark.slow
def test_s3_after_a_kill_the_next_server_starts_at_once_on_the_same_file(server: ServerProcess) -> None:
    """databasement #344. That a second server is refused while the first runs: tests/integration/test_start.py."""
    ids: list[str] = []
    for number in range(3):
        with server.connect() as client:
            ids.append(client.ok("PUSH", queue="q", data=number, durable=True)["id"])
        with ServerProcess(server.directory, data_path=server.data_path) as rival:
            rival.launch()
            assert rival.wait_exit() == 1
            assert "another bunqueue server is using it" in rival.log
            assert '"Server started"' not in rival.log
        server.crash_and_restart()
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == 3
    check_closing(server, ["q"], ids)


@pytest.mark.alone
@pytest.mark.slow
def test_z1_strangers_neither_crash_nor_slow_the_server(start_server: StartServer) -> None:
    """bunqueue #108: bytes before the login crashed it. The plain parts: frames of 1 byte to 64 MB before ``Auth``."""
    server = start_server(AUTH_TOKENS=TOKEN)
    with server.connect(token=TOKEN) as known:
        before = server.rss_bytes()
        strangers = [server.connect() for _ in range(200)]
        try:
            for number, stranger in enumerate(strangers):
                length = 1 << (number % 27)
                try:
                    stranger.send_bytes(struct.pack(">I", length) + b"\x81" * min(length - 1, 65_000))
                except OSError:
                    assert length > 65_536  # refused already
            for _ in range(30):
                known.ok("PUSH", queue="q", data=1, durable=True)
            times = []
            for _ in range(50):
                asked = time.monotonic()
                known.ok("Ping")
                times.append(time.monotonic() - asked)
            assert sorted(times)[25] < 0.1
            assert server.rss_bytes() - before < 40 * 1024 * 1024
        finally:
            for number, stranger in enumerate(strangers):
                stranger.reset() if number % 2 else stranger.close()
        ids = work_off(known)
    assert len(ids) == 30
    server.settings.pop("AUTH_TOKENS")
    server.restart()
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_z3_nothing_works_before_the_login_and_a_login_is_never_half(start_server: StartServer) -> None:
    """CVE-2022-30034: open by default. The TCP parts."""
    server = start_server(AUTH_TOKENS=f"{TOKEN},another")
    with server.connect() as stranger:
        for command in (
            "PUSH",
            "PULL",
            "ACK",
            "GetJob",
            "Ping",
            "Hello",
            "Pause",
            "ListQueues",
            "RegisterWorker",
            "Nonsense",
        ):
            assert stranger.error(command, queue="q", id="x", data=1) == "Not authenticated"
        for wrong in ("", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), f"{TOKEN},another", None, 5, [TOKEN], b"x"):
            assert stranger.error("Auth", token=wrong) == "Invalid token"
        errors = {
            reply["error"]
            for reply in stranger.call_many([{"cmd": "Auth", "token": f"guess{i}"} for i in range(1_000)])
        }
        assert errors == {"Invalid token"}
        stranger.send_bytes(
            frame({"cmd": "Auth", "token": "wrong", "reqId": "a"}) + frame({"cmd": "Ping", "reqId": "b"})
        )
        assert replies(stranger, 2) == {"a": "Invalid token", "b": "Not authenticated"}
        stranger.send_bytes(frame({"cmd": "Auth", "token": TOKEN, "reqId": "a"}) + frame({"cmd": "Ping", "reqId": "b"}))
        assert replies(stranger, 2) == {"a": None, "b": None}
        assert stranger.error("Auth", token="wrong") == "Invalid token"
        stranger.ok("PUSH", queue="q", data=1, jobId="j", durable=True)
    with server.connect() as next_one:
        assert next_one.error("Ping") == "Not authenticated"
    assert TOKEN not in server.log
    assert "another" not in server.log
    server.settings.pop("AUTH_TOKENS")
    server.restart()
    check_closing(server, ["q"], ["j"])


def replies(client: Client, count: int) -> dict[str, str | None]:
    """Errors by ``reqId``."""
    found: dict[str, str | None] = {}
    for _ in range(count):
        reply = client.receive()
        assert reply is not None
        found[reply["reqId"]] = reply.get("error")
    return found


@pytest.mark.slow
def test_z3_without_tokens_only_this_machine_can_connect(start_server: StartServer) -> None:
    """Nobody else, unless ``HOST`` says so; which then is warned of (tests/unit/test_config.py)."""
    server = ServerProcess(start_server().directory, data_path=":memory:")
    with server:
        server.settings["HOST"] = ""
        server.launch()
        assert server.wait_exit() == 2  # an empty address is a mistake, not everywhere
        del server.settings["HOST"]
        server.unset = frozenset({"HOST"})
        server.start()
        addresses = [line for line in server.last_log.splitlines() if "Server started" in line]
        assert f'"tcp":"127.0.0.1:{server.tcp_port}"' in addresses[0]
        assert f'"http":"127.0.0.1:{server.http_port}"' in addresses[0]
        assert server.terminate() == 0


def test_x2_counts_lists_and_single_reads_agree(server: ServerProcess) -> None:
    """bunqueue #92: failed jobs were counted but not listed, paused ones counted twice. The HTTP list comes later."""
    with server.connect() as client:

        def push(names: list[str], **options: object) -> None:
            client.ok("PUSHB", queue="q", jobs=[{"data": name, "customId": name, **options} for name in names])

        push([f"done{n}" for n in range(5)])
        for _ in range(5):
            job, token = must_pull(client)
            client.ok("ACK", id=job["id"], token=token)
        push([f"dead{n}" for n in range(4)], maxAttempts=1)
        for _ in range(4):
            job, token = must_pull(client)
            client.ok("FAIL", id=job["id"], token=token, error="no")
        push([f"ready{n}" for n in range(3)])
        push([f"urgent{n}" for n in range(2)], priority=1)
        push([f"later{n}" for n in range(2)], delay=3_600_000)
        client.ok("Pause", queue="q")

        counts = client.ok("GetJobCounts", queue="q")["counts"]
        assert (counts["paused"], counts["waiting"], counts["prioritized"]) == (5, 0, 0)
        listed = {name: client.ok("GetJobs", queue="q", state=name)["jobs"] for name in counts}
        assert {name: len(jobs) for name, jobs in listed.items()} == counts
        assert [job["id"] for job in listed["failed"]] == [job["id"] for job in client.ok("Dlq", queue="q")["jobs"]]
        assert len(client.ok("GetJobs", queue="q", state=list(counts))["jobs"]) == 16
        everything = client.ok("GetJobs", queue="q")["jobs"]
        for job in everything:
            assert client.state(job["id"]) == job["state"]
            assert client.ok("GetJob", id=job["id"])["job"] == job
        pages = [client.ok("GetJobs", queue="q", offset=n, limit=3)["jobs"] for n in range(0, 18, 3)]
        assert [job["id"] for page in pages for job in page] == [job["id"] for job in everything]
        assert len({job["id"] for job in everything}) == 16
        client.ok("Resume", queue="q")
    check_closing(server, ["q"], [job["id"] for job in everything])
