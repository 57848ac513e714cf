"""From rows to a running engine: the rules of the start, in their order."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.dead_letters import dead_letter
from bunqueue_trio.engine.recovery import Recovery
from bunqueue_trio.errors import CorruptDatabaseError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.entries import DlqEntry, DlqPolicy, QueueSettings, RateLimit, StallPolicy
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import ChildFailures, Job, JobRecord, JobState, Past, TimelineEntry
from tests.engine_harness import SECRET, EngineHarness, raw

T0 = 1_800_000_000_000.0


@dataclass
class Row:
    record: JobRecord
    seq: int = 1
    key_expires_at: float | None = None
    is_from_cron: bool = False
    child_failures: ChildFailures | None = None
    damage: tuple[str, ...] = ()
    past: Past | None = None


def record(job_id: str = "j", *, timeline: tuple[str, ...] = ("waiting",), **fields: Any) -> JobRecord:
    entries = tuple(TimelineEntry(state, T0 - 5_000) for state in timeline)
    at = T0 - 5_000
    run_at = fields.pop("run_at", at)
    return JobRecord(job_id, fields.pop("queue", "q"), raw(1), at, run_at, at, timeline=entries, **fields)


def running(job_id: str = "j", **fields: Any) -> JobRecord:
    return record(job_id, timeline=("waiting", "active"), **{"started_at": T0 - 1_000, **fields})


def entry_of(one: JobRecord, at: float = T0 - 100) -> DlqEntry:
    job = Job(record=one, state=JobState.ACTIVE, seq=0)
    return dead_letter(EngineHarness().engine.state, job, one, "max_attempts_exceeded", "e", Now(at, 0.0))


@dataclass
class File:
    """What the data file holds."""

    settings: list[tuple[str, QueueSettings]] = field(default_factory=list)
    active: list[Row] = field(default_factory=list)
    pending: list[Row] = field(default_factory=list)
    letters: list[tuple[str, DlqEntry]] = field(default_factory=list)
    letter_ids: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    completed: list[tuple[str, int]] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    cron_keys: set[tuple[str, str]] = field(default_factory=set)
    next_seq: int = 100

    def load(self) -> EngineHarness:
        """In the order of the server's start."""
        engine = Engine(Ids(SECRET, random.Random(9)))
        clock = ManualClock()
        recovery = Recovery(engine, clock.now(), cron_keys=self.cron_keys)
        recovery.settings(self.settings)
        recovery.letter_ids(self.letter_ids | {entry.job.id for _, entry in self.letters})
        recovery.active(self.active)
        recovery.pending(self.pending, self.done)
        recovery.letters(self.letters)
        recovery.completed(self.completed)
        recovery.finished(self.finished, self.next_seq)
        engine.check_invariants()
        self.counted = (recovery.active_count, recovery.pending_count)
        return EngineHarness(engine=engine, clock=clock)


# active jobs


def test_a_running_job_is_charged_and_comes_back_with_backoff():
    harness = File(active=[Row(running())]).load()

    shown = harness.shown("j")
    assert (shown["state"], shown["attempts"], shown["stallCount"], shown["startedAt"]) == ("delayed", 1, 1, None)
    assert T0 + 1_000 <= shown["runAt"] <= T0 + 3_000
    assert shown["lastHeartbeat"] == T0
    assert harness.timeline("j") == ["waiting", "active"]


def test_what_was_charged_is_written_by_the_first_flush():
    harness = File(active=[Row(running())]).load()
    harness.job("j").is_stored = True

    [row] = harness.commit().states
    assert (row[0], row[3], row[5], row[8]) == ("j", None, 1, 1)


def test_without_backoff_it_is_ready_at_once():
    harness = File(active=[Row(running(backoff=0))]).load()

    assert harness.pull_id() == "j"


