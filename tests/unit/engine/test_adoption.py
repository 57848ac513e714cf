"""Pushes that name a parent which is there already.

Source: newer clients, "Child of an existing parent".
"""

from typing import Any

import msgpack
import pytest

from bunqueue_trio.engine import adoption
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness, completed, needs_facts
from tests.flows import FAIL_PARENT, fail_child
from tests.stored_engine import Stored

UNDEFINED = msgpack.ExtType(0, b"\0")


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def child_of(parent: str = "dad", queue: str = "p", **options: Any) -> dict[str, Any]:
    """The fields of a push that wants a parent."""
    data = {"n": 1, "__parentId": parent, "__parentQueue": queue}
    return {"name": "c", "data": data, "parentId": parent, **options}


def push_child(harness: EngineHarness, job_id: str = "kid", **options: Any) -> str:
    return harness.push("c", jobId=job_id, **child_of(**options))


def refusal(harness: EngineHarness, **options: Any) -> str:
    return harness.refusal("PUSH", queue="c", **child_of(**options))


def family(harness: EngineHarness) -> tuple[list[str], list[str], Any]:
    """What the parent knows: its children, what it depends on, and the children by its data."""
    shown = harness.shown("dad")
    return shown["childrenIds"], shown["dependsOn"], shown["data"].get("__childrenIds")


def not_linkable(parent: str) -> str:
    return f"Parent job {parent} is not linkable"


# linking


@pytest.mark.parametrize("options", [{}, {"delay": 5_000}, {"priority": 3}])
def test_a_queued_parent_parks_and_waits_for_its_new_child(harness, options):
    harness.push("p", jobId="dad", data={"a": 1}, **options)
    before = harness.timeline("dad")

    push_child(harness)

    assert (harness.state("dad"), harness.state("kid")) == ("waiting-children", "waiting")
    assert harness.timeline("dad") == [*before, "waiting-children"]
    assert family(harness) == (["kid"], ["kid"], ["kid"])
    assert harness.shown("dad")["data"] == {"a": 1, "__childrenIds": ["kid"]}
    assert harness.shown("kid")["parentId"] == "dad"
    assert harness.pull("p") is None


def test_a_parked_parent_gets_one_child_more_and_its_timeline_nothing(harness):
    harness.push("others", jobId="old")
    harness.push("p", jobId="dad", data={}, dependsOn=["old"], childrenIds=["old"])

    push_child(harness)

    assert family(harness) == (["old", "kid"], ["old", "kid"], ["old", "kid"])
    assert harness.timeline("dad") == ["waiting-children"]
    harness.ack(*harness.pull("others"))
    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("c"))
    assert harness.state("dad") == "waiting"


@pytest.mark.parametrize(("delay", "state"), [(0, "waiting"), (60_000, "delayed")])
def test_the_last_child_releases_the_parent(harness, delay, state):
    harness.push("p", jobId="dad", data={}, delay=delay)
    push_child(harness, "a")
    push_child(harness, "b")

    harness.ack(*harness.pull("c"), result=1)
    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("c"), result=2)

    assert harness.state("dad") == state
    assert harness.ask("GetChildrenValues", id="dad")["data"]["values"] == {"c:a": 1, "c:b": 2}


def test_a_child_that_fails_tells_its_parent(harness):
    harness.push("p", jobId="dad", data={})
    push_child(harness, maxAttempts=1, **{FAIL_PARENT: True})

    fail_child(harness)

    assert harness.dead_letters("p") == [("dad", "unknown", "Child job kid failed: boom")]


def test_a_child_that_was_named_before_it_came_is_named_once(harness):
    harness.push("c", jobId="kid")
    harness.push("p", jobId="dad", data={}, dependsOn=["kid"], childrenIds=["kid"])
    harness.send("Cancel", id="kid")

    push_child(harness)

    assert family(harness) == (["kid"], ["kid"], ["kid"])
    harness.ack(*harness.pull("c"))
    assert harness.state("dad") == "waiting"


