"""Who gets which job and when, what is refused, and when the flusher and the reaper are told."""

import msgpack
import msgspec
import pytest
import trio

from bunqueue_trio.errors import InvariantError, StateError, ValidationError
from bunqueue_trio.model.commands import Ping, Pull, PullBatch
from bunqueue_trio.model.replies import JobReply, JobsReply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.server.broker import ROWS_IN_FILLING
from bunqueue_trio.server.waiting import Parked
from tests.server.fakes import FULL, QUEUE, Rig, pull, pushes, settle_down


class Client:
    """A client that is told of its parked pulls and of nothing else."""

    def __init__(self, rig: Rig, number: int) -> None:
        self.id = 1_000_000 + number
        self.answers: list = []
        self._rig = rig
        rig.broker.connect(self)

    def answer(self, waiter, reply):
        self.answers.append(reply)

    def do(self, cmd, /, **fields):
        """Execute a command in a turn of its own."""
        broker, now = self._rig.broker, self._rig.clock.now()
        reply = broker.execute(decode_command(msgpack.packb({"cmd": cmd, **fields})), self, now)
        broker.after_turn(now)
        return reply

    def park(self, **fields):
        reply = self.do("PULL", **{"queue": QUEUE, "timeout": 1_000, **fields})
        assert isinstance(reply, Parked)
        return reply.waiter

    @property
    def job_ids(self):
        return [None if reply.job is None else reply.job.id for reply in self.answers]


@pytest.fixture
async def clients(rig: Rig):
    return [Client(rig, number) for number in range(4)]


# parked pulls


async def test_parked_pulls_are_served_in_the_order_of_their_arrival(rig: Rig, clients, mock_clock):
    for client in (clients[2], clients[0], clients[1]):
        client.park()

    for job_id in ("a", "b", "c"):
        rig.push(job_id)

    assert [client.job_ids for client in clients[:3]] == [["b"], ["c"], ["a"]]
    assert rig.broker.waiting.count == 0


async def test_one_batch_serves_as_many_as_it_has_jobs(rig: Rig, clients, mock_clock):
    for client in clients:
        client.park()

    rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1, "customId": name} for name in "abc"])

    assert [client.job_ids for client in clients] == [["a"], ["b"], ["c"], []]


async def test_a_parked_batch_takes_what_there_is(rig: Rig, clients, mock_clock):
    assert isinstance(clients[0].do("PULLB", queue=QUEUE, count=2, timeout=1_000), Parked)
    clients[1].park()

    rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1, "customId": name} for name in "abc"])

    assert [[job.id for job in reply.jobs] for reply in clients[0].answers] == [["a", "b"]]
    assert clients[1].job_ids == ["c"]


async def test_a_later_pull_never_overtakes_one_that_waits(rig: Rig, clients, mock_clock):
    clients[0].park()
    broker, now = rig.broker, rig.clock.now()
    # One turn of another client: it pushes and pulls at once.
    broker.execute(decode_command(msgpack.packb(pushes(["a"])[0])), clients[1], now)
    reply = broker.execute(Pull(queue=QUEUE), clients[1], now)
    broker.after_turn(now)

    assert reply == JobReply(job=None)
    assert clients[0].job_ids == ["a"]


async def test_a_pull_of_a_client_that_is_gone_takes_no_job(rig: Rig, clients, mock_clock):
    waiter = clients[0].park()
    clients[1].park()
    rig.broker.disconnect(clients[0], [waiter])

    rig.push("a")

    assert clients[0].answers == []
    assert clients[1].job_ids == ["a"]


async def test_a_client_may_go_after_its_pull_was_answered(rig: Rig, clients, mock_clock):
    waiter = clients[0].park()
    rig.push("a")
    assert rig.state("a") == "active"

    rig.broker.disconnect(clients[0], [waiter])

    assert rig.broker.waiting.count == 0
    assert rig.state("a") == "waiting"


async def test_a_released_job_goes_to_whoever_waits(rig: Rig, clients, mock_clock):
    rig.push("a")
    assert clients[0].do("PULL", queue=QUEUE).job.id == "a"
    clients[1].park()

    rig.broker.disconnect(clients[0], [])

    assert clients[1].job_ids == ["a"]


@pytest.mark.parametrize("patience", [0, None])
async def test_a_pull_that_may_not_wait_gets_nothing_at_once(rig: Rig, clients, mock_clock, patience):
    assert clients[0].do("PULL", queue=QUEUE, timeout=patience) == JobReply(job=None)
    assert clients[0].do("PULLB", queue=QUEUE, count=3, timeout=patience, owner="w") == JobsReply(jobs=[], tokens=[])


@pytest.mark.parametrize("timeout_ms", [1, 50, 999, 60_000])
async def test_a_wait_ends_exactly_at_its_time(rig: Rig, clients, autojump_clock, timeout_ms):
    clients[0].park(timeout=timeout_ms)
    await trio.sleep((timeout_ms - 0.5) / 1_000)
    assert clients[0].answers == []

    await trio.sleep(0.001)

    assert clients[0].answers == [JobReply(job=None)]


