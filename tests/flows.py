"""Families of jobs for tests: children in queue ``c``, parents in queue ``p``."""

from typing import Any

from tests.engine_harness import EngineHarness

CHILD, PARENT = "c", "p"
FAIL_PARENT, CONTINUE, IGNORE, REMOVE = POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


def push_family(harness: EngineHarness, *policies: str, others: tuple[str, ...] = (), **child) -> None:
    """The child ``kid`` with these policies, siblings, and the parent ``dad`` that waits for all of them, linked."""
    flags = dict.fromkeys(policies, True)
    harness.push(CHILD, jobId="kid", **{"data": {"n": 1}, "maxAttempts": 1, **flags, **child})
    for other in others:
        harness.push("others", jobId=other, data={})
    ids = ["kid", *others]
    harness.push(PARENT, jobId="dad", dependsOn=ids, childrenIds=ids)
    harness.send("UpdateParent", childId="kid", parentId="dad")


def fail_child(harness: EngineHarness, error: str | None = "boom", queue: str = CHILD) -> None:
    """Pull the next child and fail it for good."""
    harness.fail(*harness.pull(queue), error=error, unrecoverable=True)


def failed_values(harness: EngineHarness, job_id: str = "dad") -> dict[str, str]:
    return harness.send("GetFailedChildrenValues", id=job_id).values


def ignored_values(harness: EngineHarness, job_id: str = "dad") -> dict[str, str]:
    return harness.send("GetIgnoredChildrenFailures", id=job_id).values


def flow_job(job_id: str, queue: str, **options: Any) -> dict[str, Any]:
    """A job of a PUSHF."""
    return {"id": job_id, "queue": queue, "input": {"name": "n", "data": {}, **options}}


def tree(parent: str, *children: str) -> list[dict[str, Any]]:
    """Children in queue ``c`` and the parent in ``p`` that waits for them, named on both sides, as PUSHF wants them."""
    kin = {"__parentId": parent, "__parentQueue": PARENT}
    ids = list(children)
    jobs = [flow_job(child, CHILD, parentId=parent, data=kin) for child in children]
    return [*jobs, flow_job(parent, PARENT, dependsOn=ids, childrenIds=ids, data={"__childrenIds": ids})]