def test_a_child_without_an_id_of_the_client_is_linked_under_its_own(harness):
    harness.push("p", jobId="dad", data={})

    kid = harness.push("c", **child_of())

    assert family(harness) == ([kid], [kid], [kid])


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"name": "x"}, {"name": "x", "__childrenIds": ["kid"]}),
        ({"__childrenIds": 5}, {"__childrenIds": ["kid"]}),
        (None, {"__childrenIds": ["kid"]}),
        (UNDEFINED, {"__childrenIds": ["kid"]}),
        ([1], [1]),
        ("text", "text"),
    ],
)
def test_the_data_of_the_parent_name_the_child_where_they_can(harness, data, shown):
    harness.push("p", jobId="dad", name="root", data=data)

    push_child(harness)

    assert msgpack.unpackb(harness.job("dad").record.data) == shown
    assert harness.shown("dad")["childrenIds"] == ["kid"]


# who links nothing


@pytest.mark.parametrize(
    "fields",
    [
        {"name": UNDEFINED},
        {"parentId": None},
        {"data": {"__parentQueue": "p"}},
        {"data": {"__parentId": "mum", "__parentQueue": "p"}},
        {"data": {"__parentId": 5, "__parentQueue": "p"}},
        {"data": {"__parentId": "dad"}},
        {"data": {"__parentId": "dad", "__parentQueue": ""}},
        {"data": {"__parentId": "dad", "__parentQueue": 5}},
        {"data": ["__parentId", "dad"]},
        {"data": UNDEFINED},
        {"data": None},
    ],
    ids=str,
)
def test_a_push_that_does_not_say_it_all_is_only_stored(harness, fields):
    harness.push("p", jobId="dad", data={})

    harness.push("c", jobId="kid", **{**child_of(), **fields})
    harness.push_many("c", [{**child_of(), "customId": "kid2", **fields}])

    assert (harness.state("dad"), family(harness)) == ("waiting", ([], [], None))


@pytest.mark.parametrize("parent", ["pending", "nobody"])
def test_an_unnamed_push_with_the_keys_never_fails(harness, parent):
    fields = child_of(parent)
    del fields["name"]

    kid = harness.push("c", **fields)

    assert harness.shown(kid)["parentId"] == parent


def test_nobody_can_ask_for_a_link_in_another_way(harness):
    harness.push("p", jobId="dad", data={})

    harness.push("c", data=1, parentId="dad", **{"(link)": {"parent_queue": "p"}})
    harness.push("c", data=1, **{"(link)": 5})

    assert harness.state("dad") == "waiting"


# refusals


def test_a_parent_must_be_there(harness):
    harness.push("p", jobId="gone", removeOnComplete=True)
    harness.ack(*harness.pull("p"))

    for parent in ("nobody", "gone"):
        assert refusal(harness, parent=parent) == f"Parent job not found: {parent}"


def test_a_parent_that_has_begun_or_ended_takes_no_child(harness):
    for job_id in ("active", "done", "failed"):
        harness.push(job_id, jobId=job_id, maxAttempts=1)
    pulled = {job_id: harness.pull(job_id) for job_id in ("active", "done", "failed")}
    harness.ack(*pulled["done"])
    harness.fail(*pulled["failed"])

    for job_id in ("active", "done", "failed"):
        assert refusal(harness, parent=job_id, queue=job_id) == not_linkable(job_id)
        assert refusal(harness, parent=job_id, queue="elsewhere") == not_linkable(job_id)


def test_a_parent_that_only_the_file_knows_has_completed(harness):
    harness.engine.state.history.has_evicted = True

    assert needs_facts(harness, "PUSH", queue="c", **child_of("old")) == ["old"]
    harness.engine.find_facts({"old": completed("old")})
    assert refusal(harness, parent="old") == not_linkable("old")
    harness.engine.find_facts({"old": None})
    assert refusal(harness, parent="old") == "Parent job not found: old"


def test_the_parent_must_be_in_the_queue_that_the_data_name(harness):
    harness.push("p", jobId="dad")

    assert refusal(harness, queue="zz") == "Parent job dad belongs to queue p, not zz"
    assert harness.counts("c") == {}


def test_dependencies_and_the_name_are_looked_at_before_the_parent(harness):
    assert refusal(harness, dependsOn=["no"]) == "Dependency job not found: no"
    assert "Job name must be" in refusal(harness, name="")


