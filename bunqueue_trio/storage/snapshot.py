"""From the engine's changes to the rows of one transaction: a consistent snapshot, taken on the loop thread.

A job is written once, in the state it has now or, if a change of it waits for its commit, in the state it will have.
Taking the snapshot clears the jobs' dirty marks; `Snapshot.restore` puts them back when the transaction has failed.
"""

from msgspec import UNSET, Struct

from bunqueue_trio.model.changes import Changes, Dirty
from bunqueue_trio.model.entries import DEFAULT_SETTINGS, QueueSettings
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, GroupSettings
from bunqueue_trio.model.job import KEY_GIVEN_UP, ChildFailures, Job, JobRecord, JobState, TimelineEntry, replace
from bunqueue_trio.model.transitions import (
    Amendment,
    CompletedRemoval,
    CronChange,
    CronNews,
    GroupChange,
    Removal,
    SettingsChange,
    Transition,
    TransitionKind,
)
from bunqueue_trio.storage import records
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.crons import cron_row
from bunqueue_trio.storage.payloads import EMPTY_MAP

ENDS_A_LETTER = frozenset({TransitionKind.REVIVE, TransitionKind.PURGE, TransitionKind.AMEND})
Mark = tuple[Job, int, bool]

# Every push and every ACK compares with these, and on Python 3.11 a member costs five times as much as a global.
_READY, _GONE = JobState.READY, JobState.GONE
_PUBLISH, _COMPLETE, _UPDATE = TransitionKind.PUBLISH, TransitionKind.COMPLETE, TransitionKind.UPDATE
_RERUN, _LOOSEN, _AMEND = TransitionKind.RERUN, TransitionKind.LOOSEN, TransitionKind.AMEND


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
    groups: dict[tuple[str, str], GroupSettings] = {}
    for change in changes.staged:
        if isinstance(change, Transition):
            if change.doomed_by is not None and change.is_doomed:
                _write_doomed(batch, marks, change)
            else:
                _write_transition(batch, marks, change, wall_ms)
        elif isinstance(change, SettingsChange):
            settings[change.queue] = change.settings
        elif isinstance(change, GroupChange):
            groups[(change.queue, change.group_id)] = change.settings
        elif isinstance(change, Removal):
            _write_removal(batch, marks, change)
            if change.is_whole:
                settings[change.queue] = DEFAULT_SETTINGS
                groups = {key: value for key, value in groups.items() if key[0] != change.queue}
        elif isinstance(change, Amendment):
            batch.links.append(records.link_row(change.record))
        elif isinstance(change, CronChange):
            _write_cron(batch, change)
        elif isinstance(change, CompletedRemoval):
            batch.deleted += change.ids
            batch.finished += change.kept_ids
    for job in changes.jobs:
        if job.dirty == Dirty.PLAIN and job.state is _READY and not job.is_stored:
            # Most rows are new jobs without options that nobody has pulled yet: no detours for them.
            marks.append((job, Dirty.PLAIN, False))
            job.dirty = 0
            job.is_stored = True
            record = job.record
            batch.plain.append(records.plain_row(record, job.seq, _queued_name(record, wall_ms)))
            if record.own_name is not UNSET:
                batch.extras.append((record.id, records.name_blob(record.own_name)))
        elif job.dirty:
            _write_job(batch, marks, job, wall_ms)
    for name, value in settings.items():
        _write_settings(batch, name, value)
    for (name, group_id), group in groups.items():
        if group == DEFAULT_GROUP_SETTINGS:
            batch.groups_gone.append((name, group_id))
        else:
            batch.groups.append((name, group_id, records.group_blob(group)))
    ended = _ended_ids(changes) if changes.letters else set()
    for entry in changes.letters.values():
        if entry.job.id in ended:
            continue  # its id lives again, or is gone for good, from this very transaction on
        batch.letters.append((entry.job.id, entry.job.queue, records.entry_blob(entry), entry.entered_at))
    for name, (completed, failed) in changes.ended.items():
        batch.series += records.series_rows(name, completed, failed, wall_ms)
    batch.reborn += changes.reborn
    batch.deleted += changes.expired
    batch.letters_gone += changes.letters_gone
    batch.finished += changes.finished
    batch.finished_gone += changes.finished_gone
    return Snapshot(batch, marks)


def _ended_ids(changes: Changes) -> set[str]:
    """Ids whose dead letters end with these changes."""
    ended: set[str] = set()
    for change in changes.staged:
        if isinstance(change, Removal):
            ended.update(job.record.id for job in change.jobs)
        elif isinstance(change, Transition) and (change.renews_id or change.kind in ENDS_A_LETTER or change.is_doomed):
            ended.add(change.record.id)
    return ended


def _write_cron(batch: Batch, change: CronChange) -> None:
    job = change.job
    if job is None:
        batch.crons_gone.append(change.name)
        batch.job_names_gone.append(change.name)
        return
    batch.crons.append(cron_row(job))
    if (
        change.news is CronNews.CREATED or change.news is CronNews.UPDATED
    ):  # nothing else changes what its jobs are called
        if job.job_name is None:
            batch.job_names_gone.append(job.name)
        else:
            batch.job_names.append((job.name, job.job_name))


def _write_settings(batch: Batch, name: str, settings: QueueSettings) -> None:
    if replace(settings, dlq=DEFAULT_SETTINGS.dlq) == DEFAULT_SETTINGS:
        batch.settings_gone.append(name)
    else:
        batch.settings.append(records.settings_row(name, settings))
    if settings.dlq == DEFAULT_SETTINGS.dlq:
        batch.policies_gone.append(name)
    else:
        batch.policies.append((name, records.policy_blob(settings.dlq)))


