"""Every way out of a state, over a kill: the file says the same as memory did, and keeps nothing of what has gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stored_engine import Stored
from tests.ways_out import ANYWHERE, MINE, Way, cases, held


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.file.close()


def left(stored: Stored, way: Way, **things: object) -> None:
    """``mine`` was in the file, has left its place, and the server was killed after the next flush."""
    _, token = held(way, harness=stored, **things)
    stored.commit()
    way.leave(stored, token)
    stored.commit()
    stored.restart()


@cases(*ANYWHERE)
def test_the_way_leads_where_the_table_says(stored: Stored, way: Way) -> None:
    left(stored, way)

    assert stored.ask_file("GetState", id=MINE).state == way.after


@cases(*ANYWHERE)
def test_the_file_keeps_one_row_of_what_is_left(stored: Stored, way: Way) -> None:
    left(stored, way, debounceId="makes a row beside the job's")

    is_letter, is_gone = way.after == "failed", way.after == "unknown"
    assert stored.rows("jobs", "id").count(MINE) == int(not is_letter and not is_gone)
    assert stored.rows("bqt_jobs").count(MINE) == int(not is_letter and not is_gone)
    assert stored.rows("dlq").count(MINE) == int(is_letter)
    assert stored.rows("bqt_finished") == []


@cases(*ANYWHERE)
def test_key_and_id_are_free_or_stay_with_a_job_that_goes_on(stored: Stored, way: Way) -> None:
    left(stored, way, uniqueKey="k", data={"life": 1})

    assert (stored.push(uniqueKey="k") == MINE) is way.keeps_key
    stored.ask_file("PUSH", queue="q", jobId=MINE, data={"life": 2})
    assert stored.shown(MINE)["data"] == {"life": 1 if way.goes_on else 2}


ENDS = [
    ("ACK", {}, {}, "completed"),
    ("ACK", {"result": 1}, {}, "completed"),
    ("ACK", {}, {"removeOnComplete": True}, "unknown"),
    ("FAIL", {}, {}, "delayed"),
    ("FAIL", {}, {"maxAttempts": 1}, "failed"),
    ("FAIL", {}, {"maxAttempts": 1, "removeOnFail": True}, "unknown"),
    ("Discard", {}, {}, "failed"),
]


@pytest.mark.parametrize(("cmd", "fields", "options", "after"), ENDS)
def test_who_ends_while_another_takes_its_key_stays_as_it_has_ended(stored, cmd, fields, options, after):
    stored.push(jobId=MINE, uniqueKey="k", **options)
    pulled = stored.pull()
    stored.commit()
    with stored.pending():
        heir = stored.push(uniqueKey="k", dedup={"replace": True}, durable=True)
        stored.send(cmd, id=MINE, token=pulled[1], **fields)

    stored.commit()  # both of it
    stored.commit()  # and what that has left to write
    stored.restart()

    assert stored.ask_file("GetState", id=MINE).state == after
    assert stored.push(uniqueKey="k") == heir
