"""Every exception of the package. This module imports nothing, so that any layer may raise any of them.

BunqueueError
├─ ConfigError              a setting is malformed: one line per problem, exit code 2, nothing was opened
├─ StartError               the server cannot start here: one line, exit code 1
│  └─ FileInUseError        another server has the data file
├─ CommandError             the client asked wrongly: ``ok: false``, the connection stays
│  ├─ ValidationError       a field has the wrong type or lies outside its bounds
│  ├─ NotFoundError         no job, worker or lock of that name
│  ├─ StateError            the job exists but not in a state that allows it
│  ├─ LeaseLostError        the token is not that of the current lease
│  ├─ LimitError            a bound of the server was reached
│  └─ AuthError             not authenticated, or the token is unknown
├─ ProtocolError            bytes that are not ours
│  ├─ FrameTooLargeError    one last reply, then the connection is closed
│  └─ MalformedFrameError   refused with a reply; the connection stays
│     └─ UnknownCommandError  ``cmd`` names no command of ours
├─ StorageError             SQLite said no: the flusher backs off, health degrades
│  ├─ DiskFullError         no space; the text keeps SQLite's words
│  ├─ TailLostError         frames of the write-ahead log are gone: a change log has to begin anew
│  └─ CorruptDatabaseError  the file is damaged or not a database: the server does not start
└─ BackupError              a backup or a restore has failed; the live file is untouched
   ├─ BackupBusyError       another one runs: one at a time per data file
   ├─ BackupStoppedError    asked to stop before it was done
   ├─ UnprovenBackupError   it is stored, and could not be read back
   ├─ DamagedBackupError    what is in the bucket is not what was put there, or no database
   └─ ObjectStoreError      the bucket said no, or nothing at all
InvariantError              a defect of ours; outside the tree, so that nobody catches it by habit
"""

from typing import Any


class BunqueueError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(BunqueueError):
    """Settings are malformed.

    Attributes:
        problems: one line per problem, each naming the setting, the value and what is allowed.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(BunqueueError):
    """The server cannot start: the text says what, which file or port, why, and what to do."""


class FileInUseError(StartError):
    """Another server has locked the data file."""


class CommandError(BunqueueError):
    """The client asked wrongly. The text goes to the client as it is; nothing has changed."""


class ValidationError(CommandError):
    """A field has the wrong type or lies outside its bounds."""


class NotFoundError(CommandError):
    """Nothing of that name."""


class StateError(CommandError):
    """The job exists, but its state does not allow the command."""


class LeaseLostError(CommandError):
    """The token is not that of the current lease, or the lease has ended."""


class LimitError(CommandError):
    """A bound of the server was reached."""


class AuthError(CommandError):
    """The connection is not authenticated, or the token is unknown."""


class ProtocolError(BunqueueError):
    """Bytes that are not ours."""


class FrameTooLargeError(ProtocolError):
    """The length prefix exceeds the cap. The connection is closed after one reply.

    Attributes:
        length_bytes: the announced length.
    """

    def __init__(self, length_bytes: int, max_bytes: int) -> None:
        super().__init__(f"Frame too large: {length_bytes} bytes exceeds maximum {max_bytes}")
        self.length_bytes = length_bytes


class MalformedFrameError(ProtocolError):
    """A complete frame that is no command. The connection stays.

    Attributes:
        req_id: the request id to echo, as msgpack bytes, or None where none could be found.
    """

    def __init__(self, text: str, req_id: Any = None) -> None:
        super().__init__(text)
        self.req_id = req_id


class UnknownCommandError(MalformedFrameError):
    """A sound frame whose ``cmd`` is no command of ours. Before authentication it is answered like any command."""


class StorageError(BunqueueError):
    """SQLite said no.

    Attributes:
        transient: True when trying again later may succeed (locked, full, I/O error).
        row_id: the job, result or queue whose row can never be stored; None when no single row is to blame.
    """

    def __init__(self, text: str, *, transient: bool = True, row_id: str | None = None) -> None:
        super().__init__(text)
        self.transient = transient
        self.row_id = row_id


class DiskFullError(StorageError):
    """No space left. The text keeps SQLite's words: clients and dashboards look for them."""


class CorruptDatabaseError(StorageError):
    """The file is damaged or not a database."""

    def __init__(self, text: str) -> None:
        super().__init__(text, transient=False)


class TailLostError(StorageError):
    """Frames of the write-ahead log were not copied in time. The data file is sound; a change log begins anew."""


class BackupError(BunqueueError):
    """A backup or a restore has failed: one line, without secrets. The live file is as it was."""


class BackupBusyError(BackupError):
    """Another backup or restore of the same data file runs, here or in another process."""


class BackupStoppedError(BackupError):
    """It was asked to stop before it was done; nothing half made is listed."""


class UnprovenBackupError(BackupError):
    """A backup is stored, but could not be read back: it may be sound.

    Attributes:
        key: its key.
    """

    def __init__(self, text: str, *, key: str) -> None:
        super().__init__(text)
        self.key = key


class DamagedBackupError(BackupError):
    """The object cannot be unpacked, differs from what was put there, or is no sound database."""


class ObjectStoreError(BackupError):
    """The bucket said no, or nothing at all.

    Attributes:
        status: the HTTP status; None when there was no answer.
    """

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status is None or self.status == 429 or self.status >= 500


class InvariantError(Exception):
    """What must hold does not hold: a defect of ours. Never caught by habit."""
