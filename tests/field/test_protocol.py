"""Protocol and clients: T1, T5 of the field reports."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest

from tests.field.closing import check_closing, must_pull, work_off
from tests.process import Client, ServerProcess, StartServer, framed, wait_until


def formats(body: bytes) -> set[int]:
    """The first byte of every value in one msgpack body, payload bytes left out."""
    found: set[int] = set()
    _walk(body, 0, found)
    return found


def _walk(body: bytes, at: int, found: set[int]) -> int:
    kind = body[at]
    found.add(kind)
    at += 1
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind in _COUNTED:
        size, header, items = _COUNTED[kind]
        count = int.from_bytes(body[at : at + size], "big")
        return _skip(body, at + size + header, count, items, found)
    if 0x80 <= kind <= 0x9F:
        return _skip(body, at, kind & 0x0F, 2 if kind < 0x90 else 1, found)
    if 0xA0 <= kind <= 0xBF:
        return at + (kind & 0x1F)
    assert kind <= 0x7F or kind >= 0xE0, kind
    return at


def _skip(body: bytes, at: int, count: int, items: int, found: set[int]) -> int:
    if not items:
        return at + count
    for _ in range(count * items):
        at = _walk(body, at, found)
    return at


_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
          0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # fmt: skip
# Size of the count, bytes between it and the content, values per counted item (0: plain bytes).
_COUNTED = {0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0), 0xC7: (1, 1, 0), 0xC8: (2, 1, 0), 0xC9: (4, 1, 0),
            0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0), 0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2),
            0xDF: (4, 0, 2)}  # fmt: skip
WIDE = {0xCF, 0xD3}


class Scanner:
    """Asks on a connection, checks every byte of the answers, and remembers nothing else."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        self._client.send_bytes(framed(msgpack.packb({"cmd": cmd, **fields})))
        return self.reply()

    def reply(self) -> dict[str, Any]:
        body = self._client.receive_body()
        assert body is not None, "the connection was closed"
        assert not formats(body) & WIDE, body
        reply: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
        return reply


def test_the_scan_finds_wide_integers_wherever_they_are() -> None:
    wide = 2**40
    for value in (
        wide,
        -wide,
        [1, wide],
        {"a": {"b": [wide]}},
        {"a" * 40: wide},
        [b"\xcf" * 9, wide],
        [1.5, "\xcf", wide],
    ):
        assert formats(msgpack.packb(value)) & WIDE
    for narrow in (1.5, -5, [2**31, "x" * 300], {"a": b"\xcf" * 70_000}, [None, True, msgpack.Timestamp(2**31)]):
        assert not formats(msgpack.packb(narrow)) & WIDE