@pytest.mark.parametrize(
    ("fields", "reason", "error"),
    [
        ({"attempts": 2}, "max_attempts_exceeded", "Job reached max attempts (3) during startup recovery"),
        ({"max_attempts": 1}, "max_attempts_exceeded", "Job reached max attempts (1) during startup recovery"),
        ({"max_attempts": 9, "stall_count": 2}, "stalled", "Job stalled 3 times (recovered at startup)"),
        (
            {"attempts": 2, "stall_count": 2},
            "max_attempts_exceeded",
            "Job reached max attempts (3) during startup recovery",
        ),
        ({"attempts": 2, "remove_on_fail": True}, "max_attempts_exceeded", None),
    ],
)
def test_a_running_job_at_a_bound_is_a_dead_letter(fields, reason, error):
    harness = File(active=[Row(running(**fields))]).load()

    [(job_id, found, text)] = harness.dead_letters()
    assert (job_id, found) == ("j", reason)
    assert error in (None, text)
    assert harness.state("j") == "failed"
    assert [row[0] for row in harness.commit().letters] == ["j"]


@pytest.mark.parametrize(
    ("policy", "stalls", "text"),
    [
        (StallPolicy(max_stalls=1), 0, "Job stalled 1 times (recovered at startup)"),
        (StallPolicy(max_stalls=0), 50, None),
    ],
)
def test_the_queues_own_policy_decides(policy, stalls, text):
    rows = [Row(running(max_attempts=100, stall_count=stalls))]
    harness = File(settings=[("q", QueueSettings(stall=policy))], active=rows).load()

    assert [error for _, _, error in harness.dead_letters()] == ([] if text is None else [text])


def test_a_running_job_of_a_schedule_is_dropped():
    rows = [
        Row(running("flagged"), 1, is_from_cron=True),
        Row(running("keyed", unique_key="cron:nightly"), 2),
        Row(running("clients", unique_key="cron:mine"), 3),
        Row(running("elsewhere", queue="r", unique_key="cron:nightly"), 4),
    ]
    harness = File(active=rows, cron_keys={("q", "cron:nightly")}).load()

    states = {name: harness.state(name) for name in ("flagged", "keyed", "clients", "elsewhere")}
    assert states == {"flagged": "unknown", "keyed": "unknown", "clients": "delayed", "elsewhere": "delayed"}  # PD-17


def test_a_waiting_job_of_a_schedule_survives():
    rows = [Row(record(unique_key="cron:nightly"), is_from_cron=True)]
    harness = File(pending=rows, cron_keys={("q", "cron:nightly")}).load()

    assert harness.state("j") == "waiting"
    assert harness.push(uniqueKey="cron:nightly") == "j"


@pytest.mark.parametrize("place", ["active", "pending"])
def test_a_row_beside_a_dead_letter_goes(place):
    """The trace of a move that was interrupted elsewhere."""
    one = running() if place == "active" else record()
    harness = File(**{place: [Row(one)]}, letters=[("q", entry_of(record()))]).load()

    assert (harness.state("j"), harness.counts()) == ("failed", {"failed": 1})


def test_a_row_beside_an_unreadable_dead_letter_goes_too():
    harness = File(pending=[Row(record())], letter_ids={"j"}).load()

    assert (harness.state("j"), harness.pull()) == ("unknown", None)


@pytest.mark.parametrize("place", ["active", "pending"])
def test_unreadable_dependencies_make_a_dead_letter(place):
    one = running() if place == "active" else record()
    harness = File(**{place: [Row(one, damage=("depends_on",))]}).load()

    assert harness.dead_letters() == [("j", "unknown", "corrupt-dependency-metadata")]
    assert harness.counts() == {"failed": 1}


def test_other_damage_does_no_harm():
    harness = File(pending=[Row(record(), damage=("timeline", "tags"))]).load()

    assert harness.pull_id() == "j"


@pytest.mark.parametrize("place", ["active", "pending"])
def test_a_job_that_is_listed_twice_stops_the_start(place):
    """An index leads to a wrong row: the job would run twice, and the one that the index should lead to never."""
    rows = File(active=[Row(running())]) if place == "active" else File(pending=[Row(record())])
    rows.pending.append(Row(record(), seq=2))

    with pytest.raises(CorruptDatabaseError, match="job j is listed twice"):
        rows.load()


def test_the_rules_for_active_rows_hold_in_their_order():
    rows = [Row(running(), is_from_cron=True, damage=("depends_on",))]

    assert File(active=rows).load().state("j") == "unknown"


