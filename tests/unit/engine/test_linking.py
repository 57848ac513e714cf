"""UpdateParent, for children and parents in every state."""

import msgpack
import pytest

from bunqueue_trio.engine import linking
from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness, completed, needs_facts, raw
from tests.flows import CONTINUE, FAIL_PARENT, IGNORE, POLICIES, REMOVE, fail_child, failed_values, ignored_values


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def link(harness, child="kid", parent="dad"):
    return harness.send("UpdateParent", childId=child, parentId=parent)


def children(harness, job_id="dad"):
    return harness.shown(job_id)["childrenIds"]


def data_of(harness, job_id="kid"):
    return harness.shown(job_id)["data"]


# into which states a job is brought


def waiting(harness, queue, job_id):
    harness.push(queue, jobId=job_id, data={"n": 1})


def delayed(harness, queue, job_id):
    harness.push(queue, jobId=job_id, data={"n": 1}, delay=5_000)


def parked(harness, queue, job_id):
    dependency = harness.push("others")
    harness.push(queue, jobId=job_id, data={"n": 1}, dependsOn=[dependency])


def active(harness, queue, job_id):
    waiting(harness, queue, job_id)
    harness.pull(queue)


def failed(harness, queue, job_id):
    waiting(harness, queue, job_id)
    harness.fail(*harness.pull(queue), unrecoverable=True, error="e")


def done(harness, queue, job_id):
    waiting(harness, queue, job_id)
    harness.ack(*harness.pull(queue), result=7)


STATES = [waiting, delayed, parked, active, failed, done]


@pytest.mark.parametrize("parent_state", STATES)
@pytest.mark.parametrize("child_state", STATES)
def test_both_learn_of_each_other_whatever_their_states(harness, child_state, parent_state):
    child_state(harness, "c", "kid")
    parent_state(harness, "p", "dad")
    before = [harness.state(job_id) for job_id in ("kid", "dad")]
    depends_on = harness.shown("dad")["dependsOn"]

    link(harness)

    assert data_of(harness) == {"n": 1, "__parentId": "dad", "__parentQueue": "p"}
    assert harness.shown("kid")["parentId"] == "dad"
    assert children(harness) == ["kid"]
    assert data_of(harness, "dad") == {"n": 1}
    assert harness.shown("dad")["dependsOn"] == depends_on
    assert [harness.state(job_id) for job_id in ("kid", "dad")] == before


def test_linking_again_changes_nothing_more(harness):
    waiting(harness, "c", "kid")
    waiting(harness, "p", "dad")
    link(harness)
    before = len(harness.batches)

    link(harness)

    assert len(harness.batches) == before
    assert children(harness) == ["kid"]


def test_children_are_appended_in_the_order_of_their_links(harness):
    waiting(harness, "p", "dad")
    for name in ("b", "a", "c"):
        waiting(harness, "c", name)
        link(harness, name)

    assert children(harness) == ["b", "a", "c"]


def test_another_parent_takes_over_and_the_old_one_keeps_its_list(harness):
    for name in ("dad", "mum"):
        waiting(harness, name, name)
    waiting(harness, "c", "kid")
    link(harness)

    link(harness, parent="mum")

    assert data_of(harness) == {"n": 1, "__parentId": "mum", "__parentQueue": "mum"}
    assert (children(harness), children(harness, "mum")) == (["kid"], ["kid"])


@pytest.mark.parametrize("child", ["nobody", None, 7, ["kid"]])
def test_an_unknown_child_is_no_error_and_changes_nothing(harness, child):
    waiting(harness, "p", "dad")

    assert link(harness, child).ok

    assert children(harness) == []


@pytest.mark.parametrize(("data", "queue"), [({}, "c"), ({"__parentQueue": "x"}, "x")])
def test_of_an_unknown_parent_the_child_keeps_the_id(harness, data, queue):
    harness.push("c", jobId="kid", data=data)

    link(harness, parent="nobody")

    assert data_of(harness) == {"__parentId": "nobody", "__parentQueue": queue}
    assert harness.shown("kid")["parentId"] == "nobody"


