"""The whole server in this process: the order of its start and of its stop, on the real clock and a real file.

Source: design, "One nursery tree"; R90, R225, R280 to R287, K21, K22.
"""

import gc
import os
import signal
import sys

import apsw
import pytest
import trio

from bunqueue_trio import app as app_module
from bunqueue_trio.app import STOP_SIGNALS, LostJobsError, Server, run_server
from bunqueue_trio.config import Config
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.errors import DiskFullError, InvariantError
from bunqueue_trio.server.flusher import Flusher
from bunqueue_trio.server.store import Store
from bunqueue_trio.server.webhooks.delivering import Deliveries
from bunqueue_trio.storage import writes
from tests.server.fakes import FULL, QUEUE, frame, pull, pushes, unframe, wait_for


@pytest.fixture
def process_settings():
    """What the server sets for its whole process, put back."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes too late must not end the tests
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Run:
    """A server in the background, and its file."""

    def __init__(self, path, config: Config) -> None:
        self.path = path
        self.config = config
        self.error: BaseException | None = None
        self.ended = trio.Event()
        self.port = 0
        self.http_port = 0
        self.streams: list[trio.SocketStream] = []

    async def start(self, nursery: trio.Nursery) -> None:
        self.port, self.http_port = await nursery.start(self._serve)

    async def _serve(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        try:
            await run_server(self.config, task_status=task_status)
        except BaseException as error:
            self.error = error
            if isinstance(error, trio.Cancelled):
                raise
        finally:
            self.ended.set()

    async def connect(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return stream

    @property
    def rows(self) -> dict[str, str]:
        connection = apsw.Connection(str(self.path))
        try:
            return dict(connection.execute("SELECT id, state FROM jobs ORDER BY rowid").fetchall())
        finally:
            connection.close()


@pytest.fixture
async def run(tmp_path, process_settings, nursery):
    """Start a server on a file in a directory of its own."""
    runs: list[Run] = []

    async def start(**settings) -> Run:
        path = tmp_path / "jobs.db"
        config = Config(tcp_port=0, http_port=0, host="127.0.0.1", data_path=str(path), **settings)
        made = Run(path, config)
        runs.append(made)
        await made.start(nursery)
        return made

    yield start
    for made in runs:
        for stream in made.streams:
            stream.socket.close()


async def ask(stream: trio.SocketStream, *commands: dict) -> list[dict]:
    await stream.send_all(b"".join(map(frame, commands)))
    data = b""
    replies: list[dict] = []
    while len(replies) < len(commands):
        data += (piece := await stream.receive_some(65_536))
        assert piece, "the server has closed the connection"
        while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
            size = 4 + int.from_bytes(data[:4], "big")
            replies += unframe(data[:size])
            data = data[size:]
    return replies


def trace(monkeypatch) -> list[str]:
    """The order of what matters at a stop."""
    trail: list[str] = []

    def note(owner, name, label, *, when_done=False):
        real = getattr(owner, name)

        async def traced(self, *args, **options):
            if not when_done:
                trail.append(label)
            result = await real(self, *args, **options)
            if when_done:
                trail.append(label)
            return result

        monkeypatch.setattr(owner, name, traced)

    note(Server, "_quiesce", "quiesce")
    note(Flusher, "flush_all", "flush all")
    note(Flusher, "finish", "final flush")
    note(Store, "checkpoint", "checkpoint", when_done=True)
    note(Store, "close", "close")
    return trail


async def test_a_stop_takes_everything_in_order(run, monkeypatch):
    trail = trace(monkeypatch)
    server = await run()
    stream, waiting = await server.connect(), await server.connect()
    pushed = await ask(stream, *pushes([f"j{n}" for n in range(50)]), pull())
    await waiting.send_all(frame(pull(queue="empty", timeout=60_000)))
    await ask(stream, {"cmd": "Ping"})
    trail.clear()
    os.kill(os.getpid(), signal.SIGTERM)

    assert unframe(await waiting.receive_some(1_000)) == [{"ok": True, "job": None, "token": None}]
    assert await ask(stream, *pushes(["late"])) == [{"ok": False, "error": "Server is shutting down"}]
    await wait_for(lambda: "checkpoint" in trail)
    with pytest.raises(OSError, match=r"."):
        await server.connect()
    assert not server.ended.is_set()
    assert set(server.rows) == {f"j{n}" for n in range(50)}  # safe before the wait begins
    assert await ask(stream, {"cmd": "ACK", "id": "j0", "token": pushed[50]["token"]}) == [{"ok": True}]
    with trio.fail_after(10):
        await server.ended.wait()

    assert server.error is None
    assert trail == ["quiesce", "flush all", "checkpoint", "final flush", "close"]
    assert server.rows == {"j0": "completed"} | {f"j{n}": "waiting" for n in range(1, 50)}
    assert [entry.name for entry in server.path.parent.iterdir()] == ["jobs.db"]
    assert await stream.receive_some(1_000) == b""


async def test_a_job_that_is_not_finished_in_time_stays_active(run):
    server = await run(shutdown_timeout_ms=100)
    stream = await server.connect()
    await ask(stream, *pushes(["a"]), pull())
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(10):
        await server.ended.wait()

    assert server.error is None
    assert server.rows == {"a": "active"}


async def test_what_the_file_never_takes_is_an_error_of_the_stop(run, monkeypatch, log):
    monkeypatch.setattr(app_module, "FINAL_FLUSH_S", 0.3)

    def full(connection, batch, path):
        raise DiskFullError(FULL)

    server = await run()
    stream = await server.connect()
    await ask(stream, *pushes(["kept"], durable=True))
    monkeypatch.setattr(writes, "apply_batch", full)
    await ask(stream, *pushes(["lost"]))
    assert await ask(stream, *pushes(["refused"], durable=True)) == [{"ok": False, "error": FULL}]
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(10):
        await server.ended.wait()

    assert isinstance(server.error, LostJobsError)
    assert str(server.error) == "1 jobs could not be stored before the stop"
    assert server.rows == {"kept": "waiting"}
    assert len(list(server.path.parent.glob("jobs.db.lost-*"))) == 1


async def test_a_defect_that_broke_the_engine_stops_the_server_and_keeps_what_the_file_has(run, monkeypatch, log):
    def corrupt(self, command, now):
        self._state.active_count += 1
        raise RuntimeError("a defect")

    monkeypatch.setattr(Queries, "count", corrupt)
    server = await run()
    stream = await server.connect()
    await ask(stream, *pushes(["a"]), pull(), *pushes(["b"], durable=True))
    await stream.send_all(frame({"cmd": "Count", "queue": QUEUE}))
    with trio.fail_after(10):
        await server.ended.wait()

    with pytest.RaisesGroup(InvariantError, flatten_subgroups=True):
        raise server.error
    assert server.rows == {"a": "active", "b": "waiting"}


async def test_a_harmless_defect_degrades_health_and_the_server_goes_on(run, monkeypatch, log):
    def fail(self, command, now):
        raise RuntimeError("a defect")

    monkeypatch.setattr(Queries, "count", fail)
    reports = []
    real = app_module.Reporting

    def remember(*args):
        reports.append(real(*args))
        return reports[-1]

    monkeypatch.setattr(app_module, "Reporting", remember)
    server = await run()
    stream = await server.connect()
    assert reports[0].is_ready
    assert reports[0].health().ok

    assert await ask(stream, {"cmd": "Count", "queue": QUEUE}) == [{"ok": False, "error": "Internal server error"}]

    report = reports[0].health()
    assert (report.ok, report.status, reports[0].is_ready) == (False, "degraded", False)
    assert [reason.code for reason in report.reasons] == ["internal.error"]
    assert (await ask(stream, {"cmd": "Ping"}))[0]["ok"]
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(10):
        await server.ended.wait()
    assert server.error is None


@pytest.mark.parametrize(
    ("name", "zone"),
    [(None, "UTC"), ("", "UTC"), ("Europe/Rome", "Europe/Rome"), ("+02:00", "UTC+02:00"), (":/etc/localtime", "UTC")],
)
def test_expressions_without_a_zone_are_read_in_that_of_the_environment(name, zone):
    assert str(app_module.local_zone(name)) == zone


async def test_webhooks_are_gone_after_a_restart(run):
    hook = {"cmd": "AddWebhook", "url": "http://example.com/", "events": ["job.pushed"]}
    inside = {**hook, "url": "http://127.0.0.1/"}
    server = await run()
    added, refused, listed, metrics = await ask(
        await server.connect(), hook, inside, {"cmd": "ListWebhooks"}, {"cmd": "Prometheus"}
    )
    os.kill(os.getpid(), signal.SIGTERM)
    await server.ended.wait()

    again = await run()
    [after] = await ask(await again.connect(), {"cmd": "ListWebhooks"})

    assert added["ok"]
    assert refused["error"] == "Webhook URL cannot point to localhost"
    assert listed["data"]["stats"] == {"total": 1, "enabled": 1}
    assert "\nbunqueue_webhooks_total 1\n" in metrics["data"]["metrics"]
    assert "\nbunqueue_webhooks_enabled 1\n" in metrics["data"]["metrics"]
    assert after["data"] == {"webhooks": [], "stats": {"total": 0, "enabled": 0}}


async def test_the_operator_may_let_webhooks_point_inside(run):
    server = await run(webhook_allow_internal=True)

    hook = {"cmd": "AddWebhook", "url": "http://127.0.0.1/", "events": ["job.pushed"]}
    [added] = await ask(await server.connect(), hook)

    assert added["ok"]


async def test_a_stop_waits_for_webhooks_a_bounded_time_after_the_last_job(run, monkeypatch):
    monkeypatch.setattr(app_module, "DRAIN_WEBHOOKS_S", 0.05)
    trail = []
    server = await run()
    stream = await server.connect()
    await ask(stream, *pushes(["j"]))
    [pulled] = await ask(stream, pull())

    async def drain(self) -> None:
        trail.append("drain")
        await trio.sleep_forever()

    monkeypatch.setattr(Deliveries, "drain", drain)
    os.kill(os.getpid(), signal.SIGTERM)
    await trio.sleep(0.1)
    assert trail == []
    [acked] = await ask(stream, {"cmd": "ACK", "id": "j", "token": pulled["token"]})

    with trio.fail_after(10):
        await server.ended.wait()

    assert acked["ok"]
    assert trail == ["drain"]
    assert server.error is None


async def test_a_chain_of_repeats_goes_on_after_a_restart(run):
    first = {"cmd": "PUSH", "queue": QUEUE, "data": 1, "repeat": {"every": 1, "limit": 2}, "durable": True}
    take = {"cmd": "PULL", "queue": QUEUE, "timeout": 5_000}
    server = await run()
    stream = await server.connect()
    await ask(stream, first)
    [given] = await ask(stream, take)
    await ask(stream, {"cmd": "ACK", "id": given["job"]["id"]})
    os.kill(os.getpid(), signal.SIGTERM)
    await server.ended.wait()

    again = await run()
    stream = await again.connect()
    counts = []
    for _ in range(2):
        [given] = await ask(stream, take)
        counts.append(given["job"]["repeat"]["count"])
        await ask(stream, {"cmd": "ACK", "id": given["job"]["id"]})
    [last] = await ask(stream, {**take, "timeout": 50})

    assert (counts, last["job"]) == ([1, 2], None)  # SD-9


# HTTP

READY = b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
METRICS = b"GET /prometheus HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def http_on(path: str, request: bytes) -> bytes:
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(request)
        return b"".join([piece async for piece in stream])


async def test_http_on_a_unix_socket_with_its_limit_and_its_metric(run, tmp_path, capsys):
    path = str(tmp_path / "http.sock")
    server = await run(http_socket_path=path, http_max_connections=1)

    async with await trio.open_unix_socket(path) as first:
        await first.send_all(READY.replace(b"Connection: close\r\n", b""))
        assert (await first.receive_some()).startswith(b"HTTP/1.1 200 ")
        refused = await http_on(path, b"")
    await trio.sleep(0.1)
    metrics = await http_on(path, METRICS)

    assert server.http_port == 0
    assert f'"http":"{path}"' in capsys.readouterr().out
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'bunqueue_connections{transport="http"} 1\n' in metrics
    assert b'bunqueue_connections_refused_total{transport="http"} 1\n' in metrics
    assert b'bunqueue_connections{transport="tcp"} 0\n' in metrics
