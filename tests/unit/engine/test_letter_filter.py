"""Dlq and RetryDlq with a filter, GetDlqStats, RemoveDlqJob."""

import msgpack
import pytest

from bunqueue_trio.engine import letter_views
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import LimitError
from tests.engine_harness import EngineHarness
from tests.stored_engine import Stored

UNDEFINED = msgpack.ExtType(0, b"\x00")
HOUR = 3_600_000


@pytest.fixture
def harness() -> EngineHarness:
    """Four dead letters, a second apart: a, b and c have failed, d was discarded."""
    harness = EngineHarness()
    for name in "abc":
        bury(harness, name)
        harness.advance(1_000)
    harness.push(jobId="d")
    harness.send("Discard", id="d")
    return harness


def bury(harness: EngineHarness, name: str, queue: str = "q", **options: object) -> None:
    harness.push(queue, jobId=name, maxAttempts=1, **options)
    pulled = harness.pull(queue)
    assert pulled is not None
    harness.fail(*pulled, error=f"error of {name}")


def ids(harness: EngineHarness, **fields: object) -> str:
    """Ids of the jobs in the reply, whose entries must be about the same ones."""
    reply = harness.ask("Dlq", queue="q", **fields)
    if "entries" in reply:
        assert [entry["job"] for entry in reply["entries"]] == reply["jobs"]
    return "".join(job["id"] for job in reply["jobs"])


def entered_at(harness: EngineHarness, name: str) -> float:
    return harness.engine.state.queues["q"].letters[name].entered_at


@pytest.mark.parametrize("given", [UNDEFINED, None, {}, {"reason": UNDEFINED}, {"limit": 1}])
def test_entries_are_shown_when_a_filter_is_there_whatever_it_holds(harness, given):
    reply = harness.ask("Dlq", queue="q", filter=given)
    entry = reply["entries"][0]

    assert entry["job"] == reply["jobs"][0]
    assert (entry["reason"], entry["error"], entry["retryCount"]) == ("max_attempts_exceeded", "error of a", 0)
    assert entry["attempts"][0]["attempt"] == 1


def test_without_a_filter_there_are_no_entries(harness):
    assert set(harness.ask("Dlq", queue="q")) == {"ok", "jobs"}


def test_a_newer_client_is_shown_entries_without_a_filter(harness):
    command = harness.command("Dlq", queue="q")
    command.is_newer = True
    reply = harness.engine.execute(command, harness.now)

    assert [entry.job.id for entry in reply.entries] == list("abcd")


def test_an_unknown_queue_has_neither(harness):
    assert harness.ask("Dlq", queue="none", filter={}) == {"ok": True, "jobs": [], "entries": []}
    assert "none" not in harness.engine.state.queues


def test_each_condition(harness):
    second = entered_at(harness, "b")

    assert ids(harness, filter={"reason": "unknown"}) == "d"
    assert ids(harness, filter={"reason": "max_attempts_exceeded"}) == "abc"
    assert ids(harness, filter={"reason": "no such reason"}) == ""
    assert ids(harness, filter={"olderThan": second}) == "ab"
    assert ids(harness, filter={"newerThan": second}) == "bcd"
    assert ids(harness, filter={"olderThan": second - 1}) == "a"
    assert ids(harness, filter={"olderThan": second, "newerThan": second}) == "b"
    assert ids(harness, filter={"queue": "other", "retriable": False, "expired": False, "x": 1}) == "abcd"
    assert ids(harness, filter={"retriable": True}) == ""
    assert ids(harness, filter={"expired": True}) == ""


def test_offset_and_limit_count_what_the_filter_has_found(harness):
    assert ids(harness, filter={"offset": 1, "limit": 2}) == "bc"
    assert ids(harness, filter={"newerThan": entered_at(harness, "b"), "offset": 1, "limit": 1}) == "c"
    assert ids(harness, filter={"offset": 3}) == "d"
    assert ids(harness, filter={"offset": 9}) == ""
    assert ids(harness, filter={"limit": 0, "offset": 0}) == "abcd"


def test_count_cuts_what_the_filter_has_found(harness):
    assert ids(harness, filter={"offset": 1, "limit": 3}, count=2) == "bc"
    assert ids(harness, filter={"reason": "unknown"}, count=1) == "d"
    assert ids(harness, filter={}, count=1) == "a"
    assert ids(harness, filter={"limit": 2}, count=0) == "ab"


def test_what_time_does_to_them(harness):
    """Given a policy with a retry after an hour and an age of two, for one letter more; and nobody who ticks."""
    config = {"autoRetry": True, "autoRetryInterval": HOUR, "maxAge": 2 * HOUR, "maxAutoRetries": 1}
    harness.send("SetDlqConfig", queue="q", config=config)
    bury(harness, "e")
    harness.clock.advance(HOUR)

    assert ids(harness, filter={"retriable": True}) == "e"
    assert harness.ask("GetDlqStats", queue="q")["data"]["stats"]["pendingRetry"] == 1
    harness.clock.advance(HOUR)
    assert ids(harness, filter={"expired": True}) == "e"
    assert harness.ask("GetDlqStats", queue="q")["data"]["stats"]["expired"] == 1
    harness.send("SetDlqConfig", queue="q", config={"maxAutoRetries": 0})
    assert ids(harness, filter={"retriable": True}) == ""
    assert harness.ask("GetDlqStats", queue="q")["data"]["stats"]["pendingRetry"] == 0


def test_more_than_a_reply_can_carry_is_refused(harness, monkeypatch):
    """Given that entries show each job once more."""
    monkeypatch.setattr(letter_views, "PAGE_MAX_BYTES", 5 * 1_050)

    assert ids(harness) == "abcd"
    with pytest.raises(
        LimitError, match=r"^Too many dead letters for one reply: use count, or limit and offset of the filter$"
    ):
        harness.ask("Dlq", queue="q", filter={})
    assert ids(harness, filter={"limit": 2}) == "ab"
    assert ids(harness, filter={"offset": 2}) == "cd"


