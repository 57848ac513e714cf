"""Histograms of durations, and what counts as the duration of a command."""

import trio

from bunqueue_trio.model.commands import Ack, AckBatch, Ping, Pull, PullBatch, Push, PushBatch
from bunqueue_trio.server.histograms import Histogram
from bunqueue_trio.server.latencies import BOUNDS_MS, SINGLES_MAX, Latencies
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down


def test_an_empty_histogram_shows_nothing():
    histogram = Histogram(BOUNDS_MS)

    assert (histogram.average, histogram.percentile(0.5), histogram.count) == (0, 0, 0)


def test_a_duration_falls_into_the_first_bucket_that_holds_it():
    histogram = Histogram(BOUNDS_MS)
    for duration in (0, 0.1, 0.11, 0.5, 10_000, 10_001):
        histogram.observe(duration)

    assert histogram.counts[:2] == [2, 2]
    assert histogram.counts[-2:] == [1, 1]
    assert (sum(histogram.counts), histogram.count) == (6, 6)
    assert len(histogram.counts) == len(BOUNDS_MS) + 1


def test_several_equal_durations_are_noted_at_once():
    histogram = Histogram(BOUNDS_MS)
    histogram.observe(2, times=3)
    histogram.observe(6)

    assert (histogram.count, histogram.sum, histogram.average) == (4, 12, 3)


def test_a_percentile_is_the_upper_bound_of_its_bucket():
    histogram = Histogram(BOUNDS_MS)
    histogram.observe(0.05, times=50)
    histogram.observe(4, times=45)
    histogram.observe(60, times=4)
    histogram.observe(20_000)

    assert [histogram.percentile(share) for share in (0.5, 0.51, 0.95, 0.96, 0.99, 1)] == [
        0.1, 5, 5, 100, 100, 10_000,
    ]  # fmt: skip


def test_commands_are_counted_by_what_they_do():
    latencies = Latencies()
    latencies.executed += [Push, PushBatch, Pull, PullBatch, PullBatch, Ack, AckBatch, Ping]
    assert latencies.turn_ended(3) == []

    assert (latencies.push.count, latencies.pull.count, latencies.ack.count) == (2, 3, 1)
    assert latencies.push.sum == 6
    assert latencies.executed == []


def test_turns_of_one_command_are_put_off_but_not_for_long_and_never_for_a_reader():
    latencies = Latencies()
    for _ in range(SINGLES_MAX + 1):
        latencies.executed.append(Push)
        latencies.turn_ended(2)
    assert len(latencies._singles) == 1

    assert (latencies.push.count, latencies.push.sum) == (SINGLES_MAX + 1, 2 * (SINGLES_MAX + 1))
    assert latencies._singles == []


def test_what_is_promised_is_measured_later():
    latencies = Latencies()
    latencies.promised += [Ack]

    assert latencies.turn_ended(3) == [Ack]
    assert latencies.ack.count == 0
    assert latencies.turn_ended(3) == []


def counts(rig: Rig) -> tuple[int, int, int]:
    latencies = rig.broker.latencies
    return latencies.push.count, latencies.pull.count, latencies.ack.count


async def test_each_command_counts_once_and_refused_or_empty_ones_do_not(rig: Rig, autojump_clock):
    talker = rig.talker()
    talker.segment(*pushes(["a", "b", "a"]), {"cmd": "PUSH", "queue": ""}, {"cmd": "PUSHB", "queue": QUEUE, "jobs": []})
    assert counts(rig) == (4, 0, 0)
    talker.segment(pull(), pull(), pull(), pull(queue="nowhere"))
    assert counts(rig) == (4, 2, 0)

    held = [reply for reply in talker.take() if reply.get("job")]
    acks = [{"cmd": "ACK", "id": reply["job"]["id"], "token": reply["token"]} for reply in held]
    talker.segment(*acks, {"cmd": "ACK", "id": "nobody"}, {"cmd": "ACKB", "ids": []})
    assert counts(rig) == (4, 2, 0)
    await settle_down()

    assert counts(rig) == (4, 2, 2)


async def test_an_ack_takes_until_its_commit(rig: Rig, autojump_clock):
    talker = rig.talker()
    talker.segment(*pushes(["a"]), pull())
    token = talker.take()[-1]["token"]
    rig.store.close_gate()
    talker.say("ACK", id="a", token=token)
    await trio.sleep(0.030)
    assert counts(rig) == (1, 1, 0)
    rig.store.open_gate()
    await settle_down()

    assert counts(rig) == (1, 1, 1)
    assert 30 <= rig.broker.latencies.ack.sum < 50


async def test_a_durable_push_takes_until_its_commit(rig: Rig, autojump_clock):
    rig.store.close_gate()
    rig.talker().segment(*pushes(["a"], durable=True), *pushes(["b"]))
    await trio.sleep(0.020)
    assert counts(rig) == (1, 0, 0)
    rig.store.open_gate()
    await settle_down()

    assert rig.broker.latencies.push.counts == [1, 0, 0, 0, 0, 0, 1] + [0] * 9


async def test_a_promise_that_is_not_kept_is_not_measured(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    talker = rig.talker()
    talker.segment(*pushes(["a"], durable=True))
    await settle_down()

    assert talker.take()[0]["ok"] is False
    assert counts(rig) == (0, 0, 0)
    rig.store.heal()


async def test_a_pull_that_waits_takes_as_long_as_it_waits(rig: Rig, autojump_clock):
    rig.talker().say("PULL", queue=QUEUE, owner="w", timeout=5_000)
    rig.talker().say("PULL", queue="other", owner="w", timeout=2_000)
    await trio.sleep(3)
    rig.push("a")
    await settle_down()

    latencies = rig.broker.latencies
    assert (latencies.pull.count, latencies.pull.sum) == (1, 3_000)


async def test_a_turn_that_was_put_off_with_its_flush_is_still_measured(start_rig, autojump_clock):
    rig = await start_rig(flusher=False)
    rig.store.door = trio.Event()
    async with trio.open_nursery() as first:
        await first.start(rig.flusher.run)
        rig.talker().segment(*pushes(["a"], durable=True))
        await settle_down()
        rig.talker().segment(*pushes(["b"], durable=True))
        first.cancel_scope.cancel()
    rig.store.door = None
    assert counts(rig) == (0, 0, 0)

    await rig.flusher.flush_all()

    assert counts(rig) == (2, 0, 0)


async def test_a_turn_without_a_stopwatch_counts_as_instant(rig: Rig):
    now = rig.clock.now()
    rig.broker.execute(_push(), None, now)
    rig.broker.after_turn(now)

    assert (rig.broker.latencies.push.count, rig.broker.latencies.push.sum) == (1, 0)


def _push() -> Push:
    from tests.engine_harness import EngineHarness

    return EngineHarness.command("PUSH", queue=QUEUE, data=1)