def test_names_in_the_data_from_an_earlier_time_are_replaced(harness):
    harness.push("c", jobId="kid", data={"__parentId": "pending", "a": [1, {"b": None}], "__parentQueue": "x"})
    waiting(harness, "p", "dad")

    link(harness)

    assert data_of(harness) == {"__parentId": "dad", "a": [1, {"b": None}], "__parentQueue": "p"}


@pytest.mark.parametrize("data", [None, "text", 5, 1.5, True, b"bin"])
def test_data_that_can_name_no_parent_are_refused_and_nothing_changes(harness, data):
    harness.push("c", jobId="kid", data=data)
    waiting(harness, "p", "dad")

    refusal = harness.refusal("UpdateParent", childId="kid", parentId="dad")

    assert refusal == "Failed to update parent"
    assert harness.shown("kid")["parentId"] is None
    assert children(harness) == []


@pytest.mark.parametrize("data", [[], [1, 2], list(range(20)), list(range(70_000))])
def test_a_list_stays_as_it_is(harness, data):
    harness.push("c", jobId="kid", data=data)
    waiting(harness, "p", "dad")

    link(harness)

    assert data_of(harness) == data
    assert harness.shown("kid")["parentId"] == "dad"
    assert children(harness) == ["kid"]


def test_a_job_cannot_be_its_own_parent(harness):
    waiting(harness, "c", "kid")

    assert harness.refusal("UpdateParent", childId="kid", parentId="kid") == "Failed to update parent"


def test_a_parent_takes_only_so_many_children(harness, monkeypatch):
    monkeypatch.setattr(linking, "CHILDREN_MAX", 3)
    waiting(harness, "p", "dad")
    for n in range(3):
        waiting(harness, "c", f"k{n}")
        link(harness, f"k{n}")
    waiting(harness, "c", "kid")

    assert harness.refusal("UpdateParent", childId="kid", parentId="dad") == "Failed to update parent"

    assert harness.shown("kid")["parentId"] is None
    link(harness, "k1")
    assert len(children(harness)) == 3


# children that failed before


@pytest.mark.parametrize(
    ("policy", "state"), [(FAIL_PARENT, "failed"), (CONTINUE, "waiting"), (IGNORE, "waiting"), (REMOVE, "waiting")]
)
def test_a_child_that_failed_before_it_was_linked_has_its_effect_now(harness, policy, state):
    harness.push("c", jobId="kid", data={}, maxAttempts=1, parentId="pending", **{policy: True})
    fail_child(harness, "early")
    harness.push("p", jobId="dad", dependsOn=["kid"])
    assert harness.state("dad") == "waiting-children"

    link(harness)

    assert harness.state("dad") == state
    assert failed_values(harness) == ({"c:kid": "Child job failed"} if policy == CONTINUE else {})
    assert ignored_values(harness) == ({"c:kid": "Child job failed"} if policy == IGNORE else {})
    assert children(harness) == ["kid"]
    if policy == FAIL_PARENT:
        assert harness.dead_letters("p") == [("dad", "unknown", "Child job kid failed: Child job failed")]


@pytest.mark.parametrize("policy", POLICIES)
def test_linking_a_failed_child_again_has_no_further_effect(harness, policy):
    harness.push("c", jobId="kid", data={}, maxAttempts=1, **{policy: True})
    fail_child(harness, "early")
    harness.push("p", jobId="dad", dependsOn=["kid"])
    link(harness)
    before = harness.shown("dad")

    link(harness)

    assert harness.shown("dad") == before


def test_the_dead_letter_itself_is_rewritten_and_keeps_its_place(harness):
    for name in ("kid", "other"):
        failed(harness, "c", name)
    waiting(harness, "p", "dad")
    harness.commit()

    link(harness)

    batch = harness.batches[-1]
    assert batch.letters_gone == ["kid"]
    assert [msgpack.unpackb(row[2])["job"]["parentId"] for row in batch.letters] == ["dad"]
    assert harness.dead_letters("c") == [(name, "max_attempts_exceeded", "e") for name in ("kid", "other")]


