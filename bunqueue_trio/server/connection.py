"""The task of one TCP connection: bytes to session, session to outbox, and the limits on both."""

from __future__ import annotations

import trio

from bunqueue_trio.config import Config
from bunqueue_trio.errors import FrameTooLargeError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.replies import ErrorReply
from bunqueue_trio.protocol.codec import encode_frame
from bunqueue_trio.protocol.framing import FrameBuffer
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.holding import Hold, see_through
from bunqueue_trio.server.lingering import Lingering
from bunqueue_trio.server.outbox import Outbox
from bunqueue_trio.server.session import Session
from bunqueue_trio.server.stream import READ_BYTES, TcpStream
from bunqueue_trio.settings.limits import MAX_FRAME_BYTES

log = get_logger("TCP")

MAX_UNCONFIRMED = 4_000  # replies of one connection that may wait for a commit before it is read no further
MAX_BACKLOG = 10_000  # commands of one connection that may wait behind fifty parked pulls
HEADER_BYTES = 4
PREAUTH_READ_BYTES = 16_384
PROGRESS_BYTES = 1_024  # an incomplete frame must grow by this much per idle timeout (P-2)
LAST_WORDS_S = 1.0


async def serve_connection(stream: TcpStream, broker: Broker, config: Config) -> None:
    """Serve one client until it closes, misbehaves or is cancelled. Closes the stream; its jobs are released."""
    async with trio.open_nursery() as nursery:
        connection = Connection(stream, broker, config, nursery)
        connection.session.open()
        about = {"clientId": str(connection.session.id), "transport": "tcp"}
        broker.announce("client:connected", about)
        try:
            await connection.run()
        finally:
            connection.session.close()
            broker.announce("client:disconnected", about)
            stream.close()
            nursery.cancel_scope.cancel(reason="connection closed")


