"""From the engine's changes to the rows of one transaction: a consistent snapshot, taken on the loop thread.

A job is written once, in the state it has now or, if a change of it waits for its commit, in the state it will have.
Taking the snapshot clears the jobs' dirty marks; `Snapshot.restore` puts them back when the transaction has failed.
"""

from msgspec import UNSET, Struct

from bunqueue_trio.model.changes import Changes, Dirty
from bunqueue_trio.model.entries import DEFAULT_SETTINGS, QueueSettings
from bunqueue_trio.model.job import Job, JobRecord, JobState, TimelineEntry, replace
from bunqueue_trio.model.transitions import SettingsChange, Transition, TransitionKind
from bunqueue_trio.storage import records
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.payloads import EMPTY_MAP

ENDS_A_LETTER = frozenset({TransitionKind.REVIVE, TransitionKind.PURGE})
Mark = tuple[Job, int, bool]


class Snapshot(Struct):
    """A batch, and the dirty marks it has cleared."""

    batch: Batch
    marks: list[Mark]

    def restore(self, changes: Changes) -> None:
        """The batch was not stored: every job in it is dirty again, in the old order."""
        for job, bits, was_stored in self.marks:
            job.is_stored = was_stored
            if bits:
                job.dirty, newer = 0, job.dirty
                changes.touch(job, bits | newer)


def take_snapshot(changes: Changes, wall_ms: float) -> Snapshot:
    """Build the rows for *changes* as of now."""
    batch = Batch(needs_sync=changes.needs_sync, row_count=changes.row_count)
    marks: list[Mark] = []
    settings: dict[str, QueueSettings] = {}
    for change in changes.staged:
        if isinstance(change, SettingsChange):
            settings[change.queue] = change.settings
        else:
            _write_transition(batch, marks, change, wall_ms)
    for job in changes.jobs:
        if job.dirty == Dirty.PLAIN and job.state is JobState.READY and not job.is_stored:
            # Most rows are new jobs without options that nobody has pulled yet: no detours for them.
            marks.append((job, Dirty.PLAIN, False))
            job.dirty = 0
            job.is_stored = True
            record = job.record
            batch.plain.append(records.plain_row(record, job.seq, _queued_name(record, wall_ms)))
        elif job.dirty:
            _write_job(batch, marks, job, wall_ms)
    for name, value in settings.items():
        if value == DEFAULT_SETTINGS:
            batch.settings_gone.append(name)
        else:
            batch.settings.append(records.settings_row(name, value))
    ended = {
        c.record.id for c in changes.staged if isinstance(c, Transition) and (c.renews_id or c.kind in ENDS_A_LETTER)
    }
    for entry in changes.letters:
        if entry.job.id in ended:
            continue  # its id lives again, or is gone for good, from this very transaction on
        batch.letters.append((entry.job.id, entry.job.queue, records.entry_blob(entry), entry.entered_at))
    batch.reborn += changes.reborn
    batch.deleted += changes.expired
    batch.letters_gone += changes.letters_gone
    batch.finished += changes.finished
    batch.finished_gone += changes.finished_gone
    return Snapshot(batch, marks)


def _write_transition(batch: Batch, marks: list[Mark], change: Transition, wall_ms: float) -> None:
    job = change.job
    record = change.record
    marks.append((job, job.dirty, job.is_stored))
    dirty, job.dirty = job.dirty | change.dirty, 0
    if change.kind in ENDS_A_LETTER:
        batch.letters_gone.append(record.id)
    if change.state is JobState.GONE:
        if job.is_stored:
            batch.deleted.append(record.id)
            job.is_stored = False
        if change.keeps_id:
            batch.finished.append(record.id)
        if change.entry is not None:
            entry = change.entry
            batch.letters.append((record.id, record.queue, records.entry_blob(entry), entry.entered_at))
        return
    if change.renews_id:
        batch.reborn.append(record.id)
    if change.kind is TransitionKind.COMPLETE:
        state_name = "completed"
        if change.result is not None:
            batch.results.append((record.id, bytes(change.result), record.completed_at))
    elif change.kind is TransitionKind.UPDATE:
        state_name = "active"
    else:
        state_name = _queued_name(record, wall_ms)
    _write_row(batch, job, record, state_name, dirty)


def _write_job(batch: Batch, marks: list[Mark], job: Job, wall_ms: float) -> None:
    marks.append((job, job.dirty, job.is_stored))
    dirty, job.dirty = job.dirty, 0
    if job.state is JobState.GONE or job.state is JobState.FAILED:
        if job.is_stored:
            batch.deleted.append(job.record.id)
            job.is_stored = False
        return
    record = job.record
    _write_row(batch, job, record, "active" if job.state is JobState.ACTIVE else _queued_name(record, wall_ms), dirty)


def _write_row(batch: Batch, job: Job, record: JobRecord, state_name: str, dirty: int) -> None:
    """The shortest statement that brings the file up to date about one job."""
    if state_name != "active" and record.timeline and _announces_retry(record.timeline[-1]):
        record = replace(record, timeline=record.timeline[:-1])
    if dirty == Dirty.PLAIN and not job.is_stored and state_name == "waiting":
        batch.plain.append(records.plain_row(record, job.seq, state_name))
        job.is_stored = True
        return
    if job.is_stored and not dirty & Dirty.FULL:
        batch.states.append(records.state_row(record, state_name))
    else:
        batch.full.append(records.full_row(record, job.seq, state_name))
        job.is_stored = True
    if dirty & (Dirty.FULL | Dirty.EXTRA):
        blob = records.extra_blob(record, key_expires_at=job.key_expires_at, is_from_cron=job.is_from_cron)
        if blob is not None or dirty & Dirty.EXTRA:
            batch.extras.append((record.id, EMPTY_MAP if blob is None else blob))


def _announces_retry(entry: TimelineEntry) -> bool:
    """Wire: the row of a failed attempt ends with the failure; that the job waits again is written with the next."""
    return entry.state == "waiting" and entry.attempt is not UNSET


def _queued_name(record: JobRecord, wall_ms: float) -> str:
    return "delayed" if record.run_at > wall_ms else "waiting"
