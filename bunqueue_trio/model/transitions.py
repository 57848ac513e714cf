"""Changes that a client is told of only after their commit.

The engine decides such a change at once but applies it when its transaction has committed; until then everybody sees
the state before. A commit that fails therefore leaves nothing to undo: the change is dropped and the client is told no.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from bunqueue_trio.model.entries import DlqEntry, QueueSettings
from bunqueue_trio.model.job import JobRecord, JobState

if TYPE_CHECKING:
    from bunqueue_trio.model.job import Job


class TransitionKind(Enum):
    """What happens to the job at commit."""

    PUBLISH = "publish"
    COMPLETE = "complete"
    RETRY = "retry"
    BURY = "bury"
    REMOVE = "remove"
    MOVE = "move"  # another place in the queue, or back into it
    UPDATE = "update"  # stays active
    DISCARD = "discard"  # to the dead letters without counting as a failure
    REVIVE = "revive"  # from the dead letters back into the queue
    PURGE = "purge"  # a dead letter goes for good


class Transition(Struct, gc=False, eq=False):
    """One job's change: the record and state it will have.

    ``state`` is GONE when the row is to be deleted (removeOnComplete, removeOnFail, Cancel). ``result`` is None when
    ACK carried none. ``entry`` is the dead letter of a BURY. ``dirty`` are bits of `changes.Dirty` that the change
    itself adds: a row that has to be written whole.

    ``held_from`` is the place out of which a queued or parked job was taken for the time of the commit, so that no pull
    can get it meanwhile. ``keeps_id`` says that the file has to remember the id of a completed job whose row goes, for
    the jobs that depend on it.

    Of a PUBLISH: ``renews_id`` says that the file may hold a finished job of that id, which goes in the same
    transaction; ``former`` is the dead letter of that id, ``displaced`` the job that held the unique key. Both come
    back should the commit fail.
    """

    kind: TransitionKind
    job: Job
    record: JobRecord
    state: JobState
    result: Raw | None = None
    entry: DlqEntry | None = None
    dirty: int = 0
    held_from: JobState | None = None
    keeps_id: bool = False
    renews_id: bool = False
    former: Job | None = None
    displaced: Job | None = None


class SettingsChange(Struct, gc=False, eq=False):
    """New settings of one queue, whole."""

    queue: str
    settings: QueueSettings


Staged = Transition | SettingsChange