# RetryDlq


def test_what_the_filter_means_comes_back_in_one_transaction(harness):
    with harness.pending():
        reply = harness.send("RetryDlq", queue="q", filter={"reason": "max_attempts_exceeded"})
        batch = harness.commit()

    assert reply.count == 3
    assert batch.letters_gone == list("abc")
    assert [harness.state(name) for name in "abcd"] == ["waiting", "waiting", "waiting", "failed"]


def test_offset_and_limit_of_a_retry(harness):
    assert harness.send("RetryDlq", queue="q", filter={"offset": 1, "limit": 1}).count == 1
    assert [letter[0] for letter in harness.dead_letters()] == list("acd")


def test_a_filter_that_finds_nothing_brings_nothing_back(harness):
    assert harness.send("RetryDlq", queue="q", filter={"reason": "stalled"}).count == 0
    assert harness.send("RetryDlq", queue="none", filter={"limit": 1}).count == 0
    assert harness.counts() == {"failed": 4}


def test_beside_a_filter_id_and_count_mean_nothing(harness):
    assert harness.send("RetryDlq", queue="q", jobId="a", count=1, filter={"newerThan": 1}).count == 4


@pytest.mark.parametrize("given", [UNDEFINED, None, {}])
def test_beside_one_that_asks_for_nothing_they_do(harness, given):
    assert harness.send("RetryDlq", queue="q", jobId="b", filter=given).count == 1
    assert harness.send("RetryDlq", queue="q", count=0, filter=given).count == 0
    assert harness.send("RetryDlq", queue="q", filter=given).count == 3


def test_a_letter_whose_key_is_held_stays(harness):
    bury(harness, "k", uniqueKey="u")
    harness.push(jobId="newer", uniqueKey="u")

    assert harness.send("RetryDlq", queue="q", filter={"newerThan": 0}).count == 4
    assert [letter[0] for letter in harness.dead_letters()] == ["k"]


def test_a_letter_that_is_about_to_go_is_waited_for(harness):
    with harness.pending():
        harness.send("RetryDlq", queue="q", jobId="b")
        with pytest.raises(PendingChangeError):
            harness.send("RetryDlq", queue="q", filter={"limit": 3})
        assert harness.send("RetryDlq", queue="q", filter={"limit": 1}).count == 1
        harness.commit()


def test_a_failed_commit_leaves_them_all(harness):
    with harness.pending():
        harness.send("RetryDlq", queue="q", filter={"limit": 3})
        harness.reject()

    assert [letter[0] for letter in harness.dead_letters()] == list("abcd")


# RemoveDlqJob and GetDlqStats


def test_a_removed_letter_is_gone_for_good():
    stored = Stored()
    stored.bury("a")
    stored.bury("b")
    stored.send("AddLog", id="a", message="line")

    assert stored.ask("RemoveDlqJob", queue="q", jobId="a") == {"ok": True, "data": {"removed": True}}
    assert stored.state("a") == "unknown"
    assert stored.ask("GetLogs", id="a")["data"]["count"] == 0
    stored.restart()
    assert [letter[0] for letter in stored.dead_letters()] == ["b"]
    assert stored.rows("dlq") == ["b"]


def test_its_id_can_be_used_again_at_once(harness):
    harness.send("RemoveDlqJob", queue="q", jobId="a")
    harness.push("other", jobId="a", data=2)

    assert (harness.state("a"), harness.shown("a")["attempts"]) == ("waiting", 0)


@pytest.mark.parametrize(
    ("queue", "job_id"), [("other", "a"), ("none", "a"), ("q", "none"), ("q", 5), ("q", None), ("q", "waiting")]
)
def test_what_is_no_dead_letter_of_that_queue_stays(harness, queue, job_id):
    harness.push(jobId="waiting")
    harness.push("other", jobId="x")

    assert harness.ask("RemoveDlqJob", queue=queue, jobId=job_id)["data"] == {"removed": False}
    assert harness.counts() == {"failed": 4, "waiting": 1}


def test_a_removal_that_fails_leaves_the_letter(harness):
    with harness.pending():
        harness.send("RemoveDlqJob", queue="q", jobId="a")
        harness.reject()

    assert ids(harness) == "abcd"


def test_those_who_listen_hear_of_a_removal(harness):
    harness.engine.listen(True)
    harness.send("RemoveDlqJob", queue="q", jobId="a")
    told = [(event.event, event.data) for event in harness.engine.state.events if event.event == "dlq:purged"]

    assert told == [("dlq:purged", {"queue": "q", "count": 1, "jobId": "a"})]


def test_statistics(harness):
    stats = harness.ask("GetDlqStats", queue="q")["data"]["stats"]

    assert stats["total"] == 4
    assert {reason: count for reason, count in stats["byReason"].items() if count} == {
        "max_attempts_exceeded": 3, "unknown": 1,
    }  # fmt: skip
    assert (stats["byQueue"], stats["pendingRetry"], stats["expired"]) == ({"q": 4}, 0, 0)
    assert (stats["oldestEntry"], stats["newestEntry"]) == (entered_at(harness, "a"), entered_at(harness, "d"))


def test_statistics_of_a_queue_that_nobody_knows(harness):
    stats = harness.ask("GetDlqStats", queue="none")["data"]["stats"]

    assert len(stats["byReason"]) == 7
    assert (stats["total"], stats["byQueue"], stats["oldestEntry"]) == (0, {"none": 0}, None)
    assert "none" not in harness.engine.state.queues
