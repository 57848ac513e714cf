"""Every way out of a state releases everything the job held there: `tests.ways_out` lists the ways, and here is a probe
for each thing held.

A probe shows by behaviour that a thing is free or, where the job lives on, kept: somebody else gets the slot, the
group's turn, the key, the id.

Source: commands, "Job management", "Groups", "Dead letter queue", "Logs"; protocol, "Finishing and keeping jobs".
"""

from tests.engine_harness import EngineHarness
from tests.ways_out import ALIVE, ANYWHERE, MINE, Way, cases, held, pull


@cases(*ANYWHERE)
def test_the_way_leads_where_the_table_says(way: Way) -> None:
    harness, token = held(way)

    way.leave(harness, token)

    assert harness.state(MINE) == way.after


@cases(*ANYWHERE)
def test_a_way_that_could_not_be_stored_has_not_been_taken_and_is_still_open(way: Way) -> None:
    """What nobody asked for has happened all the same: it is written with the next flush that commits."""
    harness, token = held(way, uniqueKey="k", groupId="g")
    before = harness.state(MINE)

    with harness.pending():
        way.leave(harness, token)
        shown = harness.state(MINE)
        harness.reject()

    assert harness.state(MINE) == shown
    if shown == before:
        way.leave(harness, token)
    assert harness.state(MINE) == way.after


# what only a running job holds


@cases("active")
def test_the_slot_is_free(way: Way) -> None:
    harness, token = held(way, limit=1)
    harness.push()
    assert pull(harness) is None

    way.leave(harness, token)

    if way.empties:  # the other job and the limit have gone as well
        harness.send("SetConcurrency", queue="q", limit=1)
        harness.push_many("q", [{}, {}])
    assert pull(harness) is not None
    assert pull(harness) is None, "one slot, one job"


@cases("active")
def test_a_pull_that_waits_for_the_slot_is_woken(way: Way) -> None:
    harness, token = held(way, limit=1)
    harness.push()
    harness.wakes()

    way.leave(harness, token)

    assert harness.wakes().get("q", 0) >= 1


@cases("active")
def test_the_lease_is_over(way: Way) -> None:
    harness, token = held(way)

    way.leave(harness, token)
    again = pull(harness)

    assert again == (MINE if way.after == "waiting" else None)
    assert harness.refusal("JobHeartbeat", id=MINE, token=token) == "Job not found or not active (or invalid token)"
    assert harness.refusal("ExtendLock", id=MINE, token=token, duration=1) == "Lock not found or invalid token"
    if again is None:
        harness.fail(MINE, token)  # confirmed, and without effect
    else:
        assert harness.refusal("FAIL", id=MINE, token=token) == f"Invalid or expired lock token for job {MINE}"
    assert harness.state(MINE) == ("active" if again else way.after)


@cases("active")
def test_the_connection_owns_it_no_more(way: Way) -> None:
    harness, token = held(way)
    way.leave(harness, token)
    pull(harness)
    before = harness.state(MINE)
    attempts = harness.shown(MINE)["attempts"] if before != "unknown" else None

    harness.disconnect(1)

    assert harness.state(MINE) == before
    assert attempts is None or harness.shown(MINE)["attempts"] == attempts
    assert 1 not in harness.engine.state.held


# what a queued or running job holds


@cases("waiting", "active", "taken")
def test_the_next_of_its_group_has_its_turn(way: Way) -> None:
    harness, token = held(way, groupId="g")
    with_next(harness, unless=way.empties)
    if way.place == "active":
        assert pull(harness) is None

    way.leave(harness, token)

    with_next(harness, unless=not way.empties)
    turns = [pull(harness)]
    if turns == [MINE]:  # it went back to the head of its group
        harness.send("Discard", id=MINE)
        turns.append(pull(harness))
    assert harness.state("next") == "active"
    assert turns == ["next"] or way.goes_on or way.name == "end of ttl", "the pull that met the end of ttl got it"


@cases("aside")
def test_the_next_of_its_group_has_its_turn_after_the_one_that_runs(way: Way) -> None:
    harness, token = held(way)
    with_next(harness, unless=way.empties)
    assert pull(harness) is None

    way.leave(harness, token)

    with_next(harness, unless=not way.empties)
    if way.name != "Obliterate":
        assert pull(harness) is None, "the runner still has its turn"
        harness.send("Discard", id="runner")
    assert pull(harness) == "next"


