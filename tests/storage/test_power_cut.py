"""A power cut at every write of a run: whole transactions only, and what was promised to be synced is there.

Source: R375, K18, PD-22; field report P5.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import entry_blob, plain_row, state_row
from tests.storage.powercut import Loss, Note, Recorder, Sync, Write, recording_vfs
from tests.storage.samples import T0, job, letter

BATCHES = 6
CHECKPOINT_AFTER = 3

State = tuple[frozenset[tuple[str, str]], frozenset[str], frozenset[str]]
"""(id, state) of the jobs, ids with a result, ids among the dead letters."""


def batch(number: int, *, needs_sync: bool = False) -> Batch:
    """Two new jobs; of the batch before, one is acked with a result and one goes to the dead letters."""
    new = [f"{number}-ack", f"{number}-fail"]
    made = Batch(plain=[plain_row(job(i), number * 2 + n + 1, "waiting") for n, i in enumerate(new)])
    made.needs_sync = needs_sync
    if number:
        acked, failed = f"{number - 1}-ack", f"{number - 1}-fail"
        made.states = [state_row(job(acked, completed_at=T0 + 5), "completed")]
        made.results = [(acked, b"\x81\xa2ok\xc3", T0 + 5)]
        made.deleted = [failed]
        made.letters = [(failed, "mail", entry_blob(letter(job(failed))), T0 + 50)]
    return made


def state_after(batches: int) -> State:
    """What the file must say when exactly that many batches are in it."""
    last = batches - 1
    jobs = {(f"{n}-ack", "completed") for n in range(last)}
    if batches:
        jobs |= {(f"{last}-ack", "waiting"), (f"{last}-fail", "waiting")}
    ended = range(last)
    return frozenset(jobs), frozenset(f"{n}-ack" for n in ended), frozenset(f"{n}-fail" for n in ended)


STATES = {state_after(count): count for count in range(BATCHES + 1)}


def run(folder: Path, synchronous: Any, needs_sync: Callable[[int], bool]) -> Recorder:
    """The script: new file, six batches, a checkpoint amid them after which the WAL starts over, an orderly close."""
    path = str(folder / "jobs.db")
    with recording_vfs() as recorder:
        writer = db.open_writer(path, synchronous=synchronous, vfs="powercut")
        recorder.note("opened")
        for number in range(BATCHES):
            made = batch(number, needs_sync=needs_sync(number))
            writes.apply_batch(writer, made, path)
            recorder.note("synced" if made.needs_sync or synchronous == "FULL" else "committed")
            if number + 1 == CHECKPOINT_AFTER:
                result = db.checkpoint(writer, "PASSIVE")
                assert result.moved == result.wal_frames > 0
        db.close_writer(writer)
        recorder.note("closed")
    return recorder


def recovered(folder: Path, files: dict[str, bytes]) -> int:
    """Start on *files* as the server does; how many batches are there. Fails when it is not a whole number of them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    writer = db.open_writer(str(folder / "jobs.db"))
    try:
        assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return STATES[contents(writer)]
    finally:
        writer.close()


def contents(connection: apsw.Connection) -> State:
    def column(sql: str) -> frozenset[str]:
        return frozenset(value for (value,) in connection.execute(sql))

    jobs = frozenset(connection.execute("SELECT id, state FROM jobs").fetchall())
    return jobs, column("SELECT job_id FROM job_results"), column("SELECT job_id FROM dlq")


def promises(recorder: Recorder, position: int) -> tuple[int, int]:
    """At that event: how many batches must survive any cut, and how many may be there at most."""
    synced = committed = begun = 0
    for event in recorder.events[:position]:
        if isinstance(event, Note) and event.text in ("synced", "committed"):
            committed += 1
            if event.text == "synced":
                synced = committed
        begun = min(committed + 1, BATCHES)
    return synced, begun


def cuts(recorder: Recorder) -> list[int]:
    """Every event at which something reaches for the disk."""
    return [place for place, event in enumerate(recorder.events) if not isinstance(event, Note)]


