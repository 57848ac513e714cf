"""Pages that mix completed rows with live jobs, and the oldest rows of a queue."""

import random

import msgpack
import pytest

from bunqueue_trio.errors import StorageError
from bunqueue_trio.model.questions import CompletedPage, OldestCompleted
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import lists, reads, writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import extra_blob, full_row
from tests.storage.samples import T0, job, same_job

MUCH = 1 << 30


def fill(writer, path, *records) -> None:
    rows = [full_row(record, n + 1, "completed") for n, record in enumerate(records)]
    writes.apply_batch(writer, Batch(full=rows), path)


def done(job_id: str, at: float, **fields):
    return job(job_id, created_at=T0 + at, completed_at=T0 + fields.pop("ended", at), progress=100, **fields)


def page(writer, live=(), offset=0, limit=100, *, over=(), skipped=0, max_bytes=MUCH, queue="mail", **wanted):
    question = CompletedPage(None, queue, offset, limit, max_bytes, list(live), skipped, list(over), **wanted)
    lists.answer(writer, question)
    return question.page


def results(writer, live=(), max_bytes=MUCH, **wanted):
    question = CompletedPage(None, "mail", 0, 100, max_bytes, list(live), 0, [], **wanted)
    lists.answer(writer, question)
    return None if question.page is None else {job_id: bytes(result) for job_id, result in question.results.items()}


def test_completed_jobs_come_in_order_with_their_state(writer, path):
    fill(writer, path, done("c", 2), done("b", 1), done("a", 2), done("x", 0, queue="other"))

    found = page(writer)

    assert [(record.id, record.state) for record in found] == [(i, "completed") for i in ("b", "a", "c")]


def test_a_record_is_decoded_whole(writer, path):
    record = done("a", 1, tags=("t",), priority=3)
    fill(writer, path, record)

    [found] = page(writer)

    found.state = record.state
    same_job(found, record)


def test_other_states_are_left_out(writer, path):
    writes.apply_batch(writer, Batch(full=[full_row(job("w"), 1, "waiting"), full_row(job("r"), 2, "active")]), path)

    assert page(writer) == []


@pytest.mark.parametrize("seed", range(40))
def test_any_page_equals_that_of_one_sorted_list(writer, path, seed):
    # given: as many of either kind as it happens, with equal times
    chance = random.Random(seed)
    completed = [done(f"{chance.randrange(10**6):06}c{n}", chance.randrange(20)) for n in range(chance.randrange(60))]
    live = [
        job(f"{chance.randrange(10**6):06}l{n}", created_at=T0 + chance.randrange(25))
        for n in range(chance.randrange(60))
    ]
    over = [record.id for record in completed if chance.random() < 0.1]
    fill(writer, path, *completed)
    live.sort(key=lambda record: (record.created_at, record.id))
    everyone = sorted(
        [r for r in completed if r.id not in over] + live, key=lambda record: (record.created_at, record.id)
    )

    for _ in range(20):
        offset, limit = chance.randrange(130), chance.randrange(1, 40)
        # as the engine asks: only what may be on the page
        skipped = max(0, offset - len(completed))
        window = live[skipped : offset + limit]
        found = page(writer, window, offset, limit, over=over, skipped=skipped)

        assert [record.id for record in found] == [record.id for record in everyone[offset : offset + limit]]
        window = live[::-1][skipped : offset + limit]
        found = page(writer, window, offset, limit, over=over, skipped=skipped, newest_first=True)
        assert [record.id for record in found] == [record.id for record in everyone[::-1][offset : offset + limit]]
        found = page(writer, live[offset : offset + limit], offset, limit, skipped=offset, wants_completed=False)
        assert found == live[offset : offset + limit]


def fill_with_results(writer, path):
    """Two completed jobs, of which one is named, and a waiting one that has run before; each has returned something."""
    named = done("named", 1, own_name="n")
    live = job("again", created_at=T0 + 2, own_name="n")
    records = [done("plain", 0), named, done("silent", 3, own_name="n")]
    rows = [full_row(record, n + 1, "completed") for n, record in enumerate(records)]
    extras = [(r.id, extra_blob(r, key_expires_at=None, is_from_cron=False)) for r in (named, records[2])]
    returned = [(name, msgpack.packb(name), T0) for name in ("plain", "named", "again")]
    writes.apply_batch(writer, Batch(full=rows, extras=extras, results=returned), path)
    return live


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["named"]),
        ({"wants_results": True}, ["named", "plain"]),
        ({"rerun": frozenset({"again"})}, ["again", "named"]),
        ({"rerun": frozenset({"again"}), "wants_completed": False}, ["again"]),
    ],
)
def test_results_are_read_for_those_that_show_them(writer, path, wanted, found):
    live = fill_with_results(writer, path)

    assert results(writer, [live], **wanted) == {name: msgpack.packb(name) for name in found}


def test_results_count_as_data_that_a_reply_has_to_hold(writer, path, monkeypatch):
    monkeypatch.setattr(reads, "ROWS_AT_ONCE", 1)
    live = fill_with_results(writer, path)
    data_bytes = sum(len(job(name).data) for name in ("plain", "named", "silent"))
    enough = data_bytes + len(msgpack.packb("plain")) + len(msgpack.packb("named"))

    assert results(writer, [live], enough - 1, wants_results=True) is None
    assert len(results(writer, [live], enough, wants_results=True)) == 2


def test_more_data_than_a_reply_can_hold_is_not_read(writer, path, monkeypatch):
    monkeypatch.setattr(reads, "ROWS_AT_ONCE", 2)
    fill(writer, path, *(done(f"j{n}", n) for n in range(20)))
    size = len(job("j00").data)

    assert page(writer, limit=5, max_bytes=4 * size) is None
    assert len(page(writer, limit=4, max_bytes=4 * size)) == 4


def oldest(writer, *, until=MUCH, limit=10, over=(), queue="mail"):
    question = OldestCompleted(None, queue, T0 + until, limit, list(over))
    lists.answer(writer, question)
    return question.ids


def test_the_oldest_are_those_that_ended_first(writer, path):
    fill(writer, path, done("a", 1, ended=30), done("b", 2, ended=10), done("c", 3, ended=20), done("x", 0, queue="o"))

    assert oldest(writer) == ["b", "c", "a"]
    assert oldest(writer, limit=2) == ["b", "c"]
    assert oldest(writer, until=20) == ["b", "c"]
    assert oldest(writer, over=["b"], limit=1) == ["c"]
    assert oldest(writer, queue="nobody") == []


def test_a_snapshot_does_not_see_what_is_committed_after_it(writer, path):
    fill(writer, path, done("a", 1))
    reader = db.open_reader(path)
    db.begin_snapshot(reader)
    writes.apply_batch(writer, Batch(deleted=["a"]), path)

    assert [record.id for record in page(reader)] == ["a"]
    reader.execute("COMMIT")
    assert page(reader) == []
    reader.close()


def test_a_file_that_cannot_be_read_is_told(writer, path):
    reader = db.open_reader(path)
    reader.close()

    with pytest.raises(Exception, match="closed"):
        page(reader)


def test_a_broken_file_is_a_storage_error(writer):
    writer.execute("DROP TABLE jobs")

    with pytest.raises(StorageError):
        page(writer)
