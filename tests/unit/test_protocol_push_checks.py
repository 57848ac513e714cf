"""Checks of PUSH and PUSHB: a test for each row of the tables of section 4, and the forms they leave."""

import math
from datetime import UTC, datetime

import msgpack
import pytest
from msgspec import UNSET, Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import ABSENT, Push, PushBatch, PushEntry
from bunqueue_trio.model.job import BackoffConfig, Dedup, RepeatConfig
from bunqueue_trio.protocol import fields
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.push_checks import BatchEntryError
from bunqueue_trio.protocol.wire import checked

pack = msgpack.packb
DATA = Raw(pack({"a": 1}))


def pushed(**options: object) -> Push:
    """A PUSH with these options, checked; names are those of the record."""
    command = Push(**{"queue": "q", "data": DATA, **options})
    checked(command)
    return command


def refusal(**options: object) -> str:
    with pytest.raises(ValidationError) as caught:
        pushed(**options)
    return str(caught.value)


def batch_refusal(**command: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        checked(decode_command(pack({"cmd": "PUSHB", "queue": "q", **command})))
    return caught.value


@pytest.mark.parametrize("queue", [None, "", 0, 0.0, False, math.nan])
def test_a_queue_is_required(queue):
    assert refusal(queue=queue) == "Queue name is required"


@pytest.mark.parametrize("queue", ["x" * 257, "é" * 257, "\U0001f600" * 129, " " * 257])
def test_a_queue_name_is_limited_before_its_characters_count(queue):
    assert refusal(queue=queue) == "Queue name too long (max 256 characters)"


@pytest.mark.parametrize("queue", ["a b", "a\n", "é", "\U0001f600" * 128, "a/b", "٣", 5, True, [], {}, b"q", ["q"]])
def test_a_queue_name_has_plain_characters(queue):
    assert refusal(queue=queue) == "Queue name contains invalid characters"


@pytest.mark.parametrize("queue", ["a", "A-z_0.9:", "x" * 256])
def test_good_queue_names_pass_each_time(queue):
    assert pushed(queue=queue).queue == pushed(queue=queue).queue == queue


def test_only_so_many_queue_names_are_remembered():
    for index in range(fields._KNOWN_QUEUES_MAX + 10):
        fields.pushed_queue(f"remembered-{index}")

    assert len(fields.known_queues) <= fields._KNOWN_QUEUES_MAX


def test_job_data_is_required():
    assert refusal(data=Raw(b"")) == "Job data is required"


def test_null_job_data_is_present():
    assert pushed(data=Raw(b"\xc0")).is_plain is True


def test_job_data_is_limited():
    assert pushed(data=Raw(pack("x" * 10_485_758))).is_plain is True
    assert refusal(data=Raw(pack("x" * 10_485_759))) == "Job data too large (max 10MB)"


NUMERIC = [
    ("priority", "priority", -1_000_000, 1_000_000, True),
    ("delay", "delay", 0, 31_536_000_000, False),
    ("timeout", "timeout", 0, 86_400_000, False),
    ("max_attempts", "maxAttempts", 1, 1_000, True),
    ("backoff", "backoff", 0, 86_400_000, False),
    ("ttl", "ttl", 0, 31_536_000_000, False),
    ("stall_timeout", "stallTimeout", 0, 86_400_000, False),
    ("timestamp", "timestamp", 0, 2**53 - 1, False),
    ("stack_trace_limit", "stackTraceLimit", 0, None, False),
    ("keep_logs", "keepLogs", 0, None, False),
    ("size_limit", "sizeLimit", 0, None, False),
    ("debounce_ttl", "debounceTtl", 0, 2**53 - 1, False),
]


@pytest.mark.parametrize(("field", "name", "low", "high", "is_whole"), NUMERIC)
def test_numeric_options(field, name, low, high, is_whole):
    for value in (True, "5", [5], b"5"):
        assert refusal(**{field: value}) == (
            "backoff.type must be 'fixed' or 'exponential'"
            if field == "backoff" and value == [5]
            else f"{name} must be a number"
        )
    for value in (math.nan, math.inf, -math.inf):
        assert refusal(**{field: value}) == f"{name} must be a finite number"
    assert refusal(**{field: low - 1}) == f"{name} must be at least {low}"
    assert getattr(pushed(**{field: float(low)}), field) == low
    assert getattr(pushed(**{field: None}), field) is None
    if high is not None:
        assert refusal(**{field: float(high) + 1}) == f"{name} must be at most {high}"
        assert refusal(**{field: high + 1}) == f"{name} must be at most {high}"
        assert getattr(pushed(**{field: high}), field) == high
    if is_whole:
        # Whole comes before the bounds, finite before whole.
        assert refusal(**{field: 1e9 + 0.5}) == f"{name} must be an integer"
    else:
        assert getattr(pushed(**{field: 1.5}), field) == 1.5


def test_numbers_leave_in_the_forms_of_the_wire():
    command = pushed(priority=5.0, delay=31_536_000_000, timestamp=2**41)

    assert type(command.priority) is int
    assert type(command.delay) is float
    assert type(command.timestamp) is float


ORDER = [
    ("queue", "", "Queue name is required"),
    ("data", Raw(b""), "Job data is required"),
    ("priority", "x", "priority must be a number"),
    ("delay", -1, "delay must be at least 0"),
    ("timeout", -1, "timeout must be at least 0"),
    ("max_attempts", 0, "maxAttempts must be at least 1"),
    ("backoff", -1, "backoff must be at least 0"),
    ("ttl", -1, "ttl must be at least 0"),
    ("depends_on", 5, "dependsOn must be an array"),
    ("unique_key", 5, "uniqueKey must be a string"),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_failure_in_the_order_of_the_spec_is_the_answer(first):
    assert refusal(**{field: value for field, value, _ in ORDER[first:]}) == ORDER[first][2]


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        ({}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"type": "linear", "delay": 1}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"type": ["fixed"], "delay": 1}, "backoff.type must be 'fixed' or 'exponential'"),
        ([], "backoff.type must be 'fixed' or 'exponential'"),
        ({"type": "fixed"}, "backoff.delay is required"),
        ({"type": "fixed", "delay": None}, "backoff.delay is required"),
        ({"type": "fixed", "delay": "1"}, "backoff.delay must be a number"),
        ({"type": "fixed", "delay": math.nan}, "backoff.delay must be a finite number"),
        ({"type": "fixed", "delay": -1}, "backoff.delay must be at least 0"),
        ({"type": "fixed", "delay": 86_400_001}, "backoff.delay must be at most 86400000"),
        ({"type": "fixed", "delay": 1, "maxDelay": "1"}, "backoff.maxDelay must be a number"),
        ({"type": "fixed", "delay": 1, "maxDelay": 86_400_001}, "backoff.maxDelay must be at most 86400000"),
    ],
)
def test_a_backoff_map_is_refused(backoff, text):
    assert refusal(backoff=backoff) == text