def test_a_running_job_does_not_wait_for_its_dependencies_again():
    """It ran, so they were done, whatever became of them and of its time line since."""
    harness = File(active=[Row(record(depends_on=("gone",), backoff=0, started_at=T0 - 1))]).load()

    assert harness.pull_id() == "j"


# late acknowledgements


def test_the_last_holders_ack_still_counts():
    live = EngineHarness()
    live.push(jobId="j")
    _, token = live.pull()
    row = Row(live.job("j").record)

    harness = File(active=[row]).load()
    harness.ack("j", token, result=7)

    assert (harness.state("j"), harness.ask("GetResult", id="j")["result"]) == ("completed", 7)


def test_a_strangers_does_not():
    harness = File(active=[Row(running())]).load()

    harness.ack("j", "00000000-0000-4000-a000-000000000000")
    assert harness.state("j") == "delayed"
    assert harness.refusal("ACK", id="j").startswith("Job not found or not in processing state")
    assert harness.ask("FAIL", id="j", token="x") == {"ok": True}


def test_it_does_not_count_any_more_after_the_next_lease():
    live = EngineHarness()
    live.push(jobId="j", backoff=0)
    _, token = live.pull()
    harness = File(active=[Row(live.job("j").record)]).load()
    harness.pull()

    assert harness.refusal("ACK", id="j", token=token) == "Invalid or expired lock token for job j"


# pending jobs


def test_order_is_that_of_the_pushes():
    rows = [Row(record(name), seq) for seq, name in enumerate(("z", "a", "m"), start=1)]

    assert File(pending=rows).load().pull_all() == ["z", "a", "m"]


def test_states_follow_run_time_and_priority():
    rows = [
        Row(record("now"), 1),
        Row(record("late", run_at=T0 + 500), 2),
        Row(record("high", priority=2), 3),
        Row(record("lifo", lifo=True), 4),
    ]
    harness = File(pending=rows).load()

    assert harness.counts() == {"waiting": 2, "prioritized": 1, "delayed": 1}
    assert harness.pull_all() == ["high", "now", "lifo"]
    harness.advance(500)
    assert harness.pull_all() == ["late"]


def test_delayed_jobs_have_a_deadline():
    harness = File(pending=[Row(record("a", run_at=T0 + 900), 1), Row(record("b", run_at=T0 + 500), 2)]).load()

    assert harness.engine.next_deadline_mono_ms(harness.now) == harness.now.mono_ms + 500


def test_custom_ids_and_keys_answer_again():
    rows = [
        Row(record("c", custom_id="c"), 1),
        Row(record("k", unique_key="k"), 2),
        Row(record("t", unique_key="t"), 3, key_expires_at=T0 + 100),
    ]
    harness = File(pending=rows).load()

    assert harness.push(jobId="c") == "c"
    assert harness.push(uniqueKey="k") == "k"
    assert harness.push(uniqueKey="t") == "t"
    harness.clock.advance(100)
    assert harness.push(uniqueKey="t") != "t"  # SD-25


def test_of_two_holders_the_newer_has_the_key():
    """The older one ran when it was replaced, or its time was over."""
    rows = [Row(record("new", unique_key="k"), 5)]
    harness = File(active=[Row(running("old", unique_key="k"), 2)], pending=rows).load()

    assert harness.push(uniqueKey="k") == "new"


def test_groups_are_empty_after_a_restart():
    rows = [Row(record("b", group_id="g"), 5)]
    harness = File(active=[Row(running("a", group_id="g"), 2)], pending=rows).load()

    assert harness.pull_id() == "b"


def test_an_expired_job_goes_when_a_pull_meets_it():
    harness = File(pending=[Row(record(ttl=1))]).load()
    assert harness.state("j") == "waiting"

    assert harness.pull() is None
    assert harness.state("j") == "unknown"


# dependencies


@pytest.mark.parametrize(
    ("done", "state"), [(set(), "waiting-children"), ({"a"}, "waiting-children"), ({"a", "b"}, "waiting")]
)
def test_unmet_dependencies_park(done, state):
    one = record(depends_on=("a", "b"), timeline=("waiting-children",))
    harness = File(pending=[Row(one)], done=done).load()

    assert harness.state("j") == state


