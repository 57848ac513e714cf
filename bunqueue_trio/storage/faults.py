"""What SQLite's errors mean to the rest of the server. Knows apsw; knows no rows."""

import apsw

from bunqueue_trio.errors import CorruptDatabaseError, DiskFullError, StorageError

_ROW_FAULTS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)
"""These lie in the row, not in the disk: the same row fails again, however long one waits."""

_WORDS: dict[type[apsw.Error], str] = {
    apsw.FullError: "database or disk is full",
    apsw.BusyError: "database is locked",
    apsw.LockedError: "database table is locked",
    apsw.ReadOnlyError: "attempt to write a readonly database",
    apsw.IOError: "disk I/O error",
    apsw.CorruptError: "database disk image is malformed",
    apsw.NotADBError: "file is not a database",
    apsw.CantOpenError: "unable to open database file",
}


def words(error: apsw.Error) -> str:
    """SQLite's own words for *error*, on one line: clients and dashboards look for them."""
    return _WORDS.get(type(error)) or " ".join(str(error).split()) or type(error).__name__


def is_row_fault(error: Exception) -> bool:
    """True when a row can never be stored: a constraint, a size, a value that SQLite has no form for."""
    return isinstance(error, (*_ROW_FAULTS, OverflowError, UnicodeError, TypeError))


def from_apsw(error: apsw.Error) -> StorageError:
    """The error of ours that stands for *error*; the text keeps SQLite's words.

    Full, locked, read-only and I/O errors are transient: rows stay in memory and are tried again. An error that we
    do not know counts as transient too, so that nothing is dropped on a misunderstanding.
    """
    text = words(error)
    if isinstance(error, apsw.FullError):
        return DiskFullError(text)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return CorruptDatabaseError(text)
    return StorageError(text, transient=not isinstance(error, _ROW_FAULTS))
