"""PUSH and PUSHB: custom ids, unique keys, dependencies; what is refused leaves nothing behind."""

import pytest
from msgspec.msgpack import encode as pack

from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import StateError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.push_checks import BatchEntryError
from bunqueue_trio.protocol.wire import checked
from tests.engine_harness import EngineHarness, completed, needs_facts


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


# records and timelines


def test_a_plain_job_has_the_defaults(harness):
    shown = harness.shown(harness.push(data={"x": [1]}))

    now = harness.now.wall_ms
    assert (shown["data"], shown["queue"], shown["state"]) == ({"x": [1]}, "q", "waiting")
    assert (shown["createdAt"], shown["runAt"], shown["lastHeartbeat"]) == (now, now, now)
    assert (shown["attempts"], shown["maxAttempts"], shown["backoff"], shown["priority"]) == (0, 3, 1000, 0)
    assert (shown["customId"], shown["uniqueKey"], shown["ttl"], shown["backoffConfig"]) == (None, None, None, None)


def test_options_are_shown_as_sent(harness):
    options = {
        "priority": 7, "timeout": 5_000, "maxAttempts": 9, "ttl": 60_000, "tags": ["a"], "groupId": "g", "lifo": True,
        "removeOnComplete": True, "removeOnFail": True, "stallTimeout": 8, "stackTraceLimit": 4, "keepLogs": 5,
        "sizeLimit": 6, "childrenIds": ["c"], "parentId": "p", "debounceId": "d", "debounceTtl": 11,
        "failParentOnFailure": True, "removeDependencyOnFailure": True, "continueParentOnFailure": True,
        "ignoreDependencyOnFailure": True, "uniqueKey": "k",
    }  # fmt: skip
    shown = harness.shown(harness.push(**options))

    assert {name: shown[name] for name in options} == options


def test_the_backoff_map_is_shown_with_its_cap(harness):
    backoff = {"type": "fixed", "delay": 50, "maxDelay": 200}
    shown = harness.shown(harness.push(backoff=backoff))

    assert (shown["backoff"], shown["backoffConfig"]) == (50, backoff)


def test_dedup_is_shown_in_three_fields(harness):
    shown = harness.shown(harness.push(uniqueKey="k", dedup={"ttl": 500, "extend": True, "replace": True}))

    assert shown["deduplicationTtl"] == 500
    assert (shown["deduplicationExtend"], shown["deduplicationReplace"]) == (True, True)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, "waiting"),
        ({"priority": -3}, "waiting"),
        ({"priority": 1}, "prioritized"),
        ({"delay": 100}, "delayed"),
        ({"delay": 100, "priority": 1}, "delayed"),
        ({"delay": 0.4}, "delayed"),
    ],
)
def test_the_first_state_and_timeline_entry(harness, options, state):
    job_id = harness.push(**options)

    assert harness.state(job_id) == state
    assert harness.timeline(job_id) == [state]


def test_fractions_of_a_run_time_are_rounded_up(harness):
    shown = harness.shown(harness.push(delay=0.4))

    assert shown["runAt"] == harness.now.wall_ms + 1  # P-6


def test_delay_counts_from_the_time_stamp(harness):
    stamp = harness.now.wall_ms - 10_000
    shown = harness.shown(harness.push(timestamp=stamp, delay=500))

    assert (shown["createdAt"], shown["runAt"], shown["state"]) == (stamp, stamp + 500, "waiting")


def test_a_future_time_stamp_delays(harness):
    assert harness.state(harness.push(timestamp=harness.now.wall_ms + 5)) == "delayed"


def test_ids_sort_by_push(harness):
    ids = [harness.push() for _ in range(20)]

    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("options", "durability"), [({}, "buffered"), ({"durable": True}, "committed"), ({"durable": "fsync"}, "synced")]
)
def test_a_receipt_tells_level_and_outcome(harness, options, durability):
    reply = harness.ask("PUSH", queue="q", data=1, receipt=True, **options)

    assert (reply["durability"], reply["outcome"]) == (durability, "created")


def test_without_receipt_there_is_no_extra_key(harness):
    assert set(harness.ask("PUSH", queue="q", data=1)) == {"ok", "id"}
    assert set(harness.ask("PUSHB", queue="q", jobs=[{"data": 1}])) == {"ok", "ids"}


