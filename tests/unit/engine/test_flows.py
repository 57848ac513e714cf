"""Values of children, and letting go of them."""

import pytest

from bunqueue_trio.engine import flows
from bunqueue_trio.engine.history import History, KeptResults
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness, completed, needs_facts, raw
from tests.flows import CONTINUE, IGNORE, fail_child, push_family


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def values(harness, job_id="dad"):
    return harness.ask("GetChildrenValues", id=job_id)["data"]["values"]


def finish(harness, queue, **fields):
    harness.ack(*harness.pull(queue), **fields)


# values


@pytest.mark.parametrize("result", [{"v": 1}, [1, "x"], 0, False, "", [], None])
def test_values_of_completed_children_of_any_kind(harness, result):
    harness.push("c", jobId="kid")
    harness.push("p", jobId="dad", childrenIds=["kid"])
    finish(harness, "c", result=result)

    assert values(harness) == {"c:kid": result}


def test_children_that_have_not_completed_are_left_out(harness):
    for name, options in (("w", {}), ("d", {"delay": 5_000}), ("f", {"maxAttempts": 1}), ("a", {}), ("x", {})):
        harness.push(name, jobId=name, **options)
    harness.fail(*harness.pull("f"))
    harness.pull("a")
    harness.send("Cancel", id="x")
    harness.push("p", jobId="dad", childrenIds=["w", "d", "f", "a", "x", "never"])

    assert values(harness) == {}


def test_a_completed_child_without_a_result_is_null(harness):
    harness.push("c", jobId="kid")
    harness.push("p", jobId="dad", childrenIds=["kid", "kid"])
    finish(harness, "c")

    assert values(harness) == {"c:kid": None}


def test_children_are_not_dependencies(harness):
    harness.push("c", jobId="kid")
    harness.push("p", jobId="dad", dependsOn=["kid"])
    finish(harness, "c", result=1)

    assert values(harness) == {}


@pytest.mark.parametrize("job_id", ["nobody", None, 7])
def test_an_unknown_job_has_no_values(harness, job_id):
    assert values(harness, job_id) == {}


@pytest.mark.parametrize("end", ["active", "failed", "completed"])
def test_the_values_outlive_the_parents_own_end(harness, end):
    harness.push("c", jobId="kid")
    finish(harness, "c", result=1)
    harness.push("p", jobId="dad", childrenIds=["kid"])
    pulled = harness.pull("p")
    if end == "failed":
        harness.fail(*pulled, unrecoverable=True)
    elif end == "completed":
        harness.ack(*pulled)

    assert values(harness) == {"c:kid": 1}


def test_a_job_that_waits_for_its_commit_has_no_values_yet(harness):
    with harness.pending():
        harness.push("p", jobId="dad", childrenIds=["kid"], durable=True)
        assert values(harness) == {}
        harness.commit()


def test_a_child_that_was_run_again_has_no_value_until_it_completes(harness):
    harness.push("c", jobId="kid")
    finish(harness, "c", result=1)
    harness.push("p", jobId="dad", childrenIds=["kid"])
    harness.push("c", jobId="kid")

    assert values(harness) == {}


def test_children_beyond_memory_are_looked_up_all_at_once():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("a", "b", "c"):
        harness.push("c", jobId=name)
        finish(harness, "c", result=name)
    harness.push("p", jobId="dad", childrenIds=["a", "b", "c", "x"])

    assert needs_facts(harness, "GetChildrenValues", id="dad") == ["a", "b", "x"]

    harness.engine.find_facts({"a": completed("a", "far"), "b": None, "x": None})
    assert values(harness) == {"far:a": "r", "c:c": "c"}


def test_a_parent_beyond_memory_is_looked_up_again_together_with_its_children():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("kid", "dad", "last"):
        harness.push("q", jobId=name)
        finish(harness, "q", result=name)
    parent = completed("dad", children_ids=("kid",))
    assert needs_facts(harness, "GetChildrenValues", id="dad") == ["dad"]
    harness.engine.find_facts({"dad": parent})
    asked = needs_facts(harness, "GetChildrenValues", id="dad")
    assert asked == ["dad", "kid"]
    harness.engine.clear_facts()

    harness.engine.find_facts({"dad": parent, "kid": completed("kid")})

    assert values(harness) == {"q:kid": "r"}


def test_only_so_many_children_are_looked_at(harness, monkeypatch):
    monkeypatch.setattr(flows, "VALUES_MAX", 2)
    for name in ("a", "b", "c"):
        harness.push("c", jobId=name)
        finish(harness, "c", result=name)
    harness.push("p", jobId="dad", childrenIds=["a", "b", "c"])

    assert values(harness) == {"c:a": "a", "c:b": "b"}


# results of removed children


def removed_child(harness, result={"v": 9}):  # noqa: B006  (never changed)
    harness.push("c", jobId="kid", removeOnComplete=True)
    harness.push("p", jobId="dad", dependsOn=["kid"], childrenIds=["kid"])
    finish(harness, "c", **({} if result is ... else {"result": result}))


