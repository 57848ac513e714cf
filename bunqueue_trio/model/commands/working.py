"""Commands of producers and workers: push, pull, and everything a lease holder may say."""

from typing import Any

from msgspec import Raw, Struct, field

from bunqueue_trio.model.commands.base import ABSENT, Command, Undecoded


class ParentLink(Struct, frozen=True, gc=False):
    """A job is to become a child of the job that its ``parentId`` names.

    ``parent_queue`` is where its data say that one is; ``name_children`` writes the ids of its children into the
    parent's data, which the engine does not look into.
    """

    parent_queue: str
    name_children: Any


class PushOptions(Struct, rename="camel", gc=False):
    """What PUSH and the entries of PUSHB have in common. ``data`` is the payload, already canonical.

    ``name`` leaves the codec as what was sent, or as None for what is no string; `ABSENT` makes an unnamed job.
    ``is_plain`` is set by the checks, whatever came over the wire: True when every option but ``durable``, the custom
    id and the name is absent, so that nothing need be looked at one by one. ``link`` is set by the checks, too, where
    options are looked at one by one: a `ParentLink`, or None, as for nearly every job.
    """

    data: Raw = ABSENT
    name: Undecoded = ABSENT
    is_plain: Any = field(name="(plain)", default=False)
    link: Any = field(name="(link)", default=None)
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
    group_max_size: Any = None


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
    """Lease the best ready job, waiting up to ``timeout`` ms for one.

    ``group`` leaves the checks as a `PullGroup`, or as `ABSENT`: then the pull knows nothing of groups.
    """

    queue: Any = None
    timeout: Any = None
    owner: Any = None
    lock_ttl: Any = None
    detach: Any = None
    group: Undecoded = ABSENT
    is_newer: Any = field(name="(newer)", default=False)


class PullBatch(Command, tag="PULLB"):
    """Lease up to ``count`` ready jobs, waiting only while there is none."""

    queue: Any = None
    count: Any = None
    timeout: Any = None
    owner: Any = None
    lock_ttl: Any = None
    group: Undecoded = ABSENT
    is_newer: Any = field(name="(newer)", default=False)


class Ack(Command, tag="ACK"):
    """Finish a job. ``result`` is kept if present; null counts as present.

    ``remove_on_complete`` is for the job at hand and adds to its own. ``is_newer`` is set by sessions that speak
    protocol 3, whatever came over the wire, here and below: they hear of an outcome that came too late.
    """

    id: Any = None
    result: Raw = ABSENT
    token: Any = None
    remove_on_complete: Any = None
    is_newer: Any = field(name="(newer)", default=False)


class AckBatch(Command, tag="ACKB"):
    """Finish several jobs; ``tokens``, ``results`` and ``remove_on_completes`` pair up with ``ids``."""

    ids: Any = None
    tokens: Any = None
    results: list[Raw] | None = None
    remove_on_completes: Any = None
    is_newer: Any = field(name="(newer)", default=False)


class Fail(Command, tag="FAIL"):
    """End an attempt without success."""

    id: Any = None
    error: Any = None
    token: Any = None
    unrecoverable: Any = None
    stack: Any = None
    remove_on_fail: Any = None
    is_newer: Any = field(name="(newer)", default=False)


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
