"""Crons: made, shown and removed by commands; loaded at start.

Times are those of the wall clock. A change takes effect at its commit, so what clients are told of has been stored.

Source: scheduling and flows, "Cron"; SD-1 to SD-7.
"""

from datetime import UTC, tzinfo
from weakref import WeakValueDictionary

from msgspec import UNSET
from msgspec.structs import replace

from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.timing import SMALL_STEP_MS, Timing, first_run, open_timing, run_at_start
from bunqueue_trio.engine.cron_table import Cron, CronTable
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import LimitError, NotFoundError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.cron_job import CronJob
from bunqueue_trio.model.cron_replies import CronReply, CronsReply, MadeCron, MadeCronReply, ShownCron
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.model.transitions import CronChange, CronNews, Transition, TransitionKind

MAX_CRONS = 10_000  # each costs a heap entry, a row and, where the clock is set back, a search for its next run


class Crons:
    """The commands about crons.

    Args:
        local_zone: the zone of expressions that name none.
    """

    def __init__(self, state: State, *, local_zone: tzinfo = UTC) -> None:
        self._state = state
        self._local_zone = local_zone
        self._patterns: WeakValueDictionary[tuple[str, str | None], Pattern] = WeakValueDictionary()
        """Those in use, by expression and zone: a thousand crons of one schedule look for their next run once."""

    def put(self, command: c.Cron, now: Now) -> MadeCronReply:
        """Make a cron, or replace the definition of the one of that name: only its executions and its place stay.

        ``immediately`` counts for a new one only. An explicit ``preventOverlap`` removes a job of the cron that has
        not begun, in the same transaction.

        Raises:
            ValidationError: the expression or the zone; nothing has changed.
            LimitError: there are 10,000 already.
        """
        timing = self._timing(command.schedule, command.repeat_every, command.timezone)
        next_run = first_run(timing, now.wall_ms)
        table = self._settled(command.name)
        former = table.by_name.get(command.name)
        if former is None:
            # Changes of old ones, such as runs on their way into the file, take no place; seldom they have to be told.
            if len(table) + len(table.pending) >= MAX_CRONS and len(table) + table.unborn_count >= MAX_CRONS:
                raise LimitError(f"Too many cron jobs (max {MAX_CRONS})")
            if command.immediately:
                next_run = now.wall_ms
        job = _job(command, next_run, 0 if former is None else former.job.executions)
        waiting = self._waiting_job(job) if former is not None and command.prevent_overlap is True else None
        if waiting is not None:
            self._state.stage_end(Transition(TransitionKind.REMOVE, waiting, waiting.record, JobState.GONE))
        stage(self._state, job.name, Cron(job, timing), CronNews.CREATED if former is None else CronNews.UPDATED)
        return MadeCronReply(cron=_made_cron(job))

    def get(self, command: c.CronGet, now: Now) -> CronReply:
        """One cron.

        Raises:
            NotFoundError: there is none of that name.
        """
        return CronReply(cron=shown_cron(self._find(command.name).job))

    def show_all(self, command: c.CronList, now: Now) -> CronsReply:
        """All crons, at most 10,000, in the order in which they were made."""
        return CronsReply(crons=[shown_cron(cron.job) for cron in self._state.crons.by_name.values()])

    def delete(self, command: c.CronDelete, now: Now) -> Reply:
        """Let a cron fire no more; its jobs stay where they are.

        Raises:
            NotFoundError: there is none of that name.
        """
        self._settled(command.name)
        stage(self._state, self._find(command.name).job.name, None)
        return Reply()

    def load(self, job: CronJob, now: Now) -> None:
        """Take in a cron of the file at start: runs it has missed are skipped, or made up for by one.

        Raises:
            ValidationError: it cannot be understood; it stays in the file.
        """
        timing = self._timing(job.schedule, job.repeat_every, job.timezone)
        skips_missed = job.skip_missed_on_restart or job.skip_if_no_worker
        next_run = run_at_start(timing, job.next_run, now.wall_ms, skips_missed=skips_missed)
        if next_run is not None and next_run > now.wall_ms:
            next_run = sooner(timing, next_run, now)
        moved = job if next_run is None else replace(job, next_run=next_run)
        table = self._state.crons
        table.add(Cron(moved, timing))
        if next_run is None:
            stage(self._state, job.name, None)
        elif moved != job:
            stage(self._state, job.name, Cron(moved, timing))

    def _timing(self, schedule: str | None, repeat_every_ms: float | None, timezone: str | None) -> Timing:
        """As `open_timing`; patterns are shared."""
        shared = self._patterns.get((schedule, timezone)) if schedule else None
        if shared is not None:
            return shared
        timing = open_timing(schedule, repeat_every_ms, timezone, local_zone=self._local_zone)
        if schedule and isinstance(timing, Pattern):
            self._patterns[schedule, timezone] = timing
        return timing

    def _find(self, name: str | None) -> Cron:
        cron = None if name is None else self._state.crons.by_name.get(name)
        if cron is None:
            raise NotFoundError("Cron job not found")
        return cron

    def _settled(self, name: str | None) -> CronTable:
        table = self._state.crons
        if name in table.pending:
            raise PendingChangeError(name)
        return table

    def _waiting_job(self, job: CronJob) -> Job | None:
        """Who holds the key of the cron's jobs and has not begun."""
        key, queue = job.effective_key, self._state.queues.get(job.queue)
        holder = None if key is None or queue is None else queue.keys.get(key)
        if holder is None:
            return None
        self._state.settled(holder)
        return holder if holder.state in (JobState.READY, JobState.DELAYED) else None


def stage(
    state: State, name: str, changed: Cron | None, news: CronNews | None = None, detail: str | None = None
) -> None:
    """Have the cron of that name become *changed*, or go, with the next commit; see `CronChange` for the news."""
    state.crons.hold(name, changed)
    state.stage(CronChange(name, None if changed is None else changed.job, news, detail))


def sooner(timing: Timing, due_ms: float, now: Now) -> float:
    """The run to wait for when the clock may have been set back since *due_ms* was found."""
    found = timing.rearmed(due_ms, now.wall_ms)
    return due_ms if found is None or due_ms - found <= SMALL_STEP_MS else found


def _job(command: c.Cron, next_run: float, executions: int) -> CronJob:
    return CronJob(
        name=command.name,
        queue=command.queue,
        data=command.data,
        schedule=command.schedule,
        repeat_every=command.repeat_every,
        priority=command.priority,
        next_run=next_run,
        executions=executions,
        max_limit=command.max_limit,
        timezone=command.timezone,
        unique_key=command.unique_key,
        dedup=command.dedup,
        skip_missed_on_restart=command.skip_missed_on_restart,
        skip_if_no_worker=command.skip_if_no_worker,
        prevent_overlap=command.prevent_overlap is not False,
        options=command.job_options,
        job_name=command.job_name,
    )


def _made_cron(job: CronJob) -> MadeCron:
    return MadeCron(
        job.name,
        job.queue,
        job.schedule,
        job.repeat_every,
        job.next_run,
        job.timezone,
        job.priority,
        UNSET if job.job_name is None else job.job_name,
    )


def shown_cron(job: CronJob) -> ShownCron:
    """A cron as clients see it."""
    return ShownCron(
        job.name,
        job.queue,
        job.schedule,
        job.repeat_every,
        job.next_run,
        job.executions,
        job.max_limit,
        job.timezone,
        UNSET if job.job_name is None else job.priority,
        UNSET if job.job_name is None else job.job_name,
    )
