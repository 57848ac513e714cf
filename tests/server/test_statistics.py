"""The line of statistics: when it comes and what it says."""

import types

import trio

from bunqueue_trio.server.statistics import run_statistics
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down
from tests.server.http import live_of


async def test_one_line_per_interval_with_every_figure(rig: Rig, nursery, autojump_clock, log):
    tcp = types.SimpleNamespace(connection_count=4)
    nursery.start_soon(
        lambda: run_statistics(rig.broker, tcp, live_of(rig), interval_ms=10_000, worker_timeout_ms=4_000)
    )
    talker, idle = rig.talker(), rig.talker()
    talker.segment(*pushes(["a", "b", "c"]), *pushes(["urgent"], priority=5), *pushes(["later"], delay=60_000))
    talker.segment(pull(), pull(), pull(), {"cmd": "PULL", "queue": QUEUE, "detach": True})
    replies = talker.take()[5:]
    talker.segment(*pushes(["next"], priority=1), *pushes(["last", "fails"], maxAttempts=1))
    talker.segment({"cmd": "ACK", "id": replies[0]["job"]["id"], "token": replies[0]["token"]})
    await settle_down()
    idle.say("RegisterWorker", name="w", queues=[QUEUE], workerId="silent")
    talker.say("FAIL", id=replies[1]["job"]["id"], token=replies[1]["token"], unrecoverable=True)
    await trio.sleep(8)
    idle.say("RegisterWorker", name="w", queues=[QUEUE], workerId="alive")
    log()
    await trio.sleep(2.001)

    [line] = log()
    assert (line["component"], line["message"], line["level"]) == ("Stats", "Queue statistics", "info")
    data = line["data"]
    assert data.pop("mem").endswith("MB")
    assert data.pop("rss").endswith("MB")
    assert data == {
        "time": "08:00:10",
        "waiting": 3,
        "active": 2,
        "delayed": 1,
        "completed": 1,
        "dlq": 1,
        "tcp": 4,
        "ws": 0,
        "sse": 0,
        "workers": "1/2",
        "idx": 7,
        "locks": 1,
        "clients": 1,
    }
    await trio.sleep(30)
    assert [line["message"] for line in log()] == ["Queue statistics"] * 3


async def test_an_idle_server_has_a_line_too(rig: Rig, nursery, autojump_clock, log):
    tcp = types.SimpleNamespace(connection_count=0)
    nursery.start_soon(lambda: run_statistics(rig.broker, tcp, live_of(rig), interval_ms=1_000, worker_timeout_ms=1))
    await trio.sleep(1.001)

    [line] = log()
    assert (line["data"]["waiting"], line["data"]["idx"], line["data"]["workers"]) == (0, 0, "0/0")
