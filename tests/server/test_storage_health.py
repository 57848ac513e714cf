"""Healthy or degraded, and how much may wait meanwhile."""

import pytest

from bunqueue_trio.errors import DiskFullError, StateError, StorageError
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.server.storage_health import StorageHealth
from tests.server.fakes import FULL


def changes_of(count: int) -> Changes:
    return Changes(jobs=[None] * count)  # type: ignore[list-item]


def health(*, jobs: int = 10, size: int = 1_000) -> StorageHealth:
    return StorageHealth(max_backlog_jobs=jobs, max_backlog_bytes=size)


def test_it_is_healthy_until_a_flush_fails_and_again_with_the_first_that_succeeds():
    subject = health()
    assert not subject.is_degraded

    subject.failed(StorageError("disk I/O error"), 5)
    subject.failed(DiskFullError(FULL), 7)
    assert (subject.is_degraded, subject.is_disk_full) == (True, True)
    assert (subject.since_wall_ms, subject.last_trouble_wall_ms) == (5, 7)

    assert subject.succeeded() is True
    assert (subject.is_degraded, subject.is_disk_full, subject.since_wall_ms) == (False, False, None)
    assert subject.succeeded() is False


def test_only_a_lack_of_space_counts_as_a_full_disk():
    subject = health()
    subject.failed(StorageError("disk I/O error"), 1)

    assert subject.is_degraded
    assert not subject.is_disk_full


def test_while_healthy_nothing_is_bounded():
    subject = health(jobs=1, size=1)
    subject.note_buffered(1_000_000)

    assert subject.backlog_error(changes_of(1_000)) is None


@pytest.mark.parametrize(("count", "is_refused"), [(9, False), (10, True), (11, True)])
def test_the_backlog_is_bounded_in_jobs(count, is_refused):
    subject = health()
    subject.failed(DiskFullError(FULL), 1)

    assert subject.backlog_error(changes_of(count)) == (f"Storage unavailable: {FULL}" if is_refused else None)


@pytest.mark.parametrize(("size", "is_refused"), [(999, False), (1_000, True)])
def test_the_backlog_is_bounded_in_bytes(size, is_refused):
    subject = health()
    subject.failed(DiskFullError(FULL), 1)
    subject.note_buffered(size)

    assert (subject.backlog_error(changes_of(0)) is not None) == is_refused


def test_a_success_empties_the_backlog():
    subject = health()
    subject.failed(DiskFullError(FULL), 1)
    subject.note_buffered(1_000)
    subject.succeeded()
    subject.failed(DiskFullError(FULL), 2)

    assert subject.backlog_error(changes_of(0)) is None


def test_a_change_is_refused_only_during_the_pause():
    subject, undone = health(), []

    def undo():
        undone.append(1)

    subject.refuse_while_degraded(undo)
    subject.failed(DiskFullError(FULL), 1)
    subject.refuse_while_degraded(undo)  # an attempt is under way: it will show
    assert undone == []

    subject.is_pausing = True
    with pytest.raises(StateError, match=FULL):
        subject.refuse_while_degraded(undo)
    assert undone == [1]
