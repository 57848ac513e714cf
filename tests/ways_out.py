"""Every way out of a state: a table of ways, and an engine in which a job stands where a way begins.

The job under test is always ``mine``, of queue ``q``. Each way is tried from the place it leads out of:

    waiting   first in its queue
    aside     passed over by a pull, because another member of its group is active
    delayed   not yet due
    parked    waiting for another job
    active    leased by connection 1, under a lock
    taken     active once, taken back when its lock ended, its token remembered
    dead      among the dead letters
    done      completed

Source: commands, "Job management", "Groups", "Dead letter queue"; protocol, "Finishing and keeping jobs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.engine_harness import EngineHarness

MINE = "mine"
LOCK_MS = 1_000
LONG_MS = 3_600_000
BEYOND_GRACE_MS = LOCK_MS + 2_000
BEYOND_STALL_MS = 40_000
BEYOND_SECOND_LOOK_MS = 61_000
SOON_MS = 1_000
LAST_TRY = {"maxAttempts": 1}
ANYWHERE = ("waiting", "aside", "delayed", "parked", "active", "taken", "dead", "done")
ALIVE = ("waiting", "aside", "delayed", "parked", "active", "taken")
Leave = Callable[[EngineHarness, str], object]


class Way(NamedTuple):
    """One way out.

    ``after`` is what GetState says then; ``options`` are those of the push, beside the things held; ``policy`` is what
    happens to dead letters. ``empties`` tells whether others of the queue go the same way, ``takes_log`` whether the
    log goes along.
    """

    name: str
    place: str
    after: str
    leave: Leave
    options: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    empties: bool = False
    takes_log: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the job is still to be worked, so that its id stays its own."""
        return self.after in ("waiting", "delayed", "waiting-children")

    @property
    def keeps_key(self) -> bool:
        """Whether its unique key stays its own; a job that parks itself gives it up."""
        return self.goes_on and self.after != "waiting-children"

    @property
    def completes(self) -> bool:
        """Whether the job completes."""
        return self.after == "completed" or self.name.endswith("removeOnComplete")

    @property
    def fails(self) -> bool:
        """Whether the job fails for good, as its parent sees it."""
        is_removed = self.name.endswith("removeOnFail") or self.name.startswith("end of ttl")
        return (self.after == "failed" and self.place != "dead") or is_removed


def command(cmd: str, **fields: Any) -> Leave:
    return lambda harness, token: harness.send(cmd, id=MINE, **fields)


def ack(harness: EngineHarness, token: str) -> None:
    harness.ack(MINE, token)


def ack_batch(harness: EngineHarness, token: str) -> None:
    harness.send("ACKB", ids=[MINE], tokens=[token])


def remove_by(cmd: str, option: str) -> Leave:
    """An end that asks for the removal, where the push did not."""
    return lambda harness, token: harness.send(cmd, id=MINE, token=token, **{option: True})


def remove_by_batch(harness: EngineHarness, token: str) -> None:
    harness.send("ACKB", ids=[MINE], tokens=[token], removeOnCompletes=[True])


def fail(harness: EngineHarness, token: str) -> None:
    harness.fail(MINE, token, error="boom")


def fail_for_good(harness: EngineHarness, token: str) -> None:
    harness.fail(MINE, token, error="boom", unrecoverable=True)


def pass_time(ms: float) -> Leave:
    return lambda harness, token: harness.advance(ms)


def disconnect(harness: EngineHarness, token: str) -> None:
    harness.disconnect(1)


def disconnect_in_order(harness: EngineHarness, token: str) -> None:
    harness.send("RegisterWorker", name="w", queues=["q"], workerId="w")
    harness.send("UnregisterWorker", workerId="w")
    harness.disconnect(1)


def outlive(harness: EngineHarness, token: str) -> None:
    harness.advance(2_000)
    harness.pull("q", connection=2, lockTtl=LONG_MS)  # an expired job is met, and deleted, by a pull


