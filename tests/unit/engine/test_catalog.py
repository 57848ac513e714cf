"""The order of lists: blocks, their borders, and what they count."""

import random

import pytest

from bunqueue_trio.engine import catalog as catalog_module
from bunqueue_trio.engine.catalog import (
    ACTIVE,
    DELAYED,
    FAILED,
    LIVE_KINDS,
    PARKED,
    PRIORITIZED,
    WAITING,
    Catalog,
    key_of,
    kind_of,
)
from bunqueue_trio.model.job import Job, JobRecord, JobState
from tests.engine_harness import EngineHarness, raw

STATE_OF = {
    WAITING: JobState.READY, PRIORITIZED: JobState.READY, DELAYED: JobState.DELAYED, PARKED: JobState.PARKED,
    ACTIVE: JobState.ACTIVE, FAILED: JobState.FAILED,
}  # fmt: skip


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(catalog_module, "FULL", 4)
    monkeypatch.setattr(catalog_module, "STALE_MAX", 2)


def job(created_at: float, job_id: str, kind: int = WAITING) -> Job:
    record = JobRecord(job_id, "q", raw(1), created_at, created_at, created_at)
    record.priority = int(kind == PRIORITIZED)
    return Job(record, STATE_OF[kind], 1)


def put(catalog: Catalog, added: Job) -> None:
    catalog.add(added)
    added.block.counts[kind_of(added)] += 1


def take(catalog: Catalog, gone: Job) -> None:
    gone.block.counts[kind_of(gone)] -= 1
    catalog.remove(gone)


def check_blocks(catalog: Catalog) -> None:
    firsts = [block.first for block in catalog.blocks]
    assert firsts == sorted(set(firsts))
    assert catalog.tail is catalog.blocks[-1]
    for block in catalog.blocks:
        members = [j for j in block.jobs if j.block is block]
        assert len(block.jobs) - len(members) == block.stale_count
        assert {k: block.count((k,)) for k in LIVE_KINDS} == {
            k: sum(kind_of(j) == k for j in members) for k in LIVE_KINDS
        }


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(30))
def test_pages_equal_those_of_a_sorted_list(seed):
    # given: jobs that come and go, in any order, with equal times
    chance = random.Random(seed)
    catalog, listed = Catalog(), []
    for number in range(300):
        if listed and chance.random() < 0.4:
            take(catalog, listed.pop(chance.randrange(len(listed))))
        else:
            at = float(number // 3 if chance.random() < 0.7 else chance.randrange(100))
            listed.append(job(at, f"{chance.randrange(10**6):06}-{number}", chance.choice(LIVE_KINDS)))
            put(catalog, listed[-1])
        check_blocks(catalog)

    # then
    listed.sort(key=key_of)
    assert catalog.page(LIVE_KINDS, 0, 1_000) == listed
    for _ in range(20):
        kinds = frozenset(chance.sample(LIVE_KINDS, chance.randint(1, 6)))
        offset, limit = chance.randrange(60), chance.randrange(1, 40)
        expected = [j for j in listed if kind_of(j) in kinds]
        assert catalog.page(kinds, offset, limit) == expected[offset : offset + limit]
        assert list(catalog.each(kinds)) == expected
        assert catalog.page(kinds, offset, limit, newest_first=True) == expected[::-1][offset : offset + limit]


@pytest.mark.usefixtures("small_blocks")
def test_jobs_in_order_fill_one_block_after_the_other():
    catalog = Catalog()
    for number in range(40):
        put(catalog, job(number // 10, f"{number:02}"))

    assert [len(block.jobs) for block in catalog.blocks] == [4] * 10


@pytest.mark.usefixtures("small_blocks")
def test_a_job_far_ahead_does_not_push_the_others_into_one_block():
    catalog = Catalog()
    put(catalog, job(10**9, "future"))
    for number in range(100):
        put(catalog, job(number, "now"))

    assert max(len(block.jobs) for block in catalog.blocks) <= 8
    assert [j.record.created_at for j in catalog.page(LIVE_KINDS, 0, 1_000)] == [*range(100), 10**9]


@pytest.mark.usefixtures("small_blocks")
def test_jobs_that_have_gone_leave_no_more_than_a_few_entries():
    catalog = Catalog()
    put(catalog, job(0, "stays"))
    for number in range(1_000):
        passing = job(number + 1, "passing")
        put(catalog, passing)
        take(catalog, passing)

    assert sum(len(block.jobs) for block in catalog.blocks) < 10
    assert len(catalog.blocks) < 3


@pytest.mark.usefixtures("small_blocks")
def test_an_emptied_catalog_keeps_nothing():
    catalog = Catalog()
    jobs = [job(number, "j") for number in range(50)]
    for added in jobs:
        put(catalog, added)
    for gone in jobs:
        take(catalog, gone)

    assert [block.jobs for block in catalog.blocks] == [[]]
    put(catalog, job(3, "again"))
    assert [j.record.id for j in catalog.page(LIVE_KINDS, 0, 9)] == ["again"]


def test_no_kinds_no_jobs():
    catalog = Catalog()
    put(catalog, job(1, "a"))

    assert catalog.page((), 0, 10) == []


def test_removing_what_was_never_listed_changes_nothing():
    catalog = Catalog()
    catalog.remove(job(1, "a"))

    assert catalog.page(LIVE_KINDS, 0, 10) == []


# as the engine uses it


@pytest.mark.usefixtures("small_blocks")
def test_plain_pushes_of_a_clock_that_went_back_are_sorted_in():
    harness = EngineHarness()
    late = harness.push_many("q", [{}] * 6)
    harness.skew(-50)
    early = harness.push_many("q", [{}] * 6)

    listed = [found["id"] for found in harness.ask("GetJobs", queue="q")["jobs"]]

    assert listed == early + late


@pytest.mark.usefixtures("small_blocks")
def test_an_endless_flow_of_jobs_leaves_nothing_behind():
    harness = EngineHarness(checks=False)
    for _ in range(300):
        harness.push()
        harness.ack(*harness.pull())

    blocks = harness.engine.state.queues["q"].catalog.blocks
    assert sum(len(block.jobs) for block in blocks) < 10
    harness.engine.check_invariants()
