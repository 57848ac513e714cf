"""Leases under an id that is no connection: let go, or taken back as if they had never been given."""

import pytest

from tests.engine_harness import EngineHarness

ASKER = -1


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.engine.connect(ASKER)
    return harness


def lease(harness: EngineHarness, job_id: str, **options) -> str:
    """Push a job and hand it to the asker; its token."""
    harness.push(jobId=job_id, **options)
    pulled_id, token = harness.pull(connection=ASKER, owner="w")
    assert pulled_id == job_id
    return token


def take_back(harness: EngineHarness) -> None:
    harness.engine.take_undelivered(ASKER, harness.now)
    harness._after()


def test_a_job_that_was_let_go_belongs_to_nobody(harness):
    token = lease(harness, "a")

    harness.engine.let_go(ASKER)

    assert harness.state("a") == "active"
    assert harness.job("a").lease.connection_id is None
    assert ASKER not in harness.engine.state.held
    assert ASKER not in harness.engine.state.connections
    harness.ack("a", token)
    assert harness.state("a") == "completed"


def test_a_job_that_was_let_go_ends_with_its_lease(harness):
    lease(harness, "a")
    harness.engine.let_go(ASKER)

    harness.advance(60_000)

    assert harness.state("a") == "waiting"


@pytest.mark.parametrize("options", [{}, {"maxAttempts": 1}, {"priority": 3, "groupId": "g"}])
def test_what_never_arrived_goes_back_uncounted(harness, options):
    lease(harness, "a", **options)
    harness.advance(50)

    take_back(harness)

    shown = harness.shown("a")
    assert (shown["state"], shown["attempts"], shown["stallCount"]) == (
        "prioritized" if options.get("priority") else "waiting",
        0,
        0,
    )
    assert shown["startedAt"] is None
    assert ASKER not in harness.engine.state.held
    assert harness.pull_id() == "a"


def test_what_goes_back_keeps_its_turn(harness):
    lease(harness, "a")
    harness.push(jobId="b")

    take_back(harness)

    assert harness.pull_all() == ["a", "b"]


def test_what_goes_back_frees_its_slot(harness):
    harness.send("SetConcurrency", queue="q", limit=1)
    lease(harness, "a")
    assert harness.pull() is None

    take_back(harness)

    assert harness.pull_id() == "a"


def test_what_somebody_finishes_at_that_moment_stays_finished():
    harness = EngineHarness(auto_commit=False)
    harness.engine.connect(ASKER)
    token = lease(harness, "a")
    harness.commit()
    harness.ack("a", token)

    take_back(harness)
    harness.commit()

    assert harness.state("a") == "completed"


def test_several_and_none(harness):
    take_back(harness)
    harness.engine.let_go(ASKER)
    for job_id in ("a", "b"):
        lease(harness, job_id)

    take_back(harness)

    assert harness.counts()["waiting"] == 2