def replace(harness: EngineHarness, token: str) -> None:
    harness.push(uniqueKey="k", dedup={"replace": True})
    harness.send("Cancel", id=harness.engine.state.queues["q"].keys["k"].record.id)


def of_queue(cmd: str, **fields: Any) -> Leave:
    return lambda harness, token: harness.send(cmd, queue="q", **fields)


def clean(state: str) -> Leave:
    """Remove the oldest job of a state, which is ``mine``."""
    return of_queue("Clean", grace=0, state=state, limit=1)


def clean_completed(harness: EngineHarness, token: str) -> None:
    asked, question = harness.question("Clean", queue="q", grace=0, state="completed")
    question.ids = [MINE]
    harness.answered(asked, question)


def outlive_retention(harness: EngineHarness, token: str) -> None:
    harness.engine.expire_completed([(MINE, "q")], harness.now.wall_ms)
    harness.commit()


def evict(harness: EngineHarness, token: str) -> None:
    harness.send("SetDlqConfig", queue="q", config={"maxEntries": 1})
    harness.send("Discard", id=harness.push("q", delay=LONG_MS))


def remove_unprocessed(harness: EngineHarness, token: str) -> None:
    harness.push("families", jobId="family", childrenIds=[MINE])
    harness.send("RemoveUnprocessedChildren", id="family")


def push_kid(harness: EngineHarness, policy: str) -> tuple[str, str | None]:
    """Have a child of ``mine`` run on connection 3."""
    harness.connect(3)
    harness.push("kids", parentId=MINE, maxAttempts=1, **{policy: True})
    kid = harness.pull("kids", connection=3)
    assert kid is not None
    return kid


def kid_fails(policy: str) -> Leave:
    return lambda harness, token: harness.fail(*push_kid(harness, policy))


def kid_is_lost(policy: str) -> Leave:
    """The same, but nobody waits for the commit."""

    def leave(harness: EngineHarness, token: str) -> None:
        push_kid(harness, policy)
        harness.disconnect(3)

    return leave


def dependency_completes(harness: EngineHarness, token: str) -> None:
    (dependency,) = harness.job(MINE).record.depends_on
    harness.send("PULL", 2, queue="elsewhere")
    harness.ack(dependency)