@cases("aside")
def test_the_next_of_its_group_has_its_turn_after_one_that_was_called_up_and_left(way: Way) -> None:
    """The runner's end makes one member visible again, not all of them: its leaving has to call up the next."""
    harness, token = held(way)
    with_next(harness, unless=way.empties)
    assert pull(harness) is None
    harness.send("Discard", id="runner")

    way.leave(harness, token)

    with_next(harness, unless=not way.empties)
    assert pull(harness) == "next"


@cases("waiting", "active", "taken")
def test_its_named_group_has_room_again_and_the_next_has_its_turn(way: Way) -> None:
    one = {"concurrency": 1}
    harness, token = held(way, groupId="g", name="n")
    harness.push(groupId="g", name="n", jobId="next")
    if way.place == "active":
        assert harness.pull_id(group=one) is None

    way.leave(harness, token)

    if way.empties:
        harness.push(groupId="g", name="n", jobId="next")
    pulled = harness.pull_id(group=one)
    assert pulled in (MINE, "next") or harness.state("next") == "active", "the pull that met the end of ttl got it"
    running = harness.ask("GetGroupActiveCount", queue="q", groupId="g")["data"]["count"]
    assert running == 1, "one that has left counts no more"


def with_next(harness: EngineHarness, *, unless: bool) -> None:
    """Push another member of the group. Where the way takes it along, it has to come afterwards."""
    if not unless:
        harness.push(groupId="g", jobId="next")


# what a job holds wherever it is


@cases(*ANYWHERE)
def test_the_unique_key_is_free_or_stays_with_a_job_that_goes_on(way: Way) -> None:
    harness, token = held(way, uniqueKey="k")

    way.leave(harness, token)
    found = harness.push(uniqueKey="k")

    assert (found == MINE) is way.keeps_key


@cases(*ANYWHERE)
def test_the_custom_id_is_free_or_stays_with_a_job_that_goes_on(way: Way) -> None:
    harness, token = held(way, data={"life": 1})

    way.leave(harness, token)
    assert harness.push(jobId=MINE, data={"life": 2}) == MINE

    assert harness.shown(MINE)["data"] == {"life": 1 if way.goes_on else 2}
    assert harness.state(MINE) == (way.after if way.goes_on else "waiting")


@cases(*ALIVE, "dead")
def test_dependents_run_after_a_completion_only(way: Way) -> None:
    harness, token = held(way)
    harness.push("heirs", jobId="heir", dependsOn=[MINE])

    way.leave(harness, token)

    assert harness.state("heir") == ("waiting" if way.completes else "waiting-children")


@cases("done")
def test_dependents_of_what_has_completed_run_whatever_becomes_of_it(way: Way) -> None:
    harness, token = held(way)
    harness.push("heirs", jobId="heir", dependsOn=[MINE])
    harness.push("heirs", jobId="waiting heir", dependsOn=[MINE, harness.push("elsewhere", jobId="other")])

    way.leave(harness, token)

    assert harness.state("heir") == "waiting"
    harness.send("PULL", 2, queue="elsewhere")
    harness.ack("other")
    assert harness.state("waiting heir") == "waiting"


@cases("waiting", "aside", "delayed", "active", "taken", "dead", "done")
def test_the_jobs_it_depended_on_are_remembered_only_while_it_goes_on(way: Way) -> None:
    """Seen in the index: the file keeps a row for each id there, so one left behind stays for ever.

    A dead letter waits for nothing, and its next life has no need to."""
    harness, token = held(way, before_pushing=complete_done, dependsOn=["done"])

    way.leave(harness, token)

    assert harness.engine.state.dependents == ({"done": {MINE}} if way.goes_on and way.place != "dead" else {})


def complete_done(harness: EngineHarness) -> None:
    """Have a job ``done`` that has completed."""
    harness.push("elsewhere", jobId="done")
    harness.send("PULL", 2, queue="elsewhere")
    harness.ack("done")


