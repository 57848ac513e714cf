"""Questions of the engine, answered from one snapshot of the file: pages of completed jobs, the oldest of them.

Everything goes by index; rows are read only for what is on the page.

Source: commands, 3 and 6; persistence, "Tables".
"""

from heapq import merge
from itertools import islice
from typing import Any

import apsw
from msgspec import UNSET

from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.model.questions import CompletedPage, OldestCompleted, Question, QueueSeries
from bunqueue_trio.storage import reads
from bunqueue_trio.storage.records import TOTAL_SLOT

Listed = tuple[float, str, Any]
"""createdAt, id, and the row of a completed job or the record of a live one."""


def answer(connection: apsw.Connection, question: Question) -> None:
    """Put the answer into *question*.

    Raises:
        StorageError: the file cannot be read.

    Cost: `OldestCompleted` by index alone. `QueueSeries`: 20,161 rows at the most, 10 ms. `CompletedPage`: what is on
    the page, and of a list that mixes completed with live jobs some twenty steps over the index up to ``offset``, at
    20 ns per job skipped.
    """
    if isinstance(question, OldestCompleted):
        question.ids = reads.oldest_of_queue(
            connection, question.queue, until_ms=question.until, limit=question.limit, over=question.over
        )
    elif isinstance(question, QueueSeries):
        _read_series(connection, question)
    else:
        question.page = _page(connection, question)


def _read_series(connection: apsw.Connection, question: QueueSeries) -> None:
    question.minutes = {}
    for slot, minute, count, last_ms in reads.series(connection, question.queue, question.kind):
        if slot == TOTAL_SLOT:
            question.total, question.last_ms = count, None if last_ms is None else float(last_ms)
        elif count:
            question.minutes[minute] = count


def _page(connection: apsw.Connection, question: CompletedPage) -> list[JobRecord] | None:
    first = _completed_before(connection, question)
    completed = _keys(connection, question, question.limit, first)
    live = question.live[max(0, question.offset - first - question.skipped) :]
    listed = merge(
        completed,
        ((record.created_at, record.id, record) for record in live),
        key=_order,
        reverse=question.newest_first,
    )
    page = [found for _, _, found in islice(listed, question.limit)]
    records = reads.records_at(connection, [rowid for rowid in page if isinstance(rowid, int)], question.max_bytes)
    if records is None:
        return None
    with_result = [r.id for r in records.values() if question.wants_results or r.own_name is not UNSET]
    with_result += [found.id for found in page if isinstance(found, JobRecord) and found.id in question.rerun]
    room = question.max_bytes - sum([len(record.data) for record in records.values()])
    results = reads.results_of(connection, with_result, room)
    if results is None:
        return None
    question.results = results
    for record in records.values():
        record.state = "completed"
    return [records[found] if isinstance(found, int) else found for found in page]


def _completed_before(connection: apsw.Connection, question: CompletedPage) -> int:
    """How many of the jobs in front of the page are completed ones: found by halving, for both sides are in order."""
    offset, live, skipped = question.offset, question.live, question.skipped
    low, high = max(0, offset - skipped - len(live)), offset
    while low < high:
        middle = (low + high) // 2
        found = _keys(connection, question, 1, middle)
        last_live = None if not found else live[offset - middle - 1 - skipped]
        if last_live is None or _comes_first(last_live, found[0], question.newest_first):
            high = middle
        else:
            low = middle + 1
    return low


def _keys(connection: apsw.Connection, question: CompletedPage, limit: int, offset: int) -> list[Listed]:
    if not question.wants_completed:
        return []
    return reads.completed_keys(
        connection,
        question.queue,
        limit=limit,
        offset=offset,
        over=question.over,
        newest_first=question.newest_first,
    )


def _comes_first(live: JobRecord, completed: Listed, newest_first: bool) -> bool:
    key = (live.created_at, live.id)
    return key > completed[:2] if newest_first else key < completed[:2]


def _order(listed: Listed) -> tuple[float, str]:
    return listed[:2]
