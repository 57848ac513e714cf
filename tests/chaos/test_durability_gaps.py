"""Durability gaps: ACKs that never left, a WAL that is damaged between two runs, a main file that is (R181 to R185).

Invariant of the ACKs: those the server received count for good, the others lead to another run of the job and to one
completion; nothing is lost and nothing counted twice. A job whose ACK did not arrive has its effects again: that is
at-least-once delivery, not a fault.

Invariant of the WAL: what comes back is a prefix of what was committed, never less than what had been checkpointed, and
never a job that nobody pushed.

Invariant of the main file: the server refuses to start in one line that names the file, or it starts and works. It
never hangs, and a refusal changes nothing.

Invariant of the folder: when it goes away below the running server, promises are refused and questions that need the
file as well; nothing ends or hangs, and all is well again once it is back.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.errors import CorruptDatabaseError, StartError
from bunqueue_trio.ids import Ids
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage.soundness import ABOUT_VALUES
from tests.chaos.actors import LASTING, completed_count, drain, look_up, round_trip
from tests.chaos.bounds import BOUNDS
from tests.chaos.ledger import Ledger
from tests.chaos.proxy import Proxy
from tests.process import Client, ServerProcess, StartServer, frame, wait_until

PUSHES = 15
WAL_HEADER, FRAME_HEADER, PAGE = 32, 24, 4_096
FRAME = FRAME_HEADER + PAGE
REAL_STARTS = 3

# ACKs that never left


def hand_out(server: ServerProcess, ledger: Ledger, client: Client, ids: list[str]) -> dict[str, str]:
    """Push jobs, and have *client* pull them; token by id."""
    ledger.push(*ids)
    with server.connect() as producer:
        jobs = [{"customId": job_id, "data": 1, **LASTING} for job_id in ids]
        ledger.acknowledge(*producer.ok("PUSHB", queue="q", jobs=jobs, durable=True)["ids"])
    pulled = client.ok("PULLB", queue="q", count=len(ids), owner="first", lockTtl=60_000)
    held = [job["id"] for job in pulled["jobs"]]
    assert sorted(held) == sorted(ids)
    for job_id in held:
        ledger.begin(job_id, "first")
    return dict(zip(held, pulled["tokens"], strict=True))


def test_two_completions_that_never_left_are_made_again_and_three_are_not(
    server: ServerProcess, ledger: Ledger
) -> None:
    """R182, the row as it stands: 3 ACKs delivered, 2 lost; the counter says 5 and not 7."""
    ids = [f"job-{number}" for number in range(5)]
    first = server.connect()
    tokens = hand_out(server, ledger, first, ids)
    first.ok("ACKB", ids=ids[:3], tokens=[tokens[job_id] for job_id in ids[:3]])
    ledger.end_all("first")
    ledger.complete(*ids[:3])
    first.reset()  # with two completions still in the buffer of the client

    drain(server, ledger)

    assert look_up(server, ledger) == dict.fromkeys(ids, "completed")
    assert ledger.run_again == set(ids[3:])
    assert completed_count(server) == 5
    server.crash_and_restart()
    assert completed_count(server) == 5
    server.assert_no_faults()


def test_a_batch_that_is_cut_on_its_way_completes_nothing(server: ServerProcess, ledger: Ledger) -> None:
    """All of an ACKB arrives or none: half a frame is no command."""
    ids = [f"job-{number}" for number in range(5)]
    with Proxy(server.tcp_port) as proxy, Client(proxy.port) as first:
        tokens = hand_out(server, ledger, first, ids)
        batch = frame({"cmd": "ACKB", "ids": ids, "tokens": [tokens[job_id] for job_id in ids], "reqId": 99})
        proxy.pass_bytes(len(batch) - 1)
        first.send_bytes(batch)
        with server.connect() as looking:
            assert {looking.state(job_id) for job_id in ids} == {"active"}
        ledger.end_all("first")
        proxy.cut()

        drain(server, ledger)

    assert look_up(server, ledger) == dict.fromkeys(ids, "completed")
    assert ledger.run_again == set(ids)
    assert completed_count(server) == 5


def test_connections_cut_anywhere_in_a_stream_of_completions_count_none_twice(
    server: ServerProcess, ledger: Ledger, rng: random.Random
) -> None:
    """The cut comes after a random byte, and sometimes before the server has read what had arrived."""
    everything: list[str] = []
    lost = 0
    with Proxy(server.tcp_port) as proxy:
        for number in range(15):
            ids = [f"{number}-{n}" for n in range(rng.randint(1, 20))]
            everything += ids
            with Client(proxy.port) as first:
                tokens = hand_out(server, ledger, first, ids)
                acks = [
                    frame({"cmd": "ACK", "id": one, "token": tokens[one], "result": one, "reqId": one}) for one in ids
                ]
                stream = b"".join(acks)
                proxy.pass_bytes(rng.randint(0, len(stream)))
                ledger.end_all("first")
                first.send_bytes(stream)
                time.sleep(rng.choice((0.0, 0.0, 0.001, 0.02)))
                proxy.cut()
                drain(server, ledger)
                lost += len(ledger.run_again & set(ids))

    assert look_up(server, ledger) == dict.fromkeys(everything, "completed")
    assert completed_count(server) == len(everything)
    ledger.remark(f"{lost} of {len(everything)} completions lost on the way and made again")
    server.assert_no_faults()


# The WAL


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What kill -9 leaves: the first half of the pushes in the main file, the others in the WAL, a commit each."""
    folder = tmp_path_factory.mktemp("crashed")
    with ServerProcess(folder).start() as server:
        for start in (0, PUSHES):
            with server.connect() as client:
                for number in range(start, start + PUSHES):
                    client.ok("PUSH", queue="q", data={"n": number}, jobId=f"{number:03}", durable=True)
            if start == 0:
                server.restart()  # folds the WAL in
        server.kill()
    assert (folder / "jobs.db-wal").stat().st_size > PUSHES * FRAME
    return folder


