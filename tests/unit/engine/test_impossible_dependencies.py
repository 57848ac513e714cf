"""Dependencies that the push itself makes impossible: who named one would be parked for ever, so it is refused.

Source: protocol, "PUSH and PUSHB", P-12; scheduling and flows, SD-24.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue_trio.errors import CommandError, NotFoundError, ValidationError
from tests.engine_harness import QUEUE, EngineHarness

REPLACE = {"replace": True}


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def job(custom_id: str, **options: Any) -> dict[str, Any]:
    return {"data": {}, "customId": custom_id, **options}


def needing(needed: str, custom_id: str = "d", **options: Any) -> dict[str, Any]:
    return job(custom_id, dependsOn=[needed], **options)


def refusal(harness: EngineHarness, jobs: list[dict[str, Any]], *, durable: bool) -> str:
    before = harness.counts(), sorted(harness.engine.state.jobs)
    with pytest.raises(ValidationError) as caught:
        harness.push_many(QUEUE, [{**entry, "durable": durable} for entry in jobs])
    assert (harness.counts(), sorted(harness.engine.state.jobs)) == before
    return str(caught.value)


@pytest.mark.parametrize("durable", [False, True])
class TestBatches:
    def test_a_duplicate_of_a_held_key_is_no_dependency(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        error = refusal(harness, [job("x", uniqueKey="k"), needing("x")], durable=durable)

        assert error == "jobs[1]: Dependency job not found: x"

    def test_a_duplicate_within_the_batch_is_no_dependency(self, harness, durable):
        jobs = [job("a", uniqueKey="k"), needing("x"), job("x", uniqueKey="k")]

        assert refusal(harness, jobs, durable=durable) == "jobs[1]: Dependency job not found: x"

    def test_an_entry_that_a_later_one_replaces_is_no_dependency(self, harness, durable):
        jobs = [job("a", uniqueKey="k"), needing("a"), job("b", uniqueKey="k", dedup=REPLACE)]

        assert refusal(harness, jobs, durable=durable) == "jobs[1]: Dependency job not found: a"

    def test_a_job_that_the_batch_replaces_is_no_dependency(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        jobs = [needing("h"), job("b", uniqueKey="k", dedup=REPLACE)]

        assert refusal(harness, jobs, durable=durable) == "jobs[0]: Dependency job not found: h"

    def test_the_job_that_the_entry_itself_replaces_is_no_dependency(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        jobs = [needing("h", uniqueKey="k", dedup=REPLACE)]

        assert refusal(harness, jobs, durable=durable) == "jobs[0]: Dependency job not found: h"

    def test_who_comes_to_life_again_in_the_batch_may_be_waited_for(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        jobs = [job("b", uniqueKey="k", dedup=REPLACE), needing("h"), job("h")]
        harness.push_many(QUEUE, [{**entry, "durable": durable} for entry in jobs])

        assert harness.state("d") == "waiting-children"
        for _ in range(2):
            harness.ack(*harness.pull())
        assert harness.pull_id() == "d"

    def test_who_runs_is_not_replaced_and_may_be_waited_for(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")
        leased = harness.pull()

        harness.push_many(QUEUE, [needing("h", uniqueKey="k", dedup=REPLACE, durable=durable)])

        harness.ack(*leased)
        assert harness.pull_id() == "d"

    def test_who_is_parked_is_not_replaced_and_may_be_waited_for(self, harness, durable):
        jobs = [job("a"), needing("a", "h", uniqueKey="k"), needing("h", uniqueKey="k", dedup=REPLACE)]

        harness.push_many(QUEUE, [{**entry, "durable": durable} for entry in jobs])

        for expected in ("a", "h", "d"):
            leased = harness.pull()
            assert leased[0] == expected
            harness.ack(*leased)

    def test_who_waits_only_for_completed_jobs_is_queued_and_is_replaced(self, harness, durable):
        harness.push(jobId="done")
        harness.ack(*harness.pull())

        jobs = [needing("done", "h", uniqueKey="k"), needing("h", uniqueKey="k", dedup=REPLACE)]

        assert refusal(harness, jobs, durable=durable) == "jobs[1]: Dependency job not found: h"

    def test_an_id_that_completed_before_stays_a_dependency_though_its_new_life_is_a_duplicate(self, harness, durable):
        harness.push(jobId="x")
        harness.ack(*harness.pull())
        harness.push(jobId="h", uniqueKey="k")

        harness.push_many(QUEUE, [job("x", uniqueKey="k", durable=durable), needing("x", durable=durable)])

        assert harness.state("d") == "waiting"

    def test_a_key_whose_time_is_over_is_nobodys(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k", dedup={"ttl": 1_000})
        harness.advance(1_000)

        harness.push_many(QUEUE, [job("x", uniqueKey="k", durable=durable), needing("x", durable=durable)])

        assert harness.state("d") == "waiting-children"


@pytest.mark.parametrize("durable", [False, True])
class TestPushes:
    def test_the_job_that_a_push_replaces_is_no_dependency(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        with pytest.raises(NotFoundError, match="Dependency job not found: h"):
            harness.push(jobId="d", uniqueKey="k", dedup=REPLACE, dependsOn=["h"], durable=durable)

        assert harness.state("h") == "waiting"

    def test_a_push_that_meets_the_holder_may_name_it(self, harness, durable):
        harness.push(jobId="h", uniqueKey="k")

        assert harness.push(uniqueKey="k", dependsOn=["h"], durable=durable) == "h"


ids = st.sampled_from("abcd")
options = st.fixed_dictionaries(
    {"customId": ids},
    optional={
        "uniqueKey": st.sampled_from("kl"),
        "dedup": st.sampled_from([REPLACE, {"ttl": 0}, {"ttl": 500, "extend": True}, {"ttl": 500, "replace": True}]),
        "dependsOn": st.lists(ids, min_size=1, max_size=2, unique=True),
    },
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.lists(options, min_size=1, max_size=4), st.booleans()),
        st.tuples(st.sampled_from(["ack", "die", "wait"]), st.none(), st.none()),
    ),
    max_size=6,
)


@given(steps)
def test_nobody_is_parked_for_a_job_that_is_not_there(steps: list[tuple[str, Any, bool]]) -> None:
    harness = EngineHarness()
    leased = None

    for step, jobs, durable in steps:
        before = dict(harness.engine.state.jobs)
        if step == "batch":
            with suppress(CommandError):
                harness.push_many(QUEUE, [{"data": {}, **entry, "durable": durable} for entry in jobs])
        elif step == "wait":
            harness.advance(500)
        elif (leased := harness.pull()) is not None:
            harness.ack(*leased) if step == "ack" else harness.fail(*leased, unrecoverable=True)

        known = harness.engine.state.jobs
        for new in (job for job in known.values() if before.get(job.record.id) is not job):
            assert (new.missing or set()) <= known.keys(), f"{new.record.id} waits for ever"
