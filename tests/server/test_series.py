"""Metrics over a connection: of the server from memory, of one queue from the file."""

import pytest

from bunqueue_trio.errors import StorageError
from tests.server.fakes import QUEUE, Rig, settle_down


async def complete(rig: Rig, count: int) -> None:
    worker = rig.talker()
    for number in range(count):
        rig.push(f"j{number}")
        worker.segment({"cmd": "PULL", "queue": QUEUE}, {"cmd": "ACK", "id": f"j{number}"})
        await settle_down()


async def test_a_queue_is_answered_with_what_has_committed(rig: Rig, connect, autojump_clock):
    await complete(rig, 3)
    wire = connect(rig)

    reply = await wire.call("Metrics", queue=QUEUE, type="completed")
    assert (reply["data"]["meta"]["count"], reply["data"]["data"], reply["data"]["count"]) == (3, [3], 1)
    assert type(reply["data"]["meta"]["prevTS"]) is float
    assert (await wire.call("Metrics", queue=QUEUE, type="failed"))["data"]["count"] == 0


async def test_the_server_is_answered_as_ever(rig: Rig, connect, autojump_clock):
    await complete(rig, 2)

    reply = await connect(rig).call("Metrics")
    assert reply["metrics"]["totalCompleted"] == 2
    assert rig.store.read_count == 0


async def test_an_ack_just_before_is_counted(rig: Rig, connect, autojump_clock):
    """Given one segment with both: the second waits for the commit of the first."""
    rig.push("a")
    wire = connect(rig)
    await wire.call("PULL", queue=QUEUE)
    await wire.send({"cmd": "ACK", "id": "a"}, {"cmd": "Metrics", "queue": QUEUE, "type": "completed"})

    _, reply = await wire.replies(2)
    assert reply["data"]["data"] == [1]


async def test_a_file_that_cannot_be_read_is_an_error(rig: Rig, connect, autojump_clock):
    rig.store.fail_reads = StorageError("no", transient=True)

    reply = await connect(rig).call("Metrics", queue=QUEUE, type="completed")
    assert reply == {"ok": False, "error": "Storage unavailable: no"}


@pytest.mark.parametrize("fields", [{"type": "failed"}, {"queue": QUEUE}])
async def test_half_of_it_is_refused(rig: Rig, connect, fields, autojump_clock):
    assert (await connect(rig).call("Metrics", **fields))["ok"] is False