@pytest.fixture
def copy(crashed: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged: the main file."""
    return copied(crashed, tmp_path)


def copied(crashed: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        shutil.copy(crashed / f"jobs.db{suffix}", folder / f"jobs.db{suffix}")
    return folder / "jobs.db"


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def names(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def started(start_server: StartServer, path: Path) -> tuple[ServerProcess, list[str]]:
    """A real server on the file: ready in time, works, and which of the jobs it has."""
    began = time.monotonic()
    server = start_server(path.parent)
    round_trip(server)
    assert time.monotonic() - began < BOUNDS.restart_s
    with server.connect() as client:
        found = [name for name in names(2 * PUSHES) if client.state(name) == "waiting"]
        assert client.ok("Count", queue="q")["count"] == len(found), "a job that nobody pushed"
    return server, found


def test_every_cut_of_the_wal_gives_a_prefix(crashed: Path, tmp_path: Path) -> None:
    """R183: at each frame boundary and in the middle of each frame, by the server's own way to open a file."""
    content = wal_of(crashed / "jobs.db").read_bytes()
    boundaries = range(WAL_HEADER, len(content) + 1, FRAME)
    lengths = []
    for number, cut in enumerate(sorted({0, 31, *boundaries, *(one + FRAME // 2 for one in boundaries)})):
        path = tmp_path / f"{number}.db"
        shutil.copy(crashed / "jobs.db", path)
        wal_of(path).write_bytes(content[:cut])
        writer = db.open_writer(str(path), warnings=[])
        found = [job_id for (job_id,) in writer.execute("SELECT id FROM jobs WHERE queue = 'q' ORDER BY id")]
        assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        writer.close()
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()

        assert found == names(len(found)), cut
        lengths.append(len(found))

    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(PUSHES, 2 * PUSHES + 1))


@pytest.mark.parametrize("number", range(REAL_STARTS))
def test_a_server_on_a_cut_wal_has_a_prefix_and_works(
    start_server: StartServer, copy: Path, rng: random.Random, number: int
) -> None:
    """R183 on the real process: one cut in each third of the WAL."""
    size = wal_of(copy).stat().st_size
    cut = rng.randint(number * size // REAL_STARTS, (number + 1) * size // REAL_STARTS - 1)
    os.truncate(wal_of(copy), cut)

    server, found = started(start_server, copy)

    assert found == names(len(found)), cut
    assert PUSHES <= len(found) < 2 * PUSHES
    server.assert_no_faults()


def test_without_its_header_the_wal_is_dropped_and_said_to_be(start_server: StartServer, copy: Path) -> None:
    """R184: what had been checkpointed is intact, the newer jobs are gone, and what is left of them is kept aside."""
    damaged = b"\xa5" * WAL_HEADER + wal_of(copy).read_bytes()[WAL_HEADER:]
    wal_of(copy).write_bytes(damaged)

    server, found = started(start_server, copy)

    assert found == names(PUSHES)
    assert str(wal_of(copy)) in server.log
    [aside] = copy.parent.glob("jobs.db-wal.damaged-*")
    assert aside.read_bytes() == damaged
    server.restart()
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == PUSHES
    server.assert_no_faults()


def test_garbage_behind_the_wal_costs_nothing(start_server: StartServer, copy: Path, rng: random.Random) -> None:
    """Frames that were valid once, where they no longer are, and then no frames at all."""
    content = wal_of(copy).read_bytes()
    garbage = content[WAL_HEADER : WAL_HEADER + 3 * FRAME] + rng.randbytes(3 * FRAME + 100)
    wal_of(copy).write_bytes(content + garbage)

    server, found = started(start_server, copy)

    assert found == names(2 * PUSHES)
    server.assert_no_faults()


def test_a_flipped_bit_in_the_wal_gives_a_prefix(crashed: Path, tmp_path: Path, rng: random.Random) -> None:
    """A frame whose check sum is wrong ends the replay, as if the rest had never been written."""
    content = wal_of(crashed / "jobs.db").read_bytes()
    for number in range(30):
        path = tmp_path / f"{number}.db"
        shutil.copy(crashed / "jobs.db", path)
        damaged = bytearray(content)
        place = rng.randrange(WAL_HEADER, len(content))
        damaged[place] ^= 1 << rng.randrange(8)
        wal_of(path).write_bytes(damaged)
        writer = db.open_writer(str(path), warnings=[])
        found = [job_id for (job_id,) in writer.execute("SELECT id FROM jobs WHERE queue = 'q' ORDER BY id")]
        assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        writer.close()

        assert found == names(len(found)), place
        assert PUSHES <= len(found) <= PUSHES + (place - WAL_HEADER) // FRAME


# The main file

Damage = Callable[[Path, random.Random], None]


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file after an orderly stop: jobs in several states, and free pages where others were."""
    folder = tmp_path_factory.mktemp("settled")
    with ServerProcess(folder).start() as server, server.connect() as client:
        for queue in ("gone", "q"):
            jobs = [{"data": "x" * 200, "customId": f"{queue}-{number}"} for number in range(400)]
            client.ok("PUSHB", queue=queue, jobs=jobs, durable=True)
        pulled = client.ok("PULLB", queue="q", count=50, owner="w")
        client.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"], results=["y"] * 50)
        client.ok("PUSH", queue="dead", data=1, jobId="dead", maxAttempts=1)
        client.ok("FAIL", id="dead", token=client.ok("PULL", queue="dead", owner="w")["token"])
        client.ok("Obliterate", queue="gone", force=True)
        assert server.terminate() == 0
    return folder / "jobs.db"


def pages_of(path: Path, name: str) -> list[int]:
    """Numbers of the pages of a table or index; of the free ones for ``freelist``."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if name != "freelist":
            rows = connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,)).fetchall()
            return [page for (page,) in rows]
    finally:
        connection.close()
    content = path.read_bytes()
    [trunk] = struct.unpack_from(">I", content, 32)
    assert trunk, "the file has no free pages"
    return [trunk]


def page_start(number: int) -> int:
    return (number - 1) * PAGE


def overwrite(path: Path, start: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(data)


def damage_magic(path: Path, rng: random.Random) -> None:
    overwrite(path, 0, rng.randbytes(16))


def damage_page_size(path: Path, _rng: random.Random) -> None:
    overwrite(path, 16, b"\x12\x34")


def damage_versions(path: Path, _rng: random.Random) -> None:
    overwrite(path, 18, b"\x7f\x7f")


def damage_whole_header(path: Path, rng: random.Random) -> None:
    overwrite(path, 0, rng.randbytes(100))


def damage_schema(path: Path, rng: random.Random) -> None:
    overwrite(path, 100, rng.randbytes(PAGE - 100))


def damage_root_of_jobs(path: Path, rng: random.Random) -> None:
    overwrite(path, page_start(min(pages_of(path, "jobs"))), rng.randbytes(PAGE))


def damage_leaf_of_jobs(path: Path, rng: random.Random) -> None:
    overwrite(path, page_start(max(pages_of(path, "jobs"))), rng.randbytes(PAGE))


def damage_cells_of_jobs(path: Path, rng: random.Random) -> None:
    """The header of the page stays plausible."""
    overwrite(path, page_start(max(pages_of(path, "jobs"))) + 8, rng.randbytes(64))


def damage_index(path: Path, rng: random.Random) -> None:
    """Nothing reads it before something is written."""
    overwrite(path, page_start(max(pages_of(path, "idx_jobs_queue_state"))), rng.randbytes(PAGE))


def damage_text(path: Path, _rng: random.Random) -> None:
    """The page is whole, and the id of a job is no text."""
    content = path.read_bytes()
    jobs = max(pages_of(path, "jobs"))
    overwrite(path, content.index(b"q-", page_start(jobs)), b"\xff\xff")


def damage_freelist_trunk(path: Path, rng: random.Random) -> None:
    overwrite(path, page_start(pages_of(path, "freelist")[0]), rng.randbytes(PAGE))


def damage_freelist_count(path: Path, _rng: random.Random) -> None:
    overwrite(path, 36, b"\x00\x00\xff\xff")


def point_freelist_at_jobs(path: Path, _rng: random.Random) -> None:
    """The free pages begin where jobs are: whoever writes would overwrite them."""
    overwrite(path, 32, struct.pack(">I", max(pages_of(path, "jobs"))))


def cut_in_half(path: Path, _rng: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_byte(path: Path, rng: random.Random) -> None:
    place = rng.randrange(path.stat().st_size)
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 0xFF]))


def flip_bytes(path: Path, rng: random.Random) -> None:
    """Anywhere, as a bad cable does."""
    content = bytearray(path.read_bytes())
    for place in rng.sample(range(len(content)), 20):
        content[place] ^= 0xFF
    path.write_bytes(content)


DAMAGES = (
    damage_magic,
    damage_page_size,
    damage_versions,
    damage_whole_header,
    damage_schema,
    damage_root_of_jobs,
    damage_leaf_of_jobs,
    damage_cells_of_jobs,
    damage_index,
    damage_text,
    damage_freelist_trunk,
    damage_freelist_count,
    point_freelist_at_jobs,
    cut_in_half,
    flip_bytes,
)
ON_THE_REAL_PROCESS = (
    damage_magic,
    damage_schema,
    damage_leaf_of_jobs,
    damage_index,
    damage_text,
    damage_freelist_trunk,
    point_freelist_at_jobs,
    flip_a_byte,
)


@pytest.mark.parametrize("damage", ON_THE_REAL_PROCESS)
def test_a_server_on_a_damaged_file_refuses_or_works(
    settled: Path, tmp_path: Path, rng: random.Random, damage: Damage
) -> None:
    """R185: ended with a message that names the file, or ready and a round trip, in time."""
    path = tmp_path / "jobs.db"
    shutil.copy(settled, path)
    damage(path, rng)
    damaged = path.read_bytes()

    with ServerProcess(tmp_path) as server:
        server.launch()
        wait_until(
            lambda: not server.is_running or '"Server started"' in server.last_log, "yes or no", BOUNDS.refusal_s
        )
        if server.is_running:
            server.kill()
            works_provably(server)
        else:
            assert server.wait_exit() == 1
            assert f"Cannot open database {path}: " in server.log
            assert "Traceback" not in server.log
            assert path.read_bytes() == damaged


def test_every_damage_is_refused_or_does_not_matter(settled: Path, tmp_path: Path, rng: random.Random) -> None:
    """R185 a hundred times, by the server's own way to open a file: refused, or whole for SQLite and for the engine."""
    opened = 0
    for number, damage in enumerate((*DAMAGES, *[flip_a_byte] * 85)):
        path = tmp_path / f"{number}.db"
        shutil.copy(settled, path)
        damage(path, rng)
        damaged = path.read_bytes()
        refusal = None
        try:
            writer = db.open_writer(str(path), warnings=[])
        except StartError as error:
            refusal = str(error)
        if refusal is None:
            opened += 1
            findings = [text for (text,) in writer.execute("PRAGMA quick_check") if text != "ok"]
            assert [text for text in findings if not text.startswith(ABOUT_VALUES)] == [], damage
            try:
                engine = load_engine(writer, Ids(b"x" * 32, rng), ManualClock(), lease_grace_ms=2_000)
            except CorruptDatabaseError:
                pass
            else:
                engine.check_invariants()
            writer.close()
        else:
            assert str(path) in refusal
            assert path.read_bytes() == damaged, damage
        path.unlink()
    assert opened, "a flipped byte in a payload is no damage that anybody could see"


def works_provably(server: ServerProcess) -> None:
    """Started, a round trip, and every job that is shown can be worked off; the stop is an orderly one."""
    server.start()
    round_trip(server)
    with server.connect() as client:
        done = 0
        while jobs := (pulled := client.ok("PULLB", queue="q", count=100, owner="w", lockTtl=60_000))["jobs"]:
            client.ok("ACKB", ids=[job["id"] for job in jobs], tokens=pulled["tokens"])
            done += len(jobs)
        assert done <= 350
    round_trip(server)
    assert server.terminate() == 0
    server.assert_no_faults()


# a folder that goes away below the running server


def test_a_folder_that_goes_away_and_comes_back_costs_nothing(
    start_server: StartServer, tmp_path: Path, ledger: Ledger
) -> None:
    """Commits of the first second still reach the file, wherever it is; after that they are refused."""
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    server = start_server(data_path=folder / "jobs.db")
    refused: list[str] = []

    def push(client: Client, job_id: str) -> bool:
        ledger.push(job_id)
        reply = client.call("PUSH", queue="q", jobId=job_id, data=1, durable=True, **LASTING)
        if reply["ok"]:
            ledger.acknowledge(job_id)
        else:
            assert "removed or replaced" in reply["error"], reply
            refused.append(job_id)
        return bool(reply["ok"])

    with server.connect() as client:
        done = client.ok("PUSH", queue="done", data=1)["id"]
        client.ok("ACK", id=done, token=client.ok("PULL", queue="done", owner="w")["token"])
        assert push(client, "before")
        folder.rename(elsewhere)
        folder.write_bytes(b"no folder")

        assert "removed or replaced" in client.error("GetJobs", queue="done", state="completed")
        for number in range(100):
            if not push(client, f"during{number}"):
                break
            time.sleep(0.05)
        assert refused
        assert server.health()["status"] == "degraded"

        folder.unlink()
        elsewhere.rename(folder)
        wait_until(lambda: server.get("/health")[0] == 200, "the server has healed", 15)
        assert [job["id"] for job in client.ok("GetJobs", queue="done", state="completed")["jobs"]] == [done]
        assert push(client, "after")
        assert {client.state(job_id) for job_id in refused} == {"unknown"}
        ledger.excuse(*refused)
    server.crash_and_restart()
    assert set(look_up(server, ledger).values()) == {"waiting"}
    assert server.terminate() == 0
    server.assert_no_faults()
