"""Flows: F1, F3 and F4 of the field reports, by PUSHF and with families linked by UpdateParent."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.field.closing import check_closing, must_pull, pull, work_off
from tests.flows import CONTINUE, FAIL_PARENT, IGNORE, POLICIES, tree
from tests.process import Client, ServerProcess, wait_until

Make = Callable[..., None]


def push_family(client: Client, policy: str, **child: object) -> None:
    """One child in ``c``, one parent in ``p``."""
    options = {"maxAttempts": 1, **child}
    client.ok("PUSH", queue="c", data={}, jobId="kid", durable=True, **{policy: True}, **options)
    client.ok("PUSH", queue="p", data={}, jobId="dad", dependsOn=["kid"], childrenIds=["kid"], durable=True)
    client.ok("UpdateParent", childId="kid", parentId="dad")


def push_flow(client: Client, policy: str, **child: object) -> None:
    """The same as one PUSHF."""
    jobs = tree("dad", "kid")
    jobs[0]["input"] |= {policy: True, "maxAttempts": 1, **child}
    client.ok("PUSHF", jobs=jobs)


def end_child(server: ServerProcess, client: Client, how: str) -> Client:
    """Let the child end for good; returns a client to go on with."""
    if how == "ttl":
        time.sleep(0.5)
        assert pull(client, "c") is None
        return client
    if how == "Discard":
        client.ok("Discard", id="kid")
        return client
    _, token = must_pull(client, "c", lock_ttl=500 if how == "lease" else 60_000)
    if how == "FAIL":
        client.ok("FAIL", id="kid", token=token, error="boom")
    elif how == "crash":
        time.sleep(0.1)  # a delivery is written with the next flush
        server.crash_and_restart()
        return server.connect()
    return client


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("make", [push_family, push_flow])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("how", "options", "error"),
    [
        ("FAIL", {}, "boom"),
        ("lease", {}, "Lock expired at max attempts (1)"),
        ("timeout", {"timeout": 300}, "Job timeout exceeded"),
        ("ttl", {"ttl": 200}, "Job ttl expired"),
        ("Discard", {}, "unknown error"),
        ("crash", {}, "Job reached max attempts (1) during startup recovery"),
    ],
)
def test_f1_however_a_child_dies_its_parent_hears_of_it(
    server: ServerProcess, make: Make, policy: str, how: str, options: dict[str, int], error: str
) -> None:
    """bullmq #2464: a child that died by stalling did not touch its parent; the flow hung."""
    with server.connect() as first:
        make(first, policy, **options)
        client = end_child(server, first, how)
        with client:
            wait_until(lambda: client.state("dad") != "waiting-children", "the parent is touched")

            assert client.state("dad") == ("failed" if policy == FAIL_PARENT else "waiting")
            failed = {"c:kid": error} if policy == CONTINUE else {}
            ignored = {"c:kid": error} if policy == IGNORE else {}
            assert client.ok("GetFailedChildrenValues", id="dad")["values"] == failed
            assert client.ok("GetIgnoredChildrenFailures", id="dad")["values"] == ignored
            time.sleep(0.1)  # what nobody asked for is written with the next flush
            server.crash_and_restart()
        with server.connect() as again:
            assert again.state("dad") == ("failed" if policy == FAIL_PARENT else "waiting")
            assert again.ok("GetFailedChildrenValues", id="dad")["values"] == failed
            assert again.ok("GetIgnoredChildrenFailures", id="dad")["values"] == ignored
    check_closing(server, ["c", "p"], ["dad"] if how == "ttl" else ["kid", "dad"])


