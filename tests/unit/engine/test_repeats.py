"""The job option repeat: when there is a successor, when it runs, and what it takes over."""

import pytest

from bunqueue_trio.engine import repeats
from bunqueue_trio.model.job import RepeatConfig
from tests.engine_harness import EngineHarness

HOUR_MS = 3_600_000


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def successor_of(harness, job_id):
    """The only live job beside *job_id*."""
    [found] = [job.record for job in harness.engine.state.jobs.values() if job.record.id != job_id]
    return found


def complete(harness, **options):
    """Push a job with these options and complete it; its id."""
    job_id = harness.push(**options)
    harness.ack(*harness.pull())
    return job_id


# chains


def test_a_completed_job_leaves_a_successor_that_waits_its_interval(harness):
    job_id = complete(harness, repeat={"every": 100})

    after = successor_of(harness, job_id)
    assert after.run_at == harness.now.wall_ms + 100
    assert harness.counts() == {"delayed": 1, "completed": 1}
    assert harness.timeline(after.id) == ["delayed"]
    harness.advance(100)
    assert harness.pull_id() == after.id


@pytest.mark.parametrize(("limit", "runs"), [(0, 1), (1, 2), (3, 4)])
def test_a_limit_counts_the_successors(harness, limit, runs):
    harness.push(repeat={"every": 10, "limit": limit})
    done = 0

    while (pulled := harness.pull()) is not None:
        harness.ack(*pulled)
        done += 1
        harness.advance(10)

    assert (done, harness.counts()) == (runs, {"completed": runs})


def test_successors_count_up(harness):
    harness.push(repeat={"every": 10, "count": 5})
    seen = []

    for _ in range(3):
        job_id, token = harness.pull()
        seen.append(harness.shown(job_id)["repeat"]["count"])
        harness.ack(job_id, token)
        harness.advance(10)

    assert seen == [5, 6, 7]


def test_every_completion_of_a_batch_leaves_its_successor(harness):
    harness.push_many("q", [{"repeat": {"every": 10}}] * 2)
    pulled = [harness.pull() for _ in range(2)]

    harness.send("ACKB", ids=[job_id for job_id, _ in pulled], tokens=[token for _, token in pulled])

    assert harness.counts() == {"completed": 2, "delayed": 2}


def test_a_job_that_is_removed_on_completion_repeats_too(harness):
    job_id = complete(harness, repeat={"every": 10}, removeOnComplete=True)

    assert harness.counts() == {"delayed": 1}
    assert successor_of(harness, job_id).remove_on_complete


@pytest.mark.parametrize("how", ["FAIL", "Cancel", "Discard"])
def test_a_job_that_does_not_complete_ends_the_chain(harness, how):
    job_id = harness.push(repeat={"every": 10}, maxAttempts=1)

    if how == "FAIL":
        harness.fail(*harness.pull())
    else:
        harness.send(how, id=job_id)

    assert set(harness.engine.state.jobs) <= {job_id}


def test_a_failed_attempt_that_is_retried_does_not_repeat(harness):
    job_id = harness.push(repeat={"every": 10})

    harness.fail(*harness.pull())

    assert list(harness.engine.state.jobs) == [job_id]


# one transaction


def test_completion_and_successor_are_one_batch(harness):
    job_id = harness.push(repeat={"every": 10})
    harness.commit()
    harness.ack(*harness.pull())

    batch, after = harness.batches[-1], successor_of(harness, job_id).id
    assert [(row[0], row[1]) for row in batch.states] == [(job_id, "completed")]
    assert [row[1] for row in batch.full] == [after]
    assert [row[0] for row in batch.extras] == [after]  # SD-9: the chain goes on after a restart


def test_nobody_sees_the_successor_before_the_commit(harness):
    job_id = harness.push(repeat={"every": 0, "pattern": "* * * * *"})
    harness.engine.state.next_match = lambda pattern, zone, after_ms: after_ms
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        after = successor_of(harness, job_id)
        assert (harness.state(after.id), harness.pull_id()) == ("unknown", None)
        harness.commit()

        assert harness.pull_id() == after.id


def test_a_commit_that_fails_leaves_no_successor(harness):
    job_id = harness.push(repeat={"every": 10})
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()
        assert list(harness.engine.state.jobs) == [job_id]
        harness.ack(*pulled)
        harness.commit()

    assert harness.counts() == {"completed": 1, "delayed": 1}


def test_a_queue_that_is_obliterated_takes_the_successor_along(harness):
    harness.push(repeat={"every": 10})
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        harness.send("Obliterate", queue="q")
        harness.commit()

    assert (harness.engine.state.jobs, harness.counts()) == ({}, {})


# what is taken over


COPIED = {
    "data": {"n": 2}, "priority": 3, "maxAttempts": 7, "ttl": 99_999, "timeout": 888, "tags": ["t"], "groupId": "G",
    "lifo": True, "removeOnComplete": False, "removeOnFail": True, "backoff": 50,
}  # fmt: skip


@pytest.mark.parametrize("name", COPIED)
def test_an_option_of_the_work_is_copied(harness, name):
    job_id = complete(harness, repeat={"every": 10}, **COPIED)

    assert harness.shown(successor_of(harness, job_id).id)[name] == COPIED[name]


