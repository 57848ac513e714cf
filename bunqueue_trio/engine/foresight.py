"""What a push will leave behind: which ids it brings to life, and which jobs it takes away.

Keys decide that while a batch is let in, entry by entry. A dependency has to exist when all of it is in: who waits for
an entry that is turned into a duplicate, or for a job that another entry replaces, would be parked for ever.

Source: protocol, P-12; scheduling and flows, "Deduplication", SD-24.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bunqueue_trio.engine.group_sizes import GroupSizes, named_group_of, queued_group_of
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import PushOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState


@dataclass(frozen=True, slots=True)
class Foresight:
    """The ids that will be there, and those that will not, when the push is in."""

    born: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)


NOTHING = Foresight()


@dataclass(slots=True)
class _Holder:
    """Who will hold a key at a point of the batch."""

    id: str | None  # None for a job that will get an id of its own: nobody can have named it
    is_queued: bool
    expires_at: float | None
    group_id: str | None = None  # the named group in which it takes room


def key_holder(queue: QueueState, key: str, now: Now) -> Job | None:
    """Who holds the key now; an entry whose time is over counts as absent."""
    holder = queue.keys.get(key)
    if holder is not None and holder.key_expires_at is not None and now.wall_ms >= holder.key_expires_at:
        return None
    return holder


def foresee(
    state: State,
    queue: QueueState,
    entries: Iterable[tuple[str | None, PushOptions]],
    now: Now,
    sizes: GroupSizes | None = None,
) -> Foresight:
    """Go through the decisions of `Admission` about ids and keys, without taking any.

    Args:
        entries: custom id and options of each job of one push, in order. The jobs that they meet are settled.
        sizes: is asked about each of them that will be a job of its own.

    Raises:
        ValidationError, StateError, PendingChangeError: *sizes* has refused one.

    Cost: O(entries and their dependencies).
    """
    seen = Foresight()
    born, gone = seen.born, seen.gone
    keys: dict[str, _Holder] = {}
    for custom_id, options in entries:
        if custom_id is not None and (custom_id in born or _answers(state, custom_id, gone)):
            continue
        holder = _holder(queue, options, keys, now)
        if holder is not None:
            if not (options.dedup is not None and options.dedup.replace):
                continue
            if holder.is_queued and holder.id is not None:
                born.discard(holder.id)
                gone.add(holder.id)
            if holder.is_queued and sizes is not None:
                sizes.free(queue.name, holder.group_id)
        is_queued = all(
            dependency not in born and dependency not in gone and state.is_met(dependency)
            for dependency in options.depends_on or ()
        )
        if sizes is not None:
            sizes.admit(queue.name, options, is_queued=is_queued)
        if custom_id is not None:
            born.add(custom_id)
            gone.discard(custom_id)
        if not options.is_plain and options.unique_key is not None:
            ttl = None if options.dedup is None else options.dedup.ttl
            expires_at = None if ttl is None else now.wall_ms + ttl
            group_id = named_group_of(options) if is_queued else None
            keys[options.unique_key] = _Holder(custom_id, is_queued, expires_at, group_id)
    return seen


def _answers(state: State, custom_id: str, gone: set[str]) -> bool:
    """True when a live job of this id will stand for the entry."""
    job = state.jobs.get(custom_id)
    return job is not None and job.state is not JobState.FAILED and custom_id not in gone


def _holder(queue: QueueState, options: PushOptions, keys: dict[str, _Holder], now: Now) -> _Holder | None:
    key = None if options.is_plain else options.unique_key
    if key is None:
        return None
    if key in keys:
        mine = keys[key]
        return None if mine.expires_at is not None and now.wall_ms >= mine.expires_at else mine
    job = key_holder(queue, key, now)
    if job is None:
        return None
    is_queued = job.state in (JobState.READY, JobState.DELAYED)
    return _Holder(job.record.id, is_queued, job.key_expires_at, queued_group_of(job))