QUEUED = ("waiting", "aside", "delayed")
UNFINISHED_WAYS = [
    Way("ACK", "active", "completed", ack),
    Way("ACKB", "active", "completed", ack_batch),
    Way("ACK, removeOnComplete", "active", "unknown", ack, {"removeOnComplete": True}),
    Way("ACK with removeOnComplete", "active", "unknown", remove_by("ACK", "removeOnComplete")),
    Way("ACKB with removeOnComplete", "active", "unknown", remove_by_batch),
    Way("FAIL with removeOnFail", "active", "unknown", remove_by("FAIL", "removeOnFail"), LAST_TRY),
    Way("MoveToWaitingChildren", "active", "waiting-children", command("MoveToWaitingChildren")),
    Way("late ACK", "taken", "completed", ack),
    Way("late ACK, removeOnComplete", "taken", "unknown", ack, {"removeOnComplete": True}),
    Way("FAIL, retry at once", "active", "waiting", fail, {"backoff": 0}),
    Way("FAIL, retry later", "active", "delayed", fail, {"backoff": 60_000}),
    Way("FAIL, last try", "active", "failed", fail, LAST_TRY),
    Way("FAIL, unrecoverable", "active", "failed", fail_for_good),
    Way("FAIL, removeOnFail", "active", "unknown", fail_for_good, {"removeOnFail": True}),
    Way("Cancel", "waiting", "unknown", command("Cancel")),
    Way("Cancel", "aside", "unknown", command("Cancel")),
    Way("Cancel", "parked", "unknown", command("Cancel")),
    Way("Discard", "waiting", "failed", command("Discard")),
    Way("Discard", "aside", "failed", command("Discard")),
    Way("Discard", "active", "failed", command("Discard")),
    Way("MoveToWait", "active", "waiting", command("MoveToWait")),
    Way("MoveToDelayed", "waiting", "delayed", command("MoveToDelayed", delay=LONG_MS)),
    Way("MoveToDelayed", "aside", "delayed", command("MoveToDelayed", delay=LONG_MS)),
    Way("MoveToDelayed", "active", "delayed", command("MoveToDelayed", delay=LONG_MS)),
    Way("ChangeDelay", "waiting", "delayed", command("ChangeDelay", delay=LONG_MS)),
    Way("ChangeDelay", "aside", "delayed", command("ChangeDelay", delay=LONG_MS)),
    Way("ChangeDelay", "active", "delayed", command("ChangeDelay", delay=LONG_MS)),
    Way("ChangeDelay to now", "active", "waiting", command("ChangeDelay", delay=0)),
    Way("end of lock", "active", "waiting", pass_time(BEYOND_GRACE_MS)),
    Way("end of lock, last try", "active", "failed", pass_time(BEYOND_GRACE_MS), LAST_TRY),
    Way("stall", "active", "waiting", pass_time(BEYOND_STALL_MS), {"backoff": 0, "lock": LONG_MS}),
    Way("stall, last try", "active", "failed", pass_time(BEYOND_STALL_MS), {**LAST_TRY, "lock": LONG_MS}),
    Way("timeout", "active", "waiting", pass_time(500), {"backoff": 0, "timeout": 500}),
    Way("timeout, last try", "active", "failed", pass_time(500), {**LAST_TRY, "timeout": 500}),
    Way(
        "timeout, removeOnFail", "active", "unknown", pass_time(500), {**LAST_TRY, "timeout": 500, "removeOnFail": True}
    ),
    Way("disconnect", "active", "waiting", disconnect),
    Way("disconnect, in order", "active", "waiting", disconnect_in_order),
    Way("disconnect, last try", "active", "failed", disconnect, LAST_TRY),
    Way("end of ttl", "waiting", "unknown", outlive, {"ttl": 1_000}),
    Way("dedup.replace", "waiting", "unknown", replace, {"uniqueKey": "k"}),
    Way("dedup.replace", "aside", "unknown", replace, {"uniqueKey": "k"}),
    Way("Cancel", "delayed", "unknown", command("Cancel")),
    Way("Discard", "delayed", "failed", command("Discard")),
    Way("Promote", "delayed", "waiting", command("Promote")),
    Way("MoveToWait", "delayed", "waiting", command("MoveToWait")),
    Way("ChangeDelay to now", "delayed", "waiting", command("ChangeDelay", delay=0)),
    Way("end of delay", "delayed", "waiting", pass_time(LONG_MS)),
    Way("end of ttl", "delayed", "unknown", lambda harness, token: outlive_delay(harness), {"ttl": LONG_MS - 1}),
    *[Way("Drain", place, "unknown", of_queue("Drain"), empties=True) for place in QUEUED],
    Way("Clean", "waiting", "unknown", clean("waiting")),
    Way("Clean", "aside", "unknown", clean("waiting")),
    Way("Clean, prioritized", "waiting", "unknown", clean("prioritized"), {"priority": 7}),
    Way("Clean", "delayed", "unknown", clean("delayed")),
    *[Way("RemoveUnprocessedChildren", place, "unknown", remove_unprocessed) for place in (*QUEUED, "parked")],
    *[Way("failParentOnFailure", place, "failed", kid_fails("failParentOnFailure")) for place in (*QUEUED, "parked")],
    Way("failParentOnFailure, lost child", "waiting", "failed", kid_is_lost("failParentOnFailure")),
    Way("failParentOnFailure, lost child", "aside", "failed", kid_is_lost("failParentOnFailure")),
    Way("failParentOnFailure, lost child", "parked", "failed", kid_is_lost("failParentOnFailure")),
    Way("continueParentOnFailure", "parked", "waiting", kid_fails("continueParentOnFailure")),
    Way("continueParentOnFailure, lost child", "parked", "waiting", kid_is_lost("continueParentOnFailure")),
    Way("completion of the dependency", "parked", "waiting", dependency_completes),
]
FINISHED_WAYS = [
    Way("PurgeDlq", "dead", "unknown", of_queue("PurgeDlq"), takes_log=True),
    Way("RetryDlq", "dead", "waiting", of_queue("RetryDlq")),
    Way("RetryDlq by id", "dead", "waiting", of_queue("RetryDlq", jobId=MINE)),
    Way("MoveToWait", "dead", "waiting", command("MoveToWait")),
    Way("Clean", "dead", "unknown", clean("failed"), takes_log=True),
    Way(
        "automatic retry",
        "dead",
        "waiting",
        pass_time(BEYOND_SECOND_LOOK_MS),
        policy={"autoRetry": True, "autoRetryInterval": SOON_MS},
    ),
    Way("end of age", "dead", "unknown", pass_time(SOON_MS), policy={"maxAge": SOON_MS}, takes_log=True),
    Way("eviction", "dead", "unknown", evict, takes_log=True),
    Way("RetryCompleted", "done", "waiting", of_queue("RetryCompleted", id=MINE)),
    Way("Clean", "done", "unknown", clean_completed, takes_log=True),
    Way("retention", "done", "unknown", outlive_retention, takes_log=True),
]
WAYS = [
    *UNFINISHED_WAYS,
    *FINISHED_WAYS,
    *[Way("Obliterate", place, "unknown", of_queue("Obliterate"), empties=True, takes_log=True) for place in ANYWHERE],
]


