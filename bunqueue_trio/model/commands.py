"""One record per command of the wire and per reply.

Commands are the members of a union tagged by ``cmd``; the codec decodes a frame straight into one of them. Adding a
command is adding a record here, a row in the engine's dispatch table, and nothing else.

Fields whose refusal needs the protocol's own wording are typed `Any` and checked by the engine when present; None
means absent, as does the wire's "undefined". Payloads stay msgpack bytes (`Raw`); an empty `Raw` means absent.
"""

from typing import Any

from msgspec import UNSET, Raw, Struct, field

ABSENT = Raw(b"")


class Command(Struct, tag_field="cmd", rename="camel", gc=False):
    """Base of all commands; ``req_id`` is echoed unchanged, whatever its type."""

    req_id: Raw = ABSENT


class PushOptions(Struct, rename="camel", gc=False):
    """What PUSH and the entries of PUSHB have in common. ``data`` is the payload, already canonical.

    ``is_plain`` is set by the checks, whatever came over the wire: True when every option but ``durable`` and the
    custom id is absent, so that nothing need be looked at one by one.
    """

    data: Raw = ABSENT
    is_plain: Any = field(name="(plain)", default=False)
    durable: Any = None
    priority: Any = None
    delay: Any = None
    timeout: Any = None
    max_attempts: Any = None
    backoff: Any = None
    ttl: Any = None
    depends_on: Any = None
    unique_key: Any = None
    tags: Any = None
    group_id: Any = None
    lifo: Any = None
    remove_on_complete: Any = None
    remove_on_fail: Any = None
    stall_timeout: Any = None
    timestamp: Any = None
    stack_trace_limit: Any = None
    keep_logs: Any = None
    size_limit: Any = None
    children_ids: Any = None
    parent_id: Any = None
    repeat: Any = None
    dedup: Any = None
    debounce_id: Any = None
    debounce_ttl: Any = None
    fail_parent_on_failure: Any = None
    remove_dependency_on_failure: Any = None
    continue_parent_on_failure: Any = None
    ignore_dependency_on_failure: Any = None


class PushEntry(PushOptions):
    """One entry of PUSHB. Its custom id is called ``customId``; a ``jobId`` key is ignored (Wire)."""

    custom_id: Any = None


class Push(PushOptions, tag_field="cmd", tag="PUSH"):
    """Queue one job. ``receipt`` asks for ``durability`` and ``outcome`` in the reply."""

    req_id: Raw = ABSENT
    queue: Any = None
    job_id: Any = None
    receipt: Any = None


class PushBatch(Command, tag="PUSHB"):
    """Queue several jobs, all or none. ``jobs`` stays bytes until its entries are decoded one by one."""

    queue: Any = None
    jobs: list[PushEntry] | None = None
    receipt: Any = None


class Pull(Command, tag="PULL"):
    """Lease the best ready job, waiting up to ``timeout`` ms for one."""

    queue: Any = None
    timeout: Any = None
    owner: Any = None
    lock_ttl: Any = None
    detach: Any = None


class PullBatch(Command, tag="PULLB"):
    """Lease up to ``count`` ready jobs, waiting only while there is none."""

    queue: Any = None
    count: Any = None
    timeout: Any = None
    owner: Any = None
    lock_ttl: Any = None


class Ack(Command, tag="ACK"):
    """Finish a job. ``result`` is kept if present; null counts as present."""

    id: Any = None
    result: Raw = ABSENT
    token: Any = None


class AckBatch(Command, tag="ACKB"):
    """Finish several jobs; ``tokens`` and ``results`` pair up with ``ids``."""

    ids: Any = None
    tokens: Any = None
    results: list[Raw] | None = None


class Fail(Command, tag="FAIL"):
    """End an attempt without success."""

    id: Any = None
    error: Any = None
    token: Any = None
    unrecoverable: Any = None
    stack: Any = None


class JobHeartbeat(Command, tag="JobHeartbeat"):
    """Show that a job is alive; with a token also renew its lease."""

    id: Any = None
    token: Any = None
    duration: Any = None


class JobHeartbeatBatch(Command, tag="JobHeartbeatB"):
    """The same for several jobs."""

    ids: Any = None
    tokens: Any = None


class ExtendLock(Command, tag="ExtendLock"):
    """Renew a lease."""

    id: Any = None
    token: Any = None
    duration: Any = None


class ExtendLocks(Command, tag="ExtendLocks"):
    """Renew several leases; all three lists are needed."""

    ids: Any = None
    tokens: Any = None
    durations: Any = None


class Progress(Command, tag="Progress"):
    """Report how far an active job is, 0 to 100."""

    id: Any = None
    progress: Any = None
    message: Raw = ABSENT


class GetProgress(Command, tag="GetProgress"):
    """Read what Progress reported."""

    id: Any = None


class Cancel(Command, tag="Cancel"):
    """Remove a job that is not running."""

    id: Any = None


class GetJob(Command, tag="GetJob"):
    """Read a job in any state."""

    id: Any = None


class GetState(Command, tag="GetState"):
    """Read a job's state; unknown ids are no error."""

    id: Any = None


class GetResult(Command, tag="GetResult"):
    """Read a job's result; unknown ids are no error."""

    id: Any = None