def test_the_result_of_a_removed_child_is_kept_for_those_who_depend_on_it(harness):
    removed_child(harness)

    assert values(harness) == {"kid": {"v": 9}}
    assert harness.ask("GetResult", id="kid")["result"] == {"v": 9}
    assert harness.state("kid") == "unknown"


def test_a_removed_child_without_a_result_is_null(harness):
    removed_child(harness, ...)

    assert values(harness) == {"kid": None}


def test_the_result_of_a_removed_child_goes_with_its_last_dependent(harness):
    removed_child(harness)
    harness.push("p", jobId="mum", dependsOn=["kid"])
    finish(harness, "p")
    assert harness.ask("GetResult", id="kid")["result"] == {"v": 9}

    finish(harness, "p")

    assert "result" not in harness.ask("GetResult", id="kid")
    assert not list(harness.engine.state.kept_results)


def test_the_result_of_a_removed_child_ends_with_a_new_life_of_its_id(harness):
    removed_child(harness)

    harness.push("c", jobId="kid")

    assert "result" not in harness.ask("GetResult", id="kid")


def test_the_result_is_kept_for_one_who_came_to_depend_on_it_during_the_commit(harness):
    harness.push("c", jobId="kid", removeOnComplete=True)
    pulled = harness.pull("c")
    with harness.pending():
        harness.ack(*pulled, result=1)
        harness.push("p", jobId="dad", dependsOn=["kid"], childrenIds=["kid"])
        harness.commit()

    assert values(harness) == {"kid": 1}


def test_kept_results_are_bounded_and_the_newest_always_stays():
    kept = KeptResults(max_bytes=100)
    for name in ("a", "b", "c"):
        kept.keep(name, raw("x" * 60))
    assert list(kept) == ["c"]

    kept.keep("c", raw("y" * 300))
    assert list(kept) == ["c"]
    kept.forget("c")
    kept.forget("c")
    kept.keep("d", raw("x" * 60))
    kept.keep("e", raw("x" * 30))

    assert list(kept) == ["d", "e"]
    assert kept.get(["d"]) is None


# failures


def test_failures_are_read_by_id_and_kept_apart(harness):
    harness.push("c", jobId="k1", maxAttempts=1, parentId="dad", **{CONTINUE: True})
    harness.push("c", jobId="k2", maxAttempts=1, parentId="dad", **{IGNORE: True})
    harness.push("p", jobId="dad")
    for error in ("one", None):
        fail_child(harness, error)

    assert harness.ask("GetFailedChildrenValues", id="dad") == {"ok": True, "values": {"c:k1": "one"}}
    assert harness.ask("GetIgnoredChildrenFailures", id="dad") == {"ok": True, "values": {"c:k2": "unknown error"}}


@pytest.mark.parametrize("command", ["GetFailedChildrenValues", "GetIgnoredChildrenFailures"])
@pytest.mark.parametrize("job_id", ["nobody", None, 7, "kid"])
def test_whoever_has_no_failures_has_an_empty_map(harness, command, job_id):
    harness.push("c", jobId="kid")

    assert harness.ask(command, id=job_id) == {"ok": True, "values": {}}


# RemoveChildDependency


def let_go(harness, job_id="kid"):
    return harness.send("RemoveChildDependency", id=job_id).removed


def test_the_last_dependency_releases_the_parent(harness):
    push_family(harness, others=("s",))
    harness.send("UpdateParent", childId="s", parentId="dad")
    harness.wakes()

    assert let_go(harness)
    assert harness.shown("dad")["dependsOn"] == ["s"]
    assert harness.shown("dad")["childrenIds"] == ["kid", "s"]
    assert harness.state("dad") == "waiting-children"
    assert let_go(harness, "s")

    assert harness.state("dad") == "waiting"
    assert harness.wakes()["p"]
    assert harness.timeline("dad") == ["waiting-children", "waiting"]


def test_a_released_parent_runs_now_whatever_its_delay_was(harness):
    harness.push("c", jobId="kid", parentId="dad")
    harness.push("p", jobId="dad", dependsOn=["kid"], delay=60_000)

    let_go(harness)

    assert harness.pull_id("p") == "dad"


def test_what_was_let_go_may_complete_without_effect(harness):
    push_family(harness, others=("s",))
    let_go(harness)
    finish(harness, "c")

    assert harness.state("dad") == "waiting-children"
    finish(harness, "others")
    assert harness.state("dad") == "waiting"


def test_a_queued_parent_that_never_waited_for_the_child_stays_as_it_is(harness):
    harness.push("c", jobId="kid", parentId="dad")
    harness.push("p", jobId="dad", delay=5_000)
    before = len(harness.batches)

    assert let_go(harness)

    assert len(harness.batches) == before
    assert harness.state("dad") == "delayed"