def test_a_dead_letter_that_newer_ones_push_out_meanwhile_stays_away(harness):
    failed(harness, "c", "kid")
    with harness.pending():
        link(harness, parent="nobody")
        harness.engine.state.drop(harness.job("kid"))
        batch = harness.commit()

    assert batch.letters == []
    assert harness.state("kid") == "unknown"


# transactions


@pytest.mark.parametrize("parent_state", STATES)
@pytest.mark.parametrize("child_state", STATES)
def test_a_failed_commit_leaves_both_as_they_were(harness, child_state, parent_state):
    child_state(harness, "c", "kid")
    parent_state(harness, "p", "dad")
    harness.commit()
    before = [harness.shown(job_id) for job_id in ("kid", "dad")]
    with harness.pending():
        link(harness)
        assert [harness.shown(job_id) for job_id in ("kid", "dad")] == before
        harness.reject()

    assert [harness.shown(job_id) for job_id in ("kid", "dad")] == before
    link(harness)
    assert children(harness) == ["kid"]


@pytest.mark.parametrize("parent_state", [waiting, active, failed, done])
def test_a_second_child_waits_until_the_first_is_in_the_parents_list(harness, parent_state):
    parent_state(harness, "p", "dad")
    waiting(harness, "c", "a")
    waiting(harness, "c", "b")
    with harness.pending():
        link(harness, "a")
        with pytest.raises(PendingChangeError):
            link(harness, "b")
        harness.commit()
        link(harness, "b")
        harness.commit()

    assert children(harness) == ["a", "b"]


def test_all_of_it_is_one_transaction(harness):
    waiting(harness, "c", "kid")
    done(harness, "p", "dad")
    harness.commit()

    link(harness)

    batch = harness.batches[-1]
    assert [row[1] for row in batch.full] == ["kid"]
    assert [row[0] for row in batch.links] == ["dad"]


def test_an_amended_job_that_starts_a_new_life_keeps_nothing_of_the_link(harness):
    done(harness, "c", "kid")
    with harness.pending():
        link(harness, parent="nobody")
        harness.push("c", jobId="kid", data={"n": 2}, durable=True)
        harness.commit()

    assert harness.shown("kid")["parentId"] is None
    assert data_of(harness) == {"n": 2}


# jobs that only the file knows


def test_jobs_beyond_memory_are_looked_up_together():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("kid", "dad", "last"):
        done(harness, name, name)

    assert needs_facts(harness, "UpdateParent", childId="kid", parentId="dad") == ["kid", "dad"]

    kid, dad = completed("kid", "kid"), completed("dad", "dad", children_ids=("x",))
    kid.record.data = raw({"a": 1})
    harness.engine.find_facts({"kid": kid, "dad": dad})
    link(harness)
    rows = {row[0]: row for row in harness.batches[-1].links}
    assert msgpack.unpackb(rows["kid"][1]) == {"a": 1, "__parentId": "dad", "__parentQueue": "dad"}
    assert rows["kid"][2:] == ("dad", None)
    assert msgpack.unpackb(rows["dad"][3]) == ["x", "kid"]


def test_ids_that_the_file_does_not_know_are_unknown():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("x", "y"):
        done(harness, name, name)
    harness.engine.find_facts({"kid": None, "dad": None})

    assert link(harness).ok
    assert harness.engine.state.changes.staged == []


def test_an_amended_job_that_leaves_memory_before_the_commit_is_no_trouble():
    harness = EngineHarness(history=History(max_jobs=1))
    done(harness, "c", "kid")
    with harness.pending():
        link(harness, parent="nobody")
        harness.engine.state.history.pop("kid")
        harness.commit()

    assert not harness.engine.state.amending
