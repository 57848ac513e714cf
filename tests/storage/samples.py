"""Records for the storage tests: a plain job and one with everything set."""

from typing import Any

import msgspec
from msgspec import Raw

from bunqueue_trio.model.entries import AttemptRecord, DlqEntry
from bunqueue_trio.model.job import BackoffConfig, JobRecord, RepeatConfig, TimelineEntry
from bunqueue_trio.storage.records import plain_row

T0 = 1_717_243_200_000.0  # 2024-06-01T12:00Z: beyond 32 bits, as every time stamp


def raw(value: Any) -> Raw:
    return Raw(msgspec.msgpack.encode(value))


def job(job_id: str, queue: str = "mail", **changes: Any) -> JobRecord:
    """A job as a push without options makes it."""
    at = changes.pop("created_at", T0)
    fields: dict[str, Any] = {
        "data": raw({"name": job_id, "n": 1}),
        "run_at": at,
        "last_heartbeat": at,
        "timeline": (TimelineEntry("waiting", at),),
    }
    return JobRecord(id=job_id, queue=queue, created_at=at, **(fields | changes))


def full_job(job_id: str = "everything") -> JobRecord:
    """A job none of whose fields has its default."""
    return JobRecord(
        id=job_id,
        queue="mail",
        data=Raw(b"\x81\xa1u\xd4\x00\x00"),  # {"u": undefined}
        created_at=T0,
        run_at=T0 + 1234.5144,
        last_heartbeat=T0 + 77,
        timeline=(TimelineEntry("waiting", T0), TimelineEntry("failed", T0 + 5, "no", 1)),
        started_at=T0 + 3,
        completed_at=T0 + 9,
        attempts=2,
        backoff=2_500.5,
        backoff_config=BackoffConfig("fixed", 2_500.5, 60_000),
        depends_on=("a", "b"),
        children_ids=("c",),
        tags=("x", "y"),
        progress=42.5,
        progress_message=Raw(b"\x93\x01\xc0\xa1m"),
        stacktrace=("Error: no", "  at line 1"),
        repeat=RepeatConfig(every=5_000, limit=3, count=1, tz="Europe/Berlin"),
        stall_count=1,
        priority=-7,
        lifo=True,
        max_attempts=9,
        remove_on_complete=True,
        remove_on_fail=True,
        ttl=86_400_000,
        timeout=1_000.25,
        unique_key="key",
        custom_id=job_id,
        parent_id="p",
        group_id="g",
        stall_timeout=7_000,
        stack_trace_limit=4,
        keep_logs=5,
        size_limit=6_000,
        fail_parent_on_failure=True,
        remove_dependency_on_failure=True,
        continue_parent_on_failure=True,
        ignore_dependency_on_failure=True,
        deduplication_ttl=1_500,
        deduplication_extend=True,
        deduplication_replace=True,
        debounce_id="deb",
        debounce_ttl=2_000,
    )


def plain(count: int, first: int = 0) -> list[tuple[Any, ...]]:
    """Rows of that many new jobs, j00000 and so on; the rowid is the number plus one."""
    return [plain_row(job(f"j{number:05}"), number + 1, "waiting") for number in range(first, first + count)]


def letter(record: JobRecord, entered_at: float = T0 + 50) -> DlqEntry:
    attempt = AttemptRecord(1, T0, T0 + 40, "explicit_fail", "no", 40.0)
    return DlqEntry(record, entered_at, "explicit_fail", "no", [attempt], expires_at=entered_at + 604_800_000)


def same_job(one: JobRecord, other: JobRecord) -> bool:
    """Equality by what travels: Raw compares by content, and a null message is no message."""
    return msgspec.structs.asdict(_plain(one)) == msgspec.structs.asdict(_plain(other))


def _plain(record: JobRecord) -> JobRecord:
    message = None if record.progress_message is None else bytes(record.progress_message)
    return msgspec.structs.replace(
        record,
        data=bytes(record.data),  # type: ignore[arg-type]
        progress_message=None if message == b"\xc0" else message,  # type: ignore[arg-type]
    )