def test_a_parked_job_is_released_by_the_rest():
    rows = [Row(record("a"), 1), Row(record(depends_on=("a", "b"), timeline=("waiting-children",)), 2)]
    harness = File(pending=rows, done={"b"}).load()

    harness.ack(*harness.pull())

    assert harness.pull_id() == "j"


def test_a_job_that_was_released_before_stays_released():
    one = record(depends_on=("gone",), timeline=("waiting-children", "waiting"))

    assert File(pending=[Row(one)]).load().pull_id() == "j"


def test_finished_ids_are_kept_while_somebody_names_them():
    rows = [Row(record(depends_on=("a",), timeline=("waiting-children",)))]
    harness = File(pending=rows, done={"a"}, finished={"a", "stale"}).load()

    assert harness.commit().finished_gone == ["stale"]
    assert harness.push(jobId="n", dependsOn=["a"]) == "n"
    assert harness.state("n") == "waiting"
    harness.send("Cancel", id="n")
    harness.send("Cancel", id="j")
    assert harness.commit().finished_gone == ["a"]


# dead letters


def test_dead_letters_are_listed_by_the_time_they_entered_new_ones_last():
    letters = [("q", entry_of(record(name), T0 - 100 + n)) for n, name in enumerate("ba")]
    harness = File(active=[Row(running("new", max_attempts=1))], letters=letters).load()

    assert [letter[0] for letter in harness.dead_letters()] == ["b", "a", "new"]
    assert [job["id"] for job in harness.ask("Dlq", queue="q")["jobs"]] == ["b", "a", "new"]


def test_only_the_newest_dead_letters_stay():
    settings = [("q", QueueSettings(dlq=DlqPolicy(max_entries=2)))]
    letters = [("q", entry_of(record(name), T0 - 100 + n)) for n, name in enumerate("abc")]
    harness = File(settings=settings, active=[Row(running("new", max_attempts=1))], letters=letters).load()

    assert [letter[0] for letter in harness.dead_letters()] == ["c", "new"]
    batch = harness.commit()
    assert batch.letters_gone == ["a", "b"]
    assert [row[0] for row in batch.letters] == ["new"]


def test_a_dead_letter_is_found_under_the_queue_of_its_row():
    harness = File(letters=[("r", entry_of(record(queue="q")))]).load()

    assert harness.counts("r") == {"failed": 1}
    assert harness.shown("j")["queue"] == "r"


def test_a_dead_letters_custom_id_starts_a_new_life():
    harness = File(letters=[("q", entry_of(record("c", custom_id="c")))]).load()

    harness.push(jobId="c")

    assert harness.commit().letters_gone == ["c"]
    assert harness.pull_id() == "c"


# settings and counts


def test_settings_hold_again():
    limit = RateLimit(1, 1_000, expires_at=T0 + 10_000)
    harness = File(
        settings=[("p", QueueSettings(paused=True)), ("q", QueueSettings(rate_limit=limit, concurrency_limit=5))],
        pending=[Row(record(str(n)), n) for n in range(1, 4)],
    ).load()

    assert harness.send("IsPaused", queue="p").paused
    assert len(harness.pull_all()) == 1  # a full bucket
    harness.clock.advance(10_000)
    assert len(harness.pull_all()) == 2


@pytest.mark.parametrize("expires_at", [T0, T0 - 1])
def test_a_rate_limit_whose_time_is_over_is_gone(expires_at):
    settings = QueueSettings(paused=True, rate_limit=RateLimit(0, 1_000, expires_at), concurrency_limit=7)
    harness = File(settings=[("q", settings)]).load()

    kept = harness.engine.state.queues["q"].settings
    assert (kept.rate_limit, kept.paused, kept.concurrency_limit) == (None, True, 7)


def test_every_queue_that_anything_names_is_listed():
    harness = File(
        settings=[("settings", QueueSettings(paused=True))],
        active=[Row(running("1", queue="active"), 1), Row(running("2", queue="buried", max_attempts=1), 2)],
        pending=[Row(record("3", queue="pending"), 3)],
        letters=[("letters", entry_of(record("4")))],
        completed=[("completed", 3), ("emptied", 0)],
    ).load()

    expected = {"settings", "active", "pending", "buried", "letters", "completed", "emptied"}
    assert set(harness.send("ListQueues").queues) == expected