def test_a_batch_receipt_has_an_outcome_per_entry(harness):
    harness.push(jobId="a")
    jobs = [
        {"data": 1},
        {"data": 1, "customId": "a"},
        {"data": 1, "uniqueKey": "k"},
        {"data": 1, "uniqueKey": "k", "dedup": {"replace": True}},
    ]

    reply = harness.ask("PUSHB", queue="q", receipt=True, jobs=jobs)

    assert reply["outcomes"] == ["created", "existing", "created", "replaced"]
    assert reply["durability"] == "buffered"


@pytest.mark.parametrize(("levels", "shown"), [([True, None], "committed"), (["fsync", True], "synced")])
def test_the_strongest_level_holds_for_the_whole_batch(harness, levels, shown):
    jobs = [{"data": 1, "durable": level} for level in levels]

    assert harness.ask("PUSHB", queue="q", receipt=True, jobs=jobs)["durability"] == shown


def test_a_push_wakes_one_pull_per_job(harness):
    harness.push()
    assert harness.wakes() == {"q": 1}
    harness.push_many("q", [{}, {"priority": 1}, {"delay": 10}])
    assert harness.wakes() == {"q": 2}


def test_an_empty_batch_makes_the_queue_known(harness):
    assert harness.push_many("new", []) == []
    assert harness.send("ListQueues").queues == ["new"]


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


# dependencies


def done(harness):
    harness.push(jobId="dep")
    harness.ack(*harness.pull())


def done_and_removed(harness):
    harness.push(jobId="dep", removeOnComplete=True)
    harness.ack(*harness.pull())


def dependency(**options):
    def place(harness):
        harness.push("deps", jobId="dep", **options)

    return place


def dependency_running(harness):
    harness.push("deps", jobId="dep")
    harness.pull("deps")


def dependency_parked(harness):
    harness.push("deps", jobId="first")
    harness.push("deps", jobId="dep", dependsOn=["first"])


def dependency_dead(harness):
    harness.push("deps", jobId="dep", maxAttempts=1)
    harness.fail(*harness.pull("deps"))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("place", "state"),
    [
        (done, "waiting"),
        (done_and_removed, "waiting"),
        (dependency(), "waiting-children"),
        (dependency(priority=4), "waiting-children"),
        (dependency(delay=60_000), "waiting-children"),
        (dependency_running, "waiting-children"),
        (dependency_parked, "waiting-children"),
        (dependency_dead, "waiting-children"),
    ],
)
def test_a_job_with_a_dependency_in_each_state(harness, place, state, durable):
    place(harness)

    job_id = harness.push(dependsOn=["dep"], durable=durable)

    assert harness.state(job_id) == state
    assert harness.timeline(job_id) == [state]
    assert harness.shown(job_id)["dependsOn"] == ["dep"]
    assert (harness.pull() is None) == (state == "waiting-children")


def gone_cancelled(harness):
    harness.push(jobId="dep")
    harness.send("Cancel", id="dep")


def gone_expired(harness):
    harness.push(jobId="dep", ttl=1)
    harness.clock.advance(2)
    harness.pull()


@pytest.mark.parametrize("place", [gone_cancelled, gone_expired, lambda _: None])
def test_an_unknown_dependency_refuses(harness, place):
    place(harness)

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["dep"]) == "Dependency job not found: dep"
    assert harness.counts() == {}


def test_the_first_unknown_dependency_is_named(harness):
    harness.push(jobId="a")

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["a", "x", "y"]) == "Dependency job not found: x"


def test_a_push_cannot_depend_on_itself(harness):
    assert harness.refusal("PUSH", queue="q", data=1, jobId="me", dependsOn=["me"]) == "Dependency job not found: me"


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("end", [completed_once, removed_on_completion, dead])
def test_a_former_life_is_no_dependency_of_the_next(harness, end, durable):
    end(harness)
    fields = {"queue": "q", "data": 1, "jobId": "c", "dependsOn": ["c"], "durable": durable}

    assert harness.refusal("PUSH", **fields) == "Dependency job not found: c"


def test_a_repeated_push_that_names_itself_is_answered_by_the_live_job(harness):
    harness.push(jobId="c")

    assert harness.push(jobId="c", dependsOn=["c"]) == "c"


