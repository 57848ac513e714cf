"""Which dead letters of a queue are meant, and what time does to them.

Source: commands, 7.2; newer clients, 12.
"""

from collections.abc import Iterator
from itertools import islice

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model.entries import NO_FILTER, DlqEntry, DlqPolicy, LetterFilter
from bunqueue_trio.model.instant import Now


def selected(queue: QueueState, wanted: LetterFilter | None, now: Now) -> Iterator[DlqEntry]:
    """The dead letters that a filter means, oldest first; all of them without one.

    Found one by one, while the letters stay as they are: whoever needs few does not wait for the rest.
    """
    if wanted is None:
        wanted = NO_FILTER
    found = (entry for entry in queue.letters.values() if _matches(entry, wanted, queue, now.wall_ms))
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    return islice(found, wanted.offset, end)


def _matches(entry: DlqEntry, wanted: LetterFilter, queue: QueueState, wall_ms: float) -> bool:
    return (
        (wanted.reason is None or entry.reason == wanted.reason)
        and (wanted.until is None or entry.entered_at <= wanted.until)
        and (wanted.since is None or entry.entered_at >= wanted.since)
        and (not wanted.is_retriable or is_retry_due(entry, queue.settings.dlq, wall_ms))
        and (not wanted.has_expired or has_expired(entry, wall_ms))
    )


def is_retry_due(entry: DlqEntry, policy: DlqPolicy, wall_ms: float) -> bool:
    """Whether an automatic retry is due and the policy allows for one more; whether they are switched on aside."""
    at = entry.next_retry_at
    return at is not None and at <= wall_ms and entry.retry_count < policy.max_auto_retries


def has_expired(entry: DlqEntry, wall_ms: float) -> bool:
    """Whether a dead letter is older than its queue keeps them."""
    return entry.expires_at is not None and entry.expires_at <= wall_ms