def test_who_depends_on_the_parent_cannot_be_its_child(harness):
    harness.push("p", jobId="dad", data={})
    harness.push("q", jobId="between", dependsOn=["dad"])

    for dependency in ("dad", "between"):
        assert refusal(harness, dependsOn=[dependency]) == "Circular dependency"
    assert harness.push("c", **child_of(dependsOn=[harness.push("q")]))


def test_two_parents_cannot_wait_for_each_other_over_the_children_of_one_batch(harness):
    harness.push("p", jobId="dad", data={})
    harness.push("p", jobId="mum", data={})
    jobs = [child_of("dad", dependsOn=["mum"]), child_of("mum", dependsOn=["dad"])]

    assert harness.refusal("PUSHB", queue="c", jobs=jobs) == "Circular dependency"
    crossed = [child_of("dad", customId="a", dependsOn=["b"]), {"data": 1, "customId": "b", "dependsOn": ["dad"]}]
    assert harness.refusal("PUSHB", queue="c", jobs=crossed) == "Circular dependency"


def test_a_circle_over_a_link_that_is_under_way_is_seen(harness):
    harness.push("p", jobId="dad", data={})
    harness.push("p", jobId="mum", data={})
    with harness.pending():
        harness.push("c", jobId="a", **child_of("dad"))
        with pytest.raises(PendingChangeError):
            harness.push("c", jobId="b", **child_of("mum", dependsOn=["dad"]))
        harness.commit()
        harness.push("c", jobId="b", **child_of("mum", dependsOn=["dad"]))
        harness.commit()
    assert refusal(harness, parent="dad", dependsOn=["mum"]) == "Circular dependency"


def test_a_parent_has_so_many_children_and_no_more(harness, monkeypatch):
    monkeypatch.setattr(adoption, "CHILDREN_MAX", 2)
    harness.push("p", jobId="dad", data={})
    push_child(harness, "a")

    assert harness.refusal("PUSHB", queue="c", jobs=[child_of(), child_of()]) == not_linkable("dad")
    push_child(harness, "b")
    assert refusal(harness) == not_linkable("dad")


def test_a_parent_that_the_push_itself_replaces_is_not_there(harness):
    harness.push("c", jobId="dad", uniqueKey="k", data={})
    fields = child_of(queue="c", uniqueKey="k", dedup={"replace": True})

    assert harness.refusal("PUSH", queue="c", **fields) == "Parent job not found: dad"
    assert harness.refusal("PUSHB", queue="c", jobs=[child_of(queue="c"), {"data": 1, **fields}]) == (
        "Parent job not found: dad"
    )
    assert harness.state("dad") == "waiting"


# duplicates


@pytest.mark.parametrize("state", ["waiting-children", "active", "gone"])
def test_a_push_that_is_repeated_is_answered_wherever_the_parent_is_by_now(harness, state):
    harness.push("p", jobId="dad", data={})
    push_child(harness)
    if state == "active":
        harness.send("RemoveChildDependency", id="kid")
        harness.pull("p")
    elif state == "gone":
        harness.send("Cancel", id="dad")
    before = len(harness.batches)

    assert push_child(harness) == "kid"
    assert harness.push_many("c", [child_of(customId="kid")]) == ["kid"]
    assert len(harness.batches) == before


def test_a_duplicate_of_another_family_is_checked_and_not_linked(harness):
    harness.push("p", jobId="dad", data={})
    harness.push("c", jobId="kid", uniqueKey="k")

    assert refusal(harness, parent="nobody", jobId="kid") == "Parent job not found: nobody"
    assert refusal(harness, parent="nobody", uniqueKey="k") == "Parent job not found: nobody"
    assert harness.push("c", **child_of(jobId="kid")) == "kid"
    assert harness.push("c", **child_of(uniqueKey="k")) == "kid"
    assert (harness.state("dad"), family(harness)) == ("waiting", ([], [], None))


# batches


def test_the_children_of_a_batch_are_linked_in_one_step(harness):
    for parent in ("dad", "mum"):
        harness.push("p", jobId=parent, data={})
    with harness.pending():
        ids = harness.push_many("c", [child_of("dad"), child_of("mum"), {"data": 1}, child_of("dad")])
        assert len(harness.engine.state.changes.staged) == 6
        assert harness.engine.state.waits_for_commit
        harness.commit()

    assert harness.shown("dad")["childrenIds"] == [ids[0], ids[3]]
    assert harness.shown("mum")["childrenIds"] == [ids[1]]