@pytest.fixture(autouse=True)
def _no_real_syncs(monkeypatch):
    """Starting on the remains need not sync: thousands of fsyncs would take minutes and prove nothing."""
    original = db._set_pragmas

    def set_pragmas(connection, synchronous, *, is_shim):
        original(connection, synchronous, is_shim=is_shim)
        if not is_shim:
            connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(db, "_set_pragmas", set_pragmas)


def check_every_cut(tmp_path: Path, recorder: Recorder, losses: list[Loss]) -> set[int]:
    """Cut at every event, in each way; returns how many batches were found at one time or another."""
    found = set()
    for position in cuts(recorder):
        least, most = promises(recorder, position)
        for loss in losses:
            files = recorder.after_cut(position, loss, seed=position)
            count = recovered(tmp_path / "after", files)
            assert least <= count <= most, f"cut at event {position}, loss {loss}: {count} of {least}..{most} batches"
            found.add(count)
    return found


@pytest.mark.slow
def test_full_keeps_every_batch_that_returned(tmp_path):
    recorder = run(tmp_path, "FULL", lambda number: False)

    found = check_every_cut(tmp_path, recorder, [Loss.ALL, Loss.ANY])

    assert found == set(range(BATCHES + 1))


@pytest.mark.slow
def test_normal_keeps_a_prefix_of_the_batches(tmp_path):
    recorder = run(tmp_path, "NORMAL", lambda number: False)

    found = check_every_cut(tmp_path, recorder, [Loss.TAIL, Loss.ANY])

    assert found == set(range(BATCHES + 1))


@pytest.mark.slow
def test_normal_keeps_what_asked_to_be_synced_and_all_before_it(tmp_path):
    recorder = run(tmp_path, "NORMAL", lambda number: number in (1, 4))

    found = check_every_cut(tmp_path, recorder, [Loss.ALL, Loss.ANY])

    assert {0, 2, 5} <= found


def test_normal_syncs_at_checkpoints_only_and_full_at_every_commit(tmp_path):
    def syncs_between_notes(recorder: Recorder) -> list[int]:
        counts = [0]
        for event in recorder.events:
            if isinstance(event, Note):
                counts.append(0)
            elif isinstance(event, Sync):
                counts[-1] += 1
        return counts[1:-2]

    for name in ("normal", "full"):
        (tmp_path / name).mkdir()
    normal = syncs_between_notes(run(tmp_path / "normal", "NORMAL", lambda number: False))
    full = syncs_between_notes(run(tmp_path / "full", "FULL", lambda number: False))

    # The batch after the checkpoint also carries that one's syncs and starts the WAL over, whose header is synced.
    plain = [count for number, count in enumerate(normal) if number not in (0, CHECKPOINT_AFTER)]
    assert set(plain) == {0}
    assert normal[CHECKPOINT_AFTER] > 0
    assert min(full) >= 1


def test_the_model_can_lose_a_batch_that_was_not_synced(tmp_path):
    # The test of the test: without syncs a returned batch does get lost.
    recorder = run(tmp_path, "NORMAL", lambda number: False)
    last = max(place for place, event in enumerate(recorder.events) if event == Note("committed"))

    assert recovered(tmp_path / "after", recorder.after_cut(last, Loss.ALL, 0)) == CHECKPOINT_AFTER
    assert recovered(tmp_path / "after", recorder.after_cut(last, Loss.NONE, 0)) == BATCHES


@pytest.mark.slow
def test_the_model_finds_a_disk_that_lies_about_syncs(tmp_path):
    # The test of the test: with syncs dropped, FULL must not come through.
    recorder = run(tmp_path, "FULL", lambda number: False)
    recorder.events = [event for event in recorder.events if event != Sync("jobs.db-wal")]

    with pytest.raises(AssertionError, match="cut at event"):
        check_every_cut(tmp_path, recorder, [Loss.ALL])


def test_the_recorder_tears_at_sectors(tmp_path):
    recorder = Recorder([Write("f", 500, bytes(range(1, 251)) * 4)])

    files = [recorder.after_cut(0, Loss.TAIL, seed).get("f", b"") for seed in range(40)]

    whole = b"\0" * 500 + bytes(range(1, 251)) * 4
    assert len(set(files)) > 3
    for content in files:
        for start in range(0, len(content), 512):
            sector = content[start : start + 512]
            assert sector in (whole[start : start + len(sector)], bytes(len(sector)))
