"""``backup restore --to``, and what ``backup list`` says of moments.

Source: point-in-time recovery; D-153.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue_trio.backup.naming import iso, parse_moment
from bunqueue_trio.backup.replaying import spans
from bunqueue_trio.cli import backup as cli_backup
from tests.backup.commands import data_of, run
from tests.backup.commands import environ as environ
from tests.backup.fakes import FakeObjectStore, sha
from tests.backup.log_rig import PREFIX, LogRig, dump


@pytest.fixture
def rig(tmp_path: Path, store: FakeObjectStore, noon) -> Iterator[LogRig]:
    """Another machine, whose log holds two commits."""
    made = LogRig(tmp_path / "lost.db", store, noon)
    made.back_up()
    made.add("first")
    made.add("second")
    made.ship()
    yield made
    made.close()


@pytest.mark.parametrize("spelling", ["iso", "ms", "glued", "zone"])
def test_a_moment_is_restored(environ, capsys, rig, database, spelling):
    first, second = rig.states
    moment = iso(first)
    arguments = {
        "iso": ["--to", moment],
        "ms": ["--to", f"{first:.0f}"],
        "glued": [f"--to={moment}"],
        "zone": ["--to", moment.replace("T12", "T13").replace("Z", "+01:00")],
    }[spelling]

    code, out, err = run(capsys, "restore", *arguments, "-f")

    assert (code, out.partition("\n")[0]) == (0, "Restore completed successfully"), out
    assert "Start the server to load it." in err
    assert dump(database) == rig.states[first] != rig.states[second]
    assert data_of(out) == {
        "key": rig.store.backups[0],
        "size": f"{database.stat().st_size / 1_048_576:.2f} MB",
        "duration": "0ms",
        "lastCommit": moment,
        "commits": 1,
    }


def test_latest_is_all_there_is(environ, capsys, rig, database):
    code, out, _ = run(capsys, "restore", "-f", "--to", "latest", "--json")

    assert code == 0
    assert json.loads(out)["data"]["commits"] == 2
    assert dump(database) == rig.states[max(rig.states)]


@pytest.mark.parametrize("moment", ["", "yesterday", "2026-13-01", "12", "-5", "nan"])
def test_what_is_no_moment_is_refused(environ, capsys, rig, database, moment):
    before = sha(database)

    code, _, err = run(capsys, "restore", "--to", moment, "-f")

    assert (code, f"not {moment!r}" in err) == (1, True)
    assert sha(database) == before


def test_a_moment_needs_the_confirmation_too(environ, capsys, rig, database):
    before = sha(database)

    code, out, _ = run(capsys, "restore", "--to", "latest")

    assert (code, "OVERWRITE" in out) == (1, True)
    assert sha(database) == before


def test_a_moment_can_be_verified_beside_a_server(environ, capsys, rig, database):
    before, last = sha(database), max(rig.states)

    code, out, _ = run(capsys, "verify", "--to", "latest")

    assert (code, out.partition("\n")[0]) == (0, "Backup can be restored")
    assert (data_of(out)["commits"], data_of(out)["lastCommit"]) == (2, iso(last))
    assert sha(database) == before
    del rig.store.objects[rig.segment_keys()[0]]
    code, out, _ = run(capsys, "verify", "--to", iso(last))
    assert (code, out.startswith("Verification failed: The change log ")) == (1, True)


@pytest.mark.parametrize("arguments", [["restore", "some-key"], ["list"], ["verify", "some-key"]])
def test_a_moment_belongs_to_restore_and_verify_without_a_key(environ, capsys, rig, arguments):
    code, _, err = run(capsys, *arguments, "--to", "latest", "-f")

    assert (code, err) == (1, "Error: --to belongs to `restore` and `verify`, without a key\n")


def test_a_moment_that_cannot_be_had_is_named_and_nothing_changes(environ, capsys, rig, database):
    before = sha(database)

    code, out, _ = run(capsys, "restore", "--to", "2031-01-01", "-f")

    assert (code, out.startswith("Restore failed: The change log ends at 2026-11-30T12:00:00.")) == (1, True)
    assert sha(database) == before


def test_list_shows_from_when_to_when_beside_the_data(environ, capsys, rig):
    first, *_ = rig.states
    rig.add("third")
    rig.ship()
    rig.add("fourth")
    rig.ship()
    del rig.store.objects[rig.segment_keys()[1]]

    code, out, err = run(capsys, "list")

    assert (code, len(data_of(out))) == (0, 1)
    assert err.startswith("Any moment from 2026-11-30T12:00:00.")
    assert "The change log has a gap: segment 1 of generation-1" in err
    assert iso(first)[:16] in err


def test_status_shows_how_far_the_log_reaches(environ, capsys, rig, noon):
    (span,) = spans(rig.store, PREFIX)
    noon.advance(120_000)

    shown = data_of(run(capsys, "status")[1])["pointInTime"]

    assert shown == {"from": iso(span.start), "to": iso(span.end), "age": "2m", "gap": None}


def test_a_log_without_any_backup_is_shown_too(environ, capsys, rig):
    rig.chain.give_up("for a test")
    rig.begin("generation-2")
    rig.back_up(start=True)
    for key in rig.store.backups:
        rig.store.delete(key)

    code, out, err = run(capsys, "list")

    assert (code, out.partition("\n")[0]) == (0, "No backups found")
    assert err.startswith("Any moment from ")


def test_moments_are_utc_unless_they_say_otherwise():
    assert parse_moment("2026-11-30T12:00:00") == parse_moment("2026-11-30T12:00:00Z") == 1_796_040_000_000
    assert parse_moment("2026-11-30T12:00:00.5+02:00") == 1_796_040_000_500 - 7_200_000
    assert parse_moment("1796040000123") == 1_796_040_000_123


@pytest.mark.parametrize("until", ["9" * 30, "9" * 500])
def test_names_with_impossible_moments_are_shown_all_the_same(environ, capsys, rig, until):
    generation = next(iter(rig.listing().segments))
    rig.store.put(f"{PREFIX}log/{generation}/00000001-9-5-{until}.segment.gz", b"x", content_type="x")

    assert "to 9999-12-31T23:59:59.999Z can be restored" in run(capsys, "list")[2]
    assert run(capsys, "status")[0] == 0


def test_a_damaged_part_of_the_log_is_told_and_does_not_hide_the_backups(environ, capsys, rig):
    rig.store.put(f"{PREFIX}log/a/start.base.json", b"{", content_type="x")

    for name in ("list", "status"):
        code, out, err = run(capsys, name)
        assert (code, rig.store.backups[0] in out) == (0, True)
        assert "WARNING: backups/log/a/start.base.json is damaged\n" in err


def test_two_servers_under_one_prefix_are_told_where_it_matters(environ, capsys, rig, monkeypatch):
    monkeypatch.setattr(cli_backup, "shared_with", lambda prefix, objects, interval_ms: ["one", "two"])

    for arguments in (["list"], ["status"], ["verify", "--to", "latest"], ["restore", "--to", "latest", "-f"]):
        code, _, err = run(capsys, *arguments)
        assert code == 0
        assert err.startswith(
            "WARNING: Two servers upload under the prefix 'backups/' (change logs one, two): give each"
        )