@pytest.mark.slow
def test_f3_cancelled_dependents_stay_away(server: ServerProcess) -> None:
    """bunqueue #102: a cancelled dependent was back after the next restart."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="A", durable=True)
        client.ok("PUSH", queue="q", data=1, jobId="B", dependsOn=["A"], uniqueKey="u", durable=True)
        client.ok("PUSH", queue="q", data=1, jobId="C", dependsOn=["B"], durable=True)
        for job_id in ("B", "C"):
            client.ok("Cancel", id=job_id)
            assert client.state(job_id) == "unknown"
    server.restart()
    with server.connect() as client:
        assert [client.state(job_id) for job_id in ("A", "B", "C")] == ["waiting", "unknown", "unknown"]
        _, token = must_pull(client)
        client.ok("ACK", id="A", token=token)

        assert pull(client) is None
        assert [client.state(job_id) for job_id in ("B", "C")] == ["unknown", "unknown"]
        again = client.ok("PUSH", queue="q", data=2, uniqueKey="u", durable=True)["id"]
        assert again != "B"
    check_closing(server, ["q"], ["A", again])


ROUNDS = 100
KILLS = 12
FEW_KILLS = 4


@pytest.mark.slow
@pytest.mark.parametrize("is_flow", [False, True])
def test_f4_the_last_two_children_finish_at_the_same_instant(server: ServerProcess, is_flow: bool) -> None:
    """celery #1700, bullmq #2644: a follow-up was never called, or called twice. Part (c), both ways."""
    with server.connect() as client, server.connect() as one, server.connect() as other:
        for number in range(ROUNDS):
            ids, dad = [f"k{number}-{which}" for which in range(2)], f"dad{number}"
            if is_flow:
                client.ok("PUSHF", jobs=tree(dad, *ids))
            else:
                client.ok("PUSHB", queue="c", jobs=[{"data": {}, "customId": job_id} for job_id in ids])
                client.ok("PUSH", queue="p", data={}, jobId=dad, dependsOn=ids, childrenIds=ids)
                for job_id in ids:
                    client.ok("UpdateParent", childId=job_id, parentId=dad)
            leased = [must_pull(worker, "c") for worker in (one, other)]
            start = threading.Barrier(2)

            def ack(worker: Client, job_id: str, token: str, start: threading.Barrier = start) -> None:
                start.wait()
                worker.ok("ACK", id=job_id, token=token)

            threads = [
                threading.Thread(target=ack, args=(worker, job["id"], token))
                for worker, (job, token) in zip((one, other), leased, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            job, token = must_pull(client, "p", timeout=5_000)
            assert job["id"] == dad
            assert pull(client, "p") is None
            client.ok("ACK", id=dad, token=token)
        counts = client.ok("GetJobCounts", queue="p")["counts"]
        assert counts["completed"] == ROUNDS


def whole_flow(name: str, children: int) -> list[dict[str, object]]:
    """A parent and its children, as one batch."""
    kids = [{"data": {}, "customId": f"{name}-{n}", "parentId": name, "durable": True} for n in range(children)]
    ids = [str(kid["customId"]) for kid in kids]
    parent = {"data": {}, "customId": name, "dependsOn": ids, "childrenIds": ids, "durable": True}
    return [parent, *kids]


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad", [{"priority": "high"}, {"dependsOn": ["nobody"]}, {"maxAttempts": 0}, {"dependsOn": ["dad"]}], ids=str
)
def test_f4_one_bad_child_refuses_the_whole_flow(server: ServerProcess, bad: dict[str, object]) -> None:
    """Part (a), as one PUSHB: not one node is visible. A child that waits for its parent is bad, too."""
    jobs = whole_flow("dad", 200)
    jobs[117].update(bad)
    with server.connect() as client:
        assert client.error("PUSHB", queue="f", jobs=jobs)

        assert {client.state(str(job["customId"])) for job in jobs} == {"unknown"}
        assert sum(client.ok("GetJobCounts", queue="f")["counts"].values()) == 0
        assert client.ok("PUSHB", queue="f", jobs=whole_flow("dad", 200))["ids"][0] == "dad"
        assert client.state("dad") == "waiting-children"
        assert work_off(client, "f")[-1] == "dad"
    check_closing(server, ["f"], [str(job["customId"]) for job in jobs])


@pytest.mark.slow
def test_f4_one_bad_child_refuses_the_whole_pushf(server: ServerProcess) -> None:
    """Part (a): not one node is visible, and its ids are free."""
    ids = [f"k{n}" for n in range(200)]
    with server.connect() as client:
        for bad in ({"priority": "high"}, {"dependsOn": ["nobody"]}, {"data": {}}, {"parentId": "nobody"}):
            jobs = tree("dad", *ids)
            jobs[117]["input"] |= bad
            assert client.error("PUSHF", jobs=jobs)

        assert {client.state(job_id) for job_id in (*ids, "dad")} == {"unknown"}
        assert client.ok("ListQueues")["queues"] == []
        assert len(client.ok("PUSHF", jobs=tree("dad", *ids))["data"]["jobs"]) == 201
        assert client.state("dad") == "waiting-children"
        assert work_off(client, "c") == ids
        assert work_off(client, "p") == ["dad"]
    check_closing(server, ["c", "p"], [*ids, "dad"])


@pytest.mark.slow
def test_f4_a_pushf_that_is_killed_is_there_as_a_whole_or_not_at_all(server: ServerProcess) -> None:
    """Part (b): killed 0 to 30 ms after the frame was sent; whole if ok was received."""
    chance, known = random.Random(5), []
    for number in range(FEW_KILLS):
        name, was_confirmed = f"dad{number}", False
        kids = [f"{name}-{n}" for n in range(100)]
        with server.connect() as client:
            sent = client.send("PUSHF", jobs=tree(name, *kids))
            time.sleep(chance.uniform(0, 0.03))
            server.kill()
            with contextlib.suppress(ConnectionError):
                was_confirmed = client.wait(sent)["ok"]
        server.start()
        with server.connect() as client:
            states = {reply["state"] for reply in client.call_many([{"cmd": "GetState", "id": i} for i in kids])}
            assert (states, client.state(name)) in (({"unknown"}, "unknown"), ({"waiting"}, "waiting-children"))
            assert not was_confirmed or states == {"waiting"}
            if states == {"waiting"}:
                known += [*kids, name]
                assert sorted(work_off(client, "c")) == sorted(kids)
                assert work_off(client, "p") == [name]
    check_closing(server, ["c", "p"], known)


@pytest.mark.slow
def test_f4_a_flow_whose_creation_is_killed_is_there_as_a_whole_or_not_at_all(server: ServerProcess) -> None:
    """Part (b), as one PUSHB: killed 0 to 30 ms after the frame was sent; whole if ok was received."""
    chance, known = random.Random(4), []
    for number in range(KILLS):
        name, was_confirmed = f"dad{number}", False
        jobs = whole_flow(name, 100)
        ids = [str(job["customId"]) for job in jobs]
        with server.connect() as client:
            sent = client.send("PUSHB", queue="f", jobs=jobs)
            time.sleep(chance.uniform(0, 0.03))
            server.kill()
            with contextlib.suppress(ConnectionError):
                was_confirmed = client.wait(sent)["ok"]
        server.start()
        with server.connect() as client:
            states = {reply["state"] for reply in client.call_many([{"cmd": "GetState", "id": i} for i in ids])}
            assert states in ({"unknown"}, {"waiting", "waiting-children"})
            assert not was_confirmed or "unknown" not in states
            if "unknown" in states:
                continue
            known += ids
            assert client.state(name) == "waiting-children"
            assert sorted(work_off(client, "f")) == sorted(ids)  # the parent, too
    check_closing(server, ["f"], known)


@pytest.mark.slow
def test_f4_values_that_are_false_are_told_from_missing_ones(server: ServerProcess) -> None:
    """Part (d): 0, false, "", null and [] are values."""
    results = {"a": 0, "b": False, "c": "", "d": None, "e": []}
    with server.connect() as client:
        for job_id in [*results, "missing"]:
            client.ok("PUSH", queue="c", data={}, jobId=job_id)
        ids = [*results, "missing", "never"]
        dad = client.ok("PUSH", queue="p", data={}, childrenIds=ids)["id"]
        for job_id, result in results.items():
            _, token = must_pull(client, "c")
            client.ok("ACK", id=job_id, token=token, result=result)

        expected = {f"c:{job_id}": result for job_id, result in results.items()}
        assert client.ok("GetChildrenValues", id=dad)["data"]["values"] == expected
    server.crash_and_restart()
    with server.connect() as client:
        assert client.ok("GetChildrenValues", id=dad)["data"]["values"] == expected
    check_closing(server, ["c", "p"], [*results, "missing", dad])


@pytest.mark.slow
def test_f4_values_of_a_flow_that_are_false_are_told_from_missing_ones(server: ServerProcess) -> None:
    """Part (d) by PUSHF: 0, false, "", null and [] are values, also after a crash."""
    results = {"a": 0, "b": False, "c": "", "d": None, "e": []}
    with server.connect() as client:
        client.ok("PUSHF", jobs=tree("dad", *results))
        for result in results.values():
            job, token = must_pull(client, "c")
            assert results[job["id"]] == result
            client.ok("ACK", id=job["id"], token=token, result=result)
        assert client.state("dad") == "waiting"
    server.crash_and_restart()
    with server.connect() as client:
        values = client.ok("GetChildrenValues", id="dad")["data"]["values"]
        assert values == {f"c:{job_id}": result for job_id, result in results.items()}
    check_closing(server, ["c", "p"], [*results, "dad"])


@pytest.mark.slow
def test_children_that_a_killed_server_has_confirmed_are_waited_for(server: ServerProcess) -> None:
    """A parent gets its children one by one while the server is killed: it never runs before those that were
    confirmed, and knows of each that is there."""
    chance, confirmed = random.Random(6), []
    with server.connect() as client:
        client.ok("PUSH", queue="p", name="root", data={}, jobId="dad", durable=True)
    for number in range(FEW_KILLS):
        kids = [f"k{number}-{n}" for n in range(30)]
        data = {"__parentId": "dad", "__parentQueue": "p"}
        with server.connect() as client:
            sent = [client.send("PUSH", queue="c", name="n", data=data, parentId="dad", jobId=kid) for kid in kids]
            time.sleep(chance.uniform(0, 0.02))
            server.kill()
            with contextlib.suppress(ConnectionError):
                for kid, one in zip(kids, sent, strict=True):
                    assert client.wait(one)["ok"]
                    confirmed.append(kid)
        server.start()
    with server.connect() as client:
        dad = client.ok("GetJob", id="dad")["job"]
        assert set(confirmed) <= set(dad["childrenIds"])
        assert dad["childrenIds"] == dad["dependsOn"] == dad["data"].get("__childrenIds", [])
        assert client.state("dad") == ("waiting-children" if dad["childrenIds"] else "waiting")
        assert sorted(work_off(client, "c")) == sorted(dad["childrenIds"])
        assert work_off(client, "p") == ["dad"]
    check_closing(server, ["c", "p"], [*dad["childrenIds"], "dad"])