@cases(*ANYWHERE)
def test_nothing_stays_behind_in_the_indexes(way: Way) -> None:
    """What no client can see, but memory would show after a million jobs (M1)."""
    harness, token = held(way, uniqueKey="k", groupId="g")

    way.leave(harness, token)

    state = harness.engine.state
    queue = state.queue("q")
    if not way.goes_on:
        assert (queue.keys, {name for name in state.dependents if name != MINE}) == ({}, set())
        assert set(queue.groups) <= ({"g"} if way.place == "aside" else set())
        assert set(state.jobs) - {MINE, "runner"} <= set(queue.letters) | elsewhere(harness)
    assert set(queue.letters) & {MINE} == ({MINE} if way.after == "failed" else set())
    assert state.held.get(1, {}) == {}


def elsewhere(harness: EngineHarness) -> set[str]:
    """Ids of jobs of other queues."""
    return {job_id for job_id, job in harness.engine.state.jobs.items() if job.record.queue != "q"}


# what others hold of a job


@cases(*ALIVE)
def test_whoever_waits_for_its_end_is_told(way: Way) -> None:
    harness, token = held(way)
    state = harness.engine.state
    assert harness.send("WaitJob", id=MINE) is None
    state.awaited.add(MINE)

    way.leave(harness, token)

    assert (MINE in state.awaited) is way.goes_on
    assert [(job_id, answer.completed) for job_id, answer in state.ended.items()] == (
        [] if way.goes_on else [(MINE, way.completes)]
    )


FAILS_PARENT = {"parentId": "dad", "failParentOnFailure": True}


@cases(*ALIVE)
def test_its_parent_runs_fails_with_it_or_waits(way: Way) -> None:
    """A removal is no failure: who removes a child says with RemoveChildDependency whether its parent goes on."""
    harness, token = held(way, **FAILS_PARENT)
    harness.push("parents", jobId="dad", dependsOn=[MINE], childrenIds=[MINE])

    way.leave(harness, token)

    after = "waiting" if way.completes else "failed" if way.fails else "waiting-children"
    assert harness.state("dad") == after
    if after == "waiting-children":
        assert harness.send("RemoveChildDependency", id=MINE).removed is True
        assert harness.state("dad") == "waiting"


@cases("dead")
def test_a_failure_that_its_parent_knows_does_nothing_more(way: Way) -> None:
    harness, token = held(way, before_pushing=push_dad, **FAILS_PARENT)
    assert harness.state("dad") == "failed"
    harness.send("RetryDlq", queue="parents")

    way.leave(harness, token)

    assert harness.state("dad") == "waiting"
    assert harness.pull_id("parents") == "dad"


def push_dad(harness: EngineHarness) -> None:
    """Have a parent of a job yet to come."""
    harness.push("parents", jobId="dad", childrenIds=[MINE])


@cases(*ANYWHERE)
def test_its_value_is_there_while_it_is_completed(way: Way) -> None:
    harness, token = held(way)
    harness.push("parents", jobId="dad", childrenIds=[MINE])

    way.leave(harness, token)

    values = harness.ask("GetChildrenValues", id="dad")["data"]["values"]
    name = "q:mine" if way.after == "completed" else MINE  # of one that was removed only the id is known
    assert values == ({name: None} if way.completes else {})


# what clients see of a job


@cases(*ANYWHERE)
def test_its_log_goes_only_where_everything_of_it_goes(way: Way) -> None:
    harness, token = held(way)
    harness.send("AddLog", id=MINE, message="here")

    way.leave(harness, token)

    assert harness.ask("GetLogs", id=MINE)["data"]["count"] == (0 if way.takes_log else 1)


@cases(*ANYWHERE)
def test_lists_show_it_once_where_it_is_and_priorities_count_it_while_it_is_queued(way: Way) -> None:
    """Those of completed jobs come from the file."""
    harness, token = held(way, priority=7)

    way.leave(harness, token)

    shown = harness.state(MINE)
    assert [state for state in LISTED if MINE in listed(harness, state)] == ([shown] if shown in LISTED else [])
    is_queued = shown in ("prioritized", "delayed")
    assert harness.send("GetCountsPerPriority", queue="q").counts.get("7", 0) == int(is_queued)
    assert harness.counts().get(shown, 0) == int(shown != "unknown")


LISTED = ("waiting", "prioritized", "delayed", "active", "failed", "waiting-children")


def listed(harness: EngineHarness, state: str) -> list[str]:
    return [job["id"] for job in harness.ask("GetJobs", queue="q", state=state)["jobs"]]
