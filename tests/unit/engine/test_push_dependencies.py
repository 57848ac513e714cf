"""Dependencies of pushes: which ids there are, who is parked and released, and which ends the file must remember."""

import pytest

from tests.engine_harness import EngineHarness, completed, needs_facts


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


# dependencies


def done(harness):
    harness.push(jobId="dep")
    harness.ack(*harness.pull())


def done_and_removed(harness):
    harness.push(jobId="dep", removeOnComplete=True)
    harness.ack(*harness.pull())


def dependency(**options):
    def place(harness):
        harness.push("deps", jobId="dep", **options)

    return place


def dependency_running(harness):
    harness.push("deps", jobId="dep")
    harness.pull("deps")


def dependency_parked(harness):
    harness.push("deps", jobId="first")
    harness.push("deps", jobId="dep", dependsOn=["first"])


def dependency_dead(harness):
    harness.push("deps", jobId="dep", maxAttempts=1)
    harness.fail(*harness.pull("deps"))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("place", "state"),
    [
        (done, "waiting"),
        (done_and_removed, "waiting"),
        (dependency(), "waiting-children"),
        (dependency(priority=4), "waiting-children"),
        (dependency(delay=60_000), "waiting-children"),
        (dependency_running, "waiting-children"),
        (dependency_parked, "waiting-children"),
        (dependency_dead, "waiting-children"),
    ],
)
def test_a_job_with_a_dependency_in_each_state(harness, place, state, durable):
    place(harness)

    job_id = harness.push(dependsOn=["dep"], durable=durable)

    assert harness.state(job_id) == state
    assert harness.timeline(job_id) == [state]
    assert harness.shown(job_id)["dependsOn"] == ["dep"]
    assert (harness.pull() is None) == (state == "waiting-children")


def gone_cancelled(harness):
    harness.push(jobId="dep")
    harness.send("Cancel", id="dep")


def gone_expired(harness):
    harness.push(jobId="dep", ttl=1)
    harness.clock.advance(2)
    harness.pull()


@pytest.mark.parametrize("place", [gone_cancelled, gone_expired, lambda _: None])
def test_an_unknown_dependency_refuses(harness, place):
    place(harness)

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["dep"]) == "Dependency job not found: dep"
    assert harness.counts() == {}


def test_the_first_unknown_dependency_is_named(harness):
    harness.push(jobId="a")

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["a", "x", "y"]) == "Dependency job not found: x"


def test_a_push_cannot_depend_on_itself(harness):
    assert harness.refusal("PUSH", queue="q", data=1, jobId="me", dependsOn=["me"]) == "Dependency job not found: me"


def test_a_repeated_push_that_names_itself_is_answered_by_the_live_job(harness):
    harness.push(jobId="c")

    assert harness.push(jobId="c", dependsOn=["c"]) == "c"


def test_the_last_dependency_releases(harness):
    for name in "ab":
        harness.push("deps", jobId=name)
    job_id = harness.push(dependsOn=["a", "b", "a"])
    pulled = [harness.pull("deps"), harness.pull("deps")]
    harness.wakes()

    harness.ack(*pulled[0])
    assert harness.state(job_id) == "waiting-children"
    assert "q" not in harness.wakes()
    harness.ack(*pulled[1])

    assert harness.state(job_id) == "waiting"
    assert harness.timeline(job_id) == ["waiting-children", "waiting"]
    assert harness.shown(job_id)["dependsOn"] == ["a", "b"]
    assert harness.wakes()["q"] == 1
    assert harness.pull_id() == job_id


@pytest.mark.parametrize(
    ("options", "state"), [({"delay": 90_000}, "delayed"), ({"priority": 2}, "prioritized"), ({}, "waiting")]
)
def test_a_released_job_goes_where_its_options_say(harness, options, state):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"], **options)
    assert harness.timeline(job_id) == ["waiting-children"]

    harness.ack(*harness.pull("deps"))

    assert harness.state(job_id) == state
    assert harness.timeline(job_id) == ["waiting-children", state]


def test_dependents_are_released_in_push_order(harness):
    harness.push("deps", jobId="dep")
    for name in ("z", "a", "m"):
        harness.push(jobId=name, dependsOn=["dep"])

    harness.ack(*harness.pull("deps"))

    assert harness.pull_all() == ["z", "a", "m"]


def test_a_failed_dependency_releases_nobody(harness):
    harness.push("deps", jobId="dep", maxAttempts=1)
    job_id = harness.push(dependsOn=["dep"])
    harness.fail(*harness.pull("deps"))

    assert harness.state(job_id) == "waiting-children"


def test_a_cancelled_dependency_releases_nobody(harness):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"])
    harness.send("Cancel", id="dep")

    assert harness.state(job_id) == "waiting-children"  # SD-17


def test_a_dependency_that_comes_back_under_its_id_releases(harness):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"])
    harness.send("Cancel", id="dep")
    harness.push("deps", jobId="dep")
    harness.ack(*harness.pull("deps"))

    assert harness.state(job_id) == "waiting"


