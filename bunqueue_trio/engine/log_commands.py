"""AddLog, GetLogs and ClearLogs. Nothing of it reaches the file, so they are answered at once.

Source: commands, "Logs".
"""

from typing import Final

from msgspec import Raw

from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import NotFoundError
from bunqueue_trio.model.commands import AddLog, ClearLogs, GetLogs
from bunqueue_trio.model.entries import LogLine
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply, Reply

_NIL: Final = b"\xc0"
_NULL: Final = Raw(_NIL)
_INFO: Final = Raw(b"\xa4info")


class LogCommands:
    """Writes and reads the logs of jobs."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def add(self, command: AddLog, now: Now) -> DataReply:
        """Append a line to the log of any job there is, finished ones included. A level not given is ``info``.

        Raises:
            NotFoundError: no such job.
            FactsNeededError: only the file can tell.
        """
        job_id = command.id
        if self._queries.visible(job_id) is None and self._state.completed(job_id) is None:
            raise NotFoundError("Job not found")
        level = _INFO if not command.level or bytes(command.level) == _NIL else command.level
        self._state.logs.add(job_id, LogLine(now.wall_ms, level, command.message or _NULL))
        return DataReply(data={"added": True})

    def get(self, command: GetLogs, now: Now) -> DataReply:
        """Lines ``start`` to ``end``, both included, oldest first, and how many are kept in all.

        Negative numbers count from the end, but an ``end`` of -1 stands before the first line: it is one less than an
        excluded bound.
        """
        lines = list(self._state.logs.get(command.id)) if type(command.id) is str else []
        end = None if command.end is None else command.end + 1
        return DataReply(data={"logs": lines[command.start : end], "count": len(lines)})

    def clear(self, command: ClearLogs, now: Now) -> Reply:
        """Delete the log but for its newest ``keepLogs`` lines; of a job without one, nothing."""
        if type(command.id) is str:
            self._state.logs.keep_newest(command.id, command.keep_logs or 0)
        return Reply()