def test_a_backoff_map_becomes_its_record():
    assert pushed(backoff={"type": "fixed", "delay": 5.0}).backoff == BackoffConfig("fixed", 5)
    assert pushed(backoff={"type": "fixed", "delay": 5, "maxDelay": None}).backoff.max_delay is UNSET
    assert pushed(backoff={"type": "exponential", "delay": 5, "maxDelay": 9}).backoff == BackoffConfig(
        "exponential", 5, 9
    )


TEXTS = [
    ("unique_key", "uniqueKey", None),
    ("job_id", "jobId", None),
    ("parent_id", "parentId", None),
    ("group_id", "groupId", ""),
    ("debounce_id", "debounceId", ""),
]


@pytest.mark.parametrize(("field", "name", "empty"), TEXTS)
def test_text_options(field, name, empty):
    for value in (5, True, [], {}, b"x"):
        assert refusal(**{field: value}) == f"{name} must be a string"
    assert getattr(pushed(**{field: "x"}), field) == "x"
    assert getattr(pushed(**{field: ""}), field) == empty


@pytest.mark.parametrize(
    ("field", "name"), [("depends_on", "dependsOn"), ("tags", "tags"), ("children_ids", "childrenIds")]
)
def test_list_options(field, name):
    for value in (5, "a", {}, True):
        assert refusal(**{field: value}) == f"{name} must be an array"
    assert refusal(**{field: ["a", 5]}) == f"{name}[1] must be a string"
    assert getattr(pushed(**{field: ["b", "a"]}), field) == ["b", "a"]