def test_one_bad_parent_refuses_the_batch(harness):
    harness.push("p", jobId="dad", data={})
    jobs = [child_of("dad", customId="a"), child_of("nobody", customId="b")]

    assert harness.refusal("PUSHB", queue="c", jobs=jobs) == "Parent job not found: nobody"
    assert (harness.state("a"), harness.state("dad")) == ("unknown", "waiting")


@pytest.mark.parametrize("parent_first", [True, False])
def test_a_parent_of_the_same_batch_is_not_there_yet(harness, parent_first):
    jobs = [{"data": {}, "customId": "dad"}, child_of("dad", "c")]

    assert harness.refusal("PUSHB", queue="c", jobs=jobs if parent_first else jobs[::-1]) == "Parent job not found: dad"


def test_an_entry_that_a_later_one_replaces_is_no_child(harness):
    harness.push("p", jobId="dad", data={})
    keyed = {"uniqueKey": "k", "dedup": {"replace": True}}

    ids = harness.push_many("c", [child_of(customId="a", **keyed), child_of(customId="b", **keyed)])

    assert (ids, family(harness)) == (["a", "b"], (["b"], ["b"], ["b"]))


@pytest.mark.parametrize("durable", [False, True, "fsync"])
def test_a_receipt_says_that_the_link_is_stored(harness, durable):
    harness.push("p", jobId="dad", data={})
    level = "synced" if durable == "fsync" else "committed"

    reply = harness.send("PUSH", queue="c", **child_of(), durable=durable, receipt=True)
    many = harness.send("PUSHB", queue="c", jobs=[child_of(durable=durable)], receipt=True)

    assert (reply.durability, reply.outcome) == (level, "created")
    assert (many.durability, many.outcomes) == (level, ["created"])


# commits


def test_nothing_is_seen_before_the_commit_and_nobody_gets_the_parent(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness)

        assert (harness.state("kid"), harness.state("dad"), family(harness)[0]) == ("unknown", "waiting", [])
        assert (harness.pull("p"), harness.pull("c")) == (None, None)
        assert harness.counts("p") == {}
        harness.commit()
    assert harness.counts("p") == {"waiting-children": 1}


@pytest.mark.parametrize("options", [{}, {"delay": 5_000}, {"dependsOn": ["old"]}])
def test_a_link_whose_commit_fails_leaves_everything_as_it_was(harness, options):
    harness.push("others", jobId="old")
    harness.push("p", jobId="dad", data={"a": 1}, **options)
    harness.commit()
    before = harness.shown("dad"), harness.counts("p")
    with harness.pending():
        push_child(harness)
        harness.reject()

    assert (harness.shown("dad"), harness.counts("p"), harness.state("kid")) == (*before, "unknown")
    push_child(harness)
    assert family(harness)[0] == ["kid"]


