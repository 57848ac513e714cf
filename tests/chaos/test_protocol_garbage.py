"""Bytes that are no frames, frames that are no commands, and commands of strangers (R170 to R173).

Invariants: no input ends the server or makes it hang; after each single piece of garbage a new connection does a normal
exchange; somebody who has not authenticated changes nothing, whatever he sends; what the server holds afterwards is
what it held before.

Source also: protocol, "Framing and connection", K39.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunqueue_trio.model.commands import AnyCommand
from bunqueue_trio.web.openapi import document
from tests.chaos.bounds import MIB
from tests.chaos.leaks import assert_back_at, baseline
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.process import Client, ServerProcess, StartServer, frame, framed

TOKEN = "a secret"
RANDOM_FRAMES = 100
NUMBERS = itertools.count()
COMMANDS = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyCommand)}


def header(length: int) -> bytes:
    return struct.pack(">I", length)


def random_command(rng: random.Random) -> bytes:
    """A frame that the server would take."""
    return frame({"cmd": rng.choice(("Ping", "PUSH", "GetJob")), "queue": "garbage", "data": rng.random(), "id": "x"})


def corrupt(rng: random.Random) -> bytes:
    """A good body with some bytes changed."""
    body = bytearray(random_command(rng)[4:])
    for _ in range(rng.randint(1, 4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return framed(bytes(body))


def torn(rng: random.Random) -> bytes:
    """A frame that ends early."""
    whole = random_command(rng)
    return whole[: rng.randrange(1, len(whole))]


def too_short(rng: random.Random) -> bytes:
    """The length says less than there is: what follows is taken for another length."""
    body = random_command(rng)[4:]
    return header(rng.randrange(1, len(body))) + body


def too_long(rng: random.Random) -> bytes:
    """The length says more than there is."""
    body = random_command(rng)[4:]
    return header(len(body) + rng.randint(1, 1_000)) + body


def oversize(rng: random.Random) -> bytes:
    """More than 64 MB are announced."""
    return header(64 * MIB + rng.choice((1, 2, 10**6, 2**32 - 64 * MIB - 1))) + rng.randbytes(50)


def empty(rng: random.Random) -> bytes:
    """Frames without a body."""
    return header(0) * rng.randint(1, 20)


def noise(rng: random.Random) -> bytes:
    """Random bodies in good frames."""
    return b"".join(framed(rng.randbytes(rng.randint(1, 200))) for _ in range(rng.randint(1, 10)))


def static(rng: random.Random) -> bytes:
    """Random bytes, without frames."""
    return rng.randbytes(rng.randint(1, 2_000))


def no_map(rng: random.Random) -> bytes:
    """Good msgpack that is no command."""
    values: list[Any] = [
        [],
        [1, 2],
        "text",
        7,
        None,
        True,
        1.5,
        {},
        {1: 2},
        {"cmd": 7},
        {"cmd": None},
        {"cmd": ["PUSH"]},
    ]
    return frame(rng.choice(values))


def deep(rng: random.Random) -> bytes:
    """Lists in lists in lists."""
    depth = rng.choice((50, 600, 5_000, 100_000))
    return framed(b"\x82\xa3cmd\xa4PUSH\xa4data" + b"\x91" * depth + b"\xc0")


def boasting(rng: random.Random) -> bytes:
    """A map, list, text or blob that says it has four thousand million entries."""
    return framed(b"\x82\xa3cmd\xa4PUSH\xa4data" + rng.choice((b"\xdf", b"\xdd", b"\xdb", b"\xc6")) + b"\xff" * 4)


def http_request(rng: random.Random) -> bytes:
    """Somebody has mistaken the port."""
    return rng.choice(
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n")
    )


KINDS = [
    *(corrupt, torn, too_short, too_long, oversize, empty, noise, static, no_map, deep, boasting, http_request),
]


def throw(client: Client, data: bytes, rng: random.Random) -> None:
    """Send garbage, in pieces or as a whole, and leave in one of the ways there are."""
    try:
        if rng.random() < 0.3:
            cut = rng.randrange(len(data) + 1)
            client.send_bytes(data[:cut])
            client.send_bytes(data[cut:])
        else:
            client.send_bytes(data)
        way = rng.randrange(3)
        if way == 0:
            client.reset()
        elif way == 1:
            client.socket.shutdown(socket.SHUT_WR)
            client.is_cut_off()
    except OSError:
        pass  # cut off already


@pytest.mark.parametrize("tokens", [None, TOKEN], ids=["open", "closed to strangers"])
def test_after_each_piece_of_garbage_a_normal_exchange_works(
    start_server: StartServer, soak: Soak, ledger: Ledger, rng: random.Random, tokens: str | None
) -> None:
    server = start_server(**({} if tokens is None else {"AUTH_TOKENS": tokens}))
    exchange(server, ledger, tokens)
    before = baseline(server, token=tokens)
    count = 0
    for _ in soak.rounds(3):
        for kind in KINDS:
            with server.connect(timeout_s=30) as wild:
                throw(wild, kind(rng), rng)
            assert server.is_running, (kind.__name__, server.log)
            exchange(server, ledger, tokens)
            count += 1
    assert server.health()["status"] == "healthy"
    assert_back_at(server, before, token=tokens, but={"queues", "queue.ready", "queue.listed", "jobs", "queue.blocks"})
    server.assert_no_faults()
    ledger.remark(f"{count} pieces of {len(KINDS)} kinds")


def exchange(server: ServerProcess, ledger: Ledger, token: str | None = None) -> None:
    """Connect, push, pull, confirm, on one new connection."""
    with server.connect(token=token) as client:
        job_id = f"x{next(NUMBERS)}"
        ledger.push(job_id)
        client.ok("PUSH", queue="normal", data=1, jobId=job_id, durable=True)
        ledger.acknowledge(job_id)
        pulled = client.ok("PULL", queue="normal", owner="w", timeout=10_000)
        assert pulled["job"]["id"] == job_id
        ledger.begin(job_id, "w")
        ledger.end(job_id, "w")
        client.ok("ACK", id=job_id, token=pulled["token"])
        ledger.complete(job_id)
        assert client.state(job_id) == "completed"
        ledger.find([job_id])
        ledger.settle([job_id])


def test_a_hundred_frames_of_random_bytes_on_one_connection(
    server: ServerProcess, soak: Soak, ledger: Ledger, rng: random.Random
) -> None:
    """Each is refused by itself: the frames are in order, so the connection goes on."""
    for _ in soak.rounds(3):
        with server.connect() as wild:
            bodies = [rng.randbytes(rng.randint(1, 500)) for _ in range(RANDOM_FRAMES)]
            wild.send_bytes(b"".join(map(framed, bodies)))
            replies = [wild.receive() for _ in bodies]
            assert all(reply is not None and reply["ok"] is False for reply in replies)
            wild.ok("Ping")
        exchange(server, ledger)
    server.assert_no_faults()
    ledger.remark(f"{RANDOM_FRAMES} frames a round")


# strangers

SAMPLES: dict[str, Any] = {
    "queue": "q",
    "id": "waiting",
    "ids": ["waiting"],
    "job_id": "waiting",
    "jobs": [{"data": 1}],
    "data": 1,
    "name": "mine",
    "config": {"maxEntries": 1},
    "repeat_every": 60_000,
    "limit": 1,
    "concurrency": 1,
    "group_id": "g",
    "group": "g",
    "url": "http://127.0.0.1:9/",
    "events": ["job.completed"],
    "queues": ["q"],
    "message": "text",
    "priority": 9,
    "delay": 60_000,
    "progress": 50,
    "duration": 1_000,
    "children": ["failed"],
    "force": True,
    "count": 5,
    "owner": "w",
    "timeout": 1,
}


def sample_of(kind: Any) -> dict[str, Any]:
    """The command with something plausible in each field."""
    shown = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return {shown[name]: value for name, value in SAMPLES.items() if name in shown}


def prepare(client: Client) -> None:
    """A job in each state, a cron, a webhook, settings."""
    client.ok("PUSH", queue="q", data=1, jobId="active")
    client.ok("PULL", queue="q", owner="w", lockTtl=600_000)
    client.ok("PUSH", queue="q", data=1, jobId="waiting")
    client.ok("PUSH", queue="q", data=1, jobId="delayed", delay=600_000)
    client.ok("PUSH", queue="dead", data=1, jobId="dead", maxAttempts=1)
    pulled = client.ok("PULL", queue="dead", owner="w")
    client.ok("FAIL", id="dead", token=pulled["token"])
    client.ok("Cron", name="daily", queue="q", schedule="0 0 1 1 *", data=1)
    client.ok("RateLimit", queue="other", limit=5)
    client.ok("PUSH", queue="q", data=1, jobId="last", durable=True)


def contents(server: ServerProcess) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with closing(sqlite3.connect(server.data_path)) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: sorted(file.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


def test_a_stranger_changes_nothing_with_any_command(start_server: StartServer, ledger: Ledger) -> None:
    """The same commands from somebody who may do, change much: they were no blanks."""
    server = start_server(AUTH_TOKENS=TOKEN)
    commands = [{"cmd": name, **sample_of(kind)} for name, kind in COMMANDS.items() if name != "Auth"]
    with server.connect(token=TOKEN) as owner:
        prepare(owner)
        owner.ok("Ping")
        rows = contents(server)
        with server.connect() as stranger:
            replies = stranger.call_many(commands)
        with server.connect() as stranger:
            assert stranger.error("Auth", token="guessed") == "Invalid token"
            replies += stranger.call_many(commands)
        flush(owner)

        assert {(reply["ok"], reply["error"]) for reply in replies} == {(False, "Not authenticated")}
        assert changed(rows, contents(server)) == set()
        owner_replies = [owner.call(**command) for command in commands]
        assert sum(reply["ok"] for reply in owner_replies) > len(commands) // 2
        assert {"jobs", "cron_jobs", "queue_state", "dlq"} & changed(rows, contents(server))
    server.assert_no_faults()
    ledger.remark(f"{len(commands)} commands")


CHECK = "check"


def flush(owner: Client) -> None:
    """Whatever has changed is in the file afterwards."""
    owner.ok("PUSH", queue=CHECK, data=1, jobId=CHECK, durable=True)


def changed(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> set[str]:
    """Tables with other rows, but for what `flush` has left."""
    return {name for name in before if [row for row in after[name] if CHECK not in row[:3]] != before[name]}


def test_a_stranger_changes_nothing_over_http(start_server: StartServer, ledger: Ledger) -> None:
    server = start_server(AUTH_TOKENS=TOKEN)
    count = 0
    with server.connect(token=TOKEN) as owner:
        prepare(owner)
        rows = contents(server)
        for pattern, methods in document()["paths"].items():
            for method in {"post", "put", "delete", "patch"} & methods.keys():
                path = re.sub(r"{(\w+)}", lambda found: SAMPLES.get(found[1], "waiting"), pattern)
                for headers in ({}, {"Authorization": "Bearer guessed"}, {"Authorization": "Basic eDp5"}):
                    assert status_of(server, method.upper(), path, headers) == 401, (method, path, headers)
                    count += 1
        flush(owner)
        assert changed(rows, contents(server)) == set()
    server.assert_no_faults()
    assert count > 50
    ledger.remark(f"{count} requests")


def status_of(server: ServerProcess, method: str, path: str, headers: dict[str, str]) -> int:
    body = json.dumps({"data": 1, "queue": "q", "jobs": [{"data": 1}], "name": "n", "url": "http://127.0.0.1:9/"})
    return server.request(method, path, body, {"Content-Type": "application/json", **headers})[0]


def test_a_stranger_may_not_send_a_large_frame(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="secret")
    for length, error in (
        (65_537, "Not authenticated"),
        (70_000_000, "Frame too large: 70000000 bytes exceeds maximum 67108864"),
    ):
        with server.connect() as stranger:
            stranger.send_bytes(struct.pack(">I", length))
            reply = stranger.receive()

            assert reply is not None
            assert (reply["ok"], reply["error"]) == (False, error)
            assert stranger.is_cut_off()
    with server.connect() as stranger:  # the largest legal one is read, refused, and the connection stays
        stranger.send_bytes(framed(msgpack.packb({"cmd": "PUSH", "data": "x" * 65_000}).ljust(65_536, b"\xc0")))
        assert stranger.receive() is not None
        assert stranger.error("Ping") == "Not authenticated"
        stranger.ok("Auth", token="secret")
        stranger.ok("PUSH", queue="q", data="x" * 1_000_000)
    server.assert_no_faults()


def test_strangers_cannot_make_the_server_hold_memory(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="secret")
    with server.connect(token="secret") as good:
        before = server.rss_bytes()
        strangers = [server.connect() for _ in range(200)]
        try:
            for stranger in strangers:
                stranger.send_bytes(struct.pack(">I", 65_536) + b"\x01" * 65_000)
            for _ in range(20):
                good.ok("PUSH", queue="q", data=1, durable=True)
            # 64 KiB each, and as much again for what an allocator makes of it.
            assert server.rss_bytes() - before < 200 * 2 * 65_536 + 8 * MIB
        finally:
            for stranger in strangers:
                stranger.close()
        with server.connect(receive_buffer=8_192) as flooding:
            flooding.flood(frame({"cmd": "Ping", "reqId": "x" * 1_000}) * 50)
            assert flooding.is_cut_off()
        assert server.rss_bytes() - before < 200 * 2 * 65_536 + 8 * MIB
        good.ok("Ping")
    server.assert_no_faults()


# bytes that are not ours


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all examples; it must still be sound after the last."""
    with ServerProcess(tmp_path_factory.mktemp("random")) as server:
        server.start()
        yield server
        server.assert_no_faults()
        assert server.health()["status"] == "healthy"
        assert server.terminate() == 0