def test_repeated_dependencies_count_once():
    assert pushed(depends_on=["b", "a", "b"]).depends_on == ["b", "a"]
    assert pushed(depends_on=[]).depends_on is None


FLAGS = [
    "lifo",
    "remove_on_complete",
    "remove_on_fail",
    "fail_parent_on_failure",
    "remove_dependency_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
    "durable",
    "receipt",
]


@pytest.mark.parametrize("field", FLAGS)
def test_flags_follow_javascript(field):
    for value in (True, 1, "false", {}, [], {"count": 5}):
        assert getattr(pushed(**{field: value}), field) is True
    for value in (False, 0, "", math.nan):
        assert getattr(pushed(**{field: value}), field) is False
    assert getattr(pushed(**{field: None}), field) is None


def test_durable_may_ask_for_a_sync():
    assert pushed(durable="fsync").durable == "fsync"


@pytest.mark.parametrize(
    ("dedup", "expected"),
    [
        ({}, Dedup()),
        ({"ttl": 0}, Dedup(ttl=0)),
        ({"ttl": 1000.0, "extend": 1, "replace": ""}, Dedup(ttl=1000, extend=True)),
        ({"ttl": None, "replace": True, "other": 5}, Dedup(replace=True)),
    ],
)
def test_dedup_becomes_its_record(dedup, expected):
    assert pushed(dedup=dedup).dedup == expected


@pytest.mark.parametrize(
    ("dedup", "text"),
    [
        (5, "dedup must be an object"),
        ([], "dedup must be an object"),
        ({"ttl": "5"}, "dedup.ttl must be a number"),
        ({"ttl": -1}, "dedup.ttl must be at least 0"),
        ({"ttl": 2**53}, "dedup.ttl must be at most 9007199254740991"),
    ],
)
def test_dedup_is_refused(dedup, text):
    assert refusal(dedup=dedup) == text


def test_repeat_becomes_its_record():
    repeat = {"every": 1000.0, "limit": 3, "pattern": "* * * * *", "tz": "UTC", "immediately": 1, "jobId": "r", "x": 1}

    assert pushed(repeat=repeat).repeat == RepeatConfig(
        every=1000, limit=3, pattern="* * * * *", tz="UTC", immediately=True, job_id="r"
    )
    assert pushed(repeat={"every": None}).repeat == RepeatConfig()


@pytest.mark.parametrize(
    "moment", [1_772_323_200_000, "2026-03-01T00:00:00Z", "2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)]
)
def test_dates_of_repeat_become_milliseconds(moment):
    assert pushed(repeat={"endDate": moment}).repeat == RepeatConfig(end_date=1_772_323_200_000.0)


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        (5, "repeat must be an object"),
        ([], "repeat must be an object"),
        ({"every": "5"}, "repeat.every must be a number"),
        ({"limit": -1}, "repeat.limit must be at least 0"),
        ({"pattern": 5}, "repeat.pattern must be a string"),
        ({"startDate": "tomorrow"}, "repeat.startDate must be a date"),
        ({"endDate": True}, "repeat.endDate must be a number"),
        ({"every": 2**53}, "repeat.every must be at most 9007199254740991"),
        ({"startDate": 2**53}, "repeat.startDate must be at most 9007199254740991"),
        ({"endDate": 2**53}, "repeat.endDate must be at most 9007199254740991"),
        ({"prevMillis": 2**53}, "repeat.prevMillis must be at most 9007199254740991"),
        ({"offset": 2**53}, "repeat.offset must be at most 9007199254740991"),
    ],
)
def test_repeat_is_refused(repeat, text):
    assert refusal(repeat=repeat) == text


def test_a_push_without_options_is_plain_however_it_was_made():
    made = pushed()
    sent = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, "reqId": "r"}))
    without_id = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1}))
    checked(sent)
    checked(without_id)

    assert made.is_plain is sent.is_plain is without_id.is_plain is True