class GetJobByCustomId(Command, tag="GetJobByCustomId"):
    """Read a live job by its custom id."""

    custom_id: Any = None


class Count(Command, tag="Count"):
    """How many jobs are queued: waiting, prioritized and delayed."""

    queue: Any = None


class GetJobCounts(Command, tag="GetJobCounts"):
    """How many jobs are in each state."""

    queue: Any = None


class Pause(Command, tag="Pause"):
    """Stop handing out jobs of a queue."""

    queue: Any = None


class Resume(Command, tag="Resume"):
    """Go on handing out jobs of a queue."""

    queue: Any = None


class IsPaused(Command, tag="IsPaused"):
    """Ask whether a queue is paused."""

    queue: Any = None


class ListQueues(Command, tag="ListQueues"):
    """Names of the known queues, in the order of their first use."""


class Dlq(Command, tag="Dlq"):
    """Jobs among the dead letters of a queue."""

    queue: Any = None
    count: Any = None


class SetStallConfig(Command, tag="SetStallConfig"):
    """Merge the given keys into the queue's stall policy."""

    queue: Any = None
    config: Any = None


class GetStallConfig(Command, tag="GetStallConfig"):
    """Read the queue's stall policy."""

    queue: Any = None


class RateLimit(Command, tag="RateLimit"):
    """Limit deliveries of a queue per time."""

    queue: Any = None
    limit: Any = None
    duration: Any = None
    ttl: Any = None


class RateLimitClear(Command, tag="RateLimitClear"):
    """Lift the rate limit."""

    queue: Any = None


class SetConcurrency(Command, tag="SetConcurrency"):
    """Limit how many jobs of a queue run at a time."""

    queue: Any = None
    limit: Any = None


class ClearConcurrency(Command, tag="ClearConcurrency"):
    """Lift the concurrency limit."""

    queue: Any = None


class Update(Command, tag="Update"):
    """Replace the data of an unfinished job."""

    id: Any = None
    data: Raw = ABSENT


class ChangePriority(Command, tag="ChangePriority"):
    """Change the priority of a queued job."""

    id: Any = None
    priority: Any = None
    lifo: Any = None


class Promote(Command, tag="Promote"):
    """Make a delayed job ready."""

    id: Any = None


class PromoteJobs(Command, tag="PromoteJobs"):
    """Make delayed jobs of a queue ready."""

    queue: Any = None
    count: Any = UNSET


class ChangeDelay(Command, tag="ChangeDelay"):
    """Give a queued or active job another run time."""

    id: Any = None
    delay: Any = None


class MoveToDelayed(Command, tag="MoveToDelayed"):
    """The same, with other refusals."""

    id: Any = None
    delay: Any = None


class MoveToWait(Command, tag="MoveToWait"):
    """Make a job ready from wherever it is."""

    id: Any = None


class Discard(Command, tag="Discard"):
    """Send a job to the dead letters."""

    id: Any = None


class RetryDlq(Command, tag="RetryDlq"):
    """Bring dead letters back."""

    queue: Any = None
    job_id: Any = None
    count: Any = UNSET


class PurgeDlq(Command, tag="PurgeDlq"):
    """Delete dead letters."""

    queue: Any = None


class RegisterWorker(Command, tag="RegisterWorker"):
    """Announce a worker; it belongs to the connection."""

    name: Any = None
    queues: Any = None
    concurrency: Any = None
    worker_id: Any = None
    hostname: Any = None
    pid: Any = None
    started_at: Any = None


class UnregisterWorker(Command, tag="UnregisterWorker"):
    """Withdraw a worker."""

    worker_id: Any = None


class WorkerHeartbeat(Command, tag="Heartbeat"):
    """Show that a worker is alive, with its own counters."""

    id: Any = None
    active_jobs: Any = None
    processed: Any = None
    failed: Any = None


class Auth(Command, tag="Auth"):
    """Authenticate the connection. Answered by the session, not by the engine."""

    token: Any = None


class Hello(Command, tag="Hello"):
    """Ask for the server's protocol and version. Answered by the session."""

    protocol_version: Any = None
    capabilities: Any = None


class Ping(Command, tag="Ping"):
    """Ask for a sign of life and the server's clock."""


AnyCommand = (
    Push
    | PushBatch
    | Pull
    | PullBatch
    | Ack
    | AckBatch
    | Fail
    | JobHeartbeat
    | JobHeartbeatBatch
    | ExtendLock
    | ExtendLocks
    | Progress
    | GetProgress
    | Cancel
    | GetJob
    | GetState
    | GetResult
    | GetJobByCustomId
    | Count
    | GetJobCounts
    | Pause
    | Resume
    | IsPaused
    | ListQueues
    | Dlq
    | SetStallConfig
    | GetStallConfig
    | RateLimit
    | RateLimitClear
    | SetConcurrency
    | ClearConcurrency
    | Update
    | ChangePriority
    | Promote
    | PromoteJobs
    | ChangeDelay
    | MoveToDelayed
    | MoveToWait
    | Discard
    | RetryDlq
    | PurgeDlq
    | RegisterWorker
    | UnregisterWorker
    | WorkerHeartbeat
    | Auth
    | Hello
    | Ping
)
"""Every command the server knows. A new command is a new member here."""
