"""GetJobs: one list over all kinds of jobs that are asked for, createdAt then id, and a page of it from either end.

Live jobs come from memory, at the moment of asking. Completed ones are in the file alone: then the page is put together
there, from what memory holds and the file held at one moment between two commits.

Source: commands, 2.1 to 2.3 and 3; CD-2, CD-4, CD-5.
"""

from copy import copy
from typing import Any

from msgspec import UNSET, Raw

from bunqueue_trio.engine import job_forms
from bunqueue_trio.engine.catalog import ACTIVE, DELAYED, FAILED, LIVE_KINDS, PARKED, PRIORITIZED, WAITING, kind_of
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.commands import ABSENT, GetJobs
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord
from bunqueue_trio.model.questions import CompletedPage
from bunqueue_trio.model.replies import JobsReply

COPIED_MAX = 2_000  # live jobs that are copied at the moment of asking; of a window beyond that, only the page
PAGE_MAX_BYTES = 48 * 1024 * 1024  # a client can receive 64 MB; without a bound a page could be all there is
RECORD_BYTES = 1_000  # about what a record takes beside its data
PAGE_MAX_JOBS = PAGE_MAX_BYTES // RECORD_BYTES

SHOWN = {
    WAITING: "waiting",
    PRIORITIZED: "prioritized",
    DELAYED: "delayed",
    PARKED: "waiting-children",
    ACTIVE: "active",
    FAILED: "failed",
}
COMPLETED = "completed"
KINDS = {name: (kind,) for kind, name in SHOWN.items()}
READY_KINDS = (WAITING, PRIORITIZED)


class Lists:
    """Pages of jobs."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get_jobs(self, command: GetJobs, now: Now) -> JobsReply:
        """Jobs of the states asked for, from ``offset`` on, at most ``limit``; each with its state.

        Raises:
            LimitError: that many jobs do not fit into one reply.
            ReadNeededError: completed jobs are among them, or jobs that run again and have returned something before.

        Cost: as `Catalog.page`; O(offset) pointers when completed jobs are mixed with others.
        """
        state = self._state
        answer = state.answered(command)
        queue = state.queues.get(command.queue)
        if isinstance(answer, CompletedPage):
            if answer.page is None:
                raise _too_many()
            _bounded(answer.page, answer.results)
            return JobsReply(jobs=_shown(command, [self._as_listed(r) for r in answer.page], answer.results))
        if queue is None or command.limit == 0:
            return JobsReply()
        if moved := queue.mature(now.wall_ms):
            state.wake(queue, moved)
        kinds, wants_completed = _selection(command.state, is_paused=queue.settings.paused)
        wants_completed = wants_completed and queue.completed_count > 0
        if not wants_completed:
            jobs = queue.catalog.page(kinds, command.offset, _limit(command), newest_first=command.asc is False)
            _bounded([job.record for job in jobs], {})
            if not _rerun(command, jobs):
                shown = _only_name(command)
                return JobsReply(jobs=_shown(command, [shown_record(job, shown) for job in jobs], {}))
        if not state.holds_file:
            raise ReadNeededError
        raise ReadNeededError(self._question(command, queue, kinds, wants_completed=wants_completed))

    def _question(
        self, command: GetJobs, queue: QueueState, kinds: tuple[int, ...], *, wants_completed: bool
    ) -> CompletedPage:
        over = self._state.over_in_file()
        skipped = max(0, command.offset - queue.completed_count - len(over))
        limit, newest_first = _limit(command), command.asc is False
        jobs = queue.catalog.page(kinds, skipped, command.offset + limit - skipped, newest_first=newest_first)
        shown = None if wants_completed else _only_name(command)
        live = [shown_record(job, shown) if len(jobs) <= COPIED_MAX else job.record for job in jobs]
        return CompletedPage(
            command,
            queue.name,
            command.offset,
            limit,
            PAGE_MAX_BYTES,
            live,
            skipped,
            over,
            newest_first=newest_first,
            wants_completed=wants_completed,
            wants_results=_has_more(command),
            rerun=frozenset(_rerun(command, jobs)),
        )

    def _as_listed(self, record: JobRecord) -> JobRecord:
        """A record of the answer with its state; one from deep in a long list has got none yet."""
        if record.state is not UNSET:
            return record
        job = self._state.jobs.get(record.id)
        record = copy(record)
        if job is not None and job.block is not None:
            record.state = SHOWN[kind_of(job)]
        else:
            record.state = COMPLETED if record.completed_at is not None else "unknown"
        return record


def shown_record(job: Job, shown: str | None = None) -> JobRecord:
    """The record of a listed job, with its state or the name it was asked for by."""
    record = copy(job.record)
    record.state = SHOWN[kind_of(job)] if shown is None else shown
    return record


def _selection(asked: Any, *, is_paused: bool) -> tuple[tuple[int, ...], bool]:
    """The kinds that the names of states stand for, and whether completed jobs are among them.

    On a paused queue the ready jobs answer to ``paused`` only, unless all states are asked for.
    """
    if not asked:
        return LIVE_KINDS, True
    names = {asked} if isinstance(asked, str) else set(asked)
    kinds: set[int] = set()
    for name in names:
        if name == "paused":
            kinds.update(READY_KINDS if is_paused else ())
        elif not (is_paused and name in ("waiting", "prioritized")):
            kinds.update(KINDS.get(name, ()))
    return tuple(sorted(kinds)), COMPLETED in names


def _only_name(command: GetJobs) -> str | None:
    """The one name of a state that was asked for: the jobs are shown under it."""
    return command.state if isinstance(command.state, str) else None


def _has_more(command: GetJobs) -> bool:
    """Whether results and errors of unnamed jobs are shown as well (NC-3)."""
    return command.is_newer or command.asc is not ABSENT


def _rerun(command: GetJobs, jobs: list[Job]) -> list[str]:
    """Ids of those that still have the result of an earlier life, as far as it is shown."""
    old = [job for job in jobs if job.past is not None and job.past.has_result]
    return [job.record.id for job in old if job.record.own_name is not UNSET or _has_more(command)]


def _shown(command: GetJobs, records: list[JobRecord], results: dict[str, Raw]) -> list[JobRecord]:
    is_newer, has_more = command.is_newer, _has_more(command)
    return [job_forms.read(r, results.get(r.id), is_newer=is_newer, has_more=has_more) for r in records]


def _limit(command: GetJobs) -> int:
    """How many jobs to look for: one more than fit into a reply tell that they do not."""
    limit: int | None = None if command.limit < 0 else command.limit
    return PAGE_MAX_JOBS + 1 if limit is None else min(limit, PAGE_MAX_JOBS + 1)


def _bounded(records: list[JobRecord], results: dict[str, Raw]) -> None:
    """
    Raises:
        LimitError: they do not fit into a reply.
    """
    payload_bytes = sum([len(record.data) for record in records]) + sum(map(len, results.values()))
    if len(records) * RECORD_BYTES + payload_bytes > PAGE_MAX_BYTES:
        raise _too_many()


def _too_many() -> LimitError:
    return LimitError("Too many jobs for one reply: use limit and offset")