@pytest.mark.parametrize("option", ["priority", "delay", "lifo", "debounceTtl"])
def test_any_option_makes_a_push_not_plain(option):
    for req_id in ({"reqId": "r"}, {}):
        command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, option: 1, **req_id}))
        checked(command)

        assert isinstance(command, Push)
        assert command.is_plain is False


@pytest.mark.parametrize(
    ("option", "sent", "checked_value"), [("durable", 1, True), ("jobId", "x", "x"), ("receipt", 1, True)]
)
def test_durability_id_and_receipt_leave_a_push_plain_and_are_checked(option, sent, checked_value):
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, option: sent}))
    checked(command)

    assert command.is_plain is True
    assert getattr(command, {"jobId": "job_id"}.get(option, option)) == checked_value


@pytest.mark.parametrize("bad", [5, ["x"], {}])
def test_a_plain_push_still_refuses_a_custom_id_that_is_no_string(bad):
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, "jobId": bad}))

    with pytest.raises(ValidationError, match="jobId must be a string"):
        checked(command)


@pytest.mark.parametrize(
    ("fields", "is_plain", "name"),
    [
        ({"name": "n"}, True, "n"),
        ({"name": "n", "jobId": "a"}, True, "n"),
        ({"name": "n", "lifo": True}, False, "n"),
        ({"name": msgpack.ExtType(0, b"\0")}, True, ABSENT),
        ({"name": msgpack.ExtType(0, b"\0"), "lifo": True}, False, ABSENT),
        ({"name": ""}, True, ""),
        ({"name": None}, True, None),
        ({"name": 5}, True, None),
    ],
)
@pytest.mark.parametrize("reqId", [{}, {"reqId": "1"}])
def test_a_name_is_no_option(fields, is_plain, name, reqId):
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, **fields, **reqId}))

    checked(command)

    assert (command.is_plain, command.name) == (is_plain, name)
    assert bytes(command.data) == b"\x01"


def test_four_keys_of_which_one_is_an_option_are_not_plain():
    command = decode_command(pack({"cmd": "PUSH", "data": 1, "reqId": "r", "priority": 5}))

    with pytest.raises(ValidationError, match="Queue name is required"):
        checked(command)


def test_a_client_cannot_make_an_entry_plain():
    name = PushEntry.__struct_encode_fields__[PushEntry.__struct_fields__.index("is_plain")]
    command = decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1, name: True, "priority": 5.0}]}))

    checked(command)

    assert isinstance(command, PushBatch)
    assert command.jobs is not None
    assert command.jobs[0].is_plain is False
    assert command.jobs[0].priority == 5


def test_a_batch_is_normalised_entry_by_entry():
    jobs = [{"data": 1}, {"data": 2, "customId": "", "lifo": 1, "jobId": 5}, {"data": 3, "customId": "c"}]
    command = decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": jobs, "receipt": 1}))

    checked(command)

    assert isinstance(command, PushBatch)
    assert command.receipt is True
    assert [(job.is_plain, job.custom_id, job.lifo) for job in command.jobs or ()] == [
        (True, None, None),
        (False, None, True),
        (True, "c", None),
    ]


def test_an_empty_batch_passes():
    checked(decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": []})))


@pytest.mark.parametrize("jobs", [None, 5, "x", {}])
def test_jobs_must_be_an_array(jobs):
    assert str(batch_refusal(jobs=jobs)) == "jobs must be an array"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (5, "jobs[1]: Job must be an object"),
        (None, "jobs[1]: Job must be an object"),
        ({}, "jobs[1]: Job data is required"),
        ({"data": msgpack.ExtType(0, b"\x00")}, "jobs[1]: Job data is required"),
        ({"data": 1, "priority": 1.5}, "jobs[1]: priority must be an integer"),
        ({"data": 1, "customId": 5}, "jobs[1]: customId must be a string"),
        ({"data": 1, "backoff": {"type": "fixed"}}, "jobs[1]: backoff.delay is required"),
    ],
)
def test_a_refused_entry_is_named_by_its_index(entry, text):
    error = batch_refusal(jobs=[{"data": 1}, entry, 5])

    assert isinstance(error, BatchEntryError)
    assert str(error) == text
    assert error.index == 1


def test_the_queue_of_a_batch_comes_first():
    assert str(batch_refusal(queue="", jobs=5)) == "Queue name is required"
