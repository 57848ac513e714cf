"""PUSH and PUSHB: records, receipts, batches; what is refused leaves nothing behind."""

import pytest
from msgspec.msgpack import encode as pack

from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.push_checks import BatchEntryError
from bunqueue_trio.protocol.wire import checked
from tests.engine_harness import EngineHarness


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
