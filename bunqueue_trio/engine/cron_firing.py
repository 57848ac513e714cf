"""What happens when a cron is due: a job, a skip, or its end.

    due --limit reached-----------> goes
        --nobody would take it----> next run, uncounted
        --interval hardly begun---> next run, uncounted
        --else--------------------> one more execution, next run, and the job: one transaction

Durability: count, next run and job are committed together. A crash finds either all of them or none, so that no run is
lost and none happens twice. While that commit is under way the cron does not fire; should it fail, the run is still
due, and is tried again after a pause (SD-6).

Source: scheduling and flows, "Firing"; R178, R190, K32.
"""

from msgspec import Raw
from msgspec.structs import replace

from bunqueue_trio.engine.admission import CREATED, REPLACED, Admission
from bunqueue_trio.engine.cron.timing import Interval
from bunqueue_trio.engine.cron_table import Cron
from bunqueue_trio.engine.crons import sooner, stage
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import CommandError
from bunqueue_trio.model.commands import ABSENT, Push
from bunqueue_trio.model.cron_job import OVERLAP_PREFIX, CronJob, CronOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.transitions import CronNews

FIRINGS_PER_TICK = 20  # some ms; a tick that finds more goes on in the next one, so that commands get their turn
RETRY_PAUSE_MS = 1_000  # between two tries to store a run
BUSY_PAUSE_MS = 20  # a commit or two: how long a run waits for a change of the job that holds its key
OVERLAP_SHARE = 0.8  # of an interval that has to pass between two runs, however late the first one was
NO_WORKER, OVERLAP = "no-worker", "overlap"  # why a run is skipped
NO_DATA = Raw(b"\xc0")
NO_OPTIONS = CronOptions()


class CronFiring:
    """Lets time pass for crons.

    Args:
        worker_timeout_ms: a worker not heard of for so long counts as absent.
    """

    def __init__(self, state: State, admission: Admission, *, worker_timeout_ms: float) -> None:
        self._state = state
        self._admission = admission
        self._worker_timeout_ms = worker_timeout_ms
        self._served: set[str] | None = None
        """Queues that a live worker lists; found at most once per tick."""

    def fire_due(self, now: Now) -> None:
        """See to the crons that are due, in the order of their times. At most 20 a call; none while stopping."""
        table = self._state.crons
        if not table.due or not self._state.hands_out:
            return
        self._served = None
        for _ in range(FIRINGS_PER_TICK):
            cron = table.pop_due(now.wall_ms)
            if cron is None:
                return
            try:
                self._look_at(cron, now)
            except PendingChangeError:
                table.arm(cron, now.wall_ms + BUSY_PAUSE_MS)

    def _look_at(self, cron: Cron, now: Now) -> None:
        job = cron.job
        if now.wall_ms < job.next_run:  # the clock was set back
            self._rearm(cron, now)
            return
        if job.is_exhausted:
            stage(self._state, job.name, None)
            return
        fired_mono_ms, executions = cron.fired_mono_ms, job.executions
        news, detail = CronNews.SKIPPED, self._reason_to_skip(cron, now)
        if detail is None:
            detail = self._push(job, now)
            news = CronNews.FIRED if detail is None else CronNews.MISSED
            fired_mono_ms, executions = now.mono_ms, executions + 1
        next_run = cron.timing.run_after(job.next_run, now.wall_ms)
        if next_run is None:  # its pattern has ended
            stage(self._state, job.name, None, news, detail)
            return
        moved = replace(job, next_run=next_run, executions=executions)
        stage(self._state, job.name, Cron(moved, cron.timing, fired_mono_ms), news, detail)

    def _rearm(self, cron: Cron, now: Now) -> None:
        next_run = sooner(cron.timing, cron.job.next_run, now)
        if next_run == cron.job.next_run:
            self._state.crons.arm(cron, next_run)
        else:
            moved = replace(cron.job, next_run=next_run)
            stage(self._state, moved.name, Cron(moved, cron.timing, cron.fired_mono_ms))

    def _reason_to_skip(self, cron: Cron, now: Now) -> str | None:
        job = cron.job
        if job.skip_if_no_worker and job.queue not in self._served_queues(now):
            return NO_WORKER
        if cron.fired_mono_ms is None or not isinstance(cron.timing, Interval):  # SD-2
            return None
        assert job.repeat_every is not None
        is_early = now.mono_ms - cron.fired_mono_ms < OVERLAP_SHARE * job.repeat_every
        return OVERLAP if is_early else None

    def _served_queues(self, now: Now) -> set[str]:
        if self._served is None:
            patience_ms, workers = self._worker_timeout_ms, self._state.workers.values()
            self._served = {name for w in workers if w.is_alive(now.mono_ms, patience_ms) for name in w.queues}
        return self._served

    def _push(self, job: CronJob, now: Now) -> str | None:
        """Push like a client that asks for a durable job, so that it is stored along with the cron.

        Returns:
            The error with which the holder of its key refuses it: this run is lost, and counts (at most one job per
            slot); None when all is well.
        Raises:
            PendingChangeError: the job that holds the key has a change under way. Nothing has changed.
        """
        options = job.options or NO_OPTIONS
        push = Push(
            queue=job.queue,
            data=job.data if job.job_name is not None else job.data or NO_DATA,
            name=ABSENT if job.job_name is None else job.job_name,
            durable=True,
            receipt=True,
            priority=job.priority,
            delay=options.delay,
            timeout=options.timeout,
            max_attempts=options.max_attempts,
            backoff=options.backoff,
            unique_key=job.effective_key,
            dedup=job.dedup,
            remove_on_complete=options.remove_on_complete,
            remove_on_fail=options.remove_on_fail,
            stall_timeout=options.stall_timeout,
        )
        try:
            reply = self._admission.push(push, now)
        except CommandError as error:
            return str(error)
        if reply.outcome in (CREATED, REPLACED):
            key = push.unique_key
            self._state.jobs[reply.id].is_from_cron = key is not None and key.startswith(OVERLAP_PREFIX)
        return None