NAMES = [
    *("PUSH", "PUSHB", "PULL", "PULLB", "ACK", "ACKB", "FAIL", "JobHeartbeatB", "ExtendLocks", "Progress", "GetJob"),
    *("GetState", "Cancel", "SetStallConfig", "RegisterWorker", "Heartbeat", "Auth", "Dlq", "Pause", "GetJobCounts"),
]
FIELDS = [
    *(
        "queue",
        "data",
        "id",
        "ids",
        "tokens",
        "token",
        "jobs",
        "count",
        "owner",
        "lockTtl",
        "jobId",
        "delay",
        "backoff",
    ),
    *("dependsOn", "timeout", "durations", "config", "progress", "results", "error", "stack", "name", "queues"),
]
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
KEYS = st.text(max_size=5)
SHALLOW = ATOMS | st.lists(ATOMS, max_size=4) | st.dictionaries(KEYS, ATOMS, max_size=4)
VALUES = SHALLOW | st.lists(SHALLOW, max_size=3) | st.dictionaries(KEYS, SHALLOW, max_size=3)
ANY_COMMANDS = st.builds(
    lambda cmd, fields: frame({"cmd": cmd, **fields}),
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(FIELDS), VALUES | st.sampled_from(["q", "a"]), max_size=6),
)
BYTES = st.binary(max_size=300)
PIECES = st.lists(ANY_COMMANDS | BYTES | BYTES.map(framed), min_size=1, max_size=8)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(pieces=PIECES)
def test_a_random_byte_stream_never_stops_the_server(lasting_server: ServerProcess, pieces: list[bytes]) -> None:
    with lasting_server.connect() as wild:
        try:
            wild.send_bytes(b"".join(pieces))
            wild.socket.shutdown(socket.SHUT_WR)
            while wild.receive_body() is not None:
                pass
        except OSError:
            pass  # cut off for an oversize frame

    assert lasting_server.is_running, lasting_server.log
    with lasting_server.connect() as good:
        good.ok("Ping")
