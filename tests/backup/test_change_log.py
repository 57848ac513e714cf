"""Every commit can be restored, exactly; what cannot be is refused with a reason that names what is missing.

Source: point-in-time recovery; D-150 to D-153.
"""

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from bunqueue_trio.backup.log_naming import shared_with, sort_out
from bunqueue_trio.backup.naming import iso, made_at, newest_first
from bunqueue_trio.backup.replaying import plan, rehearse_to, restore_to, spans
from bunqueue_trio.backup.shipping import clean_log
from bunqueue_trio.errors import BackupError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row, state_row
from tests.backup.fakes import FakeObjectStore, patience
from tests.backup.log_rig import PREFIX, LogRig, dump
from tests.storage.samples import T0, job


@pytest.fixture
def rig(tmp_path: Path, store: FakeObjectStore, noon) -> Any:
    (folder := tmp_path / "live").mkdir()
    made = LogRig(folder / "jobs.db", store, noon)
    yield made
    made.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (folder := tmp_path / "elsewhere").mkdir()
    return folder / "restored.db"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_commit_can_be_restored_table_by_table(rig: LogRig, target: Path, seed: int):
    dice = random.Random(seed)
    rig.back_up()
    for number in range(30):
        _random_batch(rig, dice, number)
        if dice.random() < 0.3:
            rig.checkpoint(dice.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE")))
        if dice.random() < 0.25:
            rig.ship()
        if dice.random() < 0.08:
            rig.back_up(during=lambda number=number: _random_batch(rig, dice, number + 1000))
    rig.ship()

    for at, state in rig.states.items():
        reached = rig.restore(at, target)
        assert dump(target) == state
        assert reached.at <= at
    assert rig.restore(None, target).at == max(rig.states)
    assert dump(target) == state


def _random_batch(rig: LogRig, dice: random.Random, number: int) -> None:
    """What flushes do, and now and then a vacuum, which moves every page and makes the file smaller."""
    rig.clock.advance(2)
    ids = [f"{number}-{n}" for n in range(dice.randint(1, 60))]
    rows = dump(rig.path)["jobs"]
    known = [row[1] for row in rows]
    batch = Batch(plain=[plain_row(job(i), 1_000 * number + n + 1, "waiting") for n, i in enumerate(ids)])
    batch.deleted = dice.sample(known, len(known) * dice.choice((0, 1, 9)) // 10)
    done = [i for i in known if i not in batch.deleted and dice.random() < 0.2]
    batch.states = [state_row(job(i, completed_at=T0 + 5), "completed") for i in done]
    batch.results = [(i, b"\xa1x" * dice.randint(1, 3_000), T0 + 5) for i in done]
    batch.needs_sync = dice.random() < 0.2
    writes.apply_batch(rig.writer, batch, str(rig.path))
    if dice.random() < 0.1:
        rig.states[rig.clock.now().wall_ms] = dump(rig.path)
        rig.clock.advance(2)
        rig.writer.execute("VACUUM")
    rig.states[rig.clock.now().wall_ms] = dump(rig.path)


def test_a_transaction_too_large_for_the_cache_is_one_commit(rig: LogRig, target: Path):
    rig.writer.execute("PRAGMA cache_size = 5")
    rig.back_up()
    before = rig.add("before")
    large = rig.commit(*(f"INSERT INTO bqt_meta VALUES ('large-{n}', zeroblob(9000))" for n in range(200)))
    rig.writer.execute("BEGIN")
    rig.writer.execute("UPDATE bqt_meta SET value = zeroblob(8000)")  # spilled into the WAL, never committed
    rig.writer.execute("ROLLBACK")
    after = rig.add("after")
    rig.ship()

    for at in (before, large, after):
        rig.restore(at, target)
        assert dump(target) == rig.states[at]


def test_a_moment_between_two_commits_is_the_state_of_the_first(rig: LogRig, target: Path):
    rig.back_up()
    at = rig.add("a")
    rig.clock.advance(1_000)
    rig.add("b")
    rig.ship()

    assert rig.restore(at + 500, target).at == at
    assert dump(target) == rig.states[at]


def test_a_backup_that_is_copied_while_commits_and_checkpoints_go_on(rig: LogRig, target: Path):
    def busy() -> None:
        for n in range(20):
            rig.add(f"during-{n}", 5_000)
            if n % 5 == 0:
                rig.checkpoint("PASSIVE")
        rig.ship()

    rig.add("before", 20_000)
    key = rig.back_up(during=busy)
    last = rig.add("after")
    rig.ship()

    for at, state in list(rig.states.items())[1:]:
        assert rig.restore(at, target).snapshot == key
        assert dump(target) == state
    assert at == last


def test_what_is_not_uploaded_cannot_be_restored_and_is_said(rig: LogRig, target: Path):
    rig.back_up()
    rig.add("a")
    rig.ship()
    (span,) = spans(rig.store, PREFIX)
    late = rig.add("b")

    with pytest.raises(BackupError, match=f"The change log ends at {iso(span.end)}"):
        rig.restore(late, target)
    with pytest.raises(BackupError, match="The change log begins only at"):
        rig.restore(span.start - 1, target)
    assert not target.exists()
    assert rig.chain.unshipped_at == late


def test_a_segment_that_is_missing_is_named(rig: LogRig, target: Path):
    rig.back_up()
    times = []
    for n in range(4):
        times.append(rig.add(f"row-{n}"))
        rig.ship()
    del rig.store.objects[rig.segment_keys()[2]]

    rig.restore(times[1], target)
    for at in (times[2], times[3], None):
        with pytest.raises(BackupError, match=r"The change log has a gap: segment 2 of generation-1, between .* is"):
            rig.restore(at, target)
    assert dump(target) == rig.states[times[1]]
    assert [span.gap is not None for span in spans(rig.store, PREFIX)] == [True]


def test_the_first_segment_that_is_missing_is_named(rig: LogRig, target: Path):
    rig.back_up(during=lambda: None)
    rig.add("a")
    rig.ship()
    rig.add("b")
    rig.ship()
    del rig.store.objects[rig.segment_keys()[0]]

    with pytest.raises(BackupError, match="gap: segment 0 of generation-1"):
        rig.restore(None, target)


@pytest.mark.parametrize("damage", ["flip", "cut", "other", "swap"])
def test_a_damaged_segment_leaves_the_data_file_alone(rig: LogRig, target: Path, damage: str):
    rig.back_up()
    for n in range(3):
        last = rig.add(f"row-{n}", 9_000)
        rig.ship()
    rig.restore(last, target)
    before = target.read_bytes()
    first, second, _ = rig.segment_keys()
    data = bytearray(rig.store.objects[second])
    if damage == "flip":
        data[len(data) // 2] ^= 1
    changed = {"cut": data[:-40], "other": b"\x1f\x8b nothing", "swap": rig.store.objects[first]}.get(damage, data)
    rig.store.objects[second] = bytes(changed)

    with pytest.raises(BackupError):
        rig.restore(last, target)
    assert target.read_bytes() == before
    assert not list(target.parent.glob("*.tmp*"))


def test_frames_that_another_program_let_go_end_the_chain(rig: LogRig):
    rig.back_up()
    rig.add("a")
    other = apsw.Connection(str(rig.path))
    other.execute("INSERT INTO bqt_meta VALUES ('theirs', 'x')")
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    other.close()
    rig.add("b")

    rig.ship()

    assert rig.chain.broken is not None
    assert rig.segment_keys() == []
    assert not list(rig.path.parent.glob("*.log-*"))


def test_what_another_program_has_written_and_folded_in_between_two_segments_ends_the_chain(rig: LogRig, target: Path):
    """No frame of ours is missing, so nothing but the version of the data tells."""
    rig.back_up()
    first = rig.add("a")
    rig.ship()
    other = apsw.Connection(str(rig.path))
    other.execute("INSERT INTO bqt_meta VALUES ('theirs', 'x')")
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    other.close()
    rig.add("b")

    rig.ship()

    assert rig.chain.broken == "another program has written to the data file"
    assert len(rig.segment_keys()) == 1
    rig.restore(None, target)
    assert dump(target) == rig.states[first]


def test_a_checkpoint_of_another_program_ends_the_chain_rather_than_leave_a_gap(rig: LogRig):
    rig.back_up()
    rig.add("a", 30_000)
    other = apsw.Connection(str(rig.path))
    other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    rig.add("b", 60_000)

    rig.ship()

    assert rig.chain.broken is not None
    other.close()


def test_readers_and_backups_of_others_do_not_end_the_chain(rig: LogRig, target: Path):
    rig.back_up()
    reader = db.open_reader(str(rig.path))
    for n in range(5):
        last = rig.add(f"row-{n}")
        reader.execute("SELECT count(*) FROM jobs").fetchall()
        rig.checkpoint()
        rig.ship()
    rig.back_up()
    rig.ship()

    assert rig.chain.broken is None
    rig.restore(last, target)
    assert dump(target) == rig.states[last]
    reader.close(True)


def test_too_many_changes_that_wait_end_the_chain_and_free_the_disk(tmp_path: Path, store: FakeObjectStore, noon):
    rig = LogRig(tmp_path / "jobs.db", store, noon, max_bytes=1 << 20)
    rig.back_up()
    for n in range(30):
        rig.add(f"row-{n}", 60_000)
        rig.chain.catch_up()

    assert rig.chain.broken == "more than 1048576 bytes of changes wait to be uploaded"
    assert rig.chain.held_bytes == 0
    assert not list(tmp_path.glob("*.log-*"))
    rig.close()


def test_a_new_chain_begins_with_a_backup_and_the_time_between_is_refused(rig: LogRig, target: Path):
    rig.back_up()
    first = rig.add("a")
    rig.ship()
    rig.chain.give_up("for a test")
    lost = rig.add("lost")
    rig.begin("generation-2")
    rig.back_up()
    second = rig.add("b")
    rig.ship()

    for at in (first, second):
        rig.restore(at, target)
        assert dump(target) == rig.states[at]
    with pytest.raises(BackupError, match="The change log ends at"):
        rig.restore(lost, target)
    assert [span.generation for span in spans(rig.store, PREFIX)] == ["generation-2", "generation-1"]


def test_the_newest_state_is_the_backup_when_the_log_is_behind(rig: LogRig, target: Path):
    rig.back_up()
    rig.add("a")
    rig.ship()
    at = rig.add("b")
    key = rig.back_up()  # and the machine is lost before the next upload

    chosen = plan(rig.store, PREFIX, None)

    assert (chosen.snapshot, chosen.segments) == (key, ())
    rig.restore(None, target)
    assert dump(target) == rig.states[max(rig.states)]
    assert rig.restore(at, target).snapshot == key  # no commit came while it began: it is of that very moment


def test_a_backup_that_may_be_older_than_a_moment_does_not_stand_for_it(rig: LogRig, target: Path):
    rig.back_up()
    rig.add("a")
    rig.ship()
    key = rig.back_up(before=lambda: rig.add("b"))  # before or behind its moment, nobody knows
    at = max(rig.states)

    with pytest.raises(BackupError, match="The change log ends at"):
        rig.restore(at, target)
    assert len(spans(rig.store, PREFIX)) == 1
    rig.add("c")
    rig.ship()

    assert rig.restore(at, target).snapshot == key
    assert dump(target) == rig.states[at]


def test_retention_takes_what_no_kept_backup_needs(rig: LogRig, target: Path):
    for n in range(6):
        rig.back_up(retention=2)
        rig.clock.advance(60_000)
        rig.add(f"row-{n}")
        rig.ship()
        clean_log(rig.store, PREFIX, patience(), current="generation-1")
    first_kept = min(made_at(PREFIX, item.key) or 0 for item in newest_first(PREFIX, rig.store.list(PREFIX)))

    listing = rig.listing()

    assert len(rig.store.backups) == len(listing.bases["generation-1"]) == 2
    assert [name.number for name in listing.segments["generation-1"]] == [4, 5]
    for at, state in rig.states.items():
        if at > first_kept:
            rig.restore(at, target)
            assert dump(target) == state


def test_retention_takes_chains_that_end_before_the_oldest_backup(rig: LogRig):
    rig.add("a")
    rig.ship()  # its backup never came
    rig.chain.give_up("for a test")
    rig.begin("generation-2")
    clean_log(rig.store, PREFIX, patience(), current="generation-2")
    assert set(rig.listing().segments) == {"generation-1"}  # without a backup nothing is old

    rig.back_up()
    rig.add("b")
    rig.ship()
    clean_log(rig.store, PREFIX, patience(), current="generation-2")

    assert set(rig.listing().segments) == {"generation-2"}


def test_no_name_of_the_log_looks_like_a_backup(rig: LogRig):
    rig.back_up()
    rig.add("a")
    rig.ship()
    names = [item for item in rig.store.list(PREFIX) if "/log/" in item.key]

    assert len(names) == 2
    assert newest_first(PREFIX, names) == []
    assert not any(item.key.endswith((".db", ".meta.json")) for item in names)
    assert sort_out("other/", names).segments == {}


def start(rig: LogRig, generation: str) -> str:
    """A run of a server: a chain that begins with a snapshot of its own."""
    rig.chain.give_up("for a test")
    rig.begin(generation)
    return rig.back_up(start=True)


def test_a_chain_may_begin_with_a_snapshot_of_its_own(rig: LogRig, target: Path):
    key = start(rig, "generation-2")
    first = rig.add("a")
    rig.ship()

    assert rig.store.backups == []
    assert newest_first(PREFIX, rig.store.list(PREFIX)) == []
    for at in (first, None):
        assert rig.restore(at, target).snapshot == key
        assert dump(target) == rig.states[first]
    (span,) = spans(rig.store, PREFIX)
    assert span.generation == "generation-2"


def test_a_machine_that_is_lost_before_anything_was_shipped_has_the_snapshot(rig: LogRig, target: Path):
    key = start(rig, "generation-2")

    reached = rig.restore(None, target)

    assert (reached.snapshot, reached.commit_count) == (key, 0)
    assert reached.at > 1_700_000_000_000
    assert dump(target) == dump(rig.path)


def test_a_server_that_starts_in_a_loop_leaves_two_chains(rig: LogRig, target: Path):
    for number in range(2, 8):
        start(rig, f"generation-{number}")
        last = rig.add(f"row-{number}")
        rig.ship()
        clean_log(rig.store, PREFIX, patience(), current=f"generation-{number}")

    listing = rig.listing()
    assert set(listing.starts) == set(listing.bases) == set(listing.segments) == {"generation-6", "generation-7"}
    assert len(rig.store.objects) == 8  # snapshot, sidecar, base and segment each
    rig.restore(last, target)
    assert dump(target) == rig.states[last]


def test_the_chain_of_a_snapshot_that_goes_stays_where_a_kept_backup_needs_it(rig: LogRig, target: Path):
    start(rig, "generation-2")
    rig.add("a")
    rig.ship()
    rig.back_up()
    after = rig.add("b")
    rig.ship()
    for number in (3, 4):
        start(rig, f"generation-{number}")
    clean_log(rig.store, PREFIX, patience(), current="generation-4", retention=7)

    listing = rig.listing()
    assert set(listing.starts) == {"generation-3", "generation-4"}
    assert [name.number for name in listing.segments["generation-2"]] == [1]
    rig.restore(after, target)
    assert dump(target) == rig.states[after]


def test_a_backup_that_is_kept_beyond_the_retention_holds_no_log(rig: LogRig):
    old = rig.back_up()
    rig.add("a")
    rig.ship()
    rig.clock.advance(1_000)
    new = rig.back_up()
    rig.add("b")
    rig.ship()
    assert rig.store.backups == [old, new]

    clean_log(rig.store, PREFIX, patience(), current="generation-1", retention=1)

    listing = rig.listing()
    assert [name.number for name in listing.segments["generation-1"]] == [1]
    assert len(listing.bases["generation-1"]) == 1
    assert rig.store.backups == [old, new]


def test_what_the_present_chain_is_restored_from_stays_whatever_its_clock_says(rig: LogRig, target: Path):
    rig.back_up()
    rig.clock.skew(-20 * 365 * 86_400_000.0)
    rig.chain.give_up("for a test")
    rig.begin("generation-2")
    base = rig.back_up()
    rig.add("b")
    rig.ship()

    clean_log(rig.store, PREFIX, patience(), current="generation-2", retention=1, base=base)

    assert len(rig.listing().bases["generation-2"]) == 1


def test_the_newest_state_is_not_that_of_a_chain_with_a_wrong_future(rig: LogRig, target: Path):
    """The clock was a year ahead for a while."""
    year = 365 * 86_400_000.0
    rig.clock.skew(year)
    rig.chain.give_up("for a test")
    rig.begin("generation-2")
    rig.back_up()
    rig.add("then")
    rig.ship()
    rig.clock.skew(-year)
    rig.store.modified = dict.fromkeys(rig.store.objects, rig.clock.now().wall_ms)
    rig.clock.advance(60_000)
    rig.chain.give_up("for a test")
    rig.begin("generation-3")
    rig.back_up()
    last = rig.add("now")
    rig.ship()

    rig.restore(None, target)

    assert dump(target) == rig.states[last]


def test_a_rehearsal_replays_the_log_and_touches_nothing(rig: LogRig, target: Path):
    rig.back_up()
    first = rig.add("a")
    rig.ship()
    rig.add("b")
    rig.ship()
    before = dump(rig.path)

    reached = rehearse_to(rig.store, PREFIX, None, str(rig.path), patience(), rig.clock)  # beside the one who writes
    assert (reached.commit_count, reached.restored, reached.size_bytes > 0) == (2, None, True)
    assert rehearse_to(rig.store, PREFIX, first, str(rig.path), patience(), rig.clock).commit_count == 1
    assert dump(rig.path) == before
    assert not list(rig.path.parent.glob("*.tmp*"))
    data = bytearray(rig.store.objects[rig.segment_keys()[1]])
    data[len(data) // 2] ^= 1
    rig.store.objects[rig.segment_keys()[1]] = bytes(data)
    with pytest.raises(BackupError):
        rehearse_to(rig.store, PREFIX, None, str(rig.path), patience(), rig.clock)


def test_two_servers_under_one_prefix_leave_each_others_log_while_its_backup_is_there(
    rig: LogRig, tmp_path: Path, target: Path, noon
):
    other = LogRig(tmp_path / "other.db", rig.store, noon)
    other.begin("generation-2")
    rig.back_up()
    key = other.back_up()
    for number in range(3):
        rig.add(f"row-{number}")
        rig.ship()
        last = other.add(f"theirs-{number}")
        other.ship()
        clean_log(rig.store, PREFIX, patience(), current="generation-1", retention=7)
        clean_log(rig.store, PREFIX, patience(), current="generation-2", retention=7)

    assert other.restore(last, target).snapshot == key
    assert dump(target) == other.states[last]
    other.close()


def test_thousands_of_foreign_objects_are_left_alone_and_in_nobodys_way(rig: LogRig, target: Path):
    for number in range(5_000):
        rig.store.objects[f"{PREFIX}photo-{number}.db"] = b"x"
        rig.store.modified[f"{PREFIX}photo-{number}.db"] = 1_800_000_000_000.0
    rig.back_up(retention=1)
    last = rig.add("a")
    rig.ship()
    rig.back_up(retention=1)
    clean_log(rig.store, PREFIX, patience(), current="generation-1", retention=1)

    assert sum("photo" in key for key in rig.store.objects) == 5_000
    rig.ship()
    rig.restore(last, target)
    assert dump(target) == rig.states[last]


@pytest.mark.parametrize("content", [b"", b'{"snapshot"', b'{"x":' + b"[" * 30_000], ids=["empty", "cut", "deep"])
def test_a_damaged_base_leaves_the_others_of_use_and_is_told(rig: LogRig, target: Path, content: bytes):
    rig.back_up()
    first = rig.add("first")
    rig.ship()
    damaged = f"{PREFIX}log/generation-0/start.base.json"
    rig.store.put(damaged, content, content_type="x")
    told: list[str] = []

    assert rig.restore(first, target).at == rig.restore(None, target).at == first
    assert [span.end for span in spans(rig.store, PREFIX, tell=told.append)] == [rig.clock.now().wall_ms - 5]
    assert told == [f"{damaged} is damaged"]
    with pytest.raises(
        BackupError, match=r"The change log begins only at .*; .*generation-0/start.base.json is damaged"
    ):
        rig.restore(first - 1_000, target)


def test_what_may_be_the_newest_state_is_not_passed_over_because_its_base_is_damaged(rig: LogRig, target: Path):
    rig.back_up()
    rig.add("first")
    rig.ship()
    rig.store.put(f"{PREFIX}log/generation-2/start.base.json", b"{", content_type="x")

    with pytest.raises(BackupError, match=r"generation-2/start.base.json is damaged"):
        rig.restore(None, target)


def test_retention_goes_on_beside_a_damaged_base_which_goes_with_its_chain(rig: LogRig):
    rig.back_up()
    rig.add("first")
    rig.ship()
    rig.store.put(f"{PREFIX}log/generation-0/x.base.json", b"{", content_type="x")
    rig.store.put(f"{PREFIX}log/generation-0/00000000-1-5-6.segment.gz", b"x", content_type="x")

    clean_log(rig.store, PREFIX, patience(), current="generation-1", retention=7)

    assert not [key for key in rig.store.objects if "generation-0" in key]
    assert len(rig.segment_keys()) == 1


def test_moments_beyond_the_calendar_are_shown_as_its_ends():
    assert [iso(1e300), iso(float("inf")), iso(-1e300)] == ["9999-12-31T23:59:59.999Z"] * 2 + [
        "0001-01-01T00:00:00.000Z"
    ]


def test_a_name_that_promises_more_than_is_inside_is_found(rig: LogRig, target: Path):
    rig.add("first")
    rig.back_up(before=lambda: rig.add("second"))
    rig.ship()
    (key,) = rig.segment_keys()
    (base,) = [key for key in rig.store.objects if key.endswith(".base.json")]
    rig.store.objects[base] = rig.store.objects[base].replace(b'"reaches": 2', b'"reaches": 7')
    rig.store.put(key.replace("-2-", "-9-"), rig.store.objects.pop(key), content_type="x")

    with pytest.raises(BackupError, match=r"^The change log lacks commit 3 of generation-1$"):
        rig.restore(None, target)
    assert not target.exists()


HOUR_MS = 3_600_000.0


@pytest.fixture
def shared(rig: LogRig, tmp_path: Path, noon) -> Any:
    """Two servers upload under one prefix, the second for five minutes by now."""
    rig.store.now_ms = 1_000_000.0
    rig.back_up()
    other = LogRig(tmp_path / "other.db", rig.store, noon)
    other.begin("generation-2")
    other.back_up()
    rig.store.now_ms += 300_000.0
    for one in (other, rig):
        one.add("row")
        one.ship()
    yield rig
    other.close()


def test_two_servers_under_one_prefix_delete_nothing_and_are_told(shared: LogRig):
    before = set(shared.store.objects)
    found = shared_with(PREFIX, shared.store.list(PREFIX), HOUR_MS)

    shared.back_up(retention=1)
    clean_log(shared.store, PREFIX, patience(), current="generation-1", retention=1, interval_ms=HOUR_MS)

    assert found == ["generation-1", "generation-2"]
    assert before < set(shared.store.objects)


def test_a_server_that_has_gone_is_forgotten_after_two_intervals(shared: LogRig):
    last = shared.store.now_ms + 2 * HOUR_MS
    for number, (moment, expected) in enumerate(((last - 1, ["generation-1", "generation-2"]), (last + 1, []))):
        shared.store.now_ms = moment
        shared.store.put(f"{PREFIX}log/generation-2/{number:08d}-9-5-6.segment.gz", b"", content_type="x")
        assert shared_with(PREFIX, shared.store.list(PREFIX), HOUR_MS) == expected


def test_generations_that_follow_each_other_are_those_of_one_server(rig: LogRig):
    for number in range(1, 5):
        rig.store.now_ms = number * 60_000.0
        rig.begin(f"generation-{number}")
        rig.back_up()
        rig.add(f"row-{number}")
        rig.ship()

    assert shared_with(PREFIX, rig.store.list(PREFIX), HOUR_MS) == []
    assert shared_with("other/", rig.store.list(""), HOUR_MS) == []


@pytest.mark.parametrize("damage", ["snapshot", "gone"])
@pytest.mark.parametrize("is_latest", [True, False], ids=["latest", "moment"])
def test_an_older_backup_of_the_chain_stands_in_for_a_damaged_one(
    rig: LogRig, target: Path, is_latest: bool, damage: str
):
    older = rig.back_up()
    rig.add("first")
    rig.ship()
    newer = rig.back_up()
    last = rig.add("second")
    rig.ship()
    told: list[str] = []
    if damage == "gone":
        rig.store.delete(newer)
    else:
        rig.store.objects[newer] = rig.store.objects[newer][:-100]
    at = None if is_latest else last

    for way in (rehearse_to, restore_to):
        reached = way(rig.store, PREFIX, at, str(target), patience(), rig.clock, tell=told.append)
        assert (reached.snapshot, reached.at, reached.commit_count) == (older, last, 2)
    assert dump(target) == rig.states[last]
    assert len(told) == (0 if damage == "gone" else 2)


def test_where_nothing_is_sound_what_is_said_is_what_is_wrong_with_the_first(rig: LogRig, target: Path):
    for key in (rig.back_up(), rig.back_up()):
        rig.store.objects[key] = rig.store.objects[key][:-100]
    rig.add("first")
    rig.ship()

    with pytest.raises(BackupError, match=r"^Backup data is not a valid gzip stream$"):
        rig.restore(None, target)
    assert not target.exists()