class Connection:
    """Reads one stream, in turns: everything one read brought is executed before the next."""

    def __init__(self, stream: TcpStream, broker: Broker, config: Config, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._broker = broker
        self._config = config
        self._frames = FrameBuffer()
        self._outbox = Outbox(stream, config.tcp_max_write_queue_bytes, self._warn_of_overflow, nursery)
        self._nursery = nursery
        self._slot_freed = trio.Event()
        self._lingering = Lingering()
        self.session = Session(broker, config, self._outbox.send, self._resume)
        self._idle_timeout_s = config.tcp_idle_timeout_ms / 1000
        self._partial_since_s: float | None = None
        self._partial_bytes = 0
        if not self.session.is_authenticated:
            # Strangers get room for a token, and no more than that of our memory in either direction.
            self._frames.max_frame_bytes = config.preauth_max_frame_bytes
            self._outbox.max_bytes = config.preauth_max_frame_bytes

    async def run(self) -> None:
        """Returns when the connection is over."""
        session, broker = self.session, self._broker
        while data := await self._receive():
            is_alone = broker.is_alone(session)
            hold = self._take(data, notes_changes=not is_alone)
            if is_alone:
                self._see_to_flush(awaited_count=session.unconfirmed_count if hold is None else 0)
            if hold is not None:
                await see_through(session, broker, hold)
            if self._frames.fault is not None:
                await self._reject(self._frames.fault)
                return
            while session.unconfirmed_count >= MAX_UNCONFIRMED or broker.must_wait_for_room:
                await broker.wait_for_flush()
            while session.backlog_count >= MAX_BACKLOG:
                await self._slot_freed.wait()
        while session.unconfirmed_count and not self._stream.is_closed:
            await broker.wait_for_flush()  # the peer may have closed its half only, and waits for what it asked
        with trio.move_on_after(LAST_WORDS_S):
            await self._outbox.wait_drained()

    def _see_to_flush(self, *, awaited_count: int) -> None:
        """After a turn of a client who is alone: what it waits for is committed, or begun, before anything else."""
        is_small = awaited_count == 1
        if not awaited_count or not self._broker.commit_here(is_small=is_small):
            self._broker.note_changes(self._broker.clock.now())
        elif is_small:
            self._lingering.owe_checkpoint()

    def _take(self, data: bytes, *, notes_changes: bool) -> Hold | None:
        """Execute what *data* completes; returns what has to be waited for."""
        is_stranger = self._frames.max_frame_bytes != MAX_FRAME_BYTES
        begun_bytes = self._frames.buffered_bytes if is_stranger else 0
        frames = self._frames.feed(data)
        if frames:
            self._partial_since_s = None  # what is incomplete from here on is another frame
        now = self._broker.clock.now()
        self.session.receive(frames, now)
        hold = self.session.run(now, notes_changes=notes_changes)
        if not is_stranger or not self.session.is_authenticated:
            return hold
        self._frames.max_frame_bytes = MAX_FRAME_BYTES
        self._outbox.max_bytes = self._config.tcp_max_write_queue_bytes
        fault = self._frames.fault
        if fault is None or fault.length_bytes > MAX_FRAME_BYTES:
            return hold
        # Wire: Auth may share a segment with a command that only the authenticated may send.
        used_bytes = sum(HEADER_BYTES + len(body) for body in frames) - begun_bytes
        self._frames = FrameBuffer()
        return self._take(data[used_bytes:], notes_changes=notes_changes)

    async def _receive(self) -> bytes:  # noqa: ASYNC910  (lingering yields after a few turns)
        """The next bytes; empty when the connection is over. A stalled frame ends it with a reset."""
        max_bytes = READ_BYTES if self.session.is_authenticated else PREAUTH_READ_BYTES
        if not self._frames.has_partial or not self._idle_timeout_s:
            self._partial_since_s = None
            if self._broker.note_turn(self.session):
                if self._lingering.owes_checkpoint:
                    # Everybody else gets a turn, but we do not sleep: being woken would cost more than all of them.
                    await trio.lowlevel.checkpoint()
                data = self._lingering.try_receive(self._stream, max_bytes)
                if data is not None:
                    return data
            data = await self._stream.receive(max_bytes)
        else:
            with trio.move_on_at(self._stall_deadline_s()):
                data = await self._stream.receive(max_bytes)
                self._partial_bytes += len(data)
                return data
            log.warning("Closing stalled connection (incomplete frame)")
            self._stream.abort()
            return b""
        return data

    def _stall_deadline_s(self) -> float:
        """Silence for one timeout ends a begun frame, and so does too slow a trickle."""
        now_s = trio.current_time()
        if self._partial_since_s is None:
            self._partial_since_s = now_s
            self._partial_bytes = self._frames.buffered_bytes
        allowed_s = self._idle_timeout_s * (1 + self._partial_bytes // PROGRESS_BYTES)
        return min(now_s + self._idle_timeout_s, self._partial_since_s + allowed_s)

    def _resume(self) -> None:
        """A parked pull has ended: commands that waited for its slot may run, and more may be read."""
        self._nursery.start_soon(self._use_slot)

    async def _use_slot(self) -> None:
        await see_through(self.session, self._broker, Hold([]))
        freed, self._slot_freed = self._slot_freed, trio.Event()  # only now: the reader looks at what is left behind
        freed.set()

    async def _reject(self, fault: FrameTooLargeError) -> None:
        """An oversize frame: one last reply, then the end. Good frames in front of it have been answered."""
        while self.session.unconfirmed_count:
            await self._broker.wait_for_flush()
        is_stranger = not self.session.is_authenticated and fault.length_bytes <= MAX_FRAME_BYTES
        # The text names the protocol's cap, not the smaller one for strangers.
        fault = FrameTooLargeError(fault.length_bytes, MAX_FRAME_BYTES)
        text = "Not authenticated" if is_stranger else str(fault)
        self._outbox.send(encode_frame(ErrorReply(error=text)))
        with trio.move_on_after(LAST_WORDS_S):
            await self._outbox.wait_drained()

    def _warn_of_overflow(self) -> None:
        log.warning("Closing connection: write queue exceeded budget")
        self.session.abandon()
        if self.session.is_subscribed:
            self._broker.events.cut_off_count += 1