async def test_a_shorter_wait_behind_a_longer_one_ends_in_time(rig: Rig, clients, autojump_clock):
    clients[0].park(timeout=900)
    await trio.sleep(0.1)
    clients[1].park(timeout=100)
    await trio.sleep(0.101)

    assert clients[0].answers == []
    assert clients[1].answers == [JobReply(job=None)]


@pytest.mark.parametrize("delay_ms", [1, 40, 900, 5_000])
async def test_a_delayed_job_wakes_who_waits_exactly_when_it_is_due(rig: Rig, clients, autojump_clock, delay_ms):
    rig.push("a", delay=delay_ms)
    clients[0].park(timeout=60_000)
    await trio.sleep((delay_ms - 0.5) / 1_000)
    assert clients[0].answers == []

    await trio.sleep(0.001)

    assert clients[0].job_ids == ["a"]


async def test_a_job_that_becomes_due_with_the_end_of_a_wait_is_handed_over(rig: Rig, clients, autojump_clock):
    rig.push("a", delay=500)
    clients[0].park(timeout=500)
    await trio.sleep(1)

    assert clients[0].job_ids == ["a"]


async def test_resuming_a_queue_wakes_all_it_can_serve(rig: Rig, clients, autojump_clock):
    talker = rig.talker()
    talker.say("Pause", queue=QUEUE)
    await trio.sleep(0.1)
    for client in clients[:2]:
        client.park(timeout=60_000)
    rig.push("a")
    rig.push("b")
    assert clients[0].answers == []

    talker.say("Resume", queue=QUEUE)
    await trio.sleep(0.1)

    assert [client.job_ids for client in clients[:2]] == [["a"], ["b"]]


async def test_an_ended_lease_wakes_who_waits(rig: Rig, clients, autojump_clock):
    rig.push("a", backoff=0)
    clients[0].do("PULL", queue=QUEUE, owner="w", lockTtl=5_000)
    clients[1].park(timeout=60_000)
    await trio.sleep(10)

    assert clients[1].job_ids == ["a"]


# what is refused


async def test_a_bad_field_is_refused_before_anything_happens(rig: Rig, clients, mock_clock):
    with pytest.raises(ValidationError):
        clients[0].do("PUSH", queue=QUEUE, data=1, priority="high")

    assert not rig.engine.state.changes


async def test_a_bad_entry_of_a_batch_names_itself_and_nothing_is_taken(rig: Rig, clients, mock_clock):
    with pytest.raises(ValidationError, match="1"):
        clients[0].do("PUSHB", queue=QUEUE, jobs=[{"data": 1}, {"data": 1, "priority": "high"}])

    assert rig.call("Count", queue=QUEUE)["count"] == 0


async def test_the_backlog_of_a_degraded_server_is_bounded_in_jobs(start_rig, autojump_clock):
    rig = await start_rig(max_backlog_jobs=5)
    rig.store.fill_disk()
    rig.push("first")
    await trio.sleep(1)
    for number in range(4):
        rig.push(f"j{number}")

    refused = {"ok": False, "error": f"Storage unavailable: {FULL}"}
    assert rig.call("PUSH", queue=QUEUE, data=1) == refused
    assert rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1}]) == refused
    rig.store.heal()
    await trio.sleep(31)
    rig.push("again")
    assert rig.store.ids == ["first", "j0", "j1", "j2", "j3"]


async def test_the_backlog_of_a_degraded_server_is_bounded_in_bytes(start_rig, autojump_clock):
    rig = await start_rig(max_backlog_bytes=3_000)
    rig.store.fill_disk()
    rig.push("first")
    await trio.sleep(1)
    payload = "x" * 997  # and a header of three bytes

    assert rig.call("PUSH", queue=QUEUE, data=payload)["ok"]
    assert rig.call("PUSHB", queue=QUEUE, jobs=[{"data": payload}, {"data": payload[:-1]}])["ok"]
    assert rig.call("PUSH", queue=QUEUE, data=payload)["ok"]  # one byte was left

    assert rig.call("PUSH", queue=QUEUE, data=1)["error"] == f"Storage unavailable: {FULL}"


async def test_what_a_degraded_server_refuses_takes_no_room(start_rig, autojump_clock):
    rig = await start_rig(max_backlog_jobs=5, max_backlog_bytes=3_000)
    rig.store.fill_disk()
    rig.push("first")
    await trio.sleep(0.05)

    for _ in range(10):
        # Some meet the pause, some an attempt that is under way.
        rig.store.close_gate()
        await trio.sleep(0.1)
        talker = rig.talker()
        talker.say("PUSH", queue=QUEUE, data="x" * 1_000, durable=True)
        talker.say("PUSHB", queue=QUEUE, jobs=[{"data": "x" * 1_000, "durable": True}] * 2)
        talker.say("PUSH", queue=QUEUE, data="x" * 1_000, dependsOn=["nobody"])
        rig.store.open_gate()
        await trio.sleep(0.1)
        assert sorted(reply["error"] for reply in talker.replies) == ["Dependency job not found: nobody", FULL, FULL]

    assert [job.record.id for job in rig.engine.state.changes.jobs] == ["first"]
    assert rig.call("PUSH", queue=QUEUE, data=1)["ok"]


