"""Custom ids and unique keys of pushes that are taken: who stands for a push, who makes room, what a new life ends."""

import pytest

from bunqueue_trio.errors import StateError
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


# custom ids


def test_the_custom_id_is_the_id(harness):
    assert harness.push(jobId="mine") == "mine"
    assert harness.shown("mine")["customId"] == "mine"


def waiting(harness):
    harness.push(jobId="c", data="old")


def prioritized(harness):
    harness.push(jobId="c", data="old", priority=1)


def delayed(harness):
    harness.push(jobId="c", data="old", delay=9_000)


def retrying(harness):
    harness.push(jobId="c", data="old")
    harness.fail(*harness.pull())


def active(harness):
    harness.push(jobId="c", data="old")
    harness.pull()


def parked(harness):
    harness.push("deps", jobId="dep")
    harness.push(jobId="c", data="old", dependsOn=["dep"])


LIVE = [waiting, prioritized, delayed, retrying, active, parked]


@pytest.mark.parametrize("place", LIVE)
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("queue", ["q", "elsewhere"])
def test_a_live_job_answers_for_its_custom_id(harness, place, durable, queue):
    place(harness)
    before, counts = harness.shown("c"), harness.counts()

    reply = harness.ask("PUSH", queue=queue, jobId="c", data="new", priority=9, durable=durable, receipt=True)

    assert (reply["id"], reply["outcome"]) == ("c", "existing")
    assert harness.shown("c") == before
    assert harness.counts() == counts
    assert queue in harness.send("ListQueues").queues


def completed_once(harness):
    harness.push(jobId="c", data="old")
    harness.ack(*harness.pull(), result="old")


def removed_on_completion(harness):
    harness.push(jobId="c", data="old", removeOnComplete=True)
    harness.ack(*harness.pull())


def dead(harness):
    harness.push(jobId="c", data="old", maxAttempts=1)
    harness.fail(*harness.pull())


def lost(harness):
    harness.push(jobId="c", data="old", maxAttempts=1)
    harness.pull()
    harness.advance(32_000)


def cancelled(harness):
    harness.push(jobId="c", data="old")
    harness.send("Cancel", id="c")


def expired(harness):
    harness.push(jobId="c", data="old", ttl=1)
    harness.clock.advance(2)
    harness.pull()


ENDED = [completed_once, removed_on_completion, dead, lost, cancelled, expired]


@pytest.mark.parametrize("end", ENDED)
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("queue", ["q", "elsewhere"])
def test_an_ended_job_makes_room_for_its_custom_id(harness, end, durable, queue):
    end(harness)
    harness.commit()

    reply = harness.ask("PUSH", queue=queue, jobId="c", data="new", durable=durable, receipt=True)

    assert (reply["id"], reply["outcome"]) == ("c", "created")
    shown = harness.shown("c")
    assert (shown["state"], shown["data"], shown["attempts"], shown["queue"]) == ("waiting", "new", 0, queue)
    assert "result" not in harness.ask("GetResult", id="c")
    assert harness.dead_letters() == []
    assert harness.counts(queue) == {"waiting": 1}
    if queue != "q":
        assert harness.counts() == {}
    assert harness.pull_id(queue) == "c"