def test_the_last_dependency_releases(harness):
    for name in "ab":
        harness.push("deps", jobId=name)
    job_id = harness.push(dependsOn=["a", "b", "a"])
    pulled = [harness.pull("deps"), harness.pull("deps")]
    harness.wakes()

    harness.ack(*pulled[0])
    assert harness.state(job_id) == "waiting-children"
    assert "q" not in harness.wakes()
    harness.ack(*pulled[1])

    assert harness.state(job_id) == "waiting"
    assert harness.timeline(job_id) == ["waiting-children", "waiting"]
    assert harness.shown(job_id)["dependsOn"] == ["a", "b"]
    assert harness.wakes()["q"] == 1
    assert harness.pull_id() == job_id


@pytest.mark.parametrize(
    ("options", "state"), [({"delay": 90_000}, "delayed"), ({"priority": 2}, "prioritized"), ({}, "waiting")]
)
def test_a_released_job_goes_where_its_options_say(harness, options, state):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"], **options)
    assert harness.timeline(job_id) == ["waiting-children"]

    harness.ack(*harness.pull("deps"))

    assert harness.state(job_id) == state
    assert harness.timeline(job_id) == ["waiting-children", state]


def test_dependents_are_released_in_push_order(harness):
    harness.push("deps", jobId="dep")
    for name in ("z", "a", "m"):
        harness.push(jobId=name, dependsOn=["dep"])

    harness.ack(*harness.pull("deps"))

    assert harness.pull_all() == ["z", "a", "m"]


def test_a_failed_dependency_releases_nobody(harness):
    harness.push("deps", jobId="dep", maxAttempts=1)
    job_id = harness.push(dependsOn=["dep"])
    harness.fail(*harness.pull("deps"))

    assert harness.state(job_id) == "waiting-children"


def test_a_cancelled_dependency_releases_nobody(harness):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"])
    harness.send("Cancel", id="dep")

    assert harness.state(job_id) == "waiting-children"  # SD-17


def test_a_dependency_that_comes_back_under_its_id_releases(harness):
    harness.push("deps", jobId="dep")
    job_id = harness.push(dependsOn=["dep"])
    harness.send("Cancel", id="dep")
    harness.push("deps", jobId="dep")
    harness.ack(*harness.pull("deps"))

    assert harness.state(job_id) == "waiting"


@pytest.mark.parametrize("durable", [False, True])
def test_a_dependency_that_only_the_file_knows_is_looked_up(harness, durable):
    harness.engine.state.history.has_evicted = True
    fields = {"queue": "q", "data": 1, "dependsOn": ["old"], "durable": durable}
    assert needs_facts(harness, "PUSH", **fields) == ["old"]

    harness.engine.find_facts({"old": completed("old")})
    with harness.pending():
        job_id = harness.push(**{k: v for k, v in fields.items() if k != "queue"})
        harness.engine.clear_facts()
        harness.commit()

    assert harness.state(job_id) == "waiting"
    assert harness.pull_id() == job_id


def test_a_dependency_that_not_even_the_file_knows_refuses(harness):
    harness.engine.state.history.has_evicted = True
    harness.engine.find_facts({"old": None})

    assert harness.refusal("PUSH", queue="q", data=1, dependsOn=["old"]) == "Dependency job not found: old"


def test_a_dead_letter_depends_on_nothing_any_more(harness):
    """Its id stays in no list: the dependency may live and complete again after the entry is gone."""
    harness.push("deps", jobId="dep")
    harness.push(jobId="c", dependsOn=["dep"], maxAttempts=1)
    harness.ack(*harness.pull("deps"))
    harness.fail(*harness.pull())
    harness.push(jobId="c", durable=True)
    harness.ack(*harness.pull())

    harness.push("deps", jobId="dep")
    harness.ack(*harness.pull("deps"))

    assert harness.state("dep") == "completed"
    assert harness.engine.state.dependents == {}


@pytest.mark.parametrize("removed", [False, True])
def test_a_dependency_that_completes_while_the_dependent_is_being_committed(harness, removed):
    harness.push("deps", jobId="dep", removeOnComplete=removed)
    pulled = harness.pull("deps")
    with harness.pending():
        job_id = harness.push(dependsOn=["dep"], durable=True)
        harness.ack(*pulled)
        harness.commit()

    assert harness.state(job_id) == "waiting"


def test_a_dependency_that_completes_before_the_dependent_is_committed(harness):
    harness.push("deps", jobId="dep")
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        flight = harness.take()
        job_id = harness.push(dependsOn=["dep"], durable=True)
        harness.land(flight)
        assert harness.state(job_id) == "unknown"
        harness.commit()

    assert harness.state(job_id) == "waiting"


