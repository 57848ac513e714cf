"""Workers, webhooks and events: the parts of C5, L3, T1, T3 and Z3 of the field reports that concern them."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.engine_harness import EngineHarness
from tests.field.closing import check_closing, pull
from tests.field.test_protocol import Scanner
from tests.process import Client, ServerProcess, StartServer, wait_until

TOKEN = "the-right-token"
HOUR = 3_600_000
ALL = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


class Receiver(ThreadingHTTPServer):
    """Remembers the bodies of the calls it gets."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_c5_a_clock_that_steps_takes_no_worker_from_its_cron() -> None:
    """sidekiq-scheduler #283, pg_cron #105: the same steps, and a cron that needs a live worker."""
    harness = EngineHarness()
    harness.checks = False
    harness.send("Cron", name="c", queue="q", schedule="* * * * *", skipIfNoWorker=True, preventOverlap=False)
    harness.send("RegisterWorker", name="w", queues=["q"], workerId="w")

    def live(ms: float) -> None:
        for _ in range(int(ms // 10_000)):
            harness.advance(10_000)
            harness.engine.workers.forget_silent(harness.now)  # as the sweep does, here at its worst moment
            assert harness.ask("Heartbeat", id="w")["ok"]

    def executions() -> int:
        return int(harness.ask("CronGet", name="c")["cron"]["executions"])

    live(60_000)
    assert executions() == 1
    for step in (6 * HOUR, -12 * HOUR):
        harness.skew(step)
        before = executions()
        live(60_000)
        assert 1 <= executions() - before <= 2
        assert harness.ask("ListWorkers")["data"]["stats"]["active"] == 1

    harness.skew(-HOUR)  # nor does one keep a dead worker alive
    harness.advance(30_000)
    assert harness.ask("ListWorkers")["data"]["stats"]["active"] == 0
    before = executions()
    harness.advance(120_000)
    assert executions() == before


@pytest.mark.slow
def test_l3_no_stall_and_no_failure_is_told_of_quick_workers(start_server: StartServer, receiver: Receiver) -> None:
    """saq #277: the sweeper caught jobs between claim and start. 600 jobs, told of to a webhook."""
    server = start_server(WEBHOOK_ALLOW_INTERNAL="on")
    total = 600
    stop = threading.Event()

    def work() -> None:
        with server.connect() as client:
            while not stop.is_set():
                if (pulled := pull(client, timeout=500, lock_ttl=1_000)) is not None:
                    client.ok("ACK", id=pulled[0]["id"], token=pulled[1])

    workers = [threading.Thread(target=work) for _ in range(10)]
    for worker in workers:
        worker.start()
    with server.connect() as producer:
        producer.ok("AddWebhook", url=receiver.url, events=ALL)
        ids: list[str] = []
        for _ in range(total // 50):
            ids += producer.ok("PUSHB", queue="q", jobs=[{"data": n} for n in range(50)])["ids"]
            time.sleep(0.1)
        wait_until(lambda: producer.ok("GetJobCounts", queue="q")["counts"]["completed"] == total, "all are completed")
        stop.set()
        for worker in workers:
            worker.join()
        wait_until(lambda: len(receiver.bodies) >= 3 * total, "all calls have come")

    told = [json.loads(body) for body in receiver.bodies]
    for name in ("job.pushed", "job.started", "job.completed"):
        assert sorted(call["jobId"] for call in told if call["event"] == name) == sorted(ids)
    assert len(told) == 3 * total
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_t1_what_is_told_of_workers_and_webhooks_holds_no_wide_integer(
    start_server: StartServer, receiver: Receiver
) -> None:
    """msgpack-javascript #114: wide integers break arithmetic in JavaScript clients."""
    server = start_server(WEBHOOK_ALLOW_INTERNAL="on")
    with server.connect() as client:
        scan = Scanner(client)
        for started_at in (1_700_000_000_000, 1.7e12):
            assert scan.ask("RegisterWorker", name="w", queues=["q"], workerId="w", startedAt=started_at)["ok"]
        assert scan.ask("Heartbeat", id="w", activeJobs=2.0, processed=2**40, failed=2.0**33)["ok"]
        [worker] = scan.ask("ListWorkers")["data"]["workers"]
        assert (worker["processedJobs"], worker["failedJobs"], worker["activeJobs"]) == (2**40, 2**33, 2)
        webhook_id = scan.ask("AddWebhook", url=receiver.url, events=ALL)["data"]["webhookId"]
        assert scan.ask("PUSH", queue="q", data={"at": 2**40, "odd": 2**63}, jobId="j", maxAttempts=1)["ok"]
        token = scan.ask("PULL", queue="q", owner="w")["token"]
        assert scan.ask("FAIL", id="j", token=token, error="x")["ok"]
        wait_until(lambda: len(receiver.bodies) == 3, "the calls have come")
        wait_until(lambda: scan.ask("ListWebhooks")["data"]["webhooks"][0]["lastTriggered"], "the calls are counted")
        assert scan.ask("SetWebhookEnabled", id=webhook_id, enabled=False)["ok"]
        assert scan.ask("UnregisterWorker", workerId="w")["ok"]
    [failed] = [call for call in map(json.loads, receiver.bodies) if call["event"] == "job.failed"]
    assert failed["data"] == {"at": 2**40, "odd": 2**63}
    check_closing(server, ["q"], ["j"])


class Worker(threading.Thread):
    """A worker as clients have one: it registers on every connection, beats, and comes back whenever it was cut off."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._server = server
        self.stop = threading.Event()
        self.done: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with Client(self._server.tcp_port, timeout_s=60) as client:
                    self._serve(client)
            except OSError:
                time.sleep(0.1)

    def _serve(self, client: Client) -> None:
        client.ok("RegisterWorker", name="w", queues=["q", "cron"], workerId="steady")
        while not self.stop.is_set():
            for queue in ("q", "cron"):
                reply = client.call("PULL", queue=queue, owner="steady", timeout=200)
                if reply.get("job"):
                    client.ok("ACK", id=reply["job"]["id"], token=reply["token"])
                    self.done.append(reply["job"]["id"])
            if not client.call("Heartbeat", id="steady")["ok"]:
                client.ok("RegisterWorker", name="w", queues=["q", "cron"], workerId="steady")


@pytest.mark.slow
def test_t3_after_restarts_and_a_server_that_stood_still_the_worker_is_listed_and_its_cron_fires(
    start_server: StartServer,
) -> None:
    """celery #8030, bunqueue #94. Shortened: 3 restarts, 5 s of stillness, with a timeout of 1 s."""
    server = start_server(WORKER_TIMEOUT_MS=1_000, WORKER_CLEANUP_INTERVAL_MS=200, SHUTDOWN_TIMEOUT_MS=1_000)
    with server.connect() as client:
        client.ok("Cron", name="c", queue="cron", repeatEvery=300, skipIfNoWorker=True)
    worker = Worker(server)
    worker.start()
    ids: list[str] = []
    try:
        for trouble in (server.restart, server.restart, server.restart, lambda: stand_still(server, 5)):
            trouble()
            with server.connect() as client:
                ids.append(client.ok("PUSH", queue="q", data=1, durable=True)["id"])
                before = client.ok("CronGet", name="c")["cron"]["executions"]
                wait_until(lambda: ids[-1] in worker.done, "the job is done", 15)
                wait_until(lambda: client.ok("CronGet", name="c")["cron"]["executions"] > before, "it fires", 15)  # noqa: B023
                data = client.ok("ListWorkers")["data"]
                assert [(w["id"], w["status"]) for w in data["workers"]] == [("steady", "active")]
    finally:
        worker.stop.set()
        worker.join()
    assert len(worker.done) == len(set(worker.done))
    with server.connect() as client:
        wait_until(lambda: client.ok("ListWorkers")["data"]["workers"] == [], "it went with its connection")
        client.ok("CronDelete", name="c")
        cron_ids = [job_id for job_id in worker.done if job_id not in ids]
        cron_ids += [job["id"] for job in client.ok("GetJobs", queue="cron", state="waiting")["jobs"]]
    check_closing(server, ["q", "cron"], ids + cron_ids)


def stand_still(server: ServerProcess, seconds: float) -> None:
    server.signal(signal.SIGSTOP)
    time.sleep(seconds)
    server.signal(signal.SIGCONT)


COMMANDS = [
    *("AddWebhook", "RemoveWebhook", "ListWebhooks", "SetWebhookEnabled"),
    *("RegisterWorker", "UnregisterWorker", "Heartbeat", "ListWorkers"),
]
PATHS = ["/webhooks", "/webhooks/x", "/webhooks/x/enabled", "/workers", "/workers/x", "/workers/x/heartbeat"]
SPELLINGS = ["/workers?token=" + TOKEN, "/work%65rs", "/workers/%2e%2e/workers", "/queues/../webhooks"]


@pytest.mark.slow
def test_z3_webhooks_and_workers_are_closed_to_strangers(start_server: StartServer) -> None:
    """CVE-2022-30034: open by default. The routes and commands of webhooks and workers."""
    server = start_server(AUTH_TOKENS=TOKEN)
    with server.connect() as stranger:
        for command in COMMANDS:
            fields = {"url": "http://example.com/", "events": [], "name": "w", "id": "x"}
            assert stranger.error(command, **fields) == "Not authenticated"
    for path in PATHS + SPELLINGS:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"):
            for token in ("", "Bearer wrong", f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"):
                status, body = request(server, method, path, token)
                assert status in (401, 404), (method, path, token, status)
                assert b'"ok":true' not in body
    assert request(server, "GET", "/webhooks", f"Bearer {TOKEN}")[0] == 200
    with server.connect(token=TOKEN) as client:
        assert client.ok("ListWorkers")["data"]["workers"] == []
        assert client.ok("ListWebhooks")["data"]["webhooks"] == []
    assert TOKEN not in server.log
    assert server.terminate() == 0
    server.assert_no_faults()


def request(server: ServerProcess, method: str, path: str, token: str) -> tuple[int, bytes]:
    """One HTTP request as it stands: nothing is cleaned on the way."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    body = json.dumps({"url": "http://example.com/", "events": [], "name": "w", "enabled": True})
    try:
        connection.request(method, path, body=body, headers={"Authorization": token} if token else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