@pytest.mark.parametrize("end", [completed_once, dead])
@pytest.mark.parametrize("durable", [False, True])
def test_the_former_lifes_rows_go_in_the_same_transaction(harness, end, durable):
    end(harness)
    harness.commit()

    harness.push(jobId="c", durable=durable)
    batch = harness.batches[-1] if durable else harness.commit()

    assert batch.reborn == ["c"]
    assert [row[1] for row in batch.plain + batch.full] == ["c"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_rebirth_is_counted_out_once(harness, durable):
    """Memory knows of the former life and the file reports it as well: one completed job less, not two."""
    for name in "abc":
        harness.push(jobId=name)
        harness.ack(*harness.pull())

    harness.push(jobId="a", durable=durable)
    harness.commit()
    harness.engine.forgotten(["q"])

    assert harness.counts() == {"completed": 2, "waiting": 1}


def test_a_rebirth_of_which_only_the_file_knew_is_counted_out_by_its_report(harness):
    harness.engine.state.queue("q").completed_count = 5
    harness.engine.state.history.has_evicted = True

    harness.push(jobId="c")
    assert harness.commit().reborn == ["c"]
    harness.engine.forgotten(["q"])

    assert harness.counts() == {"completed": 4, "waiting": 1}


def test_a_new_job_of_an_unknown_id_costs_no_delete(harness):
    harness.push(jobId="c")

    assert harness.commit().reborn == []


def test_a_dead_letter_that_is_reborn_within_one_window_leaves_no_entry_in_the_file(harness):
    """Else the start would find the entry and throw the new job's row away."""
    harness.push(jobId="c", maxAttempts=1)
    harness.commit()
    harness.pull()
    harness.advance(32_000)
    harness.push(jobId="c")

    batch = harness.commit()

    assert batch.letters == []
    assert [row[1] for row in batch.plain + batch.full] == ["c"]


def test_a_dead_letter_that_died_is_reborn_and_died_again_is_kept_once(harness):
    for _ in range(2):
        harness.push(jobId="c", maxAttempts=1)
        harness.pull()
        harness.advance(32_000)

    assert [row[0] for row in harness.commit().letters] == ["c"]
    assert len(harness.dead_letters()) == 1


def test_the_id_of_a_generated_job_is_respected_too(harness):
    job_id = harness.push(data="first")

    assert harness.push(jobId=job_id, data="second") == job_id
    assert harness.shown(job_id)["data"] == "first"  # P-13


def test_one_custom_id_twice_in_a_batch_makes_one_job(harness):
    for durable in (False, True):
        name = f"c{durable}"
        assert harness.push_many("q", [{"customId": name, "durable": durable}] * 2) == [name, name]

    assert harness.counts() == {"waiting": 2}


def test_job_id_means_nothing_in_a_batch(harness):
    [job_id] = harness.push_many("q", [{"jobId": "c"}])

    assert job_id != "c"


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("end", [completed_once, removed_on_completion, dead])
def test_a_former_life_is_no_dependency_of_the_next(harness, end, durable):
    end(harness)
    fields = {"queue": "q", "data": 1, "jobId": "c", "dependsOn": ["c"], "durable": durable}

    assert harness.refusal("PUSH", **fields) == "Dependency job not found: c"


# unique keys


def test_the_holder_answers_for_its_key(harness):
    job_id = harness.push(uniqueKey="k")

    assert harness.push(uniqueKey="k", data="new") == job_id
    assert harness.counts() == {"waiting": 1}


def test_keys_belong_to_a_queue(harness):
    assert harness.push("a", uniqueKey="k") != harness.push("b", uniqueKey="k")


def test_dedup_without_a_key_does_nothing(harness):
    assert harness.push(dedup={"ttl": 100}) != harness.push(dedup={"replace": True})


@pytest.mark.parametrize("place", LIVE)
def test_every_live_holder_keeps_its_key(harness, place):
    place(harness)
    harness.job("c").record.unique_key = "k"
    harness.engine.state.queues["q"].keys["k"] = harness.job("c")

    assert harness.push(uniqueKey="k") == "c"


def finish(harness, pulled):
    harness.ack(*pulled)


def fail_for_good(harness, pulled):
    harness.fail(*pulled, unrecoverable=True)


@pytest.mark.parametrize("end", [finish, fail_for_good])
def test_an_end_frees_the_key(harness, end):
    job_id = harness.push(uniqueKey="k")
    end(harness, harness.pull())

    assert harness.push(uniqueKey="k") != job_id


def test_cancel_frees_the_key(harness):
    job_id = harness.push(uniqueKey="k")
    harness.send("Cancel", id=job_id)

    assert harness.push(uniqueKey="k") != job_id


def take_back(harness, pulled):
    harness.advance(32_000)


def release(harness, pulled):
    harness.disconnect(1)


def retry(harness, pulled):
    harness.fail(*pulled)


@pytest.mark.parametrize("end", [take_back, release, retry])
def test_a_job_that_comes_back_keeps_its_key(harness, end):
    job_id = harness.push(uniqueKey="k")
    end(harness, harness.pull())

    assert harness.push(uniqueKey="k") == job_id  # P-14


def test_a_key_holds_for_its_ttl(harness):
    first = harness.push(uniqueKey="k", dedup={"ttl": 1_000})
    harness.clock.advance(999)
    assert harness.push(uniqueKey="k") == first
    harness.clock.advance(1)

    second = harness.push(uniqueKey="k")

    assert second != first
    assert harness.counts() == {"waiting": 2}


def test_the_ttl_of_a_duplicate_means_nothing(harness):
    first = harness.push(uniqueKey="k", dedup={"ttl": 1_000})
    harness.push(uniqueKey="k", dedup={"ttl": 50_000})
    harness.clock.advance(1_000)

    assert harness.push(uniqueKey="k") != first


def test_a_ttl_of_zero_is_over_at_once(harness):
    first = harness.push(uniqueKey="k", dedup={"ttl": 0})

    assert harness.push(uniqueKey="k") != first


def test_an_old_holder_does_not_free_its_successors_key(harness):
    harness.push(jobId="old", uniqueKey="k", dedup={"ttl": 10})
    pulled = harness.pull()
    harness.clock.advance(10)
    harness.push(jobId="new", uniqueKey="k")

    harness.ack(*pulled)

    assert harness.push(uniqueKey="k") == "new"  # SD-23


def test_extend_restarts_the_time(harness):
    first = harness.push(uniqueKey="k", dedup={"ttl": 1_000})
    harness.clock.advance(900)
    assert harness.push(uniqueKey="k", dedup={"ttl": 1_000, "extend": True}) == first
    harness.clock.advance(900)

    assert harness.push(uniqueKey="k") == first
    harness.clock.advance(100)
    assert harness.push(uniqueKey="k") != first


def test_an_extension_is_stored(harness):
    harness.push(uniqueKey="k", dedup={"ttl": 1_000})
    harness.commit()
    harness.push(uniqueKey="k", dedup={"ttl": 5_000, "extend": True})

    assert len(harness.commit().extras) == 1


@pytest.mark.parametrize("dedup", [{"extend": True}, {"extend": True, "ttl": 0}])
def test_extend_without_a_time_is_a_plain_duplicate(harness, dedup):
    first = harness.push(uniqueKey="k", dedup={"ttl": 1_000})
    harness.pull()

    assert harness.push(uniqueKey="k", dedup=dedup) == first


@pytest.mark.parametrize("place", [active, parked])
def test_extending_a_running_or_parked_holder_is_an_error(harness, place):
    place(harness)
    harness.job("c").record.unique_key = "k"
    harness.engine.state.queues["q"].keys["k"] = harness.job("c")

    with pytest.raises(StateError, match=r"^Duplicate unique_key \(extended TTL\)$"):
        harness.push(uniqueKey="k", dedup={"ttl": 500, "extend": True})
    harness.clock.advance(499)
    assert harness.push(uniqueKey="k") == "c"
    harness.clock.advance(1)
    assert harness.push(uniqueKey="k") != "c"


def test_inside_a_batch_the_extended_holder_answers(harness):
    job_id = harness.push(uniqueKey="k")
    harness.pull()

    ids = harness.push_many("q", [{}, {"uniqueKey": "k", "dedup": {"ttl": 500, "extend": True}}, {}])

    assert ids[1] == job_id  # SD-24
    assert harness.counts() == {"active": 1, "waiting": 2}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("options", [{}, {"delay": 9_000}, {"priority": 3}])
def test_a_queued_holder_is_replaced_with_its_row(harness, durable, options):
    first = harness.push(uniqueKey="k", **options)
    harness.commit()

    second = harness.push(uniqueKey="k", dedup={"replace": True}, durable=durable)
    batch = harness.batches[-1] if durable else harness.commit()

    assert harness.state(first) == "unknown"
    assert harness.state(second) == "waiting"
    assert batch.deleted == [first]  # SD-22
    assert harness.push(uniqueKey="k") == second


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("place", [active, parked])
def test_a_running_or_parked_holder_is_left_alone(harness, durable, place):
    place(harness)
    harness.job("c").record.unique_key = "k"
    harness.engine.state.queues["q"].keys["k"] = harness.job("c")
    before = harness.state("c")

    second = harness.push(uniqueKey="k", dedup={"replace": True}, durable=durable)

    assert harness.state("c") == before
    assert harness.push(uniqueKey="k") == second


def test_a_retrying_holder_is_replaced(harness):
    first = harness.push(uniqueKey="k")
    harness.fail(*harness.pull())

    harness.push(uniqueKey="k", dedup={"replace": True})

    assert harness.state(first) == "unknown"


def test_replace_wins_over_extend(harness):
    first = harness.push(uniqueKey="k")

    assert harness.push(uniqueKey="k", dedup={"replace": True, "extend": True, "ttl": 100}) != first


def test_replace_starts_its_own_time(harness):
    harness.push(uniqueKey="k")
    second = harness.push(uniqueKey="k", dedup={"replace": True, "ttl": 100})
    harness.clock.advance(99)
    assert harness.push(uniqueKey="k") == second
    harness.clock.advance(1)
    assert harness.push(uniqueKey="k") != second


def test_the_custom_id_is_looked_at_before_the_key(harness):
    harness.push(jobId="c")
    holder = harness.push(uniqueKey="k")

    assert harness.push(jobId="c", uniqueKey="k") == "c"
    assert harness.state(holder) == "waiting"


@pytest.mark.parametrize("end", [completed_once, dead])
@pytest.mark.parametrize("durable", [False, True])
def test_a_duplicate_by_key_does_not_retire_the_custom_ids_former_job(harness, end, durable):
    end(harness)
    harness.commit()
    holder = harness.push(uniqueKey="k")
    before = harness.shown("c")

    assert harness.push(jobId="c", uniqueKey="k", durable=durable) == holder

    assert harness.shown("c") == before  # SD-27
    assert harness.commit().reborn == []


def test_equal_keys_in_a_batch_make_one_job(harness):
    for durable in (False, True):
        first, second = harness.push_many(f"q{durable}", [{"uniqueKey": "k", "durable": durable}] * 2)
        assert first == second


@pytest.mark.parametrize("durable", [False, True])
def test_a_batch_may_replace_what_it_has_just_pushed(harness, durable):
    replace = {"uniqueKey": "k", "dedup": {"replace": True}, "durable": durable}
    ids = harness.push_many("q", [replace] * 3)

    assert len(set(ids)) == 3
    assert [harness.state(i) for i in ids] == ["unknown", "unknown", "waiting"]
    assert harness.counts() == {"waiting": 1}
    assert harness.push(uniqueKey="k") == ids[2]


@pytest.mark.parametrize("durable", [False, True])
def test_a_replaced_entry_of_a_batch_leaves_the_dead_letter_of_its_id_consistent(harness, durable):
    dead(harness)
    harness.commit()

    ids = harness.push_many(
        "q",
        [{"customId": "c", "uniqueKey": "k", "durable": durable}, {"uniqueKey": "k", "dedup": {"replace": True}}],
    )

    assert harness.state(ids[1]) == "waiting"
    assert harness.state("c") in ("failed", "unknown")
    assert harness.pull_all() == [ids[1]]


@pytest.mark.parametrize("durable", [False, True])
def test_a_batch_may_push_the_id_of_a_job_that_it_replaces(harness, durable):
    harness.push(jobId="c", uniqueKey="k", data="old")
    harness.commit()

    ids = harness.push_many(
        "q",
        [
            {"uniqueKey": "k", "dedup": {"replace": True}, "durable": durable},
            {"customId": "c", "data": "new", "durable": durable},
        ],
    )
    harness.commit()

    assert ids[1] == "c"
    assert harness.shown("c")["data"] == "new"
    assert harness.pull_all() == ids
