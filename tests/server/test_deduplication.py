"""One custom id, one unique key, many clients at once: one job, and everybody is told its id."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.server.fakes import QUEUE, Rig, Wire

CLIENTS = 25


async def call_all(wires: list[Wire], make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """A command from each client, all at once; the replies in the order of the clients."""
    replies: list[dict[str, Any]] = [{}] * len(wires)

    async def call(number: int) -> None:
        await wires[number].send(make(number))
        replies[number] = await wires[number].reply()

    async with trio.open_nursery() as nursery:
        for number in range(len(wires)):
            nursery.start_soon(call, number)
    return replies


@pytest.mark.parametrize("durable", [False, True, "fsync"])
@pytest.mark.parametrize("name", ["jobId", "uniqueKey"])
async def test_twenty_five_pushes_at_once_make_one_job(rig: Rig, connect, autojump_clock, name: str, durable: Any):
    wires = [connect(rig) for _ in range(CLIENTS)]
    fields = {"queue": QUEUE, name: "one", "durable": durable, "receipt": True}

    replies = await call_all(wires, lambda number: {"cmd": "PUSH", "data": number, **fields})

    assert all(reply["ok"] for reply in replies)
    assert len({reply["id"] for reply in replies}) == 1
    assert Counter(reply["outcome"] for reply in replies) == {"created": 1, "existing": CLIENTS - 1}
    level = {False: "buffered", True: "committed", "fsync": "synced"}[durable]
    assert {reply["durability"] for reply in replies} == {level}
    assert rig.call("GetJobCounts", queue=QUEUE)["counts"]["waiting"] == 1
    if durable:
        assert rig.store.ids == [replies[0]["id"]]


@pytest.mark.parametrize("durable", [False, True])
async def test_twenty_five_batches_at_once_make_one_job_per_id(rig: Rig, connect, autojump_clock, durable: bool):
    wires = [connect(rig) for _ in range(CLIENTS)]

    def batch(number: int) -> dict[str, Any]:
        jobs = [{"data": number, "customId": "one", "durable": durable}, {"data": number}]
        jobs += [{"data": number, "uniqueKey": "k", "durable": durable}]
        return {"cmd": "PUSHB", "queue": QUEUE, "jobs": jobs, "receipt": True}

    replies = await call_all(wires, batch)

    for position, distinct in ((0, 1), (1, CLIENTS), (2, 1)):
        assert len({reply["ids"][position] for reply in replies}) == distinct
        expected = {"created": distinct, "existing": CLIENTS - distinct}
        assert Counter(reply["outcomes"][position] for reply in replies) == +Counter(expected)
    assert rig.call("GetJobCounts", queue=QUEUE)["counts"]["waiting"] == CLIENTS + 2


async def test_of_twenty_five_that_replace_the_last_one_stays(rig: Rig, connect, autojump_clock):
    wires = [connect(rig) for _ in range(CLIENTS)]
    fields = {"queue": QUEUE, "uniqueKey": "k", "dedup": {"replace": True}, "durable": True, "receipt": True}

    replies = await call_all(wires, lambda number: {"cmd": "PUSH", "data": number, **fields})

    assert Counter(reply["outcome"] for reply in replies) == {"created": 1, "replaced": CLIENTS - 1}
    assert len({reply["id"] for reply in replies}) == CLIENTS
    assert rig.call("GetJobCounts", queue=QUEUE)["counts"]["waiting"] == 1
    assert len(rig.store.ids) == 1


async def test_twenty_five_that_the_file_refuses_make_none(rig: Rig, connect, autojump_clock):
    rig.store.fill_disk()
    wires = [connect(rig) for _ in range(CLIENTS)]
    fields = {"queue": QUEUE, "jobId": "one", "durable": True, "receipt": True}

    replies = await call_all(wires, lambda number: {"cmd": "PUSH", "data": number, **fields})

    assert not any(reply["ok"] for reply in replies)
    assert not any("outcome" in reply for reply in replies)
    assert rig.state("one") == "unknown"
    rig.store.heal()