def test_completed_jobs_are_counted_and_left_in_the_file():
    harness = File(completed=[("q", 3)]).load()

    assert harness.counts() == {"completed": 3}
    assert harness.engine.state.history.has_evicted


def test_without_completed_jobs_the_file_is_never_asked():
    harness = File(completed=[("q", 0)]).load()

    assert harness.state("x") == "unknown"


def test_push_order_goes_on_behind_all_rows():
    file = File(pending=[Row(record("a"), 41)], next_seq=42)
    harness = file.load()
    harness.push(jobId="b")

    assert harness.job("b").seq == 42
    assert file.counted == (0, 1)


def test_nobody_is_woken_by_a_recovery():
    assert File(pending=[Row(record())]).load().wakes() == {}


def test_an_empty_file_gives_an_empty_engine():
    harness = File(next_seq=1).load()

    assert not harness.engine.state.changes
    assert harness.engine.state.queues == {}


def test_a_second_start_charges_nothing_twice_once_the_first_flush_is_through():
    first = File(active=[Row(running())], pending=[Row(record("w"), 2)]).load()
    first.commit()
    rows = [Row(first.job(name).record, first.job(name).seq) for name in ("j", "w")]

    second = File(pending=rows).load()

    assert second.shown("j") == first.shown("j")
    assert second.shown("w") == first.shown("w")
    assert not second.engine.state.changes


# children that fail at the start


def family_file(policy: str, *, parent: dict[str, Any] | None = None, **child: Any) -> File:
    """A child that was running and may not run again, and the parent that waits for it."""
    kid = running("kid", queue="c", max_attempts=1, parent_id="dad", **{policy: True}, **child)
    dad = record("dad", queue="p", depends_on=("kid",), timeline=("waiting-children",), **(parent or {}))
    return File(active=[Row(kid, seq=1)], pending=[Row(dad, seq=2)])


RECOVERED_AT_LIMIT = "Job reached max attempts (1) during startup recovery"


def test_a_child_that_fails_at_the_start_fails_its_parent():
    harness = family_file("fail_parent_on_failure").load()

    assert harness.dead_letters("p") == [("dad", "unknown", f"Child job kid failed: {RECOVERED_AT_LIMIT}")]
    assert {row[0] for row in harness.commit().letters} == {"kid", "dad"}


@pytest.mark.parametrize(
    "policy", ["continue_parent_on_failure", "ignore_dependency_on_failure", "remove_dependency_on_failure"]
)
def test_a_child_that_fails_at_the_start_lets_its_parent_go(policy):
    harness = family_file(policy, parent={"run_at": T0 + 60_000}).load()

    assert harness.state("dad") == "waiting"
    known = harness.job("dad").child_failures
    failures = {} if known is None else {**known.failed, **known.ignored}
    assert failures == ({} if policy.startswith("remove") else {"c:kid": RECOVERED_AT_LIMIT})
    assert harness.timeline("dad") == ["waiting-children", "waiting"]
    harness.job("dad").is_stored = True
    assert [row[1] for row in harness.commit().full] == ["dad"]


def test_a_cascade_at_the_start_goes_all_the_way_up():
    file = family_file("fail_parent_on_failure", parent={"parent_id": "grandad", "fail_parent_on_failure": True})
    file.pending.append(Row(record("grandad", queue="p", depends_on=("dad",), timeline=("waiting-children",)), seq=3))

    harness = file.load()

    assert [letter[0] for letter in harness.dead_letters("p")] == ["dad", "grandad"]


def test_what_a_parent_knew_of_its_children_comes_back():
    failures = ChildFailures({"c:a": "e"}, {"c:b": "f"})
    harness = File(pending=[Row(record("dad"), child_failures=failures)]).load()

    assert harness.send("GetFailedChildrenValues", id="dad").values == {"c:a": "e"}
    assert harness.send("GetIgnoredChildrenFailures", id="dad").values == {"c:b": "f"}