def test_children_pushed_before_the_flush_join_one_change(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        for number in range(5):
            push_child(harness, f"k{number}")
        batch = harness.commit()

    ids = [f"k{number}" for number in range(5)]
    assert family(harness) == (ids, ids, ids)
    assert [row[1] for row in batch.full].count("dad") == 1
    assert harness.timeline("dad") == ["waiting", "waiting-children"]


def test_children_pushed_during_the_flush_wait_for_it(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness, "a")
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            push_child(harness, "b")
        harness.land(flight)
        push_child(harness, "b")
        harness.commit()

    assert family(harness)[0] == ["a", "b"]


def test_a_change_that_was_dropped_is_not_joined(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness, "a")
        staged = harness.engine.state.changes.staged
        harness.engine.state.changes.staged = []
        harness.engine.drop_staged(staged, harness.now)
        push_child(harness, "b")
        harness.commit()

    assert (family(harness)[0], harness.state("a")) == (["b"], "unknown")


def test_a_change_that_was_put_back_is_waited_for(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness, "a")
        harness.withdraw(harness.take())
        with pytest.raises(PendingChangeError):
            push_child(harness, "b")
        harness.commit()

    assert family(harness)[0] == ["a"]


def test_another_change_of_the_parent_is_waited_for_and_waits(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        harness.send("ChangePriority", id="dad", priority=3)
        with pytest.raises(PendingChangeError):
            push_child(harness)
        harness.commit()
        push_child(harness)
        with pytest.raises(PendingChangeError):
            harness.send("ChangePriority", id="dad", priority=4)
        harness.commit()

    assert harness.shown("dad")["priority"] == 3


def test_an_older_child_that_completes_meanwhile_does_not_release_the_parent(harness):
    harness.push("others", jobId="old")
    harness.push("p", jobId="dad", data={}, dependsOn=["old"])
    pulled = harness.pull("others")
    with harness.pending():
        push_child(harness)
        harness.ack(*pulled)
        harness.commit()

    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("c"))
    assert harness.state("dad") == "waiting"


def test_a_parent_whose_queue_is_obliterated_takes_no_more_children(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness, "a")
        harness.send("Obliterate", queue="p")
        with pytest.raises(PendingChangeError):
            push_child(harness, "b")
        harness.commit()
        harness.commit()

    assert (harness.state("dad"), harness.state("a")) == ("unknown", "waiting")
    assert refusal(harness) == "Parent job not found: dad"


def test_a_parent_that_is_about_to_park_is_not_drained(harness):
    harness.push("p", jobId="dad", data={})
    with harness.pending():
        push_child(harness)
        assert harness.send("Drain", queue="p").count == 0
        harness.commit()

    assert harness.state("dad") == "waiting-children"


def test_listeners_hear_that_the_parent_waits(harness):
    harness.push("p", jobId="dad", data={})
    harness.engine.listen(True)
    push_child(harness, "a")
    push_child(harness, "b")

    told = [
        event.data for event in harness.engine.state.events if getattr(event, "event", "") == "job:waiting-children"
    ]
    assert told == [{"jobId": "dad", "queue": "p", "dependsOn": ["a"]}]


# restarts


@pytest.mark.parametrize("options", [{}, {"delay": 5_000}, {"dependsOn": ["old"]}])
def test_a_linked_parent_waits_after_a_restart_too(options):
    harness = Stored()
    harness.push("others", jobId="old")
    harness.push("p", jobId="dad", data={}, **options)
    push_child(harness)
    before = family(harness)

    harness.restart()

    assert (harness.state("dad"), family(harness)) == ("waiting-children", before)
    harness.ack(*harness.pull("c"))
    assert (harness.state("dad") == "waiting-children") == ("dependsOn" in options)


def test_what_a_parent_had_been_let_off_it_does_not_wait_for_again():
    harness = Stored()
    harness.push("c", jobId="lost", data={}, maxAttempts=1, continueParentOnFailure=True)
    harness.push("p", jobId="dad", data={}, dependsOn=["lost"], childrenIds=["lost"])
    harness.send("UpdateParent", childId="lost", parentId="dad")
    fail_child(harness)
    push_child(harness)

    harness.restart()
    harness.ack(*harness.pull("c"))

    assert harness.state("dad") == "waiting"


def test_a_parent_with_a_long_history_waits_after_a_restart_too():
    harness = Stored()
    harness.push("p", jobId="dad", data={}, maxAttempts=100, backoff=0)
    for _ in range(12):
        harness.fail(*harness.pull("p"), error="again")
        harness.advance(1)
    assert len(harness.timeline("dad")) == 20
    push_child(harness)

    harness.restart()
    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("c"))
    harness.commit()
    harness.restart()
    assert harness.state("dad") == "waiting"


def test_a_released_parent_is_not_parked_by_a_restart_whatever_became_of_its_children():
    harness = Stored()
    harness.push("p", jobId="dad", data={})
    push_child(harness)
    harness.ack(*harness.pull("c"))
    harness.commit()
    harness.file.execute("DELETE FROM jobs WHERE id = 'kid'")  # as another server cleans up

    harness.restart()

    assert harness.state("dad") == "waiting"


def test_a_child_that_has_completed_and_lives_again_is_waited_for_after_a_restart_too():
    harness = Stored()
    harness.push("others", jobId="old")
    harness.push("c", jobId="kid", data={})
    harness.push("p", jobId="dad", data={}, dependsOn=["kid", "old"])
    harness.ack(*harness.pull("c"))
    push_child(harness)
    harness.ack(*harness.pull("others"))
    harness.commit()

    harness.restart()

    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("c"))
    assert harness.state("dad") == "waiting"
