"""RetryCompleted without an id: all completed jobs of a queue, page by page, so that fifty thousand hold up nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue_trio.engine.reruns import has_completed_by
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import StateError, StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.replies import CountReply, ErrorReply, Reply

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

log = get_logger("Queue")

PAGE_JOBS = 500  # reading takes 10 ms off the loop, staging and writing 10 ms on it; others get their turn in between


async def rerun_completed(
    broker: Broker, queue: str, count: int | None = None, completed_by: float | None = None
) -> Reply:
    """Run the completed jobs of *queue* again, those that had completed when their page was read.

    Args:
        count: how many at most, those first that were pushed first; None for all.
        completed_by: only those that completed at that moment or before, epoch ms; None for all.
    Returns:
        How many, after the last commit; or the error of the page that could not be committed or read. Pages before that
        one stay as they are: each is a transaction of its own.

    Cancel: what has been staged commits all the same; the pages behind it are left alone.
    """
    done, after_seq = 0, -1
    last_seq = broker.engine.state.next_seq - 1  # jobs that run again get numbers behind it
    while count is None or done < count:
        try:
            amended_count = broker.engine.state.amended_count
            page = await broker.read_completed(queue, after_seq, PAGE_JOBS)
            if broker.engine.state.amended_count != amended_count:
                continue  # a record of the page may be older than the one that was confirmed meanwhile
            if not page or page[0][0] > last_seq:
                break
            wanted = [(s, job) for s, job in page if s <= last_seq and has_completed_by(job, completed_by)]
            chunk = wanted if count is None else wanted[: count - done]
            after_seq = page[-1][0] if len(chunk) == len(wanted) else chunk[-1][0]
            jobs = [job for _, job in chunk]
            if not jobs:
                continue
            reply = await broker.carry_out(lambda now, jobs=jobs: broker.engine.reruns.rerun(queue, jobs, now))  # type: ignore[misc]
        except PendingChangeError:
            await broker.wait_for_flush()
            continue
        except StorageError as error:
            log.error("The data file cannot be read", error=str(error))
            return ErrorReply(error=f"Storage unavailable: {error}")
        except StateError as error:
            return ErrorReply(error=str(error))
        if not isinstance(reply, CountReply):
            return reply
        done += reply.count
    return CountReply(count=done)
