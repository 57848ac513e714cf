"""Records to rows and back, without SQLite: nothing may change on the way, nothing damaged may stop it."""

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from bunqueue_trio.model.entries import DEFAULT_SETTINGS, QueueSettings, RateLimit, StallPolicy
from bunqueue_trio.model.job import BackoffConfig, ChildFailures, JobRecord, RepeatConfig, TimelineEntry
from bunqueue_trio.model.naming import NO_DATA, classed
from bunqueue_trio.storage import decoding, letters, payloads, records
from bunqueue_trio.storage.batch import FULL_COLUMNS, PLAIN_COLUMNS, SETTINGS_COLUMNS, STATE_COLUMNS
from tests.storage.samples import T0, full_job, job, letter, raw, same_job

UNDEFINED = msgpack.ExtType(0, b"\0")


def row_of(record: JobRecord, **cells: object) -> tuple[object, ...]:
    """The row a reader gets for *record*, with some cells replaced."""
    row = dict(zip(FULL_COLUMNS, records.full_row(record, 7, "waiting"), strict=True))
    row["data"] = bytes(record.data)
    row["extra"] = records.extra_blob(record, key_expires_at=None, is_from_cron=False)
    return tuple((row | cells).values())


def wide_integers(blob: bytes) -> list[int]:
    return payloads._wide_integers(blob)


# Rows ---------------------------------------------------------------------------------------------------------------


def test_rows_have_a_cell_per_column():
    record = full_job()

    assert len(records.plain_row(record, 1, "waiting")) == len(PLAIN_COLUMNS)
    assert len(records.full_row(record, 1, "waiting")) == len(FULL_COLUMNS)
    assert len(records.state_row(record, "active")) == len(STATE_COLUMNS)
    assert len(records.settings_row("q", DEFAULT_SETTINGS)) == len(SETTINGS_COLUMNS)


def test_a_plain_job_leaves_optional_cells_null():
    row = dict(zip(FULL_COLUMNS, records.full_row(job("a"), 1, "waiting"), strict=True))

    empty = ("depends_on", "children_ids", "tags", "stacktrace", "last_heartbeat", "ttl", "unique_key", "started_at")
    assert all(row[name] is None for name in empty)
    assert records.extra_blob(job("a"), key_expires_at=None, is_from_cron=False) is None
    assert records.plain_row(job("a", timeline=()), 1, "waiting")[-1] is None


def test_plain_row_agrees_with_full_row():
    record = job("a", custom_id="a", priority=3)
    full = dict(zip(FULL_COLUMNS, records.full_row(record, 9, "waiting"), strict=True))

    assert dict(zip(PLAIN_COLUMNS, records.plain_row(record, 9, "waiting"), strict=True)).items() <= full.items()


def test_timelines_are_encoded_anew_when_they_differ():
    first, second = (TimelineEntry("waiting", T0),), (TimelineEntry("delayed", T0),)

    blobs = [records.plain_row(job("a", timeline=t), 1, "waiting")[-1] for t in (first, first, second, first, ())]

    assert blobs[0] == blobs[1] == blobs[3]
    assert blobs[2] not in (blobs[0], None)
    assert blobs[4] is None
    assert msgpack.unpackb(blobs[0]) == [{"state": "waiting", "timestamp": T0}]


def test_time_stamps_in_blobs_are_float64():
    timeline = records.full_row(full_job(), 1, "waiting")[FULL_COLUMNS.index("timeline")]

    assert timeline.count(b"timestamp\xcb") == 2


# Round trips --------------------------------------------------------------------------------------------------------


NAMED = [
    classed(job("inside", data=raw({"to": 1}), own_name="send")),
    classed(job("beside", data=raw({"name": "Bob"}), own_name="send")),
    classed(job("default", data=raw({}), own_name="default")),
    classed(job("bare", data=NO_DATA, own_name="none")),
]


@pytest.mark.parametrize("record", [job("plain"), full_job(), job("old", run_at=5.0, last_heartbeat=0.0), *NAMED])
def test_a_record_survives_its_row(record: JobRecord):
    stored = decoding.job_from_row(row_of(record))

    assert same_job(stored.record, record)
    assert type(stored.record) is type(record)
    assert (stored.seq, stored.state_name, stored.damage) == (7, "waiting", ())


def test_the_side_row_keeps_key_expiry_and_origin():
    blob = records.extra_blob(job("a"), key_expires_at=T0 + 5, is_from_cron=True)

    stored = decoding.job_from_row(row_of(job("a"), extra=blob))

    assert (stored.key_expires_at, stored.is_from_cron) == (T0 + 5, True)
    assert same_job(stored.record, job("a"))


