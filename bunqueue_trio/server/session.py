"""One connection's side of the protocol: who it is, what it may, and what each frame is answered with.

Knows no socket: frames come in, encoded replies go out through ``send``. Commands are executed in the order of their
arrival. One that meets a change which has not committed yet, or would have to see one of this connection's own, holds
up those behind it until the commit; a pull that waits holds up nobody until fifty do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, get_args

from bunqueue_trio import __version__
from bunqueue_trio.config import Config
from bunqueue_trio.errors import CommandError, InvariantError, MalformedFrameError, UnknownCommandError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.commands import (
    ABSENT,
    Ack,
    AckBatch,
    AnyCommand,
    Auth,
    ExtendLock,
    ExtendLocks,
    Fail,
    Hello,
    JobHeartbeat,
    JobHeartbeatBatch,
    Ping,
    Progress,
    Push,
    PushBatch,
    PushFlow,
    SubscribeEvents,
    UnsubscribeEvents,
    WorkerHeartbeat,
)
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import ErrorReply, HelloReply, Reply
from bunqueue_trio.protocol.codec import decode_command, encode_frame, string_req_id
from bunqueue_trio.protocol.wire import checked
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.holding import HOLDS, Hold, hold_of
from bunqueue_trio.server.roles import Role, Tokens, permitted, refusal
from bunqueue_trio.server.throttle import Throttle
from bunqueue_trio.server.waiting import MAX_PARKED, Parked, Waiter

log = get_logger("TCP")

COMMUTING = frozenset(
    {
        Push,
        PushBatch,
        PushFlow,
        Ack,
        AckBatch,
        Fail,
        Ping,
        JobHeartbeat,
        JobHeartbeatBatch,
        ExtendLock,
        ExtendLocks,
        Progress,
        WorkerHeartbeat,
    }
)
"""Commands that need not see what this connection has just asked for; any other waits until it has committed."""

REPLY_BYTES_PER_TURN = 1 << 20
"""After so many bytes of replies others get a turn: one read may bring thousands of small commands with large replies,
which would be in memory all at once, whatever the write budget."""
CAPABILITIES = {2: ["pipelining"], 3: ["pipelining", "separate-job-name"]}
"""What clients may rely on, by the version of the protocol that their connection speaks."""
TOLD_OF_VERSION = frozenset(kind for kind in get_args(AnyCommand) if "is_newer" in kind.__struct_fields__)
"""Commands that mean something else on a connection that speaks protocol 3."""
_ids = count(1)


class Session:
    """Protocol state of one connection.

    Args:
        send: delivers encoded frames; must not block.
        on_slot: called when a parked pull has ended while commands wait behind it; whoever runs the session calls
            `run` soon.
        granted: what the client may do whose token, and whose rate, somebody else has seen to.
    """

    def __init__(
        self,
        broker: Broker,
        config: Config,
        send: Callable[[bytes], None],
        on_slot: Callable[[], None],
        *,
        granted: Role | None = None,
    ) -> None:
        self.id = next(_ids)
        self._broker = broker
        self._tokens = Tokens(config)
        self._throttle: Throttle | None = None
        if granted is None:
            self._throttle = Throttle(config.rate_limit_max_requests, config.rate_limit_window_ms)
        self._send = send
        self._on_slot = on_slot
        self._commands: deque[Any] = deque()
        self._parked: dict[Waiter, None] = {}
        self._out: list[bytes] = []
        self._in_turn = False
        self._is_cut = False
        self._is_at_work = False  # somebody awaits the work of a `Hold`
        self.roles = Role(0)
        self.is_authenticated = False
        self._may_do_all = False
        self._permitted: frozenset[type] = frozenset()
        if granted is None and self._tokens.is_empty:
            granted = Role.ALL
        if granted is not None:
            self._grant(granted)
        self.unconfirmed_count = 0
        self.speaks_3 = False  # what its last Hello asked for
        self.is_subscribed = False
        """Whether it is sent events."""

    @property
    def backlog_count(self) -> int:
        """Commands that have arrived and could not be executed yet."""
        return len(self._commands)

    @property
    def is_waiting(self) -> bool:
        """True while replies are outstanding: the client will hardly send more before it has them."""
        return bool(self.unconfirmed_count or self._parked)

    def open(self) -> None:
        """The connection is there."""
        self._broker.connect(self)

    def close(self) -> None:
        """The connection is gone: its waits end and its jobs are released. Nothing more is sent."""
        self._commands.clear()
        if self.is_subscribed:
            self._broker.events.unsubscribe_queue(self)
        self._broker.disconnect(self, list(self._parked))
        self._parked.clear()

    def abandon(self) -> None:
        """The connection has been cut: nobody reads what the commands would be answered that wait here."""
        self._is_cut = True

    # frames in

    def receive(self, frames: list[bytes], now: Now) -> None:
        """Take complete frames. Those that are no commands are answered at once, whatever waits in front of them."""
        admitted = len(frames) if self._throttle is None else self._throttle.admit(now.mono_ms, len(frames))
        for body in frames if admitted == len(frames) else frames[:admitted]:
            try:
                self._commands.append(decode_command(body))
            except UnknownCommandError as error:
                text = str(error) if self.is_authenticated else "Not authenticated"
                self._refuse(text, error.req_id)
            except MalformedFrameError as error:
                self._refuse(str(error), error.req_id)
        if admitted < len(frames):
            self._broker.announce("ratelimit:hit", {"clientId": str(self.id)})
        for body in frames[admitted:]:
            self._refuse("Rate limit exceeded", string_req_id(body))

    def run(self, now: Now, *, notes_changes: bool = True) -> Hold | None:
        """Execute what has arrived, in order, as far as possible; then send the replies in one go.

        Args:
            notes_changes: False when the caller sees that what has become dirty is committed.

        Returns:
            None when everything was executed or parked pulls hold up the rest; else what to wait for before the
            next call.
        """
        self._in_turn = True
        started_ms = self._broker.clock.stopwatch_ms()
        try:
            while True:
                hold = self._execute_all(now)
                if not self._broker.waiting.count:
                    self.flush()  # the client goes on while we see to the rest
                self._broker.after_turn(now, started_ms, notes_changes=notes_changes)
                is_held = hold is not None or self._is_at_work
                if is_held or not self._commands or len(self._parked) >= MAX_PARKED:
                    break  # else serving the parked pulls has made room for those behind them
        finally:
            self._in_turn = False
            self.flush()
        return hold

    def refuse_next(self, text: str) -> None:
        """The command that holds up the others cannot be executed; its reply leaves with the next `run`."""
        self.answer_next(ErrorReply(error=text))

    async def do_work(self, work: Callable[[], Awaitable[Reply]]) -> None:
        """Await the work of a `Hold`: it answers the command in front.

        Cancel: the connection is going; what the work has staged by then commits all the same.
        """
        command = self._commands[0]
        try:
            reply = await work()
        except InvariantError:
            raise
        except Exception as error:
            self._broker.report_defect(error, command)
            reply = ErrorReply(error="Internal server error")
        self.answer_next(reply)

    def answer_next(self, reply: Reply) -> None:
        """The command that holds up the others has its reply, which leaves with the next `run`."""
        self._is_at_work = False
        if self._commands:
            self._deliver(self._commands.popleft(), reply)

    def flush(self) -> None:
        """Send what has been answered so far."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._send(data)

    def _execute_all(self, now: Now) -> Hold | None:
        commands = self._commands
        if self._is_at_work:
            return None  # whoever waits for it will go on
        if self._is_cut:
            commands.clear()
        reply_bytes = 0
        while commands and len(self._parked) < MAX_PARKED:
            command = commands[0]
            if self.unconfirmed_count and type(command) not in COMMUTING:
                return Hold()
            try:
                reply = self._execute(command, now)
            except HOLDS as needed:
                hold = hold_of(needed, self._broker)
                self._is_at_work = hold.work is not None
                return hold
            except CommandError as error:
                reply = ErrorReply(error=str(error))
            except InvariantError:
                raise
            except Exception as error:
                commands.popleft()
                self._broker.report_defect(error, command)
                self._refuse("Internal server error", None if command.req_id is ABSENT else command.req_id)
                continue
            commands.popleft()
            if reply is not None:
                if command.req_id is not ABSENT:
                    reply.req_id = command.req_id
                frame = encode_frame(reply)
                self._out.append(frame)
                reply_bytes += len(frame)
                if reply_bytes > REPLY_BYTES_PER_TURN and commands:
                    return Hold(yields=True)
        return None

    def _execute(self, command: Any, now: Now) -> Reply | None:
        kind = type(command)
        if kind is Auth:
            return self._authenticate(command)
        if not self._may_do_all:
            if not self.is_authenticated:
                return ErrorReply(error="Not authenticated")
            if kind not in self._permitted:
                return ErrorReply(error=refusal(kind))
        if (own := _OWN.get(kind)) is not None:
            return own(self, command)
        if kind in TOLD_OF_VERSION:
            command.is_newer = self.speaks_3  # whatever the frame says
        broker = self._broker
        reply = broker.execute(command, self, now)
        if isinstance(reply, Parked):
            self._parked[reply.waiter] = None
            return None
        if broker.waits_for_commit:
            if command.req_id is not ABSENT:
                reply.req_id = command.req_id
            broker.ticket.add(self, reply)
            self.unconfirmed_count += 1
            return None
        return reply

    def _greet(self, command: Hello) -> Reply:
        asked = command.protocol_version
        self.speaks_3 = type(asked) in (int, float) and asked >= 3
        version = 3 if self.speaks_3 else 2
        return HelloReply(
            protocol_version=version, capabilities=CAPABILITIES[version], server="bunqueue", version=__version__
        )

    def _authenticate(self, command: Auth) -> Reply:
        given = command.token if isinstance(command.token, str) else ""
        roles = self._tokens.roles_of(given.encode("utf-8", "surrogatepass"))
        if roles is None:
            self._broker.announce("auth:failed", {"clientId": str(self.id)})
            return ErrorReply(error="Invalid token")
        # The last token that was accepted decides, also where it may do less than the one before.
        self._grant(roles)
        return Reply()

    def _subscribe(self, command: SubscribeEvents) -> Reply:
        checked(command)
        self._broker.publish_events()  # to those who have listened so far
        self._broker.events.subscribe_queue(self, command.queue)
        self.is_subscribed = True
        return Reply()

    def _unsubscribe(self, command: UnsubscribeEvents) -> Reply:
        if self.is_subscribed:
            self.is_subscribed = False
            self._broker.publish_events()  # also to us
            self._broker.events.unsubscribe_queue(self)
        return Reply()

    def _grant(self, roles: Role) -> None:
        self.roles = roles
        self.is_authenticated = True
        self._permitted = permitted(roles)
        self._may_do_all = roles == Role.ALL

    # replies out

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """A parked command has its reply."""
        self._parked.pop(waiter, None)
        self._deliver(waiter.command, reply)
        if not self._in_turn:
            self.flush()
            if self._commands:
                self._on_slot()

    def confirm(self, replies: list[Reply]) -> None:
        """Changes this connection asked for have committed, or have not, as the replies say."""
        self.unconfirmed_count -= len(replies)
        self._out += map(encode_frame, replies)
        if not self._in_turn:
            self.flush()

    def tell(self, frames: bytes) -> None:
        """Events of the queue it has subscribed to."""
        self._out.append(frames)
        if not self._in_turn:
            self.flush()

    def _deliver(self, command: Any, reply: Reply) -> None:
        if command.req_id is not ABSENT:
            reply.req_id = command.req_id
        self._out.append(encode_frame(reply))

    def _refuse(self, text: str, req_id: Any) -> None:
        reply = ErrorReply(error=text)
        if req_id is not None:
            reply.req_id = req_id
        self._out.append(encode_frame(reply))


_OWN: Final[dict[type, Callable[[Session, Any], Reply]]] = {
    Hello: Session._greet,
    SubscribeEvents: Session._subscribe,
    UnsubscribeEvents: Session._unsubscribe,
}
"""Commands about the connection itself."""
