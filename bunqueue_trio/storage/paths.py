"""The data path before SQLite sees it: what may not be a database, the folder it lives in, and who owns it."""

import fcntl
import os
import stat
from types import TracebackType
from typing import Final, Self

from bunqueue_trio.errors import FileInUseError, StartError

MEMORY: Final = ":memory:"
"""The path that stands for a database without a file."""

_held: set[tuple[int, int]] = set()
"""Device and inode of the files this process has locked."""


def refusal(path: str, why: str, advice: str) -> StartError:
    """The one line an operator gets: which file, why, what to do."""
    return StartError(f"Cannot open database {path}: {why}; {advice}")


def check_path(path: str) -> None:
    """Refuse what can never become our database; make the parent folder if only that is missing.

    Raises:
        StartError: a folder, a device, a file or folder without the needed rights, no folder to put it in. An
            existing file has not been opened.
    """
    folder = os.path.dirname(os.path.realpath(path))
    _check_folder(path, folder)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise refusal(path, _reason(error), "check the path and its rights") from error
    if mode is not None:
        if stat.S_ISDIR(mode):
            raise refusal(path, "it is a folder (unable to open database file)", "name a file inside it")
        if not stat.S_ISREG(mode):
            raise refusal(path, "it is not a regular file", "name another data path")
        if not os.access(path, os.R_OK | os.W_OK):
            raise refusal(
                path, "it is read-only here (attempt to write a readonly database)", "let this user write to it"
            )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refusal(
            path,
            f"the folder {folder} is read-only here (attempt to write a readonly database)",
            "let this user write to the folder: the write-ahead log lives there too",
        )


def _check_folder(path: str, folder: str) -> None:
    if os.path.isdir(folder):
        return
    if os.path.lexists(folder):
        raise refusal(path, f"{folder} is not a folder (unable to open database file)", "name another data path")
    if not os.path.isdir(os.path.dirname(folder)):
        raise refusal(
            path, f"the folder {folder} does not exist (unable to open database file)", "create it or correct the path"
        )
    try:
        os.mkdir(folder)
        sync_folder(os.path.dirname(folder))
    except OSError as error:
        raise refusal(path, f"cannot create the folder {folder}: {_reason(error)}", "create it by hand") from error


def sync_folder(folder: str) -> None:
    """Durability: a new name in *folder* survives a power cut only once the folder itself is on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileLock:
    """The right of one process to serve a database file; ends with the process, whatever ends it.

    An flock() on the database file itself: every spelling of its name and every link to it meets the same lock,
    nothing stale is left behind, and SQLite's own locks, which are of another kind, let backup and inspection tools
    in as ever.

    Invariant: closing any descriptor of a file drops all of SQLite's own locks on it that this process holds.
    Therefore the descriptor stays open until `release`, which must come after the last connection has been closed,
    and a file that this process serves already is refused by its inode, without being opened.
    """

    __slots__ = ("_descriptor", "_inode")

    def __init__(self, descriptor: int | None, inode: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._inode = inode

    @classmethod
    def acquire(cls, path: str) -> Self:
        """Lock the database file *path*, creating an empty one where there is none. Does not wait.

        ":memory:" is nobody else's: its lock is granted always.

        Raises:
            FileInUseError: another server has it.
            StartError: the path cannot be a database.
        """
        if path == MEMORY:
            return cls(None, (0, 0))
        check_path(path)
        if _inode(path) in _held:
            raise _taken(path)
        try:
            descriptor = _open_or_create(path)
        except OSError as error:
            raise refusal(path, _reason(error), "check the path and its rights") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise _taken(path) from error
            raise refusal(path, f"it cannot be locked: {_reason(error)}", "use a file system with locks") from error
        status = os.fstat(descriptor)
        inode = (status.st_dev, status.st_ino)
        if _inode(path) != inode:
            # A restore has replaced the file between opening and locking: the lock would be on the one that was.
            os.close(descriptor)
            return cls.acquire(path)
        _held.add(inode)
        return cls(descriptor, inode)

    def release(self) -> None:
        """Let another server have the file. Only after every SQLite connection to it has been closed."""
        if self._descriptor is not None:
            _held.discard(self._inode)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_or_create(path: str) -> int:
    """A descriptor of *path*; of a new file also the name is on disk when this returns."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        pass
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    sync_folder(os.path.dirname(os.path.realpath(path)))
    return descriptor


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _taken(path: str) -> FileInUseError:
    return FileInUseError(
        f"Cannot open database {path}: another bunqueue server is using it; stop that server or name another data path"
    )


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