def outlive_delay(harness: EngineHarness) -> None:
    harness.advance(LONG_MS)
    harness.pull("q", connection=2, lockTtl=LONG_MS)


def cases(*places: str) -> pytest.MarkDecorator:
    """Each way that leads out of one of these places."""
    chosen = [way for way in WAYS if way.place in places]
    return pytest.mark.parametrize("way", chosen, ids=[f"{way.name} from {way.place}" for way in chosen])


def held(
    way: Way,
    *,
    limit: int | None = None,
    before_pushing: Callable[[EngineHarness], None] | None = None,
    harness: EngineHarness | None = None,
    **things: Any,
) -> tuple[EngineHarness, str]:
    """An engine with ``mine`` in the place where *way* begins, holding these things; and its token, if it has one."""
    harness = harness or EngineHarness()
    harness.connect(2)
    if before_pushing is not None:
        before_pushing(harness)
    options = {**way.options, **things}
    lock_ms = options.pop("lock", LOCK_MS)
    if limit is not None:
        harness.send("SetConcurrency", queue="q", limit=limit)
    if way.policy:
        harness.send("SetDlqConfig", queue="q", config=way.policy)
    if way.place == "aside":
        options["groupId"] = "g"
        harness.push(groupId="g", jobId="runner")
        harness.pull("q", connection=2, lockTtl=LONG_MS)
    if way.place == "parked":
        options["dependsOn"] = [harness.push("elsewhere")]
    if way.place == "delayed":
        options["delay"] = LONG_MS
    harness.push("q", jobId=MINE, **options)
    return harness, bring_to(way.place, harness, lock_ms)


def bring_to(place: str, harness: EngineHarness, lock_ms: float) -> str:
    """Bring ``mine``, just pushed, to its place; returns its token, if it has one."""
    if place == "aside":
        assert harness.pull("q", connection=2) is None
    if place == "dead":
        harness.send("Discard", id=MINE)
    if place not in ("active", "taken", "done"):
        return ""
    job_id, token = harness.pull("q", lockTtl=lock_ms) or ("", None)
    assert job_id == MINE
    assert token is not None
    if place == "taken":
        harness.advance(BEYOND_GRACE_MS)
    if place == "done":
        harness.ack(MINE, token)
    return token


def pull(harness: EngineHarness) -> str | None:
    """What another connection gets."""
    return harness.pull_id("q", connection=2, lockTtl=LONG_MS)