@pytest.mark.slow
def test_t1_no_wide_integer_leaves_the_server_and_every_legal_form_comes_in(server: ServerProcess) -> None:
    """msgpack-javascript #114: wide integers break arithmetic in JavaScript clients."""
    with server.connect() as client, server.connect() as subscriber:
        scan, events = Scanner(client), Scanner(subscriber)
        assert events.ask("SubscribeEvents", queue="q")["ok"]
        data = {
            "at": 1_700_000_000_000,
            "odd": 2**53 + 1,
            "n": None,
            "bytes": b"\xcf\xd3",
            7: "seven",
            "deep": [{"x": -(2**40)}],
        }
        pushed = scan.ask(
            "PUSH", queue="q", data=data, jobId="j", delay=0.0, maxAttempts=3.0, timestamp=1_700_000_000_000
        )
        assert pushed["ok"], pushed
        assert scan.ask("PUSH", queue="q", data=1, jobId="dead", maxAttempts=1.0, priority=-5.0, ttl=2**34)["ok"]
        assert scan.ask("RegisterWorker", name="w", queues=["q"], workerId="w", startedAt=1_700_000_000_000, pid=2**33)[
            "ok"
        ]
        assert scan.ask("RegisterWorker", name="w", queues=["q"], workerId="w", startedAt=1.7e12)["ok"]
        assert scan.ask("SetStallConfig", queue="q", config={"stallInterval": 60_000.0, "maxStalls": 2**33})["ok"]
        pulled = scan.ask("PULL", queue="q", owner="w", timeout=5_000.0, lockTtl=30_000.0)
        assert pulled["job"]["data"] == {
            "at": 1.7e12, "odd": float(2**53), "n": None, "bytes": b"\xcf\xd3", "7": "seven",
            "deep": [{"x": -float(2**40)}],
        }  # fmt: skip
        assert scan.ask("Progress", id="j", progress=50.0, message="half")["ok"]
        assert scan.ask("GetProgress", id="j")["progress"] == 50
        assert scan.ask("ACK", id="j", token=pulled["token"], result={"at": 2**40, "n": [2**63]})["ok"]
        failing = scan.ask("PULLB", queue="q", owner="w", count=5.0)
        assert scan.ask("FAIL", id="dead", token=failing["tokens"][0], error=2**40)["ok"]
        for command in ("GetJob", "GetState", "GetResult"):
            for job_id in ("j", "dead"):
                assert scan.ask(command, id=job_id)["ok"]
        assert scan.ask("GetResult", id="j")["result"] == {"at": float(2**40), "n": [float(2**63)]}
        assert [job["id"] for job in scan.ask("Dlq", queue="q", count=10.0)["jobs"]] == ["dead"]
        assert scan.ask("AddLog", id="j", message={"at": 2**40, 7: [2**63]}, level=2**40)["ok"]
        [line] = scan.ask("GetLogs", id="j", start=0.0, end=5.0)["data"]["logs"]
        assert (line["message"], line["level"]) == ({"at": float(2**40), "7": [float(2**63)]}, float(2**40))
        for command in ("Ping", "Hello", "ListQueues", "Stats", "Metrics", "StorageStatus", "CompactMemory"):
            assert scan.ask(command)["ok"]
        for command in ("Prometheus", "DashboardOverview", "DashboardQueues"):
            assert scan.ask(command)["ok"]
        assert scan.ask("DashboardQueue", queue="q", includeJobs=True, jobsLimit=5.0)["ok"]
        told = [events.reply()["event"] for _ in range(7)]
        assert [event["eventType"] for event in told] == [
            *("pushed", "pushed", "pulled", "progress", "completed", "pulled", "failed"),
        ]
        assert {type(event["timestamp"]) for event in told} == {float}
        assert told[4]["data"] == {"at": float(2**40), "n": [float(2**63)]}
        assert scan.ask("TrimEvents", queue="q", maxLength=2**40)["ok"]
        for command in ("Count", "GetJobCounts", "GetStallConfig", "IsPaused"):
            assert scan.ask(command, queue="q")["ok"]
    check_closing(server, ["q"], ["j", "dead"])


@pytest.mark.slow
def test_t1_crons_travel_in_narrow_integers_too(server: ServerProcess) -> None:
    with server.connect() as client:
        scan = Scanner(client)
        numbers = {"priority": 5.0, "maxLimit": 2**34, "dedup": {"ttl": 2**40}}
        options = {"delay": 5_000.0, "timeout": 60_000.0, "backoff": {"type": "fixed", "delay": 1_000.0}}
        fields = {"data": {"at": 2**40, 7: [2**63]}, "repeatEvery": 2**33, "immediately": True, **numbers}
        made = scan.ask("Cron", name="c", queue="q", jobOptions=options, **fields)
        assert made["ok"], made
        assert made["cron"]["repeatEvery"] == 2**33
        assert scan.ask("Cron", name="d", queue="q", repeatEvery=60_000.0, schedule="0 9 * * *")["ok"]
        for command in ("CronGet", "CronDelete"):
            assert scan.ask(command, name="nobody") == {"ok": False, "error": "Cron job not found"}
        wait_until(lambda: scan.ask("CronGet", name="c")["cron"]["executions"], "the cron has fired")
        [first, second] = scan.ask("CronList")["crons"]
        assert (first["nextRun"], first["maxLimit"]) == (made["cron"]["nextRun"] + 2**33, 2**34)
        assert second["repeatEvery"] == 60_000
        pulled = scan.ask("PULL", queue="q", owner="w", timeout=10_000.0)
        assert pulled["job"]["data"] == {"at": float(2**40), "7": [float(2**63)]}
        assert scan.ask("ACK", id=pulled["job"]["id"], token=pulled["token"])["ok"]
        assert scan.ask("DashboardOverview")["ok"]
    check_closing(server, ["q"], [pulled["job"]["id"]])


