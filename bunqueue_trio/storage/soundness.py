"""Is the database whole? Damaged pages are looked for before anything is promised on top of them.

A server on a file whose free list or whose index is mangled would start, show its jobs, and then be refused every write
that meets the place: it would have to say no to everybody until somebody looked. Knows no jobs.

Source: R185; persistence 12.4.
"""

from __future__ import annotations

import time
from typing import Final

import apsw

LIMIT_S = 5.0  # 5 million jobs when the file is in the system's cache; of a larger file the first part is looked at
STEPS: Final = 1_000  # of SQLite's between two looks at the clock
HEADLINE: Final = "*** in database main ***"
ABOUT_VALUES: Final = ("NULL value in ", "NUMERIC value in ", "TEXT value in ", "CHECK constraint failed in ")
"""How SQLite begins what it says of a row that breaks a rule of its table: odd, but readable and writable."""


def find_damage(connection: apsw.Connection) -> str | None:
    """The first damage that SQLite finds in the pages of the database, in its words and on one line; None if none.

    The free list is looked at first, then table by table with its indexes. What the rows mean is not looked at.

    Raises:
        apsw.Error: the file could not be read.

    Cost: reads the file, about 1 s per million jobs, 5 s at most.
    """
    deadline = time.perf_counter() + LIMIT_S
    connection.set_progress_handler(lambda: time.perf_counter() >= deadline, STEPS)
    try:
        # To stop at the first finding is quicker; only findings about values call for a look at the rest.
        for most in (1, 100):
            rows = connection.execute(f"PRAGMA quick_check({most})").fetchall()
            found = [str(text) for (text,) in rows if text != "ok"]
            damage = [text for text in found if not text.startswith(ABOUT_VALUES)]
            if damage or not found:
                break
    except apsw.InterruptError:
        return None
    finally:
        connection.set_progress_handler(None)
    return " ".join(damage[0].removeprefix(HEADLINE).split()) if damage else None