# ids that the file must remember for others


def test_a_removed_completion_is_remembered_while_a_job_names_it(harness):
    harness.push("deps", jobId="dep", removeOnComplete=True)
    job_id = harness.push(dependsOn=["dep"])
    harness.ack(*harness.pull("deps"))
    assert harness.batches[-1].finished == ["dep"]
    assert harness.batches[-1].deleted == []

    harness.ack(*harness.pull())

    assert harness.state(job_id) == "completed"
    assert harness.commit().finished_gone == ["dep"]


def test_a_removed_completion_is_remembered_for_one_who_comes_later(harness):
    done_and_removed(harness)
    harness.push(dependsOn=["dep"])

    assert harness.commit().finished == ["dep"]


def test_a_removed_completion_that_nobody_names_is_not_remembered(harness):
    done_and_removed(harness)

    assert harness.batches[-1].finished == []


def test_a_completion_that_could_not_be_committed_is_not_remembered(harness):
    """Else a restart would release the dependents of a job that never completed."""
    harness.push("deps", jobId="dep", removeOnComplete=True)
    job_id = harness.push(dependsOn=["dep"])
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()

    assert harness.commit().finished == []
    assert harness.state(job_id) == "waiting-children"
    harness.ack(*pulled)
    assert harness.batches[-1].finished == ["dep"]
    assert harness.state(job_id) == "waiting"


def test_a_dependent_pushed_while_the_completion_is_being_committed_is_safe(harness):
    """The flush that deletes the dependency's row is the one that inserts its dependent."""
    harness.push("deps", jobId="dep", removeOnComplete=True)
    harness.commit()
    pulled = harness.pull("deps")
    with harness.pending():
        harness.ack(*pulled)
        job_id = harness.push(dependsOn=["dep"])
        batch = harness.commit()

    assert (batch.deleted, batch.finished) == (["dep"], ["dep"])
    assert harness.state(job_id) == "waiting"


def test_a_memory_that_is_given_up_and_needed_again_in_one_window_stays(harness):
    done_and_removed(harness)
    first = harness.push(dependsOn=["dep"])
    harness.commit()
    with harness.pending():
        harness.send("Cancel", id=first)
        harness.land(harness.take())
        harness.push(dependsOn=["dep"])
        batch = harness.commit()

    assert (batch.finished, batch.finished_gone) != (["dep"], ["dep"])


def test_it_stays_also_when_the_first_flush_fails(harness):
    done_and_removed(harness)
    first = harness.push(dependsOn=["dep"])
    harness.commit()
    harness.send("Cancel", id=first)
    flight = harness.take()
    assert flight.batch.finished_gone == ["dep"]
    harness.push(dependsOn=["dep"])
    harness.crash(flight)

    assert "dep" not in harness.commit().finished_gone


# batches


def refused(harness, jobs, queue="q"):
    """The text for the batch, of which nothing may remain."""
    before = (harness.counts(), set(harness.engine.state.jobs))
    text = harness.refusal("PUSHB", queue=queue, jobs=[{"data": 1, **job} for job in jobs])
    assert (harness.counts(), set(harness.engine.state.jobs)) == before
    assert harness.engine.state.dependents == {}
    return text


def test_an_unknown_dependency_refuses_the_batch(harness):
    assert refused(harness, [{}, {"dependsOn": ["x"]}, {}]) == "jobs[1]: Dependency job not found: x"


def test_a_batch_entry_cannot_depend_on_itself(harness):
    jobs = [{}, {"customId": "me", "dependsOn": ["me"]}]

    assert refused(harness, jobs) == "jobs[1]: Job cannot depend on itself: me"


@pytest.mark.parametrize(
    ("links", "index"),
    [
        ({"a": "b", "b": "a"}, 0),
        ({"a": None, "b": "c", "c": "d", "d": "b"}, 1),
        ({"x": "a", "a": "b", "b": "a"}, 1),
    ],
)
def test_a_circle_refuses_the_batch(harness, links, index):
    jobs = [{"customId": name, "dependsOn": [needs] if needs else []} for name, needs in links.items()]

    assert refused(harness, jobs) == f"jobs[{index}]: Circular dependency"  # SD-19