@pytest.mark.slow
def test_t1_extensions_are_carried_dropped_or_refused_but_never_close_the_connection(server: ServerProcess) -> None:
    """``undefined`` counts as absent in fields and is kept in data, as time stamps are; others are no frame of ours."""
    undefined, stamp = msgpack.ExtType(0, b"\0"), msgpack.Timestamp(1_700_000_000)
    with server.connect() as client:
        scan = Scanner(client)
        options = {"delay": undefined, "priority": undefined, "backoff": undefined, "jobId": "j", "ttl": undefined}
        assert scan.ask("PUSH", queue="q", data={"at": stamp, "gone": undefined, "list": [undefined, 1]}, **options)[
            "ok"
        ]
        job = scan.ask("PULL", queue="q", owner="w", timeout=undefined)
        assert job["job"]["data"]["at"] == msgpack.Timestamp(1_700_000_000)
        assert job["job"]["data"]["gone"] == undefined
        assert job["job"]["data"]["list"] == [undefined, 1]
        assert undefined not in [value for key, value in job["job"].items() if key != "data"]
        assert scan.ask("ACK", id="j", token=job["token"], result=undefined)["ok"]
        assert scan.ask("GetResult", id="j").get("result") is None
        unknown = scan.ask("PUSH", queue="q", data={"x": msgpack.ExtType(5, b"1234")})
        assert (unknown["ok"], unknown["error"]) == (False, "Invalid command format")
        assert scan.ask("PUSH", queue="q", data=undefined) == {"ok": False, "error": "Job data is required"}
        assert scan.ask("Ping")["ok"]
    check_closing(server, ["q"], ["j"])


@pytest.mark.slow
def test_t5_out_of_descriptors_old_clients_go_on_and_new_ones_are_taken_in_again(start_server: StartServer) -> None:
    """thousand_island PR 206: the accept loop spun, died or parked for ever."""
    server = start_server(prefix=["sh", "-c", 'ulimit -n 128; exec "$@"', "sh"])
    old = [server.connect() for _ in range(5)]
    crowd: list[Client] = []
    try:
        for client in old:
            client.ok("Ping")
        crowd += [server.connect() for _ in range(150)]
        wait_until(lambda: "Cannot accept connections" in server.log, "descriptors have run out")
        lines, cpu, began = server.log.count("\n"), server.cpu_s(), time.monotonic()
        ids = []
        while time.monotonic() - began < 4:
            for client in old:
                ids.append(client.ok("PUSH", queue="q", data=1, durable=True)["id"])
                job, token = must_pull(client)
                client.ok("ACK", id=job["id"], token=token)
            time.sleep(0.2)
        passed = time.monotonic() - began
        assert server.log.count("\n") - lines < 10 * passed
        assert server.cpu_s() - cpu < 0.5 * passed
        for client in crowd[:100]:
            client.close()
        with server.connect(timeout_s=10) as fresh:
            fresh.ok("Ping")
            assert work_off(fresh) == []
        assert server.get("/health", 10)[0] == 200
    finally:
        for client in (*old, *crowd):
            client.close()
    check_closing(server, ["q"], ids)
