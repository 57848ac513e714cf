"""Changes that a client is told of only after their commit.

The engine decides such a change at once but applies it when its transaction has committed; until then everybody sees
the state before. A commit that fails therefore leaves nothing to undo: the change is dropped and the client is told no.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue_trio.model.cron_job import CronJob
from bunqueue_trio.model.entries import DlqEntry, QueueSettings
from bunqueue_trio.model.grouping import GroupSettings
from bunqueue_trio.model.job import JobRecord, JobState

if TYPE_CHECKING:
    from bunqueue_trio.model.events import Event
    from bunqueue_trio.model.job import ChildFailures, Job, Past


class TransitionKind(IntEnum):
    """What happens to the job at commit. Ints, since a plain member hashes by a call in Python."""

    PUBLISH = 1
    COMPLETE = 2
    RETRY = 3
    BURY = 4
    REMOVE = 5
    MOVE = 6  # another place in the queue, or back into it
    UPDATE = 7  # stays active
    DISCARD = 8  # to the dead letters without counting as a failure
    REVIVE = 9  # from the dead letters back into the queue
    PURGE = 10  # a dead letter goes for good
    RERUN = 11  # a completed job becomes a queued one
    LOOSEN = 12  # waits for fewer jobs, or for none any more
    AMEND = 13  # stays a dead letter, its record changes
    CANCEL = 14  # a removal that listeners hear of
    PARK = 15  # from active to waiting for others
    LINK = 16  # gets children that have just been pushed, and waits for them


class Transition(Struct, gc=False, eq=False):
    """One job's change: the record and state it will have.

    ``state`` is GONE when the row is to be deleted (removeOnComplete, removeOnFail, Cancel). ``result`` is None when
    ACK carried none. ``entry`` is the dead letter of a BURY. ``dirty`` are bits of `changes.Dirty` that the change
    itself adds: a row that has to be written whole.

    ``held_from`` is the place out of which a queued or parked job was taken for the time of the commit, so that no pull
    can get it meanwhile; ``held_kind`` is as what lists go on showing it. ``keeps_id`` says that the file has to
    remember the id of a completed job whose row goes, for the jobs that depend on it.

    ``succeeds`` is the id of the completed job whose successor a PUBLISH brings.

    For those who listen: ``aftermath`` are events that are to follow a PUBLISH; ``error`` is that of a RETRY or BURY;
    ``delay_ms`` is the pause that a MOVE was asked for; ``failed_child`` names the child whose ``error`` has brought a
    BURY about.

    ``past`` is what earlier lives have left to the job afterwards, where the change touches that.
    ``linked`` are the ids of the children of a LINK, which may be extended until a flush takes it.
    ``frees_key``: a MOVE or UPDATE that takes its unique key from a job and leaves the rest as it is.

    ``doomed_by`` is the removal of many jobs that came after this change and takes its outcome along: see `is_doomed`.

    Of a PUBLISH: ``renews_id`` says that the file may hold a finished job of that id, which goes in the same
    transaction; ``forgets_end`` that the file remembers the id as one that completed, and must not do so any more, for
    others of the same transaction may wait for the new life; ``former`` is the dead letter of that id, ``displaced``
    the job that held the unique key. Both come back should the commit fail.
    """

    kind: TransitionKind
    job: Job
    record: JobRecord
    state: JobState
    result: Raw | None = None
    entry: DlqEntry | None = None
    dirty: int = 0
    held_from: JobState | None = None
    held_kind: int = JobState.STAGED
    keeps_id: bool = False
    renews_id: bool = False
    forgets_end: bool = False
    former: Job | None = None
    displaced: Job | None = None
    child_failures: ChildFailures | None = None
    """Of a LOOSEN: what the job then knows of its children. Its ``state`` is READY when it waits for nothing more."""
    doomed_by: Removal | None = None
    succeeds: str | None = None
    aftermath: list[Event] | None = None
    error: str | None = None
    delay_ms: float | None = None
    frees_key: bool = False
    failed_child: str | None = None
    past: Past | UnsetType | None = UNSET
    linked: list[str] | None = None

    @property
    def is_doomed(self) -> bool:
        """True when the file is not to see this change, because its job goes in the same transaction or the next."""
        return self.doomed_by is not None and not self.doomed_by.is_dropped


class Removal(Struct, gc=False, eq=False):
    """Many jobs of one queue go at once: Drain, and with ``is_whole`` Obliterate.

    Each of ``jobs`` has a transition that stands for it as its ``staged``, shared by those that were in the same kind
    of place. ``named`` are ids that unfinished jobs depend on: those of them that completed in this queue are to be
    remembered. ``is_dropped`` is set when the removal will not take place.
    """

    queue: str
    is_whole: bool
    jobs: list[Job]
    named: tuple[str, ...] = ()
    is_dropped: bool = False


class SettingsChange(Struct, gc=False, eq=False):
    """New settings of one queue, whole. ``is_switch``: somebody has paused or resumed it, changed or not."""

    queue: str
    settings: QueueSettings
    is_switch: bool = False


class GroupChange(Struct, gc=False, eq=False):
    """New settings of one named group, whole. ``closes_window``: its next hand-out opens a new window."""

    queue: str
    group_id: str
    settings: GroupSettings
    closes_window: bool = False


class Amendment(Struct, gc=False, eq=False):
    """A completed job gets another parent or another child: its new record, of which only those fields are written."""

    record: JobRecord


class CompletedRemoval(Struct, gc=False, eq=False):
    """Completed jobs of one queue that go for good, rows and results.

    ``kept_ids`` are those whose id the file has to remember, for the jobs that depend on it.
    """

    queue: str
    ids: list[str]
    kept_ids: list[str]


class CronNews(StrEnum):
    """What has become of a cron, but for its end; the names of the wire."""

    CREATED = "created"
    UPDATED = "updated"
    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"


class CronChange(Struct, gc=False, eq=False):
    """A cron as it will be, or None when it goes. A job that it pushes is staged beside it, in the same transaction.

    For those who listen: ``news`` is what the change means to them, ``detail`` the reason of a skip or the error of a
    run that came to nothing.
    """

    name: str
    job: CronJob | None
    news: CronNews | None = None
    detail: str | None = None


class Announcement(Struct, gc=False, eq=False):
    """What a command means as a whole, beside what happens to each job: told to those who listen once it has committed.

    Staged behind the changes it speaks of, and only while somebody listens. Shape of ``data``: that of the event.
    """

    event: str
    data: dict[str, Any]


Staged = Transition | SettingsChange | GroupChange | Removal | Amendment | CompletedRemoval | CronChange | Announcement
