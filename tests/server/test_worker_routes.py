"""Workers over HTTP: the same maps, statuses, and whom they belong to."""

import pytest
import trio

from bunqueue_trio.config import Config
from tests.server.fakes import Rig
from tests.server.http import Http

WORKER = {
    "name": "wk",
    "queues": ["wq"],
    "concurrency": 3,
    "hostname": "h",
    "pid": 12,
    "workerId": "fixed-1",
    "startedAt": 1_700_000_000_000,
}


def client_of(rig: Rig, *tokens):
    return Http(rig, Config(auth_tokens=tokens))


def shown(rig: Rig, **changed):
    """What an answer says of `WORKER`."""
    return {
        "name": "wk",
        "queues": ["wq"],
        "concurrency": 3,
        "hostname": "h",
        "pid": 12,
        "status": "active",
        "registeredAt": 1_700_000_000_000,
        "lastSeen": int(rig.clock.now().wall_ms),
        "activeJobs": 0,
        "processedJobs": 0,
        "failedJobs": 0,
        "currentJob": None,
        **changed,
    }


async def test_a_worker_is_registered_heard_of_and_withdrawn(rig: Rig, autojump_clock):
    client = client_of(rig)

    registered = await client.ask("POST", "/workers", json=WORKER)
    assert registered == (200, {"ok": True, "data": {"workerId": "fixed-1", **shown(rig)}})
    beaten = await client.ask(
        "POST", "/workers/fixed-1/heartbeat", json={"activeJobs": 2, "processed": 10, "failed": 1}
    )
    assert beaten == (200, {"ok": True, "data": {"ok": True}})
    status, listed = await client.ask("GET", "/workers")
    [worker], stats = listed["data"]["workers"], listed["data"]["stats"]
    assert status == 200
    assert type(worker.pop("uptime")) is int
    assert worker == {"id": "fixed-1", **shown(rig, activeJobs=2, processedJobs=10, failedJobs=1)}
    assert stats == {"total": 1, "active": 1, "totalProcessed": 10, "totalFailed": 1, "activeJobs": 2}

    assert await client.ask("DELETE", "/workers/fixed-1") == (200, {"ok": True, "data": {"removed": True}})
    gone = {"ok": False, "error": "Worker not found"}
    assert await client.ask("DELETE", "/workers/fixed-1") == (404, gone)
    assert await client.ask("POST", "/workers/fixed-1/heartbeat") == (200, gone)


async def test_a_name_is_enough(rig: Rig, autojump_clock):
    _, answer = await client_of(rig).ask("POST", "/workers", json={"name": "anon"})

    data = answer["data"]
    assert len(data["workerId"]) == 36
    assert (data["queues"], data["concurrency"], data["hostname"], data["pid"]) == ([], 1, "unknown", 0)
    assert data["registeredAt"] == data["lastSeen"] == int(rig.clock.now().wall_ms)


async def test_registering_again_takes_queues_and_concurrency(rig: Rig, autojump_clock):
    client = client_of(rig)
    await client.ask("POST", "/workers", json=WORKER)

    _, answer = await client.ask("POST", "/workers", json={"name": "o", "queues": ["b"], "workerId": "fixed-1"})

    assert answer["data"] == {"workerId": "fixed-1", **shown(rig, queues=["b"], concurrency=1)}


async def test_it_belongs_to_no_connection_and_goes_when_it_is_silent(rig: Rig, connect, autojump_clock):
    client = client_of(rig)
    wire = connect(rig)
    await wire.call("RegisterWorker", name="wk", queues=[], workerId="fixed-1")
    await client.ask("POST", "/workers", json=WORKER)  # SD-15: it is this one's now
    wire.close()
    await trio.sleep(80)  # the sweep after 60 s leaves it alone

    assert [w["status"] for w in rig.call("ListWorkers")["data"]["workers"]] == ["stale"]
    await trio.sleep(50)  # that after 120 s does not
    assert rig.call("ListWorkers")["data"]["workers"] == []


