"""The only way to the engine, for every transport: commands in, replies out, flushes promised, time told.

Everything here is synchronous but the waits for a commit and for the file; so between taking a job and handing its
reply over nothing can be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import InvariantError, LimitError, StateError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.commands import Pull, PullBatch, Push, PushBatch, PushFlow, WaitJob
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.events import SystemEvent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import CountReply, Reply
from bunqueue_trio.protocol.push_checks import BatchEntryError
from bunqueue_trio.protocol.wire import CHECKS
from bunqueue_trio.server.events import Events
from bunqueue_trio.server.file_reads import FileReader, FileReads
from bunqueue_trio.server.flush_figures import FlushFigures
from bunqueue_trio.server.latencies import Latencies
from bunqueue_trio.server.monitoring import Monitoring
from bunqueue_trio.server.queue_events import QueueEvents
from bunqueue_trio.server.serving import Serving
from bunqueue_trio.server.storage_health import StorageHealth
from bunqueue_trio.server.tickets import Ticket, Verdict
from bunqueue_trio.server.unborn import unstage_all
from bunqueue_trio.server.waiting import Client, Parked, Waiter, empty_reply

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock
    from bunqueue_trio.storage.batch import Batch

log = get_logger("Queue")

ROWS_AT_ONCE = 100  # this many buffered rows start a flush (R12)
ROWS_IN_FILLING = 2_000  # beyond this, with a flush in flight, producers wait: one flush in flight, one being filled


class Broker:
    """Engine, clock and who is parked. One per server; used by every session.

    Args:
        find_completed: looks ids up in the file, for the few commands that need it.
        reader: reads the file, off the loop, for lists of what only it holds.
        worker_timeout_ms: a worker not heard of for so long is not shown as active.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        find_completed: Callable[[list[str]], Any],
        storage_health: StorageHealth,
        reader: FileReader,
        *,
        worker_timeout_ms: float = 30_000,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.latencies = Latencies()
        self.serving = Serving(engine, self.latencies)
        self.waiting, self.job_waits = self.serving.waiting, self.serving.job_waits
        self.storage_health = storage_health
        self.ticket = Ticket()
        self.flush_turn = trio.Semaphore(1, max_value=1)
        """Held during each flush, and while a snapshot of the file is taken between two."""
        self.file_reads = FileReads(engine.state, self.flush_turn, reader)
        self.flush_wanted = trio.Event()
        self.commit_here: Callable[..., bool]
        """Commits what a turn of `is_alone` has made dirty, without a change of task; lent by the flusher."""
        self.timer_moved = trio.Event()
        self.is_closing = False
        self.has_ended = False
        """Set when the sessions are about to be ended: from then on the engine changes no more."""
        self.is_flushing = False
        self.waits_for_commit = False
        """Whether the reply of the last command belongs to the ticket."""
        self.first_dirty_mono_ms: float | None = None
        self.internal_errors = 0
        self.internal_error_since_wall_ms: float | None = None
        self.rooms: dict[type, Callable[[Any, Now], Reply]] = {}
        """Who carries out the commands that are not the engine's: they touch no job, and are answered at once."""
        self._last_client_id: int | None = None
        self._became_idle = trio.Event()
        self._flush_ended = trio.Event()
        self._find_completed = find_completed
        self.read_completed = reader.read_completed
        self._next_timer_mono_ms = float("inf")
        self.flush_figures = FlushFigures()
        self.batch_in_flight: Batch | None = None
        """What the flush under way is writing."""
        self._executed, self._promised = self.latencies.executed, self.latencies.promised
        self.events = Events(engine.listen, engine.hear, QueueEvents(clock.stopwatch_ms))
        engine.hear(self.events.queue_events.queues)
        engine.workers.timeout_ms = worker_timeout_ms
        self.monitoring = Monitoring(self, worker_timeout_ms=worker_timeout_ms)
        engine.lend(self.monitoring.handlers)

    # commands

    def execute(self, command: Any, client: Client | None, now: Now) -> Reply | Parked:
        """Check and carry out one command.

        Returns:
            Its reply. When `waits_for_commit` is True afterwards, the reply belongs to `ticket`. `Parked` for a pull
            that may wait and found nothing, and for a WaitJob.
        Raises:
            CommandError: refused; nothing has changed.
            PendingChangeError: await `wait_for_flush`, then execute again.
            FactsNeededError: await `learn`, then execute again.
            ReadNeededError: await `file_reads.answer`, then execute again.
        """
        engine, health = self.engine, self.storage_health
        kind = type(command)
        try:
            if (check := CHECKS.get(kind)) is not None:  # what `wire.checked` does
                check(command)
        except BatchEntryError as error:
            engine.entry_checks.check_first(command, error.index, now)
            raise
        if kind is Push or kind is PushBatch:
            if self.is_closing or health.error is not None:
                self._admit_pushes()
        elif (kind is Pull or kind is PullBatch) and engine.state.wakes:
            self.serving.serve_pulls(now)  # who has waited longer goes first
        elif kind is WaitJob and engine.state.ended:
            self.job_waits.answer_ended()  # else this one would be told of an end before its time
        elif kind is PushFlow:
            if self.is_closing:
                self._admit_pushes()
        elif kind in self.rooms:
            self.waits_for_commit = False
            self.publish_events()  # to those who have listened so far
            return self.rooms[kind](command, now)
        staged_before = 0 if health.error is None else len(engine.state.changes.staged)
        try:
            reply = engine.execute(command, now, None if client is None else client.id)
        except PendingChangeError:
            if health.error is not None and health.is_pausing:  # of a keeper: it waits for the end of the pause
                raise StateError(str(health.error)) from None
            raise
        self.waits_for_commit = engine.state.waits_for_commit
        if reply is None:
            if command.timeout and client is not None and not self.is_closing:
                waits = self.job_waits if kind is WaitJob else self.waiting
                waiter = waits.park(client, command, now.mono_ms + command.timeout)
                self._note_timer(waiter.deadline_mono_ms)
                return Parked(waiter)
            return empty_reply(command)
        if health.error is None:
            pass
        elif len(engine.state.changes.staged) != staged_before:
            health.refuse_while_degraded(self._unstage)
        elif kind is Push or kind is PushBatch:
            if self.waits_for_commit:  # of a job that others have pushed, and that is in memory only
                health.refuse_while_degraded(_undo_nothing)
            health.note_buffered(_payload_bytes(command))
        (self._promised if self.waits_for_commit else self._executed).append(kind)
        return reply

    def note_turn(self, client: Client) -> bool:
        """*client* has had a turn, and is about to read on.

        Returns:
            Whether nobody else is busy right now: the last two turns were its own, and it waits for no reply.
        """
        was_last, self._last_client_id = self._last_client_id == client.id, client.id
        return was_last and not self.is_flushing and not client.is_waiting

    def is_alone(self, client: Client) -> bool:
        """Whether what a turn of *client* asks for may be committed while the loop stands still: it is busy alone."""
        return self._last_client_id == client.id and not self.is_flushing and self.storage_health.error is None

    def after_turn(self, now: Now, started_ms: float | None = None, *, notes_changes: bool = True) -> None:
        """Once per turn of a connection: serve whom its commands woke, and see that a flush and a tick happen.

        Args:
            started_ms: what the clock's stopwatch showed when the turn began; without it the turn counts as instant.
            notes_changes: False when the caller sees to the flush.
        """
        if self._executed or self._promised:
            self._measure_turn(started_ms)
        state = self.engine.state
        if state.wakes:
            if self.waiting.count:
                self.serving.serve_pulls(now)
            else:
                state.wakes.clear()
        if state.ended:
            self.job_waits.answer_ended()
        if state.events:
            self.publish_events()
        if notes_changes:
            self.note_changes(now)
        if state.timers or state.due or state.crons.due:
            self._note_timer(self.engine.next_deadline_mono_ms(now))

    def publish_events(self) -> None:
        """Hand over what has happened to those who listen."""
        state = self.engine.state
        if state.events:
            happened, state.events = state.events, []
            self.events.publish(happened)

    def announce(self, event: str, data: dict[str, Any]) -> None:
        """Something has happened that is about no job: tell those who listen."""
        if self.events.is_listened_to:
            self.publish_events()
            self.events.publish([SystemEvent(event, self.clock.now().wall_ms, data)])

    def _measure_turn(self, started_ms: float | None) -> None:
        ended_ms = self.clock.stopwatch_ms()
        began_ms = ended_ms if started_ms is None else started_ms
        promised = self.latencies.turn_ended(ended_ms - began_ms)
        if promised:
            self.ticket.turns.append((began_ms, promised))

    def note_committed(self, ticket: Ticket) -> None:
        """What waited for *ticket* has been confirmed: that is how long it took."""
        now_ms = self.clock.stopwatch_ms()
        for began_ms, promised in ticket.turns:
            self.latencies.observe(promised, now_ms - began_ms)

    def note_changes(self, now: Now) -> None:
        """Wake the flusher if there is reason to: a first dirty row, enough of them, or somebody who waits."""
        changes = self.engine.state.changes
        if self.first_dirty_mono_ms is None:
            if changes:
                self.first_dirty_mono_ms = now.mono_ms
                self.flush_wanted.set()
        elif self.ticket.is_awaited or changes.new_count >= ROWS_AT_ONCE:
            self.flush_wanted.set()

    async def carry_out(self, stage: Callable[[Now], int]) -> Reply:
        """Let *stage* stage changes, and wait until they have committed.

        Returns:
            A `CountReply` with what *stage* counted, or the error with which the commit was refused.

        Cancel: what is staged commits all the same.
        """
        now = self.clock.now()
        count = stage(now)
        if not count:
            return CountReply()
        self.storage_health.refuse_while_degraded(self._unstage)
        verdict = Verdict()
        ticket = self.ticket
        ticket.add(verdict, CountReply(count=count))
        self.note_changes(now)
        await ticket.wait()
        return verdict.reply

    def _unstage(self) -> None:
        unstage_all(self.engine, self.clock.now())

    def _admit_pushes(self) -> None:
        """Refuse pushes that could only be kept in memory: while closing, and when too much waits for the file."""
        if self.is_closing:
            raise StateError("Server is shutting down")
        full = self.storage_health.backlog_error(self.engine.state.changes)
        if full is not None:
            raise LimitError(full)

    # connections

    def connect(self, client: Client) -> None:
        """A client may hold leases from now on."""
        assert client.id is not None
        self.engine.connect(client.id)

    def disconnect(self, client: Client, parked: list[Waiter]) -> None:
        """A client is gone: its waits end, its jobs are released, at once."""
        for waiter in parked:
            self.serving.release(waiter)
        if self.has_ended:
            return  # jobs that are still active stay so in the file, and the next start recovers them (PD-9)
        assert client.id is not None
        now = self.clock.now()
        self.engine.disconnect(client.id, now)
        self.after_turn(now)
        self._note_idle()

    def send_nobody(self, waiter: Waiter) -> None:
        """A parked command waits no longer, and needs no answer."""
        self.serving.release(waiter)

    def take_undelivered(self, client_id: int) -> None:
        """What a client without a connection was leased has not reached it: back to the queue, as if never pulled."""
        if self.has_ended:
            return
        now = self.clock.now()
        self.engine.take_undelivered(client_id, now)
        self.after_turn(now)
        self._note_idle()

    # time

    def tick(self, now: Now) -> None:
        """Do what has become due, and end the waits whose time is over."""
        staged_before = len(self.engine.state.changes.staged)
        self.engine.tick(now)
        if len(self.engine.state.changes.staged) > staged_before:
            self.ticket.is_awaited = True  # runs of crons: whoever waits for their jobs must not wait for a window too
        self.serving.serve_pulls(now)
        self.job_waits.answer_ended()
        self.publish_events()
        self.serving.end_expired(now.mono_ms)
        self.note_changes(now)
        self._note_idle()

    def next_deadline_mono_ms(self, now: Now) -> float:
        """When `tick` is due next."""
        self._next_timer_mono_ms = min(self.engine.next_deadline_mono_ms(now), self.serving.next_deadline_mono_ms())
        return self._next_timer_mono_ms

    def _note_timer(self, deadline_mono_ms: float) -> None:
        """Something is due earlier than the reaper knows."""
        if deadline_mono_ms < self._next_timer_mono_ms:
            self._next_timer_mono_ms = deadline_mono_ms
            self.timer_moved.set()

    # flushes

    @property
    def must_wait_for_room(self) -> bool:
        """True when a producer should stop reading: a flush is under way and the next is full."""
        return self.is_flushing and self.engine.state.changes.row_count >= ROWS_IN_FILLING

    async def wait_for_flush(self) -> None:
        """Wait until the flush that is under way, or else the next one, has ended."""
        if not self.is_flushing:
            self.ticket.is_awaited = True
            self.flush_wanted.set()
        await self._flush_ended.wait()

    async def learn(self, ids: list[str]) -> None:
        """Look *ids* up in the file for the command that is executed next."""
        state = self.engine.state
        while True:
            amended_count = state.amended_count
            found: dict[str, CompletedJob | None] = await self._find_completed(ids)
            if state.amended_count == amended_count:
                break  # else the command might write back an older record than the one that was confirmed meanwhile
        self.engine.find_facts(found)

    def flush_ended(self, now: Now) -> None:
        """A flush has been settled, one way or the other."""
        self.serving.serve_pulls(now)
        self.job_waits.answer_ended()
        self.publish_events()
        ended, self._flush_ended = self._flush_ended, trio.Event()
        ended.set()
        self.note_changes(now)
        self._note_timer(self.engine.next_deadline_mono_ms(now))  # of what has just taken effect
        self._note_idle()

    # stopping

    def stop_pulls(self) -> None:
        """Hand out no more jobs, take no more pushes; who is parked gets nothing, now."""
        self.is_closing = True
        self.engine.stop_handing_out()
        self.serving.end_all()
        self._note_idle()

    async def wait_idle(self) -> None:
        """Wait until no job is active."""
        while self.engine.active_count:
            await self._became_idle.wait()

    def _note_idle(self) -> None:
        if self.is_closing and not self.engine.active_count:
            self._became_idle.set()

    # our own defects

    def report_defect(self, error: Exception, command: Any) -> None:
        """An unexpected error in one command: count it, show it, and make sure that the engine is still sound.

        Raises:
            InvariantError: it is not; the file is now the better truth, so the server has to stop.
        """
        self.internal_errors += 1
        self.internal_error_since_wall_ms = self.clock.now().wall_ms
        log.error("Internal error in a command", command=type(command).__name__, exc_info=error)
        try:
            self.engine.check_invariants()
        except InvariantError as broken:
            self.has_ended = True
            raise broken from error


def _undo_nothing() -> None:
    """The command has changed nothing."""


def _payload_bytes(command: Push | PushBatch) -> int:
    if isinstance(command, Push):
        return len(command.data)
    return sum(len(entry.data) for entry in command.jobs or ())