@pytest.mark.parametrize(
    ("failures", "found"),
    [
        (ChildFailures({"c:a": "e"}, {"c:b": "f"}), ChildFailures({"c:a": "e"}, {"c:b": "f"})),
        (ChildFailures(failed={"c:a": "e"}), ChildFailures({"c:a": "e"}, {})),
        (ChildFailures(ignored={"c:b": "f"}), ChildFailures({}, {"c:b": "f"})),
        (ChildFailures(), None),
        (None, None),
    ],
)
def test_the_side_row_keeps_what_a_job_knows_of_its_children(failures, found):
    blob = records.extra_blob(job("a"), key_expires_at=None, is_from_cron=True, child_failures=failures)

    assert decoding.job_from_row((*records.full_row(job("a"), 1, "waiting"), blob)).child_failures == found


def test_an_empty_side_row_means_defaults():
    stored = decoding.job_from_row(row_of(job("a"), extra=payloads.EMPTY_MAP))

    assert same_job(stored.record, job("a"))
    assert stored.damage == ()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.lists(texts, max_size=3).map(tuple)
small = st.integers(-(2**31), 2**31 - 1)
numbers = st.one_of(st.integers(-(2**31), 2**32 - 1), st.floats(-1e9, 1e9))
times = st.floats(0, 4e12)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), small, st.floats(allow_nan=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
).map(lambda value: Raw(msgspec.msgpack.encode(value)))
steps = st.builds(TimelineEntry, texts, times, st.just(UNSET) | texts, st.just(UNSET) | small)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


any_job = st.builds(
    JobRecord, id=texts, queue=texts, data=json_values, created_at=times, run_at=times, last_heartbeat=times,
    timeline=st.lists(steps, max_size=3).map(tuple), started_at=maybe(times), completed_at=maybe(times),
    attempts=small, backoff=numbers,
    backoff_config=maybe(st.builds(BackoffConfig, texts, numbers, st.just(UNSET) | numbers)),
    depends_on=names, children_ids=names, tags=names, progress=numbers, progress_message=maybe(json_values),
    stacktrace=maybe(names), repeat=maybe(st.builds(RepeatConfig, every=numbers, pattern=texts, count=small)),
    stall_count=small, priority=small, lifo=st.booleans(), max_attempts=small, remove_on_complete=st.booleans(),
    remove_on_fail=st.booleans(), ttl=maybe(numbers), timeout=maybe(numbers), unique_key=maybe(texts),
    custom_id=maybe(texts), parent_id=maybe(texts), group_id=maybe(texts), stall_timeout=maybe(numbers),
    stack_trace_limit=numbers, keep_logs=maybe(numbers), size_limit=maybe(numbers),
    fail_parent_on_failure=st.booleans(), remove_dependency_on_failure=st.booleans(),
    continue_parent_on_failure=st.booleans(), ignore_dependency_on_failure=st.booleans(),
    deduplication_ttl=maybe(numbers), deduplication_extend=st.booleans(), deduplication_replace=st.booleans(),
    debounce_id=maybe(texts), debounce_ttl=maybe(numbers),
)  # fmt: skip


@given(any_job)
def test_any_record_survives_its_row(record: JobRecord):
    stored = decoding.job_from_row(row_of(record))

    assert same_job(stored.record, record)
    assert stored.damage == ()


@given(any_job)
def test_any_record_survives_its_dead_letter(record: JobRecord):
    blob = records.entry_blob(letter(record))

    entry = letters.entry_from_blob(blob)

    assert entry is not None
    assert same_job(entry.job, record)
    assert wide_integers(blob) == []


# What others wrote --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "cell", "attribute", "value"),
    [
        ("depends_on", b"\x92\xa1a", "depends_on", ()),
        ("depends_on", "not a blob", "depends_on", ()),
        ("depends_on", b"\x91\x01", "depends_on", ()),
        ("timeline", b"\xc1", "timeline", ()),
        ("timeline", b"\x81\xa1a\x01", "timeline", ()),
        ("tags", b"", "tags", ()),
        ("children_ids", b"\x91\xa1\xff", "children_ids", ()),
        ("stacktrace", b"\x01", "stacktrace", ()),
        ("extra", b"\xff\xff", "keep_logs", None),
    ],
)
def test_a_damaged_blob_is_empty_and_named(column, cell, attribute, value):
    stored = decoding.job_from_row(row_of(job("a"), **{column: cell}))

    assert getattr(stored.record, attribute) == value
    assert stored.damage == (column,)


