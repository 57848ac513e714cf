"""One WebSocket's side of the protocol: commands in as JSON, replies and events out as JSON, in one order.

Knows no socket. Commands go to a `Session`, as those of TCP do; only subscribing is done here. Until a socket
subscribes for the first time it is sent each job event as it is.

Source: HTTP, "WebSocket"; HD-13, HD-15.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any

import trio

from bunqueue_trio.config import Config
from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.event_names import Subscriptions
from bunqueue_trio.protocol.json_bodies import json_of, value_of
from bunqueue_trio.protocol.payloads import from_python
from bunqueue_trio.protocol.values import js_text
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.holding import Hold
from bunqueue_trio.server.pace import Pace
from bunqueue_trio.server.roles import Role
from bunqueue_trio.server.session import Session
from bunqueue_trio.server.telling import Telling

MAX_UNSENT_BYTES = 1 << 20  # Wire: beyond it events are skipped, and here no more commands are taken
EVENTS_PER_TURN = 16
_ONLY_TCP = ("SubscribeEvents", "UnsubscribeEvents")
NOT_HERE = "A WebSocket gets events by Subscribe; SubscribeEvents is for TCP"
LARGE_BYTES = 262_144  # texts that are made in a thread
_read_length = Struct(">I").unpack_from


class LiveSocket:
    """One WebSocket.

    Args:
        queue: the only queue whose events it is sent, None for all.
        granted: what its token allows.
        on_slot: called when commands that were held up may go on; as for `Session`.
        cut: ends its connection, also in the middle of a write.
    """

    def __init__(
        self,
        broker: Broker,
        config: Config,
        pace: Pace,
        queue: str | None,
        granted: Role,
        on_slot: Callable[[], None],
        cut: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.cut = cut
        self.session = Session(broker, config, self._take_replies, on_slot, granted=granted)
        self.unsent_bytes = 0
        self.skipped_count = 0
        """Events that were lost for this socket."""
        self.writing_since_s: float | None = None
        self._broker = broker
        self._pace = pace
        self._subscribed: Subscriptions | None = None
        self._out: deque[tuple[int, bytes | Callable[[], str]]] = deque()
        """Size, and a reply as msgpack or what makes the text of an event."""
        self._reply_count = 0
        self._events_left = 0
        self._writing_bytes = 0
        self._turn = trio.Event()
        self._drained = trio.Event()

    # in

    def receive(self, text: bytes) -> Hold | None:
        """Take one message; returns what has to be waited for, as `Session.run` does."""
        try:
            text.decode()  # bad UTF-8 is no JSON here
            value = value_of(text)
            if value is None:
                raise ValidationError("null")
        except (ValidationError, UnicodeDecodeError):
            self._answer({"ok": False, "error": "Invalid JSON"})
            return None
        if type(value) is not dict:
            self._answer({"ok": False, "error": "Invalid command"})
            return None
        if value.get("cmd") in ("Subscribe", "Unsubscribe"):
            self._change_subscription(value)
            return None
        if value.get("cmd") in _ONLY_TCP:
            self._answer({"ok": False, "error": NOT_HERE, **_echo(value)})
            return None
        try:
            body = bytes(from_python(value))
        except ValidationError as error:
            self._answer({"ok": False, "error": str(error)})
            return None
        now = self._broker.clock.now()
        self.session.receive([body], now)
        return self.session.run(now)

    def _change_subscription(self, command: dict[str, Any]) -> None:
        reply: dict[str, Any]
        events = command.get("events")
        try:
            if command["cmd"] == "Subscribe":
                patterns = _checked(events)
                self._subscribed = self._subscribed or Subscriptions()
                self._subscribed.add(patterns)
            elif self._subscribed is not None:
                self._subscribed.remove(events if type(events) is list else None)
            reply = {"ok": True, "subscribed": self._subscribed.patterns if self._subscribed else []}
        except ValidationError as error:
            reply = {"ok": False, "error": str(error)}
        self._answer({**reply, **_echo(command)})

    # out

    def offer(self, telling: Telling) -> None:
        """Send an event if it is wanted and there is room for it."""
        if not self._wants(telling) or not telling.concerns(self.queue):
            return
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self.skipped_count += 1
            return
        was_idle = not self._out
        # The form is that of the moment in which the event is told, though its text may be made later.
        self._push(telling.size_bytes, telling.legacy_text if self._subscribed is None else telling.text)
        if was_idle:
            self._pace.want(self)

    def _wants(self, telling: Telling) -> bool:
        if not telling.is_open_to(self.session.roles):
            return False
        if self._subscribed is None:
            return telling.is_of_job
        return self._subscribed.match(telling.event)

    def _take_replies(self, frames: bytes) -> None:
        # Wire: what a command has caused is told before it is answered.
        self._broker.publish_events()
        start = 0
        while start < len(frames):
            (length,) = _read_length(frames, start)
            start += 4
            self._reply(frames[start : start + length])
            start += length

    def _answer(self, reply: dict[str, Any]) -> None:
        self._reply(bytes(from_python(reply)))

    def _reply(self, body: bytes) -> None:
        self._push(len(body), body)
        self._reply_count += 1
        self._turn.set()

    def _push(self, size_bytes: int, item: bytes | Callable[[], str]) -> None:
        self._out.append((size_bytes, item))
        self.unsent_bytes += size_bytes

    def go(self) -> None:
        """`Pace` says that some events may be sent."""
        self._events_left = EVENTS_PER_TURN
        self._turn.set()

    async def next(self) -> str:
        """The next message to write; the one before has been written.

        Cancel: nothing has been taken, or the socket is at its end. Always a checkpoint.
        """
        await trio.lowlevel.checkpoint()
        self.writing_since_s = None
        self._note_written()
        while not (self._out and (self._reply_count or self._events_left)):
            self._turn = trio.Event()
            if self._out:
                self._pace.want(self)
            await self._turn.wait()
        size_bytes, item = self._out.popleft()
        self._writing_bytes = size_bytes
        if isinstance(item, bytes):
            self._reply_count -= 1
        elif self._events_left:
            self._events_left -= 1
        text = await _text_of(item, size_bytes)
        self.writing_since_s = trio.current_time()
        return text

    def _note_written(self) -> None:
        self.unsent_bytes -= self._writing_bytes
        self._writing_bytes = 0
        if self.unsent_bytes <= MAX_UNSENT_BYTES:
            drained, self._drained = self._drained, trio.Event()
            drained.set()

    async def wait_for_room(self) -> None:
        """Wait until commands may be taken: a client that does not read its answers gets no more of them."""
        while self.unsent_bytes > MAX_UNSENT_BYTES:
            await self._drained.wait()


def _echo(command: dict[str, Any]) -> dict[str, Any]:
    return {"reqId": command["reqId"]} if "reqId" in command else {}


def _checked(patterns: Any) -> list[str]:
    if type(patterns) is not list or not patterns:
        raise ValidationError("events must be a non-empty array")
    unknown = Subscriptions.unknown(patterns)
    if unknown:
        raise ValidationError(f"Invalid: {', '.join(map(js_text, unknown))}")
    return patterns


async def _text_of(item: bytes | Callable[[], str], size_bytes: int) -> str:
    def make() -> str:
        return json_of(item).decode() if isinstance(item, bytes) else item()

    return make() if size_bytes <= LARGE_BYTES else await trio.to_thread.run_sync(make)