@pytest.mark.parametrize("durable", [False, True])
def test_entries_may_name_each_other_in_any_order(harness, durable):
    jobs = [
        {"customId": "last", "dependsOn": ["left", "right"]},
        {"customId": "left", "dependsOn": ["root"]},
        {"customId": "root", "durable": durable},
        {"customId": "right", "dependsOn": ["root"]},
    ]
    harness.push_many("q", jobs)

    order = []
    while (pulled := harness.pull()) is not None:
        order.append(pulled[0])
        harness.ack(*pulled)
    assert order == ["root", "left", "right", "last"]


def test_a_malformed_entry_comes_after_the_faults_before_it(harness):
    command_jobs = [{"data": 1, "dependsOn": ["x"]}, {"data": 1, "priority": "high"}]
    with pytest.raises(BatchEntryError) as malformed:
        harness.command("PUSHB", queue="q", jobs=command_jobs)
    assert malformed.value.index == 1

    command = harness.command("PUSHB", queue="q", jobs=command_jobs[:1])
    with pytest.raises(Exception, match=r"^jobs\[0\]: Dependency job not found: x$"):
        harness.engine.entry_checks.check_first(command, 1, harness.now)
    harness.engine.entry_checks.check_first(command, 0, harness.now)


# meeting what is not committed


@pytest.mark.parametrize(
    "again",
    [
        {"jobId": "c"},
        {"jobId": "c", "durable": True},
        {"uniqueKey": "k"},
        {"uniqueKey": "k", "dedup": {"replace": True}},
        {"uniqueKey": "k", "dedup": {"extend": True, "ttl": 5}},
        {"dependsOn": ["c"]},
    ],
)
def test_a_push_that_meets_an_uncommitted_one_waits(harness, again):
    with harness.pending():
        harness.push(jobId="c", uniqueKey="k", durable=True)
        with pytest.raises(PendingChangeError):
            harness.push(**again)
        with pytest.raises(PendingChangeError):
            harness.push_many("q", [{}, {("customId" if k == "jobId" else k): v for k, v in again.items()}])
        assert len(harness.engine.state.jobs) == 1
        harness.commit()

    harness.push(**again)


def test_a_durable_push_is_answered_for_a_buffered_one_after_its_commit(harness):
    harness.push(jobId="c")
    with harness.pending():
        harness.push(jobId="c", durable=True)
        assert harness.engine.state.waits_for_commit
        harness.commit()
        harness.push(jobId="c", durable=True)
        assert not harness.engine.state.waits_for_commit


@pytest.mark.parametrize(("options", "waits"), [({}, False), ({"durable": True}, True)])
def test_only_durable_pushes_wait(harness, options, waits):
    with harness.pending():
        harness.push(**options)

        assert harness.engine.state.waits_for_commit is waits


def test_fsync_asks_for_a_synced_commit(harness):
    with harness.pending():
        harness.push(durable=True)
        assert not harness.commit().needs_sync
        harness.push(durable="fsync")
        assert harness.commit().needs_sync
        harness.push(durable=True)
        assert not harness.commit().needs_sync


def test_a_durable_push_waits_for_the_row_of_the_buffered_job_it_meets(harness: EngineHarness) -> None:
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="x")
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            harness.send("PUSH", queue="q", data=2, jobId="x", durable=True)
        harness.land(flight)

        reply = harness.send("PUSH", queue="q", data=2, jobId="x", durable=True)

    assert reply.id == "x"
    assert not harness.engine.state.waits_for_commit


@pytest.mark.parametrize("meets", [{"customId": "x"}, {"uniqueKey": "k"}])
def test_a_durable_batch_that_meets_a_row_in_flight_lets_nothing_in_yet(harness: EngineHarness, meets) -> None:
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="x", uniqueKey="k")
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            harness.send("PUSHB", queue="q", jobs=[{"data": 2, "durable": True}, {"data": 3, **meets}])
        harness.land(flight)

    assert harness.counts()["waiting"] == 1


@pytest.mark.parametrize("odd", [{}, [], 5])
def test_ids_behind_a_malformed_entry_of_a_batch_are_not_looked_at(harness: EngineHarness, odd) -> None:
    command = decode_command(
        pack({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, 7, {"data": 1, "customId": odd}]})
    )
    with pytest.raises(BatchEntryError) as refusal:
        checked(command)

    harness.engine.entry_checks.check_first(command, refusal.value.index, harness.now)

    assert str(refusal.value) == "jobs[1]: Job must be an object"
