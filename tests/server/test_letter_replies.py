"""Dlq of many dead letters: the same reply, made in several turns, and nobody waits for it but its connection."""

import pytest
import trio

from bunqueue_trio.engine import letter_views
from bunqueue_trio.model.commands import Dlq
from bunqueue_trio.server import letter_replies
from tests.server.fakes import QUEUE, Rig, settle_down

NAMED = {"name": "beside", "data": {"n": 1}}


async def bury(rig: Rig, *job_ids: str) -> None:
    worker = rig.talker()
    for job_id in job_ids:
        rig.push(job_id, maxAttempts=1, **(NAMED if job_id == "b" else {}))
        worker.segment({"cmd": "PULL", "queue": QUEUE}, {"cmd": "FAIL", "id": job_id, "error": job_id})
        await settle_down()


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (letter_views, letter_replies):
        monkeypatch.setattr(module, "LETTERS_AT_ONCE", 2)


@pytest.mark.parametrize(
    "fields", [{}, {"filter": {}}, {"filter": {"offset": 1}}, {"filter": {"limit": 3}, "count": 3}]
)
@pytest.mark.parametrize("speaks_3", [False, True])
async def test_the_reply_is_that_of_one_turn(rig: Rig, connect, monkeypatch, autojump_clock, fields, speaks_3):
    await bury(rig, *"abcde")
    wire = connect(rig)
    if speaks_3:
        await wire.call("Hello", protocolVersion=3)
    at_once = await wire.call("Dlq", queue=QUEUE, **fields)
    for module in (letter_views, letter_replies):
        monkeypatch.setattr(module, "LETTERS_AT_ONCE", 2)

    assert await wire.call("Dlq", queue=QUEUE, **fields) == at_once
    assert len(at_once["jobs"]) >= 3
    assert ("entries" in at_once) == (speaks_3 or "filter" in fields)
    [named] = [job for job in at_once["jobs"] if job["id"] == "b"]
    assert named.get("name") == ("beside" if speaks_3 else None)
    assert named["data"] == ({"n": 1} if speaks_3 else {"n": 1, "name": "beside"})


async def test_others_are_served_and_later_commands_wait(rig: Rig, connect, two_at_once, autojump_clock):
    await bury(rig, *"abcde")
    wire = connect(rig)
    await wire.send({"cmd": "Dlq", "queue": QUEUE, "filter": {}, "reqId": 1}, {"cmd": "Ping", "reqId": 2})

    replies = await wire.replies(2)
    assert [reply["reqId"] for reply in replies] == [1, 2]
    assert [entry["job"]["id"] for entry in replies[0]["entries"]] == list("abcde")


async def test_each_turn_encodes_a_few(rig: Rig, two_at_once, autojump_clock):
    """Given somebody else who looks how far it has come whenever it is his turn."""
    await bury(rig, *"abcde")
    letters = list(rig.broker.engine.state.queues[QUEUE].letters.values())
    wanted = letter_views.LongReplyError(letters, shows_entries=True, is_newer=False)
    turns = 0
    replies = []

    async def make() -> None:
        replies.append(await letter_replies.long_reply(wanted))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        while not replies:
            turns += 1
            await trio.lowlevel.checkpoint()

    assert turns >= 3
    assert len(replies[0].entries) == 5


async def test_what_is_brought_back_meanwhile_is_shown_as_it_was(rig: Rig, two_at_once, autojump_clock):
    await bury(rig, *"abcde")
    letters = list(rig.broker.engine.state.queues[QUEUE].letters.values())
    wanted = letter_views.LongReplyError(letters, shows_entries=False, is_newer=False)
    before = await letter_replies.long_reply(wanted)
    rig.talker().say("RetryDlq", queue=QUEUE)
    await settle_down()
    rig.talker().say("PULLB", queue=QUEUE, count=5)
    assert not rig.broker.engine.state.queues[QUEUE].letters

    assert (await letter_replies.long_reply(wanted)).jobs == before.jobs


async def test_it_reaches_http_as_well(rig: Rig, two_at_once, autojump_clock):
    """Given a command of somebody without a connection."""
    await bury(rig, *"abc")

    assert len((await rig.answer(Dlq(queue=QUEUE))).jobs) == 3
