"""Commands without a connection: held up and parked as those of connections; what they hold belongs to nobody."""

import msgpack
import pytest
import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import DiskFullError, StorageError
from bunqueue_trio.model.replies import ErrorReply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.server.answering import Request
from tests.server.fakes import FULL, QUEUE, Rig, settle_down


def command(cmd, /, **fields):
    return decode_command(msgpack.packb({"cmd": cmd, **fields}))


async def ask(rig: Rig, cmd, /, **fields):
    """The reply as a client sees it."""
    request = Request(rig.broker, command(cmd, **fields))
    await request.carry_out()
    request.keep()
    return msgpack.unpackb(request.body)


def held_count(rig: Rig) -> int:
    state = rig.engine.state
    return sum(connection < 0 for connection in [*state.held, *state.connections])


@pytest.fixture
async def forgetful(start_rig) -> Rig:
    """A server that remembers one completed job."""
    return await start_rig(history=History(max_jobs=1))


# holds


async def test_a_change_is_answered_after_its_commit(rig: Rig, autojump_clock):
    rig.push("a")

    assert await ask(rig, "Cancel", id="a") == {"ok": True}

    assert rig.store.ids == []


async def test_a_command_that_meets_an_uncommitted_change_waits_for_it(rig: Rig, autojump_clock):
    rig.push("a")
    rig.talker().say("Cancel", id="a")

    assert await ask(rig, "Update", id="a", data=2) == {"ok": False, "error": "Job not found or cannot be updated"}


async def test_a_commit_that_fails_is_told(rig: Rig, autojump_clock):
    rig.push("a")
    await trio.sleep(0.1)
    rig.store.fail_next.append(DiskFullError(FULL))

    assert await ask(rig, "Cancel", id="a") == {"ok": False, "error": FULL}
    assert rig.state("a") == "waiting"


async def finished_and_forgotten(rig: Rig, job_id: str) -> None:
    """A completed job that only the file knows: the rig remembers another one."""
    for name, queue in ((job_id, QUEUE), ("newer", "other")):
        rig.push(name, queue=queue)
        assert (await ask(rig, "PULL", queue=queue))["job"]["id"] == name
        assert await ask(rig, "ACK", id=name, result={"r": name}) == {"ok": True}


async def test_an_id_that_only_the_file_knows_is_looked_up(forgetful: Rig, autojump_clock):
    rig = forgetful
    await finished_and_forgotten(rig, "a")

    assert await ask(rig, "GetResult", id="a") == {"ok": True, "id": "a", "result": {"r": "a"}}
    assert rig.engine.state.facts == {}


async def test_a_list_that_only_the_file_holds_is_read(forgetful: Rig, autojump_clock):
    rig = forgetful
    await finished_and_forgotten(rig, "a")

    reply = await ask(rig, "GetJobs", queue=QUEUE, state="completed")

    assert [job["id"] for job in reply["jobs"]] == ["a"]


async def test_what_takes_many_pages_is_awaited(forgetful: Rig, autojump_clock):
    rig = forgetful
    await finished_and_forgotten(rig, "a")

    assert await ask(rig, "RetryCompleted", queue=QUEUE) == {"ok": True, "count": 1}
    assert rig.state("a") == "waiting"


@pytest.mark.parametrize(
    ("cmd", "fields"), [("GetResult", {"id": "a"}), ("GetJobs", {"queue": QUEUE}), ("RetryCompleted", {"queue": QUEUE})]
)
async def test_a_file_that_cannot_be_read_is_an_error(forgetful: Rig, autojump_clock, capsys, cmd, fields):
    rig = forgetful
    await finished_and_forgotten(rig, "a")
    rig.store.fail_reads = StorageError("disk I/O error")

    assert await ask(rig, cmd, **fields) == {"ok": False, "error": "Storage unavailable: disk I/O error"}


async def test_a_defect_is_counted_and_says_nothing(rig: Rig, autojump_clock, capsys):
    def fail(command, now, connection_id=None):
        raise RuntimeError("secret")

    rig.engine.execute = fail  # type: ignore[method-assign]

    assert await ask(rig, "Ping") == {"ok": False, "error": "Internal server error"}
    assert rig.broker.internal_errors == 1


# waits


async def test_a_pull_waits_for_a_job(rig: Rig, autojump_clock, nursery):
    replies = []

    async def pull():
        replies.append(await ask(rig, "PULL", queue=QUEUE, timeout=10_000, owner="w"))

    nursery.start_soon(pull)
    await settle_down()
    assert rig.broker.waiting.count == 1
    rig.push("a")
    await settle_down()

    assert [reply["job"]["id"] for reply in replies] == ["a"]
    assert rig.broker.waiting.count == 0