@pytest.mark.parametrize("cell", [b"", b"\x92\x01", b"\x01\x02", b"\xc1", "text", 5, None, b"\x91" * 5000])
def test_damaged_data_is_an_empty_map(cell):
    stored = decoding.job_from_row(row_of(job("a"), data=cell))

    assert bytes(stored.record.data) == b"\x80"
    assert stored.damage == ("data",)


def test_numbers_of_any_storage_class_are_read():
    cells = {
        "created_at": int(T0), "run_at": T0 + 0.5, "priority": 3.0, "attempts": 2.0, "ttl": 10**10, "timeout": 12.75,
        "backoff": 10**12, "max_attempts": "many", "stall_timeout": "soon", "progress": None, "lifo": 1,
        "remove_on_complete": None, "stall_count": float("inf"),
    }  # fmt: skip

    record = decoding.job_from_row(row_of(job("a"), **cells)).record

    assert (record.created_at, record.run_at) == (T0, T0 + 0.5)
    assert isinstance(record.created_at, float)
    assert (record.priority, record.attempts, record.stall_count) == (3, 2, 0)
    assert isinstance(record.priority, int)
    assert (record.ttl, record.timeout, record.backoff) == (1e10, 12.75, 1e12)
    assert isinstance(record.ttl, float)  # beyond 32 bits numbers travel as float64
    assert isinstance(record.backoff, float)
    assert (record.max_attempts, record.stall_timeout, record.progress) == (3, None, 0)
    assert (record.lifo, record.remove_on_complete) == (True, False)


def test_a_sound_row_after_an_unsound_one_of_other_types_is_read_plainly():
    decoding.job_from_row(row_of(job("a"), priority="high"))

    assert decoding.job_from_row(row_of(job("b"), priority="low")).record.priority == 0
    assert decoding.job_from_row(row_of(job("c"), priority=4)).record.priority == 4


def test_a_null_heartbeat_is_the_time_of_creation():
    assert decoding.job_from_row(row_of(job("a"), last_heartbeat=None)).record.last_heartbeat == T0


def test_a_timeline_of_the_reference_keeps_its_steps():
    step = {"state": "failed", "timestamp": T0, "error": UNDEFINED, "attempt": 1.0}
    blob = msgpack.packb([{"state": "waiting", "timestamp": int(T0)}, step, {"state": "failed", "error": None}])

    timeline = decoding.job_from_row(row_of(job("a"), timeline=blob)).record.timeline

    assert timeline == (
        TimelineEntry("waiting", T0),
        TimelineEntry("failed", T0, UNSET, 1),
        TimelineEntry("failed", 0.0),
    )


# Payloads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "blob", [b"\xc0", b"\xd4\0\0", b"\xc7\x03\x05abc", b"\xa4\xcf\x83\xd3\x83", b"\xc4\x02\xcf\xd3", b"\xca\xcf\0\0\0"]
)
def test_a_payload_without_wide_integers_is_untouched(blob: bytes):
    payload = payloads.checked_payload(blob)

    assert payload is not None
    assert bytes(payload) == blob


@pytest.mark.parametrize("number", [2**63 + 5, -(2**62), 2**32, 0])
def test_wide_integers_become_floats_where_they_stand(number: int):
    form = b"\xd3" + number.to_bytes(8, "big", signed=True) if number < 0 else b"\xcf" + number.to_bytes(8, "big")
    blob = b"\x83\xa1a" + form + b"\xa1b\x92\xa2\xcf\x80\xc3\xa1c\xc4\x01\xcf"
    expected = b"\x83\xa1a" + msgspec.msgpack.encode(float(number)) + b"\xa1b\x92\xa2\xcf\x80\xc3\xa1c\xc4\x01\xcf"

    payload = payloads.checked_payload(blob)

    assert payload is not None
    assert bytes(payload) == expected


msgpack_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(width=32, allow_nan=False), texts,
        st.binary(max_size=300), st.text("ϏÏӓ", max_size=20),
        st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    ),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(texts, inner, max_size=20),
    max_leaves=40,
)  # fmt: skip


@given(msgpack_values, st.booleans())
def test_rewriting_changes_nothing_but_wide_integers(value, use_single_float):
    blob = msgpack.packb(value, use_single_float=use_single_float)

    narrow = payloads.without_wide_integers(blob)

    assert wide_integers(narrow) == []
    before, after = (msgpack.unpackb(b, strict_map_key=False) for b in (blob, narrow))
    assert as_floats(before) == as_floats(after)


def as_floats(value):
    """Integers that lie in the 64-bit forms as floats."""
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value <= 2**32 - 1:
        return float(value)
    return value


# Dead letters and settings ------------------------------------------------------------------------------------------