def _write_removal(batch: Batch, marks: list[Mark], removal: Removal) -> None:
    """Jobs that memory knows go by their ids, completed ones and dead letters by their queue."""
    marks += [(job, job.dirty, job.is_stored) for job in removal.jobs]
    batch.deleted += [job.record.id for job in removal.jobs if job.is_stored]
    for job in removal.jobs:
        job.dirty = 0
        job.is_stored = False
    if removal.is_whole:
        batch.emptied.append((removal.queue, removal.named))


def _write_doomed(batch: Batch, marks: list[Mark], change: Transition) -> None:
    """What the change would have written is deleted in this very transaction; the rest of it counts."""
    job = change.job
    marks.append((job, job.dirty, job.is_stored))
    job.dirty = 0
    if job.is_stored:
        batch.deleted.append(change.record.id)
        job.is_stored = False
    if change.renews_id:
        batch.reborn.append(change.record.id)
    if change.keeps_id:
        batch.finished.append(change.record.id)


def _write_transition(batch: Batch, marks: list[Mark], change: Transition, wall_ms: float) -> None:
    job = change.job
    record = change.record
    if change.kind is _AMEND and job.state is _GONE:
        return  # newer dead letters have pushed it out
    marks.append((job, job.dirty, job.is_stored))
    dirty, job.dirty = job.dirty | change.dirty, 0
    if change.kind in ENDS_A_LETTER:
        batch.letters_gone.append(record.id)
    if change.state is _GONE:
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
    if change.forgets_end:
        batch.finished_gone.append(record.id)
    if change.kind is _PUBLISH:
        state_name = _queued_name(record, wall_ms)
    elif change.kind is _COMPLETE:
        state_name = "completed"
        if change.result is not None:
            batch.results.append((record.id, bytes(change.result), record.completed_at))
        elif job.past is not None and job.past.has_result:
            batch.results_gone.append(record.id)
    elif change.kind is _UPDATE:
        state_name = "active"
    elif change.kind is _RERUN:
        _write_rerun(batch, job, record, wall_ms)
        return
    else:
        state_name = _queued_name(record, wall_ms)
    failures = change.child_failures if change.kind is _LOOSEN else job.child_failures
    _write_row(batch, job, record, state_name, dirty, failures, change)


def _write_rerun(batch: Batch, job: Job, record: JobRecord, wall_ms: float) -> None:
    """The old row cannot be updated: its rowid is the order of a push long ago."""
    batch.reruns.append(records.full_row(record, job.seq, _queued_name(record, wall_ms)))
    job.is_stored = True
    blob = records.extra_blob(record, key_expires_at=None, is_from_cron=False, past=job.past)
    if blob is not None:
        batch.extras.append((record.id, blob))


def _write_job(batch: Batch, marks: list[Mark], job: Job, wall_ms: float) -> None:
    marks.append((job, job.dirty, job.is_stored))
    dirty, job.dirty = job.dirty, 0
    if job.state is JobState.GONE or job.state is JobState.FAILED:
        if job.is_stored:
            batch.deleted.append(job.record.id)
            job.is_stored = False
        return
    record = job.record
    state_name = "active" if job.state is JobState.ACTIVE else _queued_name(record, wall_ms)
    _write_row(batch, job, record, state_name, dirty, job.child_failures)


def _write_row(
    batch: Batch,
    job: Job,
    record: JobRecord,
    state_name: str,
    dirty: int,
    failures: ChildFailures | None,
    change: Transition | None = None,
) -> None:
    """The shortest statement that brings the file up to date about one job, as it is or as *change* will leave it."""
    if state_name != "active" and record.timeline and _announces_retry(record.timeline[-1]):
        record = replace(record, timeline=record.timeline[:-1])
    if dirty == Dirty.PLAIN and not job.is_stored and state_name == "waiting":
        batch.plain.append(records.plain_row(record, job.seq, state_name))
        job.is_stored = True
        if record.own_name is not UNSET:
            batch.extras.append((record.id, records.name_blob(record.own_name)))
        return
    if not job.is_stored and record.own_name is not UNSET:
        dirty |= Dirty.FULL  # a plain job has nothing in the side table but its name
    if job.is_stored and not dirty & Dirty.FULL:
        batch.states.append(records.state_row(record, state_name))
    else:
        batch.full.append(records.full_row(record, job.seq, state_name))
        job.is_stored = True
    if dirty & (Dirty.FULL | Dirty.EXTRA):
        gives_up_key = change is not None and (
            change.frees_key or (change.kind is TransitionKind.PARK and record.unique_key is not None)
        )
        blob = records.extra_blob(
            record,
            key_expires_at=KEY_GIVEN_UP if gives_up_key else job.key_expires_at,
            is_from_cron=job.is_from_cron,
            past=job.past if change is None or change.past is UNSET else change.past,
            child_failures=failures,
        )
        if blob is not None or dirty & Dirty.EXTRA:
            batch.extras.append((record.id, EMPTY_MAP if blob is None else blob))


def _announces_retry(entry: TimelineEntry) -> bool:
    """Wire: the row of a failed attempt ends with the failure; that the job waits again is written with the next."""
    return entry.state == "waiting" and entry.attempt is not UNSET


def _queued_name(record: JobRecord, wall_ms: float) -> str:
    return "delayed" if record.run_at > wall_ms else "waiting"