async def test_a_pull_whose_time_is_over_gets_nothing(rig: Rig, autojump_clock):
    began_s = trio.current_time()

    assert await ask(rig, "PULLB", queue=QUEUE, timeout=500, owner="w") == {"ok": True, "jobs": [], "tokens": []}
    assert trio.current_time() - began_s == pytest.approx(0.5, abs=0.01)


async def test_a_wait_for_a_job_ends_with_it(rig: Rig, autojump_clock, nursery):
    rig.push("a")
    replies = []

    async def wait():
        replies.append(await ask(rig, "WaitJob", id="a"))

    nursery.start_soon(wait)
    await settle_down()
    await ask(rig, "PULL", queue=QUEUE)
    await ask(rig, "ACK", id="a", result=7)
    await settle_down()

    assert replies == [{"ok": True, "completed": True, "result": 7}]


async def test_stopping_ends_the_waits(rig: Rig, autojump_clock, nursery):
    replies = []

    async def pull():
        replies.append(await ask(rig, "PULL", queue=QUEUE, timeout=10_000))

    nursery.start_soon(pull)
    await settle_down()
    rig.broker.stop_pulls()
    await settle_down()

    assert replies == [{"ok": True, "job": None}]


async def test_the_body_shows_the_job_as_it_was_delivered(rig: Rig, autojump_clock):
    rig.push("a", data="then")
    request = Request(rig.broker, command("PULL", queue=QUEUE))
    await request.carry_out()
    await ask(rig, "Update", id="a", data="now")

    assert msgpack.unpackb(request.body)["job"]["data"] == "then"
    request.keep()


# what is held


async def test_what_was_pulled_belongs_to_nobody(rig: Rig, autojump_clock):
    rig.push("a")

    await ask(rig, "PULL", queue=QUEUE, owner="w")

    assert rig.state("a") == "active"
    assert rig.engine.state.jobs["a"].lease.connection_id is None
    assert held_count(rig) == 0


@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
async def test_what_nobody_took_goes_back_uncounted(rig: Rig, autojump_clock, cmd):
    rig.push("a", maxAttempts=1)
    request = Request(rig.broker, command(cmd, queue=QUEUE, owner="w"))
    await request.carry_out()

    request.give_back()

    job = rig.call("GetJob", id="a")["job"]
    assert (job["state"], job["attempts"], job["stallCount"]) == ("waiting", 0, 0)
    assert held_count(rig) == 0


async def test_what_goes_back_goes_to_whoever_waits(rig: Rig, autojump_clock):
    rig.push("a")
    request = Request(rig.broker, command("PULL", queue=QUEUE))
    await request.carry_out()
    other = rig.talker()
    other.say("PULL", queue=QUEUE, timeout=60_000)

    request.give_back()

    assert other.replies[0]["job"]["id"] == "a"


async def test_what_was_finished_meanwhile_does_not_come_back(rig: Rig, autojump_clock):
    rig.push("a")
    request = Request(rig.broker, command("PULL", queue=QUEUE))
    await request.carry_out()
    rig.talker().say("ACK", id="a")

    request.give_back()
    await trio.sleep(0.1)

    assert rig.state("a") == "completed"


async def test_after_keeping_nothing_can_be_given_back(rig: Rig, autojump_clock):
    rig.push("a")
    request = Request(rig.broker, command("PULL", queue=QUEUE))
    await request.carry_out()

    request.keep()
    request.give_back()

    assert rig.state("a") == "active"


async def test_a_cancelled_pull_takes_nothing_any_more(rig: Rig, autojump_clock):
    with trio.move_on_after(1):
        await rig.answer(command("PULL", queue=QUEUE, timeout=60_000))
    rig.push("a")

    assert rig.state("a") == "waiting"
    assert rig.broker.waiting.count == 0
    assert held_count(rig) == 0


async def test_a_cancelled_wait_for_a_job_leaves_nothing_behind(rig: Rig, autojump_clock):
    rig.push("a")
    with trio.move_on_after(1):
        await rig.answer(command("WaitJob", id="a"))

    assert rig.broker.job_waits.count == 0
    assert rig.engine.state.awaited == set()


async def test_a_worker_without_a_connection_stays(rig: Rig, autojump_clock):
    await ask(rig, "RegisterWorker", name="w", queues=[QUEUE], workerId="W")

    assert rig.engine.state.workers["W"].connection_id is None


async def test_a_refusal_is_a_reply(rig: Rig, autojump_clock):
    reply = await rig.answer(command("PULL", queue="bad name"))

    assert isinstance(reply, ErrorReply)
    assert reply.error == "Queue name contains invalid characters"
    assert held_count(rig) == 0