@pytest.mark.parametrize("durable", [False, True])
def test_a_dependency_that_only_the_file_knows_is_looked_up(harness, durable):
    harness.engine.state.history.has_evicted = True
    fields = {"queue": "q", "data": 1, "dependsOn": ["old"], "durable": durable}
    assert needs_facts(harness, "PUSH", **fields) == ["old"]

    harness.engine.find_facts({"old": completed("old")})
    with harness.pending():
        job_id = harness.push(**{k: v for k, v in fields.items() if k != "queue"})
        harness.engine.clear_facts()
        harness.commit()

    assert harness.state(job_id) == "waiting"
    assert harness.pull_id() == job_id


def test_a_dependency_that_not_even_the_file_knows_refuses(harness):
    harness.engine.state.history.has_evicted = True
    harness.engine.find_facts({"old": None})

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["old"]) == "Dependency job not found: old"


def test_a_dead_letter_depends_on_nothing_any_more(harness):
    """Its id stays in no list: the dependency may live and complete again after the entry is gone."""
    harness.push("deps", jobId="dep")
    harness.push(jobId="c", dependsOn=["dep"], maxAttempts=1)
    harness.ack(*harness.pull("deps"))
    harness.fail(*harness.pull())
    harness.push(jobId="c", durable=True)
    harness.ack(*harness.pull())

    harness.push("deps", jobId="dep")
    harness.ack(*harness.pull("deps"))

    assert harness.state("dep") == "completed"
    assert harness.engine.state.dependents == {}


@pytest.mark.parametrize("removed", [False, True])
def test_a_dependency_that_completes_while_the_dependent_is_being_committed(harness, removed):
    harness.push("deps", jobId="dep", removeOnComplete=removed)
    pulled = harness.pull("deps")
    with harness.pending():
        job_id = harness.push(dependsOn=["dep"], durable=True)
        harness.ack(*pulled)
        harness.commit()

    assert harness.state(job_id) == "waiting"


def test_a_dependency_that_completes_before_the_dependent_is_committed(harness):
    harness.push("deps", jobId="dep")
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        flight = harness.take()
        job_id = harness.push(dependsOn=["dep"], durable=True)
        harness.land(flight)
        assert harness.state(job_id) == "unknown"
        harness.commit()

    assert harness.state(job_id) == "waiting"


# ids that the file must remember for others


def test_a_removed_completion_is_remembered_while_a_job_names_it(harness):
    harness.push("deps", jobId="dep", removeOnComplete=True)
    job_id = harness.push(dependsOn=["dep"])
    harness.ack(*harness.pull("deps"))
    assert harness.batches[-1].finished == ["dep"]
    assert harness.batches[-1].deleted == []

    harness.ack(*harness.pull())

    assert harness.state(job_id) == "completed"
    assert harness.commit().finished_gone == ["dep"]


def test_a_removed_completion_is_remembered_for_one_who_comes_later(harness):
    done_and_removed(harness)
    harness.push(dependsOn=["dep"])

    assert harness.commit().finished == ["dep"]


def test_a_removed_completion_that_nobody_names_is_not_remembered(harness):
    done_and_removed(harness)

    assert harness.batches[-1].finished == []


def test_a_completion_that_could_not_be_committed_is_not_remembered(harness):
    """Else a restart would release the dependents of a job that never completed."""
    harness.push("deps", jobId="dep", removeOnComplete=True)
    job_id = harness.push(dependsOn=["dep"])
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()

    assert harness.commit().finished == []
    assert harness.state(job_id) == "waiting-children"
    harness.ack(*pulled)
    assert harness.batches[-1].finished == ["dep"]
    assert harness.state(job_id) == "waiting"


def test_a_dependent_pushed_while_the_completion_is_being_committed_is_safe(harness):
    """The flush that deletes the dependency's row is the one that inserts its dependent."""
    harness.push("deps", jobId="dep", removeOnComplete=True)
    harness.commit()
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        job_id = harness.push(dependsOn=["dep"])
        batch = harness.commit()

    assert (batch.deleted, batch.finished) == (["dep"], ["dep"])
    assert harness.state(job_id) == "waiting"


def test_a_memory_that_is_given_up_and_needed_again_in_one_window_stays(harness):
    done_and_removed(harness)
    first = harness.push(dependsOn=["dep"])
    harness.commit()
    with harness.pending():
        harness.send("Cancel", id=first)
        harness.land(harness.take())
        harness.push(dependsOn=["dep"])
        batch = harness.commit()

    assert (batch.finished, batch.finished_gone) != (["dep"], ["dep"])


def test_it_stays_also_when_the_first_flush_fails(harness):
    done_and_removed(harness)
    first = harness.push(dependsOn=["dep"])
    harness.commit()
    harness.send("Cancel", id=first)
    flight = harness.take()
    assert flight.batch.finished_gone == ["dep"]
    harness.push(dependsOn=["dep"])
    harness.crash(flight)

    assert "dep" not in harness.commit().finished_gone
