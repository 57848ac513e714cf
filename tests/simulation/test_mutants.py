"""A server with a defect does not come through: every mutant here is found within the seeds of the quick CI run.

Each breaks one promise on purpose. One that lives on means that the simulation no longer looks where it should.
"""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest

from bunqueue_trio.engine import dead_letters, finishing, leases, recovery, settling
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.state import State
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.server import flusher
from bunqueue_trio.server.tickets import Ticket
from bunqueue_trio.storage import connection, records, snapshot, writes
from bunqueue_trio.storage.batch import FULL_COLUMNS, STATE_COLUMNS
from tests.simulation.running import run_seeds

SEEDS = 2_000
Mutate = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Mutate] = {}


def mutant(mutate: Mutate) -> Mutate:
    MUTANTS[mutate.__name__.removeprefix("_")] = mutate
    return mutate


def rewritten(function: Any, old: str, new: str) -> Any:
    """*function* with one piece of its source exchanged."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not once in {function.__qualname__}"
    made: dict[str, Any] = {}
    # In the living module: the simulation lends it another Trio.
    exec("from __future__ import annotations\n" + source.replace(old, new), function.__globals__, made)
    return made[function.__name__]


# what is synced, and when


@mutant
def _needs_sync_is_ignored(patch):
    patch.setattr(writes, "_SYNCHRONOUS_FULL", 0)


@mutant
def _a_push_for_fsync_asks_for_none(patch):
    admission = __import__("bunqueue_trio.engine.admission", fromlist=["Admission"]).Admission
    patch.setattr(admission, "_reserve", rewritten(admission._reserve, "needs_sync = True", "needs_sync = False"))


@mutant
def _full_is_opened_as_normal(patch):
    original = connection._set_pragmas

    def set_pragmas(opened, synchronous, *, is_shim):
        original(opened, synchronous and "NORMAL", is_shim=is_shim)

    patch.setattr(connection, "_set_pragmas", set_pragmas)


@mutant
def _the_wal_is_not_synced_at_all(patch):
    original = connection._set_pragmas

    def set_pragmas(opened, synchronous, *, is_shim):
        original(opened, synchronous, is_shim=is_shim)
        opened.execute("PRAGMA synchronous = OFF")

    patch.setattr(connection, "_set_pragmas", set_pragmas)


# what is confirmed, and when


@mutant
def _confirmed_when_asked(patch):
    patch.setattr(Ticket, "add", lambda self, client, reply: client.confirm([reply]))


@mutant
def _confirmed_before_the_commit(patch):
    old = "        try:\n            report = await"
    new = "        flight.ticket.settle()\n        try:\n            report = await"
    patch.setattr(flusher.Flusher, "_flush", rewritten(flusher.Flusher._flush, old, new))


@mutant
def _a_failed_flush_confirms(patch):
    patch.setattr(Ticket, "refuse", lambda self, text: self.settle())


@mutant
def _a_completion_waits_for_no_commit(patch):
    original = State.stage

    def stage(self, staged):
        original(self, staged)
        self.waits_for_commit = getattr(staged, "kind", None) is not finishing.TransitionKind.COMPLETE

    patch.setattr(State, "stage", stage)


# what becomes of a failed flush


@mutant
def _a_failed_flush_is_not_put_back(patch):
    patch.setattr(snapshot.Snapshot, "restore", lambda self, changes: None)


@mutant
def _a_failed_flush_counts_as_stored(patch):
    def restore(self, changes):
        for job, bits, _ in self.marks:
            if bits:
                changes.touch(job, bits)

    patch.setattr(snapshot.Snapshot, "restore", restore)


@mutant
def _dead_letters_of_a_failed_flush_are_forgotten(patch):
    old = 'for name in ("letters", "finished", "finished_gone"):'
    new = 'for name in ("finished", "finished_gone"):'
    patch.setattr(Engine, "_merge_back", rewritten(Engine._merge_back, old, new))


@mutant
def _deletions_of_a_failed_flush_are_forgotten(patch):
    old, new = 'for name in ("reborn", "letters_gone"):', 'for name in ("reborn",):'
    patch.setattr(Engine, "_merge_back", rewritten(Engine._merge_back, old, new))


@mutant
def _rebirths_of_a_failed_flush_are_forgotten(patch):
    old, new = 'for name in ("reborn", "letters_gone"):', 'for name in ("letters_gone",):'
    patch.setattr(Engine, "_merge_back", rewritten(Engine._merge_back, old, new))


@mutant
def _what_was_refused_takes_effect(patch):
    patch.setattr(settling.Settling, "drop", lambda self, staged, now, error=None: self.apply(staged, now))


# when it is tried again


@mutant
def _a_fold_that_is_due_keeps_a_full_disk_from_being_tried(patch):
    wait = flusher.Flusher._wait
    patch.setattr(
        flusher.Flusher, "_wait", rewritten(wait, "is_flush_due = self._is_retry_due ", "is_flush_due = False ")
    )


@mutant
def _who_has_failed_tries_again_only_what_is_new(patch):
    patch.setattr(flusher.Flusher, "_is_retry_due", False)


@mutant
def _the_window_never_ends(patch):
    wait = rewritten(flusher.Flusher._wait, "or deadline_s <= 0", "")
    patch.setattr(flusher.Flusher, "_wait", wait)


@mutant
def _freed_space_is_not_noticed(patch):
    patch.setattr(flusher, "SPACE_WORTH_A_TRY_BYTES", 1 << 40)


@mutant
def _pauses_grow_for_ever(patch):
    patch.setattr(flusher.Flusher, "_back_off", rewritten(flusher.Flusher._back_off, ", MAX_RETRY_S)", ", 1e9)"))


# a commit within a turn


@mutant
def _what_a_turn_has_begun_is_confirmed(patch):
    old = "self._begun = flight, call"
    new = "self._begun = flight, call; flight.ticket.settle()"
    patch.setattr(flusher.Flusher, "commit_here", rewritten(flusher.Flusher.commit_here, old, new))


@mutant
def _what_a_turn_has_begun_wakes_nobody(patch):
    old = "self._broker.flush_wanted.set()\n            return True"
    here = flusher.Flusher.commit_here
    patch.setattr(flusher.Flusher, "commit_here", rewritten(here, old, "return True"))


@mutant
def _a_commit_that_fails_within_a_turn_counts(patch):
    here = flusher.Flusher.commit_here
    patch.setattr(
        flusher.Flusher, "commit_here", rewritten(here, "self._fail(flight, error)", "self._land(flight, None)")
    )


@mutant
def _the_end_of_what_a_turn_has_begun_is_forgotten(patch):
    end = rewritten(flusher.Flusher._end_begun, "self._land(flight, report)", "self._broker.is_flushing = False")
    patch.setattr(flusher.Flusher, "_end_begun", end)


# what is written


@mutant
def _a_batch_is_two_transactions(patch):
    old, new = "missing = _rerun", 'connection.execute("COMMIT"); connection.execute("BEGIN"); missing = _rerun'
    patch.setattr(writes, "_commit", rewritten(writes._commit, old, new))


@mutant
def _results_are_written_after_the_commit(patch):
    original = writes._commit

    def commit(opened, batch):
        results, batch.results = batch.results, []
        report = original(opened, batch)
        writes._RESULTS.run(opened, results)
        return report

    patch.setattr(writes, "_commit", commit)


@mutant
def _a_completed_job_is_written_back(patch):
    complete = settling.Settling._complete
    patch.setattr(settling.Settling, "_complete", rewritten(complete, "job.dirty = 0", "pass"))


@mutant
def _dead_letters_stay_when_they_come_back(patch):
    patch.setattr(snapshot, "ENDS_A_LETTER", frozenset())


@mutant
def _finished_dependencies_are_not_remembered(patch):
    run = writes._RowStatement.run
    patch.setattr(
        writes._RowStatement, "run", lambda self, opened, rows: self is writes._FINISHED or run(self, opened, rows)
    )


@mutant
def _side_rows_are_not_written(patch):
    patch.setattr(records, "extra_blob", lambda record, **_: None)


# who may finish a job


@mutant
def _every_token_counts(patch):
    patch.setattr(leases, "fence", lambda job, token, now, *, grace: None)


@mutant
def _old_tokens_count_after_recovery(patch):
    patch.setattr(finishing.Finishing, "_was_leased", lambda self, job, token: True)
    patch.setattr(recovery, "_ended_lease", lambda token, started_at, now: None)


@mutant
def _tokens_are_those_of_the_job(patch):
    original = Ids.lease_token
    patch.setattr(Ids, "lease_token", lambda self, job_id, seq, started_at, attempts: original(self, job_id, seq, 0, 0))


@mutant
def _the_secret_of_the_tokens_is_not_kept(patch):
    patch.setattr(connection, "lease_secret", lambda opened: __import__("os").urandom(32))


@mutant
def _a_lost_connection_releases_nothing(patch):
    patch.setattr(leases, "release", lambda state, job, now, *, is_orderly: None)


@mutant
def _leases_end_by_the_wall_clock(patch):
    original = leases.look_at

    def look_at(state, job, armed_for_mono_ms, now):
        skewed = msgspec.structs.replace(now, mono_ms=now.wall_ms - 1_800_000_000_000 + 1_000_000)
        original(state, job, armed_for_mono_ms, skewed)

    patch.setattr(leases, "look_at", look_at)


@mutant
def _the_silent_keep_their_jobs(patch):
    patch.setattr(leases, "_is_stalled", lambda state, job, lease, now: False)


@mutant
def _the_silent_are_looked_at_once(patch):
    old = "lease.stall_seen_mono_ms is not None and now.mono_ms >= lease.stall_seen_mono_ms + STALL_RECHECK_MS"
    patch.setattr(leases, "look_at", rewritten(leases.look_at, old, "True"))


@mutant
def _stalls_are_charged_no_attempt(patch):
    patch.setattr(leases, "_stall", rewritten(leases._stall, "record.attempts += 1", "pass"))


@mutant
def _signs_of_life_are_not_noted(patch):
    old = "job.lease.heartbeat_mono_ms = now.mono_ms"
    patch.setattr(leases, "beat", rewritten(leases.beat, old, "pass"))


# dead letters


@mutant
def _dead_letters_come_back_at_once(patch):
    old, new = "now.wall_ms + min(pause, PAUSE_CAP_MS)", "now.wall_ms"
    patch.setattr(dead_letters, "_next_retry_at", rewritten(dead_letters._next_retry_at, old, new))


# recovery


@mutant
def _recovery_charges_no_attempt(patch):
    original = recovery.Recovery._charge
    old, new = "record.attempts += 1\n", "record.attempts += 0\n"
    patch.setattr(recovery.Recovery, "_charge", rewritten(original, old, new))


@mutant
def _recovery_leaves_its_changes_in_memory(patch):
    original = recovery.Recovery.finished

    def finished(self, ids, next_seq):
        original(self, ids, next_seq)
        self._state.changes = Changes()

    patch.setattr(recovery.Recovery, "finished", finished)


@mutant
def _recovery_starts_the_order_of_pushes_anew(patch):
    original = recovery.Recovery.finished
    patch.setattr(recovery.Recovery, "finished", lambda self, ids, next_seq: original(self, ids, 1))


@mutant
def _recovery_forgets_who_is_paused(patch):
    patch.setattr(recovery.Recovery, "settings", lambda self, rows: None)


def found_after(limit: int = SEEDS) -> int | None:
    """How many seeds it takes to find what is wrong; None: more than *limit*."""
    outcome = run_seeds(range(limit), stops_at_failure=True)
    return next((seed + 1 for seed in outcome.failures), None)


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, monkeypatch):
    MUTANTS[name](monkeypatch)

    count = found_after()

    print(f"{name}: found by seed {count}")
    assert count is not None


COLUMNS = {"full_row": FULL_COLUMNS[2:], "state_row": STATE_COLUMNS[1:]}
"""But the id, and the rowid, without which there is no row at all."""
SIDE_FIELDS = (
    "backoff_config",
    "repeat",
    "fail_parent_on_failure",
    "remove_dependency_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
    "stack_trace_limit",
    "deduplication_ttl",
    "deduplication_replace",
    "progress_message",
    "key_expires_at",
    "is_from_cron",
    "has_result",
    "failed_children",
    "ignored_children",
    "name",
)


@pytest.mark.long
@pytest.mark.parametrize(("function", "column"), [(name, c) for name, columns in COLUMNS.items() for c in columns])
def test_a_column_that_is_not_written_is_missed(function, column, monkeypatch):
    lose_column(monkeypatch, function, column)

    assert found_after() is not None


@pytest.mark.long
@pytest.mark.parametrize("name", SIDE_FIELDS)
def test_a_field_of_the_side_row_that_is_not_written_is_missed(name, monkeypatch):
    lose_field(monkeypatch, name)

    assert found_after() is not None


def lose_column(patch: pytest.MonkeyPatch, function: str, column: str) -> None:
    """Rows are made without what that column should say."""
    original = getattr(records, function)
    place = (FULL_COLUMNS if function == "full_row" else STATE_COLUMNS).index(column)

    def row(*args):
        made = original(*args)
        value = made[place]
        lost = {"timeline": b"\x90", "data": b"\x80"}.get(column)
        if lost is None and isinstance(value, (int, float)):
            lost = 0
        return (*made[:place], "lost" if lost is None and isinstance(value, str) else lost, *made[place + 1 :])

    patch.setattr(records, function, row)


def lose_field(patch: pytest.MonkeyPatch, name: str) -> None:
    """Side rows are made without that field."""
    original, original_name = records.extra_blob, records.name_blob
    key = msgspec.structs.fields(records.JobExtra)[records.JobExtra.__struct_fields__.index(name)].encode_name

    def without(blob):
        fields = {} if blob is None else msgpack.unpackb(blob)
        fields.pop(key, None)
        return msgpack.packb(fields) if fields else None

    patch.setattr(records, "extra_blob", lambda record, **fields: without(original(record, **fields)))
    patch.setattr(records, "name_blob", lambda own: without(original_name(own)) or b"\x80")