def test_a_dead_letter_has_the_keys_of_the_reference():
    entry = msgpack.unpackb(records.entry_blob(letter(job("a"))))

    assert list(entry) == [
        "job", "enteredAt", "reason", "error", "attempts", "retryCount", "lastRetryAt", "nextRetryAt", "expiresAt",
    ]  # fmt: skip
    assert len(entry["job"]) == 45
    assert (entry["job"]["dependsOn"], entry["job"]["childrenIds"], entry["job"]["parentId"]) == ([], [], None)
    assert "state" not in entry["job"]


def test_a_dead_letter_holds_no_wide_integer():
    record = job("a", ttl=10**11, repeat=RepeatConfig(start_date=int(T0)))

    assert wide_integers(records.entry_blob(letter(record))) == []


def foreign_letter(**changes):
    entry = msgpack.unpackb(records.entry_blob(letter(job("a"))))
    entry["job"] |= changes.pop("job", {})
    return entry | changes


@pytest.mark.parametrize(
    ("changes", "attribute", "value"),
    [
        ({"error": UNDEFINED}, "error", None),
        ({"reason": 5}, "reason", "unknown"),
        ({"retryCount": 2.0}, "retry_count", 2),
        ({"enteredAt": int(T0)}, "entered_at", T0),
        ({"attempts": None}, "attempts", []),
        ({"job": {"priority": 5e9}}, "job.priority", 5_000_000_000),
        ({"job": {"tags": None}}, "job.tags", ()),
        ({"job": {"progressMessage": UNDEFINED}}, "job.custom_id", None),
        ({"job": {"unknownKey": 1}}, "job.id", "a"),
        ({"job": {"runAt": "?"}}, "job.run_at", T0),
        ({"job": {"timeline": [{"state": "failed", "timestamp": T0, "error": UNDEFINED}]}},
         "job.timeline", (TimelineEntry("failed", T0),)),
    ],
)  # fmt: skip
def test_a_dead_letter_in_other_spellings_is_read(changes, attribute, value):
    entry = letters.entry_from_blob(msgpack.packb(foreign_letter(**changes)))

    found: object = entry
    for name in attribute.split("."):
        found = getattr(found, name)
    assert found == value


def test_attempts_of_a_dead_letter_are_read_with_floats_and_gaps():
    entry = letters.entry_from_blob(msgpack.packb(foreign_letter(attempts=[{"attempt": 2.0, "reason": "stalled"}])))

    assert entry is not None
    assert [(a.attempt, a.reason, a.duration) for a in entry.attempts] == [(2, "stalled", 0.0)]


def test_a_dead_letter_without_the_newer_keys_is_read():
    entry = foreign_letter()
    for key in ("stacktrace", "lastHeartbeat", "runAt", "data", "debounceId"):
        del entry["job"][key]

    read = letters.entry_from_blob(msgpack.packb(entry))

    assert read is not None
    assert (read.job.stacktrace, read.job.last_heartbeat, bytes(read.job.data)) == (None, T0, b"\x80")


@pytest.mark.parametrize(
    "blob",
    [b"", b"\xc1", b"\x80", b"\x81\xa3job\x80", b"\x81\xa3job\x01", b"\x93\x01\x02\x03", b"\x80\x80", "text", None],
)
def test_a_dead_letter_without_a_job_is_unreadable(blob):
    assert letters.entry_from_blob(blob) is None


@pytest.mark.parametrize(
    "settings",
    [
        DEFAULT_SETTINGS,
        QueueSettings(paused=True),
        QueueSettings(rate_limit=RateLimit(5), concurrency_limit=2),
        QueueSettings(rate_limit=RateLimit(2.5, 60_000, T0), stall=StallPolicy(False, 1_000, 0, 10)),
    ],
)
def test_settings_survive_their_row(settings: QueueSettings):
    assert decoding.settings_from_row(records.settings_row("q", settings)) == ("q", settings)


def test_an_incomplete_stall_policy_is_the_default():
    row = ("q", 1, None, None, None, None, 0, 2_000, None, 10)

    assert decoding.settings_from_row(row) == ("q", QueueSettings(paused=True))


@pytest.mark.parametrize("record", NAMED, ids=lambda record: record.id)
def test_a_dead_letter_keeps_the_name_of_its_job(record: JobRecord):
    entry = letters.entry_from_blob(records.entry_blob(letter(record)))
    odd = letters.entry_from_blob(msgpack.packb(msgpack.unpackb(records.entry_blob(letter(record))) | {"reason": 5}))

    assert entry is not None
    assert odd is not None
    assert [type(found.job) for found in (entry, odd)] == [type(record)] * 2
    assert [found.job.name for found in (entry, odd)] == [record.name] * 2