def test_a_queued_parent_forgets_a_completed_dependency(harness):
    push_family(harness)
    finish(harness, "c")

    assert let_go(harness)

    assert harness.shown("dad")["dependsOn"] == []
    assert harness.state("dad") == "waiting"


@pytest.mark.parametrize("parent", ["unknown", "active", "failed", "completed"])
def test_a_parent_that_waits_for_nothing_is_left_alone(harness, parent):
    harness.push("c", jobId="kid", parentId="dad")
    if parent != "unknown":
        harness.push("p", jobId="dad")
        pulled = harness.pull("p")
        if parent == "failed":
            harness.fail(*pulled, unrecoverable=True)
        elif parent == "completed":
            harness.ack(*pulled)

    assert not let_go(harness)


def test_refusals_name_the_job(harness):
    harness.push("c", jobId="kid")

    assert harness.refusal("RemoveChildDependency", id="nope") == "Job not found: nope"
    assert harness.refusal("RemoveChildDependency", id="kid") == "Job kid has no parent"


@pytest.mark.parametrize("policy", [(), (IGNORE,)])
def test_a_dead_child_may_be_let_go(harness, policy):
    push_family(harness, *policy)
    fail_child(harness)

    assert let_go(harness)
    assert harness.state("dad") == "waiting"


@pytest.mark.parametrize("with_parent", [True, False])
def test_whoever_waits_for_a_removed_job_is_let_go_by_its_id(harness, with_parent):
    harness.push("c", jobId="kid", **({"parentId": "dad"} if with_parent else {}))
    harness.push("p", jobId="dad", dependsOn=["kid"])
    harness.push("p", jobId="mum", dependsOn=["kid"])
    harness.send("Cancel", id="kid")
    assert harness.counts("p") == {"waiting-children": 2}

    assert let_go(harness)

    assert harness.counts("p") == {"waiting": 2}
    assert harness.refusal("RemoveChildDependency", id="kid") == "Job not found: kid"


def test_a_child_that_completed_and_was_removed_is_unknown(harness):
    removed_child(harness)

    assert harness.refusal("RemoveChildDependency", id="kid") == "Job not found: kid"


def test_a_change_of_the_parent_under_way_is_waited_for(harness):
    push_family(harness)
    with harness.pending():
        harness.send("Cancel", id="dad")
        with pytest.raises(PendingChangeError):
            let_go(harness)
        harness.commit()

    assert not let_go(harness)


def test_a_failed_commit_keeps_the_dependency(harness):
    push_family(harness)
    with harness.pending():
        let_go(harness)
        assert harness.state("dad") == "waiting-children"
        harness.reject()

    assert harness.shown("dad")["dependsOn"] == ["kid"]
    assert harness.state("dad") == "waiting-children"


# RemoveUnprocessedChildren


def test_children_that_have_not_begun_are_cancelled(harness):
    for name, options in (("w", {}), ("d", {"delay": 9_000}), ("k", {"dependsOn": ["w"]}), ("pr", {"priority": 1})):
        harness.push("c", jobId=name, **options)
    harness.push("a", jobId="a")
    harness.push("f", jobId="f", maxAttempts=1)
    harness.push("x", jobId="x")
    harness.pull("a")
    fail_child(harness, queue="f")
    finish(harness, "x")
    harness.push(
        "p", jobId="dad", dependsOn=["w", "k"], childrenIds=["w", "d", "k", "pr", "a", "f", "x", "never", "dad"]
    )
    before = len(harness.batches)

    assert harness.send("RemoveUnprocessedChildren", id="dad").ok

    assert len(harness.batches) == before + 1
    assert [harness.state(name) for name in ("w", "d", "k", "pr")] == ["unknown"] * 4
    assert [harness.state(name) for name in ("a", "f", "x")] == ["active", "failed", "completed"]
    assert harness.state("dad") == "waiting-children"


@pytest.mark.parametrize("job_id", ["nobody", None, 7])
def test_of_an_unknown_job_no_children_are_cancelled(harness, job_id):
    assert harness.send("RemoveUnprocessedChildren", id=job_id).ok


def test_children_of_a_finished_job_are_cancelled_too(harness):
    harness.push("c", jobId="kid")
    harness.push("p", jobId="dad", childrenIds=["kid"])
    finish(harness, "p")

    harness.send("RemoveUnprocessedChildren", id="dad")

    assert harness.state("kid") == "unknown"


def test_one_child_with_a_change_under_way_holds_up_all(harness):
    for name in ("a", "b"):
        harness.push("c", jobId=name)
    harness.push("p", jobId="dad", childrenIds=["a", "b"])
    with harness.pending():
        harness.send("Update", id="b", data=2)
        with pytest.raises(PendingChangeError):
            harness.send("RemoveUnprocessedChildren", id="dad")
        assert harness.job("a").staged is None
        harness.commit()
