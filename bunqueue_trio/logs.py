"""Log lines: ``[Component] message {"json":"data"}`` or one JSON object each.

Text puts debug and info on stdout, warn and error on stderr; JSON puts all on stdout. Requests and connections are
not logged. Only our own loggers are touched: an embedding application keeps its structlog and logging settings.

A log that nobody reads must not stop the queue: when the pipe is full, lines are dropped and counted, and the first
line that fits again is preceded by their number.
Source: configuration, "Log lines".
"""

import os
import select
import sys
import traceback
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO, cast

import msgspec
import structlog

from bunqueue_trio.clock import Clock, SystemClock

LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40}
_LEVEL_OF_METHOD = {"warning": "warn", "exception": "error", "critical": "error", "fatal": "error", "err": "error"}

PIPE_ATOMIC_BYTES = 4096  # a pipe that polls as writable takes this many bytes without blocking
PATIENCE_MS = 20  # how long a full pipe may hold up the loop, once; after that lines are dropped at once

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Settings:
    """What `configure` set; the defaults serve until then."""

    threshold = LEVELS["info"]
    is_json = False
    clock: Clock = SystemClock()


class _Pipe:
    """One output stream, written to without ever waiting long."""

    def __init__(self) -> None:
        self.dropped_count = 0
        self._is_torn = False

    def write_line(self, stream: TextIO, line: str) -> None:
        """Write *line* to *stream*, or drop and count it."""
        if self.dropped_count:
            line = f"{_dropped_line(self.dropped_count)}\n{line}"
        try:
            written = self._write(stream, line + "\n")
        except (OSError, ValueError):
            # The reader is gone, the disk of the log is full, or the stream is closed: there is nobody to tell.
            written = False
        self.dropped_count = 0 if written else self.dropped_count + 1

    def _write(self, stream: TextIO, text: str) -> bool:
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):
            # Not a file: a test's or an application's own object.
            stream.write(text)
            return True
        stream.flush()
        # After half a line the next one starts on its own.
        rest = memoryview((f"\n{text}" if self._is_torn else text).encode("utf-8", "replace"))
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while rest:
            if not poll.poll(0 if self.dropped_count else PATIENCE_MS):
                return False
            rest = rest[os.write(descriptor, rest[:PIPE_ATOMIC_BYTES]) :]
            self._is_torn = bool(rest)
        return True


_pipes = {"stdout": _Pipe(), "stderr": _Pipe()}


def configure(level: str = "info", log_format: str = "text", clock: Clock | None = None) -> None:
    """Set what is logged and how, for all loggers, also those made before.

    Args:
        level: Least level shown: debug, info, warn or error.
        log_format: ``text`` or ``json``.
        clock: Gives the time stamps of JSON lines; the system's clock if not given.
    """
    _Settings.threshold = LEVELS[level]
    _Settings.is_json = log_format == "json"
    _Settings.clock = clock if clock is not None else SystemClock()


def get_logger(component: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for one component: Server, TCP, HTTP, Stats, Storage, Queue, ...

    ``log.info("Queue statistics", waiting=3)`` writes ``[Stats] Queue statistics {"waiting":3}``; keywords are data
    and may be anything, what JSON cannot hold goes through ``str``. ``log.exception(...)`` adds the traceback as data.

    Cost: about 20 µs a line, 3 µs one that is filtered out. Never blocks for longer than `PATIENCE_MS`.
    """
    wrapped = structlog.wrap_logger(
        structlog.ReturnLogger(),  # never reached: the processor has written the line
        processors=[_write_event],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        component=component,
    )
    return cast(structlog.typing.FilteringBoundLogger, wrapped)


def _write_event(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
    """The only processor: filter, render, write. Ends each event itself."""
    level = _LEVEL_OF_METHOD.get(method, method)
    if LEVELS[level] >= _Settings.threshold:
        component, message = event.pop("component"), str(event.pop("event")).encode("utf-8", "replace").decode()
        _add_traceback(event)
        if _Settings.is_json:
            line = _json_line(level, component, message, event)
        else:
            line = _text_line(component, message, event)
        name = "stderr" if level in ("warn", "error") and not _Settings.is_json else "stdout"
        # Looked up each time: tests and applications replace the streams.
        if (stream := getattr(sys, name)) is not None:
            _pipes[name].write_line(stream, line)
    raise structlog.DropEvent


def _add_traceback(event: MutableMapping[str, Any]) -> None:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        event["error"] = event.get("error", str(error) or type(error).__name__)
        event["stack"] = "".join(traceback.format_exception(error))


def _data_json(data: MutableMapping[str, Any]) -> str:
    try:
        return _encode(dict(data)).decode()
    except (TypeError, ValueError, OverflowError):
        # Lone surrogates, huge numbers, odd keys: better an ugly line than an error in whoever logs.
        return _encode({ascii(key): ascii(value) for key, value in data.items()}).decode()


def _dropped_line(count: int) -> str:
    message, data = "Log lines dropped: nobody read them", {"count": count}
    if _Settings.is_json:
        return _json_line("warn", "Server", message, data)
    return _text_line("Server", message, data)


def _text_line(component: str, message: str, data: MutableMapping[str, Any]) -> str:
    # One event is one line, whatever the message quotes.
    text = message.replace("\r", "\\r").replace("\n", "\\n")
    return f"[{component}] {text} {_data_json(data)}" if data else f"[{component}] {text}"


def _json_line(level: str, component: str, message: str, data: MutableMapping[str, Any]) -> str:
    moment = _EPOCH + timedelta(milliseconds=_Settings.clock.now().wall_ms)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = _encode({"timestamp": stamp, "level": level, "component": component, "message": message}).decode()
    return f'{head[:-1]},"data":{_data_json(data)}}}' if data else head