def test_the_data_are_those_at_completion(harness):
    job_id = harness.push(repeat={"every": 10})
    pulled = harness.pull()
    harness.send("Update", id=job_id, data="new")

    harness.ack(*pulled)

    assert harness.shown(successor_of(harness, job_id).id)["data"] == "new"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ({"jobId": "c"}, "customId"),
        ({"uniqueKey": "u"}, "uniqueKey"),
        ({"stallTimeout": 900}, "stallTimeout"),
        ({"keepLogs": 3}, "keepLogs"),
        ({"parentId": "p"}, "parentId"),
        ({"failParentOnFailure": True}, "failParentOnFailure"),
        ({"backoff": {"type": "fixed", "delay": 5}}, "backoffConfig"),
    ],
)
def test_an_option_of_the_single_job_is_not_copied(harness, option, name):
    job_id = complete(harness, repeat={"every": 10}, **option)
    plain = harness.push("plain")

    after = harness.shown(next(i for i in harness.engine.state.jobs if i not in (job_id, plain)))
    assert after[name] == harness.shown(plain)[name]


def test_the_other_keys_of_repeat_are_carried_over(harness):
    keys = {
        "tz": "UTC",
        "startDate": 5,
        "endDate": 2e12,
        "prevMillis": 7,
        "offset": 8,
        "jobId": "j",
        "immediately": True,
    }
    job_id = complete(harness, repeat={"every": 10, "limit": 4, **keys})

    repeat = harness.shown(successor_of(harness, job_id).id)["repeat"]  # SD-10
    assert {name: repeat[name] for name in (*keys, "every", "limit", "count")} == {
        **keys, "every": 10, "limit": 4, "count": 1,
    }  # fmt: skip


def test_a_successor_comes_last_among_its_equals(harness):
    harness.push(repeat={"every": 1})
    pulled = harness.pull()
    other = harness.push()
    harness.ack(*pulled)
    harness.advance(1)

    assert harness.pull_id() == other


# when it runs


def run_at(now_ms=1_000.0, next_match=None, **fields):
    return repeats.next_run_at(RepeatConfig(**fields), now_ms, next_match)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"every": 100}, 1_100),
        ({"every": 0.5}, 1_001),
        ({}, 1_000 + repeats.UNPACED_MS),
        ({"every": 0}, 1_000 + repeats.UNPACED_MS),
        ({"every": 100, "limit": 2, "count": 1}, 1_100),
        ({"every": 100, "limit": 2, "count": 2}, None),
        ({"every": 100, "end_date": 1_100}, 1_100),
        ({"every": 100, "end_date": 1_099}, None),
        ({"every": 100, "start_date": 5_000}, 5_000),
        ({"every": 100, "start_date": 900}, 1_100),
        ({"every": 100, "pattern": "* * * * *"}, 1_100),
        ({"every": "soon", "limit": [], "count": None}, 1_000 + repeats.UNPACED_MS),
    ],
)
def test_the_next_run(fields, expected):
    assert run_at(**fields) == expected


def test_a_pattern_is_asked_for_its_next_match_in_its_zone():
    asked = []

    def next_match(pattern, zone, after_ms):
        asked.append((pattern, zone, after_ms))
        return after_ms + 60

    found = [
        run_at(pattern="p", tz="UTC", every=5, next_match=next_match),
        run_at(pattern="p", tz="", start_date=9_000, next_match=next_match),
        run_at(pattern="p", end_date=1_059, next_match=next_match),
    ]

    assert found == [1_060, 9_059, None]
    assert asked == [("p", "UTC", 1_000), ("p", None, 8_999), ("p", None, 1_000)]


def test_a_pattern_without_a_match_ends_the_chain():
    assert run_at(pattern="p", next_match=lambda *_: None) is None


# updates


def test_an_update_of_a_finished_job_reaches_its_queued_successor(harness):
    job_id = complete(harness, repeat={"every": 10})
    after = successor_of(harness, job_id).id

    harness.send("Update", id=job_id, data="new")

    assert harness.shown(after)["data"] == "new"


def test_only_a_queued_direct_successor_is_reached(harness):
    refusal = "Job not found or cannot be updated"
    job_id = complete(harness, repeat={"every": 10})
    harness.advance(10)
    second = harness.pull()
    assert harness.refusal("Update", id=job_id, data="new") == refusal
    harness.ack(*second)

    assert harness.refusal("Update", id=job_id, data="new") == refusal
    harness.send("Update", id=second[0], data="new")


def test_an_id_that_lives_again_is_itself(harness):
    complete(harness, repeat={"every": HOUR_MS}, jobId="c")
    harness.push(jobId="c")

    harness.send("Update", id="c", data="new")
    harness.send("Cancel", id="c")

    assert harness.refusal("Update", id="c", data="newer") == "Job not found or cannot be updated"


def test_the_links_to_successors_are_bounded(harness, monkeypatch):
    monkeypatch.setattr(repeats, "MAX_LINKS", 2)
    ids = [complete(harness, repeat={"every": HOUR_MS}) for _ in range(3)]

    assert list(harness.engine.state.successors) == ids[1:]