@pytest.mark.parametrize("body", [b"", b" \n", b"{", b"null", b"[1]", b'"x"', b"\xff", b"{}", b"[" * 3_000])
async def test_a_heartbeat_needs_no_body(rig: Rig, autojump_clock, body):
    client = client_of(rig)
    await client.ask("POST", "/workers", json=WORKER)
    await trio.sleep(1)

    answer = await client.ask("POST", "/workers/fixed-1/heartbeat", data=body)

    assert answer == (200, {"ok": True, "data": {"ok": True}})
    assert rig.engine.state.workers["fixed-1"].last_seen == rig.clock.now().wall_ms


@pytest.mark.parametrize("name", ["activeJobs", "processed", "failed"])
async def test_a_heartbeat_with_a_counter_that_is_none_is_refused_with_status_200(rig: Rig, autojump_clock, name):
    client = client_of(rig)
    await client.ask("POST", "/workers", json=WORKER)

    answer = await client.ask("POST", "/workers/fixed-1/heartbeat", json={name: "x"})

    assert answer == (200, {"ok": False, "error": f"{name} must be a number"})


@pytest.mark.parametrize("worker_id", ["a b", "a%2Fb", "%C3%BC", "100%25", "heartbeat"])
async def test_ids_are_decoded(rig: Rig, autojump_clock, worker_id):
    from urllib.parse import unquote

    client = client_of(rig)
    await client.ask("POST", "/workers", json={**WORKER, "workerId": unquote(worker_id)})

    assert (await client.ask("POST", f"/workers/{worker_id}/heartbeat"))[1]["ok"]
    assert (await client.ask("DELETE", f"/workers/{worker_id}"))[0] == 200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Invalid JSON body"),
        (b"{", "Invalid JSON body"),
        (b"null", "Invalid JSON body"),
        (b"[]", "Invalid JSON body"),
        (b"{}", "Worker name is required"),
        (b'{"name": ""}', "Worker name is required"),
        (b'{"name": 5}', "name must be a string"),
        (b'{"name": "w", "queues": "q"}', "queues must be an array"),
        (b'{"name": "w", "queues": [1]}', "queues[0] must be a string"),
        (b'{"name": "w", "concurrency": "x"}', "concurrency must be a number"),
        (b'{"name": "w", "pid": -1}', "pid must be at least 0"),
        (b'{"name": "w", "startedAt": "now"}', "startedAt must be a number"),
        (b'{"name": "w", "pid": 1e999}', "pid must be a finite number"),
    ],
)
async def test_what_is_refused(rig: Rig, autojump_clock, body, text):
    answer = await client_of(rig).ask("POST", "/workers", data=body)

    assert answer == (400, {"ok": False, "error": text})
    assert rig.engine.state.workers == {}


async def test_a_heartbeat_names_the_worker_by_the_path_alone(rig: Rig, autojump_clock):
    client = client_of(rig)
    for worker_id in ("one", "two"):
        await client.ask("POST", "/workers", json={**WORKER, "workerId": worker_id})

    await client.ask("POST", "/workers/one/heartbeat", json={"id": "two", "processed": 4, "cmd": "UnregisterWorker"})

    assert {w.id: w.processed_jobs for w in rig.engine.state.workers.values()} == {"one": 4, "two": 0}


ROUTES = [("GET", "/workers"), ("POST", "/workers"), ("DELETE", "/workers/x"), ("POST", "/workers/x/heartbeat")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_with_tokens_one_must_be_presented(rig: Rig, autojump_clock, method, path):
    client = client_of(rig, "tok")

    refused = await client.ask(method, path, json=WORKER)
    badly = await client.ask(method, path, data=b"{", headers={"Authorization": "Bearer tok2"})

    assert refused == badly == (401, {"ok": False, "error": "Unauthorized"})
    assert rig.engine.state.workers == {}
    status, _ = await client.ask(method, path, json=WORKER, headers={"Authorization": "Bearer tok"})
    assert status != 401


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/workers/x"), ("PUT", "/workers"), ("GET", "/workers/x/heartbeat")]
)
async def test_other_methods_and_paths_are_not_found(rig: Rig, autojump_clock, method, path):
    assert await client_of(rig).ask(method, path) == (404, {"ok": False, "error": "Not found"})
