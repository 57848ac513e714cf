"""Commands of operators: pause and resume, policies and limits of a queue, cancel."""

from typing import Any

from msgspec.structs import fields, replace

from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import NotFoundError
from bunqueue_trio.model.commands import (
    Cancel,
    ClearConcurrency,
    Pause,
    RateLimitClear,
    Resume,
    SetConcurrency,
    SetDlqConfig,
    SetStallConfig,
)
from bunqueue_trio.model.commands import RateLimit as RateLimitCommand
from bunqueue_trio.model.entries import QueueSettings, RateLimit
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import JobState
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.model.transitions import Removal, SettingsChange, Transition, TransitionKind

DEFAULT_WINDOW_MS = 1_000


class Control:
    """Changes what operators change; each takes effect when it has committed."""

    def __init__(self, state: State) -> None:
        self._state = state

    def pause(self, command: Pause, now: Now) -> Reply:
        """Stop handing out jobs of a queue, known or not. Survives a restart."""
        return self._set(command.queue, paused=True)

    def resume(self, command: Resume, now: Now) -> Reply:
        """Go on handing out jobs; every waiting pull that can be served is."""
        return self._set(command.queue, paused=False)

    def set_stall_config(self, command: SetStallConfig, now: Now) -> Reply:
        """Merge valid keys into the stall policy; the others were dropped by the checks."""
        policy = replace(self._latest(command.queue).stall, **(command.config or {}))
        told = _told(policy, command.config)
        return self._set(command.queue, ("config:stall-changed", {"config": told}), stall=policy)

    def set_dlq_config(self, command: SetDlqConfig, now: Now) -> Reply:
        """Merge valid keys into the policy about dead letters; entries that are there already keep their times."""
        policy = replace(self._latest(command.queue).dlq, **(command.config or {}))
        told = _told(policy, command.config)
        return self._set(command.queue, ("config:dlq-changed", {"config": told}), dlq=policy)

    def set_rate_limit(self, command: RateLimitCommand, now: Now) -> Reply:
        """At most ``limit`` deliveries per ``duration`` ms; the bucket starts full. Lifts itself after ``ttl`` ms."""
        expires_at = None if command.ttl is None else now.wall_ms + command.ttl
        duration = DEFAULT_WINDOW_MS if command.duration is None else command.duration
        given = {"max": command.limit, "duration": command.duration, "ttl": command.ttl}
        told = {name: value for name, value in given.items() if value is not None}
        limit = RateLimit(command.limit, duration, expires_at)
        return self._set(command.queue, ("ratelimit:set", told), rate_limit=limit)

    def clear_rate_limit(self, command: RateLimitClear, now: Now) -> Reply:
        """Lift the rate limit, if there is one; every pull that waits may be served."""
        return self._set(command.queue, ("ratelimit:cleared", {}), rate_limit=None)

    def set_concurrency(self, command: SetConcurrency, now: Now) -> Reply:
        """At most ``limit`` jobs of the queue at a time; those that run already count (CD-18)."""
        told = {"concurrency": command.limit}
        return self._set(command.queue, ("concurrency:set", told), concurrency_limit=command.limit)

    def clear_concurrency(self, command: ClearConcurrency, now: Now) -> Reply:
        """Lift the concurrency limit, if there is one."""
        return self._set(command.queue, ("concurrency:cleared", {}), concurrency_limit=None)

    def cancel(self, command: Cancel, now: Now) -> Reply:
        """Delete a queued or parked job with all it holds. Jobs that depend on it stay parked (SD-17).

        Raises:
            NotFoundError: unknown, active or finished.
        """
        state = self._state
        job = state.find(command.id)
        if job is not None:
            state.settled(job)
        if job is None or job.state not in (JobState.READY, JobState.DELAYED, JobState.PARKED):
            raise NotFoundError("Job not found or cannot be cancelled")
        state.stage_end(Transition(TransitionKind.CANCEL, job, job.record, JobState.GONE))
        return Reply()

    def _set(self, queue_name: str, told: tuple[str, dict[str, Any]] | None = None, **settings: Any) -> Reply:
        """Stage new settings. *told*: the event of it, and its data without the queue."""
        changed = replace(self._latest(queue_name), **settings)
        self._state.stage(SettingsChange(queue_name, changed, is_switch="paused" in settings))
        if told is not None:
            event, data = told
            self._state.announce(event, queue=queue_name, **data)
        return Reply()

    def _latest(self, queue_name: str) -> QueueSettings:
        """The settings as the last change that waits for its commit will leave them."""
        for change in reversed(self._state.changes.staged):
            if isinstance(change, SettingsChange) and change.queue == queue_name:
                return change.settings
            if isinstance(change, Removal) and change.is_whole and change.queue == queue_name:
                return QueueSettings()
        if queue_name in self._state.settings_in_flight:
            raise PendingChangeError(queue_name)
        queue = self._state.queues.get(queue_name)
        return QueueSettings() if queue is None else queue.settings


def _told(policy: Any, change: dict[str, Any] | None) -> dict[str, Any]:
    """A change of a policy under the names of the wire."""
    names = {field.name: field.encode_name for field in fields(policy)}
    return {names[name]: value for name, value in (change or {}).items()}