async def test_a_command_nobody_handles_is_a_defect(rig: Rig, clients, mock_clock):
    class Strange(msgspec.Struct):
        pass

    with pytest.raises((TypeError, AttributeError)):
        rig.broker.execute(Strange(), clients[0], rig.clock.now())


# room


async def test_producers_wait_once_a_flush_is_under_way_and_the_next_is_full(rig: Rig, mock_clock):
    rig.store.close_gate()
    rig.talker().segment(*pushes(["a"], durable=True))
    await settle_down()
    jobs = [{"data": 1}] * (ROWS_IN_FILLING - 1)
    rig.call("PUSHB", queue=QUEUE, jobs=jobs[:1_000])
    rig.call("PUSHB", queue=QUEUE, jobs=jobs[1_000:])
    assert not rig.broker.must_wait_for_room

    rig.push("one more")
    assert rig.broker.must_wait_for_room
    rig.store.open_gate()
    await settle_down()

    assert not rig.broker.must_wait_for_room
    assert len(rig.store.ids) == ROWS_IN_FILLING + 1


# stopping


async def test_stopping_answers_parked_pulls_with_nothing_and_hands_out_no_more(rig: Rig, clients, mock_clock):
    clients[0].park()
    clients[1].do("PULLB", queue=QUEUE, count=2, timeout=1_000, owner="w")
    rig.broker.stop_pulls()

    assert clients[0].answers == [JobReply(job=None)]
    assert clients[1].answers == [JobsReply(jobs=[], tokens=[])]
    assert clients[2].do("PULL", queue=QUEUE, timeout=60_000) == JobReply(job=None)
    with pytest.raises(StateError, match="Server is shutting down"):
        clients[2].do("PUSH", queue=QUEUE, data=1)
    with pytest.raises(StateError, match="Server is shutting down"):
        clients[2].do("PUSHB", queue=QUEUE, jobs=[{"data": 1}])


async def test_waiting_for_idle_ends_the_moment_the_last_job_does(rig: Rig, nursery, autojump_clock):
    talker = rig.talker()
    talker.segment(*pushes(["a", "b"]), pull(), pull())
    tokens = [reply["token"] for reply in talker.take()[2:]]
    rig.broker.stop_pulls()
    idle_s = []

    async def wait():
        await rig.broker.wait_idle()
        idle_s.append(trio.current_time())

    nursery.start_soon(wait)
    await trio.sleep(1)
    talker.say("ACK", id="a", token=tokens[0])
    await trio.sleep(1)
    assert idle_s == []
    talker.say("FAIL", id="b", token=tokens[1])
    failed_s = trio.current_time()
    await trio.sleep(1)

    assert idle_s == [failed_s]


async def test_waiting_for_idle_with_nothing_active_is_no_wait(rig: Rig, mock_clock):
    rig.broker.stop_pulls()

    await rig.broker.wait_idle()


async def test_a_client_that_goes_after_the_end_releases_nothing(rig: Rig, clients, mock_clock):
    rig.push("a")
    clients[0].do("PULL", queue=QUEUE)
    waiter = clients[0].park()
    rig.broker.has_ended = True

    rig.broker.disconnect(clients[0], [waiter])

    assert rig.engine.active_count == 1
    assert rig.broker.waiting.count == 0


# our own defects


async def test_a_defect_is_counted_logged_and_dated(rig: Rig, clients, mock_clock, log):
    rig.broker.report_defect(RuntimeError("oops"), Ping())

    assert rig.broker.internal_errors == 1
    assert rig.broker.internal_error_since_wall_ms == rig.clock.now().wall_ms
    [line] = log()
    assert line["message"] == "Internal error in a command"
    assert line["data"]["command"] == "Ping"
    assert "RuntimeError: oops" in str(line["data"])


async def test_a_defect_that_broke_the_engine_is_not_survived(rig: Rig, clients, mock_clock):
    rig.push("a")
    rig.engine.state.queues[QUEUE].completed_count = -1
    rig.engine.state.active_count = 7

    with pytest.raises(InvariantError):
        rig.broker.report_defect(RuntimeError("oops"), Ping())

    assert rig.broker.has_ended
    rig.engine.state.queues[QUEUE].completed_count = 0
    rig.engine.state.active_count = 0


async def test_commands_without_a_client_never_park(rig: Rig, mock_clock):
    assert rig.broker.execute(Pull(queue=QUEUE, timeout=1_000), None, rig.clock.now()) == JobReply(job=None)
    assert rig.broker.execute(PullBatch(queue=QUEUE, count=1, timeout=1_000), None, rig.clock.now()) == JobsReply()
