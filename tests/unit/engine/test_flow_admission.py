"""PUSHF: flows that come as a whole or not at all.

Source: newer clients, "PUSHF".
"""

from typing import Any

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness, completed, needs_facts
from tests.flows import CONTINUE, FAIL_PARENT, IGNORE, REMOVE, failed_values, flow_job, ignored_values, tree
from tests.stored_engine import Stored


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def push_flow(harness: EngineHarness, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    return harness.ask("PUSHF", jobs=list(jobs))["data"]["jobs"]


def taken(job_id: str) -> str:
    return f"Flow job {job_id} already exists"


# a flow and its life


def test_leaves_are_queued_and_who_depends_on_others_is_parked(harness):
    push_flow(harness, *tree("dad", "a", "b"))

    assert [harness.state(job_id) for job_id in ("a", "b", "dad")] == ["waiting", "waiting", "waiting-children"]
    assert [harness.timeline(job_id) for job_id in ("a", "dad")] == [["waiting"], ["waiting-children"]]
    assert (harness.counts("c"), harness.counts("p")) == ({"waiting": 2}, {"waiting-children": 1})


def test_the_parent_runs_when_its_children_are_done_and_reads_their_results(harness):
    push_flow(harness, *tree("dad", "a", "b"))

    harness.ack(*harness.pull("c"), result={"x": 1})
    assert harness.pull("p") is None
    harness.ack(*harness.pull("c"), result="r")

    assert harness.pull_id("p") == "dad"
    values = harness.ask("GetChildrenValues", id="dad")["data"]["values"]
    assert values == {"c:a": {"x": 1}, "c:b": "r"}


def test_steps_of_a_chain_run_one_after_the_other(harness):
    jobs = [flow_job("s1", "q"), flow_job("s2", "q", dependsOn=["s1"]), flow_job("s3", "q", dependsOn=["s2"])]
    push_flow(harness, *reversed(jobs))

    for step in ("s1", "s2", "s3"):
        pulled = harness.pull()
        assert pulled is not None
        assert pulled[0] == step
        assert harness.pull() is None
        harness.ack(*pulled)


def test_jobs_of_one_queue_stand_in_the_order_of_the_request(harness):
    push_flow(harness, *(flow_job(job_id, "q") for job_id in ("z", "a", "m")))

    assert harness.pull_all() == ["z", "a", "m"]


def test_the_queues_of_a_flow_become_known(harness):
    push_flow(harness, flow_job("a", "one"), flow_job("b", "two", dependsOn=["a"]))

    assert harness.ask("ListQueues")["queues"] == ["one", "two"]


def test_pulls_are_woken_for_those_who_can_run(harness):
    push_flow(harness, *tree("dad", "a", "b"), flow_job("later", "c", delay=1_000))

    assert harness.wakes() == {"c": 2}


def test_an_empty_flow_is_fine(harness):
    assert push_flow(harness) == []
    assert not harness.engine.state.changes


@pytest.mark.parametrize(
    ("policy", "state", "failed", "ignored"),
    [
        (FAIL_PARENT, "failed", {}, {}),
        (CONTINUE, "waiting", {"c:a": "boom"}, {}),
        (IGNORE, "waiting", {}, {"c:a": "boom"}),
        (REMOVE, "waiting", {}, {}),
    ],
)
def test_a_failed_child_does_to_its_parent_what_its_policy_says(harness, policy, state, failed, ignored):
    child, parent = tree("dad", "a")
    child["input"] |= {policy: True, "maxAttempts": 1}
    push_flow(harness, child, parent)

    harness.fail(*harness.pull("c"), error="boom")

    assert harness.state("dad") == state
    assert (failed_values(harness), ignored_values(harness)) == (failed, ignored)


# what the reply shows


def test_the_reply_holds_the_jobs_in_the_order_of_the_request_without_their_states(harness):
    jobs = push_flow(harness, *reversed(tree("dad", "a")))

    assert [job["id"] for job in jobs] == ["dad", "a"]
    assert all("state" not in job for job in jobs)
    assert [(job["queue"], job["parentId"], job["dependsOn"], job["childrenIds"]) for job in jobs] == [
        ("p", None, ["a"], ["a"]),
        ("c", "dad", [], []),
    ]
    assert [job["data"] for job in jobs] == [{"__childrenIds": ["a"]}, {"__parentId": "dad", "__parentQueue": "p"}]


@pytest.mark.parametrize("name", ["send", "default"])
def test_a_named_job_shows_its_name_beside_its_data(harness, name):
    [job] = push_flow(harness, flow_job("a", "q", name=name, data={"to": "x"}))

    assert (job["name"], job["data"]) == (name, {"to": "x"})
    assert harness.job("a").record.name == name


@pytest.mark.parametrize(
    ("data", "name", "shown"),
    [
        ({"name": "zz", "k": 1}, "zz", {"k": 1}),
        ({"name": 5, "k": 1}, "default", {"name": 5, "k": 1}),
        ({"k": 1}, "default", {"k": 1}),
        ({}, "default", {}),
    ],
)
def test_an_unnamed_job_is_called_by_its_data_or_default(harness, data, name, shown):
    [job] = push_flow(harness, {"id": "a", "queue": "q", "input": {"data": data}})

    assert (job["name"], job["data"]) == (name, shown)
    assert harness.job("a").record.name is None
    assert harness.shown("a")["data"] == data


@pytest.mark.parametrize(("fields", "custom_id"), [({}, None), ({"customId": "a"}, "a")])
def test_only_a_job_that_asks_for_it_is_found_by_its_custom_id(harness, fields, custom_id):
    [job] = push_flow(harness, flow_job("a", "q", **fields))

    assert job["customId"] == custom_id
    if custom_id is None:
        assert harness.refusal("GetJobByCustomId", customId="a") == "Job not found"
    else:
        assert harness.send("GetJobByCustomId", customId="a").job.id == "a"


@pytest.mark.parametrize(
    ("option", "sent", "key", "shown"),
    [
        ("priority", 7, "priority", 7),
        ("delay", 5_000, "runAt", 1_800_000_005_000),
        ("maxAttempts", 9, "maxAttempts", 9),
        ("backoff", 70, "backoff", 70),
        ("timeout", 80, "timeout", 80),
        ("ttl", 90, "ttl", 90),
        ("lifo", True, "lifo", True),
        ("removeOnComplete", True, "removeOnComplete", True),
        ("removeOnFail", True, "removeOnFail", True),
        ("stallTimeout", 100, "stallTimeout", 100),
        ("stackTraceLimit", 2, "stackTraceLimit", 2),
        ("keepLogs", 3, "keepLogs", 3),
        ("sizeLimit", 4, "sizeLimit", 4),
        ("timestamp", 5, "createdAt", 5),
        ("groupId", "g", "groupId", "g"),
        ("tags", ["t", "u"], "tags", ["t", "u"]),
    ],
)
def test_an_option_of_a_flow_shows_in_its_job(harness, option, sent, key, shown):
    [job] = push_flow(harness, flow_job("a", "q", **{option: sent}))

    assert job[key] == shown
    assert harness.shown("a")[key] == shown


def test_the_object_form_of_backoff_is_kept(harness):
    [job] = push_flow(harness, flow_job("a", "q", backoff={"type": "exponential", "delay": 7, "maxDelay": 9}))

    assert (job["backoff"], job["backoffConfig"]) == (7, {"type": "exponential", "delay": 7, "maxDelay": 9})


@pytest.mark.parametrize("policy", [FAIL_PARENT, CONTINUE, IGNORE, REMOVE])
def test_a_policy_of_a_child_shows_in_its_job(harness, policy):
    child, parent = tree("dad", "a")
    child["input"][policy] = True

    assert push_flow(harness, child, parent)[0][policy] is True


# all or nothing


@pytest.mark.parametrize("durable", [True, False, None])
def test_nobody_sees_a_flow_before_its_commit_whatever_durable_says(harness, durable):
    fields = {} if durable is None else {"durable": durable}
    with harness.pending():
        harness.send("PUSHF", jobs=[*tree("dad", "a"), flow_job("free", "c", **fields)])

        assert harness.engine.state.waits_for_commit
        assert {harness.state(job_id) for job_id in ("a", "dad", "free")} == {"unknown"}
        assert (harness.pull("c"), harness.wakes(), harness.ask("ListQueues")["queues"]) == (None, {}, [])
        assert harness.commit().full
        assert harness.pull_all("c") == ["a", "free"]


def test_one_batch_of_rows_carries_the_flow(harness):
    with harness.pending():
        harness.send("PUSHF", jobs=tree("dad", "a", "b"))
        batch = harness.commit()

    assert sorted(row[1] for row in (*batch.full, *batch.plain)) == ["a", "b", "dad"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_flow_whose_commit_fails_leaves_nothing(harness, order):
    with harness.pending():
        harness.send("PUSHF", jobs=tree("dad", "a", "b")[::order])
        harness.reject()
    state = harness.engine.state

    assert (state.jobs, state.dependents) == ({}, {})
    batch = harness.commit()
    assert (batch.full, batch.plain, batch.extras) == ([], [], [])
    assert {harness.state(job_id) for job_id in ("a", "b", "dad")} == {"unknown"}
    assert len(push_flow(harness, *tree("dad", "a", "b"))) == 3


@pytest.mark.parametrize(
    "flawed",
    [flow_job("a", "q"), flow_job("b", "q", dependsOn=["nobody"]), flow_job("old", "q")],
    ids=["twice", "alone", "taken"],
)
def test_one_bad_job_refuses_the_flow(harness, flawed):
    harness.push(jobId="old")
    before = harness.counts()
    with pytest.raises(Exception, match=r"duplicate|not found|exists"):
        harness.send("PUSHF", jobs=[flow_job("a", "q"), flawed])

    assert harness.counts() == before
    assert harness.state("a") == "unknown"
    assert not harness.engine.state.changes.staged


def test_flows_of_one_flush_are_let_in_side_by_side(harness):
    with harness.pending():
        harness.send("PUSHF", jobs=tree("dad", "a"))
        harness.send("PUSHF", jobs=tree("mum", "b"))
        harness.commit()

    assert harness.pull_all("c") == ["a", "b"]


# ids that exist


def test_a_live_id_is_taken_in_every_state(harness):
    harness.push(jobId="ready")
    harness.push(jobId="later", delay=5_000)
    harness.push("other", jobId="active")
    harness.pull("other")
    harness.push(jobId="parked", dependsOn=["ready"])
    harness.push("bad", jobId="failed", maxAttempts=1)
    harness.fail(*harness.pull("bad"), error="e")

    for job_id in ("ready", "later", "active", "parked", "failed"):
        assert harness.refusal("PUSHF", jobs=[flow_job("new", "q"), flow_job(job_id, "q")]) == taken(job_id)


@pytest.mark.parametrize("removed", [False, True])
def test_a_completed_id_is_taken_also_when_its_job_was_removed(harness, removed):
    harness.push(jobId="old", removeOnComplete=removed)
    harness.ack(*harness.pull())

    assert harness.refusal("PUSHF", jobs=[flow_job("old", "q")]) == taken("old")


def test_the_first_id_that_is_taken_is_named(harness):
    harness.push(jobId="x")
    harness.push(jobId="y")

    assert harness.refusal("PUSHF", jobs=[flow_job(i, "q") for i in ("n", "y", "x")]) == taken("y")


def test_an_id_that_went_without_completing_is_free(harness):
    harness.push(jobId="old")
    harness.send("AddLog", id="old", message="of the old one")
    harness.send("Cancel", id="old")

    push_flow(harness, flow_job("old", "q"))

    assert harness.pull_all() == ["old"]
    assert harness.ask("GetLogs", id="old")["data"]["logs"] == []


def test_who_waits_for_an_id_that_went_waits_for_the_one_of_the_flow(harness):
    harness.push(jobId="old")
    harness.push("p", jobId="waiting", dependsOn=["old"])
    harness.send("Cancel", id="old")
    push_flow(harness, flow_job("old", "q"))

    assert harness.state("waiting") == "waiting-children"
    harness.ack(*harness.pull())
    assert harness.state("waiting") == "waiting"


def test_ids_beyond_memory_are_looked_up_all_at_once():
    harness = EngineHarness()
    harness.engine.state.history.has_evicted = True
    jobs = [flow_job("a", "q"), flow_job("b", "q")]

    assert needs_facts(harness, "PUSHF", jobs=jobs) == ["a", "b"]
    harness.engine.find_facts({"a": None, "b": completed("b")})
    assert harness.refusal("PUSHF", jobs=jobs) == taken("b")
    harness.engine.clear_facts()
    harness.engine.find_facts({"a": None, "b": None})
    assert len(harness.send("PUSHF", jobs=jobs).data["jobs"]) == 2


@pytest.mark.parametrize("change", ["a durable push", "a flow", "a cancellation", "an ACK"])
def test_an_id_with_a_change_under_way_has_to_be_waited_for(harness, change):
    token = None
    if change in ("a cancellation", "an ACK"):
        harness.push(jobId="x")
    if change == "an ACK":
        _, token = harness.pull()
    with harness.pending():
        if change == "a durable push":
            harness.push(jobId="x", durable=True)
        elif change == "a flow":
            harness.send("PUSHF", jobs=[flow_job("x", "q")])
        elif change == "an ACK":
            harness.ack("x", token)
        else:
            harness.send("Cancel", id="x")

        with pytest.raises(PendingChangeError):
            harness.send("PUSHF", jobs=[flow_job("n", "q"), flow_job("x", "q")])
        assert harness.state("n") == "unknown"


def test_a_completed_id_that_is_being_cleaned_has_to_be_waited_for():
    harness = Stored()
    harness.run("old")
    with harness.pending():
        harness.engine.state.removing.add("old")
        with pytest.raises(PendingChangeError):
            harness.send("PUSHF", jobs=[flow_job("old", "q")])
        harness.engine.state.removing.clear()


def test_a_push_meets_the_id_of_a_flow_on_its_way(harness):
    with harness.pending():
        harness.send("PUSHF", jobs=[flow_job("x", "q")])
        with pytest.raises(PendingChangeError):
            harness.push(jobId="x")
        harness.commit()

        assert harness.push(jobId="x") == "x"
    assert harness.counts() == {"waiting": 1}


# what is told


def test_each_job_is_told_in_order_at_the_commit(harness):
    harness.engine.listen(True)
    with harness.pending():
        harness.send("PUSHF", jobs=tree("dad", "a", "b"))
        assert harness.engine.state.events == []
        harness.commit()

    told = [
        (getattr(e, "event_type", None) or e.event, getattr(e, "job_id", None)) for e in harness.engine.state.events
    ]
    assert [pair for pair in told if pair[0] == "pushed"] == [("pushed", "a"), ("pushed", "b"), ("pushed", "dad")]


# restarts


def test_a_flow_survives_a_restart_where_it_was():
    harness = Stored()
    push_flow(harness, *tree("dad", "a", "b"))
    harness.ack(*harness.pull("c"), result="r")
    harness.commit()

    harness.restart()

    assert [harness.ask_file("GetState", id=i).state for i in ("a", "b", "dad")] == [
        "completed",
        "waiting",
        "waiting-children",
    ]
    harness.ack(*harness.pull("c"))
    assert harness.pull_id("p") == "dad"


def test_names_survive_a_restart():
    harness = Stored()
    push_flow(harness, *tree("dad", "a"), flow_job("plain", "q"), {"id": "none", "queue": "q", "input": {"data": {}}})

    harness.restart()

    assert [harness.job(job_id).record.name for job_id in ("a", "dad", "plain", "none")] == ["n", "n", "n", None]


def test_ids_in_the_file_are_taken_after_a_restart():
    harness = Stored()
    harness.run("done")
    harness.push(jobId="live")
    harness.commit()
    harness.restart()

    for job_id in ("done", "live"):
        with pytest.raises(Exception, match=taken(job_id)):
            harness.ask_file("PUSHF", jobs=[flow_job(job_id, "q")])
        harness.engine.clear_facts()


# named groups


def test_a_flow_that_does_not_fit_into_its_group_is_refused_whole(harness):
    grouped = {"name": "n", "groupId": "g", "groupMaxSize": 2}
    full = "Group g has reached its maximum size of 2"
    three = [flow_job(job_id, "q", **grouped) for job_id in ("a", "b", "c")]

    assert harness.refusal("PUSHF", jobs=three) == full
    assert harness.pull() is None

    push_flow(harness, *three[:2], flow_job("d", "q", dependsOn=["a"], **grouped | {"groupMaxSize": 3}))
    assert harness.refusal("PUSHF", jobs=three[2:]) == full
