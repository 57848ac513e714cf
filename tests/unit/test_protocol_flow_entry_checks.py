"""PUSHF on its way in: what is no flow, and each job by itself, in the order and the words of the wire.

Source: newer clients, 6.1, numbers 1 to 4.
"""

from typing import Any

import msgpack
import msgspec
import pytest

from bunqueue_trio.errors import MalformedFrameError, ValidationError
from bunqueue_trio.model.job import BackoffConfig, JobRecord, TimelineEntry
from bunqueue_trio.protocol import flow_entry_checks, flow_frames
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.flow_entry_checks import JOB_MAP_BYTES, check_push_flow
from tests.engine_harness import EngineHarness, raw
from tests.flows import flow_job

UNDEFINED = msgpack.ExtType(0, b"\0")
BAD_NAME = "Job name must be a non-empty string of at most 256 characters"
BAD_ID = "flow job id is invalid or is not well-formed Unicode"
TOO_MANY = "flow exceeds the 10000 job limit"
TOO_LARGE = "flow data is too large (max 64MB per atomic batch)"


def refusal(jobs: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        EngineHarness.command("PUSHF", jobs=jobs)
    return str(caught.value)


def refusal_of(**options: Any) -> str:
    """The text for one job with these options."""
    return refusal([flow_job("a", "q", **options)])


def options_of(**options: Any) -> Any:
    """The options of one job that is let in."""
    [entry] = EngineHarness.command("PUSHF", jobs=[flow_job("a", "q", **options)]).plan.jobs
    return entry.input


# the list


@pytest.mark.parametrize("jobs", ["x", {}, 5, None, True, UNDEFINED])
def test_jobs_must_be_a_list(jobs):
    assert refusal(jobs) == "flow jobs must be an array"


def test_jobs_must_be_there():
    with pytest.raises(ValidationError, match=r"^flow jobs must be an array$"):
        EngineHarness.command("PUSHF")


@pytest.mark.parametrize("entry", [5, None, "x", [1], UNDEFINED])
def test_a_job_must_be_a_map(entry):
    assert refusal([flow_job("a", "q"), entry, 5]) == "flow jobs[1] must be an object"


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": 5}, {"input": []}, {"input": UNDEFINED}], ids=str)
@pytest.mark.parametrize(("job_id", "shown"), [("b", "b"), (5, "5"), (UNDEFINED, "undefined")])
def test_a_job_must_have_input(fields, job_id, shown):
    assert refusal([flow_job("a", "q"), {"id": job_id, "queue": "q", **fields}]) == (
        f"flow job input is invalid: {shown}"
    )


def test_the_first_job_without_input_is_named():
    jobs = [{"id": "a", "queue": "q"}, {"id": "b", "queue": "q", "input": 5}]

    assert refusal(jobs) == refusal(jobs[:1]) == "flow job input is invalid: a"


@pytest.mark.parametrize("name", ["", None, 5, "x" * 257, ["a"]])
def test_the_names_of_all_jobs_are_looked_at_first(name):
    jobs = [flow_job("", "b c", data=5), flow_job("b", "q", name=name)]

    assert refusal(jobs) == BAD_NAME


def test_there_is_a_limit_and_names_come_before_it(monkeypatch):
    monkeypatch.setattr(flow_entry_checks, "MAX_JOBS", 3)
    jobs = [flow_job(f"j{n}", "q") for n in range(4)]

    assert refusal(jobs) == TOO_MANY
    assert refusal([*jobs, flow_job("", "q", name="")]) == BAD_NAME
    assert refusal([{**job, "id": ":"} for job in jobs]) == TOO_MANY
    assert len(EngineHarness.command("PUSHF", jobs=jobs[:3]).plan.jobs) == 3


def test_the_limit_is_ten_thousand():
    jobs = [{"id": f"{n}", "queue": "q", "input": {"data": {}}} for n in range(10_001)]

    assert refusal(jobs) == TOO_MANY
    assert len(EngineHarness.command("PUSHF", jobs=jobs[:-1]).plan.jobs) == 10_000


def test_a_list_that_is_far_too_long_is_not_even_decoded(monkeypatch):
    monkeypatch.setattr(flow_frames, "_decode_entries", None)

    assert refusal([0] * 20_001) == TOO_MANY


# who


@pytest.mark.parametrize(
    ("job_id", "text"),
    [
        (5, "flow job id must be a string"),
        (None, "flow job id must be a string"),
        (UNDEFINED, "flow job id must be a string"),
        ("", BAD_ID),
        ("x" * 1_025, BAD_ID),
        ("😀" * 513, BAD_ID),
        ("a:b", "flow job id cannot contain a colon"),
        (":" * 1_025, BAD_ID),
    ],
)
def test_an_id_is_a_text_of_some_length_without_a_colon(job_id, text):
    assert refusal([flow_job(job_id, "b c")]) == text


@pytest.mark.parametrize("job_id", ["x" * 1_024, "😀" * 512, "a b/ü"])
def test_other_ids_are_fine(job_id):
    [entry] = EngineHarness.command("PUSHF", jobs=[flow_job(job_id, "q")]).plan.jobs

    assert entry.id == job_id


def test_an_id_of_bytes_that_are_no_text_is_refused():
    body = msgpack.packb({"cmd": "PUSHF", "jobs": [flow_job("XY", "q")]}).replace(b"XY", b"\xed\xa0")
    with pytest.raises(ValidationError) as caught:
        check_push_flow(decode_command(body))

    assert str(caught.value) == BAD_ID


def test_an_id_comes_once():
    assert refusal([flow_job("a", "q"), flow_job("a", "b c", name="n")]) == "duplicate flow job id: a"


@pytest.mark.parametrize(
    ("queue", "shown"),
    [("b c", "b c"), ("", ""), ("x" * 257, "x" * 257), (5, "5"), (None, "undefined"), (UNDEFINED, "undefined")],
)
def test_a_queue_has_a_name_as_in_a_push(queue, shown):
    assert refusal([flow_job("a", queue, customId="z")]) == f"invalid flow queue: {shown}"


# options, each with what comes right after it


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"customId": "b"}, "custom id does not match planned id: a"),
        ({"customId": ""}, "custom id does not match planned id: a"),
        ({"customId": 5}, "custom id does not match planned id: a"),
        ({"parentId": ""}, "flow parent id is invalid: a"),
        ({"parentId": 5}, "flow parent id is invalid: a"),
        ({"dependsOn": "x"}, "dependsOn must be an array of valid string job ids"),
        ({"dependsOn": {}}, "dependsOn must be an array of valid string job ids"),
        ({"dependsOn": [5]}, "dependsOn must be an array of valid string job ids"),
        ({"dependsOn": ["b", ""]}, "dependsOn must be an array of valid string job ids"),
        ({"childrenIds": [5]}, "childrenIds must be an array of valid string job ids"),
        ({"childrenIds": [""]}, "childrenIds must be an array of valid string job ids"),
        ({"data": None}, "flow job data must be an object"),
        ({"data": UNDEFINED}, "flow job data must be an object"),
        ({"data": [1]}, "flow job data must be an object"),
        ({"data": "{}"}, "flow job data must be an object"),
        ({"data": {"x": "y" * 10_485_761}}, "Job data too large (max 10MB)"),
        ({"priority": "x"}, "priority must be a finite number"),
        ({"priority": True}, "priority must be a finite number"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": 1_000_001}, "priority must be between -1000000 and 1000000"),
        ({"priority": -1_000_001}, "priority must be between -1000000 and 1000000"),
        ({"groupId": "g", "priority": "x"}, "group.priority must be a finite number"),
        ({"groupId": "g", "priority": 1.5}, "group.priority must be an integer"),
        ({"groupId": "g", "priority": -1}, "group.priority must be between 0 and 2097151"),
        ({"groupId": "g", "priority": 2_097_152}, "group.priority must be between 0 and 2097151"),
        ({"delay": float("nan")}, "delay must be a finite number"),
        ({"delay": float("inf")}, "delay must be a finite number"),
        ({"delay": -1}, "delay must be between 0 and 31536000000"),
        ({"delay": 31_536_000_001}, "delay must be between 0 and 31536000000"),
        ({"timeout": "5"}, "timeout must be a finite number"),
        ({"timeout": 86_400_001}, "timeout must be between 0 and 86400000"),
        ({"ttl": -1}, "ttl must be between 0 and 31536000000"),
        ({"maxAttempts": "x"}, "attempts must be a finite number"),
        ({"maxAttempts": 1.5}, "attempts must be an integer"),
        ({"maxAttempts": 0}, "attempts must be between 1 and 1000"),
        ({"maxAttempts": 1_001}, "attempts must be between 1 and 1000"),
        ({"stallTimeout": -1}, "stallTimeout must be between 0 and 86400000"),
        ({"stackTraceLimit": -1}, "stackTraceLimit must be between 0 and 10000"),
        ({"stackTraceLimit": 0.5}, "stackTraceLimit must be an integer"),
        ({"keepLogs": 1_000_001}, "keepLogs must be between 0 and 1000000"),
        ({"sizeLimit": 10_485_761}, "sizeLimit must be between 0 and 10485760"),
        ({"timestamp": -5}, "timestamp must be between 0 and 9007199254740991"),
        ({"timestamp": 2**53}, "timestamp must be between 0 and 9007199254740991"),
        ({"groupMaxSize": 0}, "group.maxSize must be between 1 and 9007199254740991"),
        ({"groupMaxSize": 1.5}, "group.maxSize must be an integer"),
        ({"backoff": "x"}, "backoff must be a finite number"),
        ({"backoff": -1}, "backoff must be between 0 and 86400000"),
        ({"backoff": []}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"backoff": {"type": "x", "delay": 1}}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"backoff": {"type": "fixed"}}, "backoff.delay is required"),
        ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay must be between 0 and 86400000"),
        ({"backoff": {"type": "fixed", "delay": 1, "maxDelay": "x"}}, "backoff.maxDelay must be a finite number"),
        ({"lifo": "yes"}, "lifo must be a boolean"),
        ({"lifo": 1}, "lifo must be a boolean"),
        ({"removeOnComplete": 1}, "removeOnComplete must be a boolean"),
        ({"removeOnFail": 1}, "removeOnFail must be a boolean"),
        ({"durable": "fsync"}, "durable must be a boolean"),
        ({"failParentOnFailure": 1}, "failParentOnFailure must be a boolean"),
        ({"removeDependencyOnFailure": 1}, "removeDependencyOnFailure must be a boolean"),
        ({"continueParentOnFailure": 1}, "continueParentOnFailure must be a boolean"),
        ({"ignoreDependencyOnFailure": 1}, "ignoreDependencyOnFailure must be a boolean"),
        ({"groupId": 5}, "groupId must be a string"),
        ({"groupId": ""}, "groupId must be a non-empty string"),
        ({"groupId": "x" * 257}, "groupId must be at most 256 characters"),
        ({"groupId": "a\0"}, "groupId must not contain NUL characters"),
        ({"tags": "x"}, "tags must be an array of strings of at most 256 characters"),
        ({"tags": [5]}, "tags must be an array of strings of at most 256 characters"),
        ({"tags": ["x" * 257]}, "tags must be an array of strings of at most 256 characters"),
        ({"repeat": {"every": 5}}, "repeat is not supported inside an atomic flow"),
        ({"uniqueKey": "u"}, "deduplication is not supported inside an atomic flow"),
        ({"dedup": {}}, "deduplication is not supported inside an atomic flow"),
        ({"debounceId": "d"}, "debounce is not supported inside an atomic flow"),
        ({"debounceTtl": 0}, "debounce is not supported inside an atomic flow"),
        (
            {"parentId": "p", "failParentOnFailure": True, "continueParentOnFailure": True},
            "flow failure policies are mutually exclusive",
        ),
        ({"removeDependencyOnFailure": True}, "a flow failure policy requires a parent"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_option_is_checked_in_the_words_of_the_wire(options, text):
    assert refusal_of(**options) == text


ORDER: dict[str, Any] = {
    "customId": "z", "parentId": "", "dependsOn": 5, "childrenIds": 5, "data": 5, "priority": "x", "delay": "x",
    "timeout": "x", "ttl": "x", "maxAttempts": "x", "stallTimeout": "x", "stackTraceLimit": "x", "keepLogs": "x",
    "sizeLimit": "x", "timestamp": "x", "groupMaxSize": "x", "backoff": "x", "lifo": 5, "removeOnComplete": 5,
    "removeOnFail": 5, "durable": 5, "failParentOnFailure": 5, "removeDependencyOnFailure": 5,
    "continueParentOnFailure": 5, "ignoreDependencyOnFailure": 5, "groupId": 5, "tags": 5, "repeat": 5,
    "uniqueKey": "u", "debounceId": "d",
}  # fmt: skip
"""Options that are all wrong, in the order in which they are looked at."""


def test_the_first_of_several_faults_is_named():
    left, alone = dict(ORDER), {}
    for name, value in ORDER.items():
        priority_text = "group." if name == "priority" else ""
        alone[name] = priority_text + refusal_of(**{name: value})
        assert refusal_of(**left) == alone[name]
        del left[name]


def test_a_fault_of_the_first_job_comes_before_one_of_the_second():
    assert refusal([flow_job("a", "q", tags=5), flow_job("", "q")]) == refusal_of(tags=5)


@pytest.mark.parametrize("nothing", [None, UNDEFINED])
def test_null_and_undefined_mean_that_an_option_is_absent(nothing):
    absent = dict.fromkeys([*ORDER, "dedup", "debounceTtl"], nothing)
    del absent["data"]

    options = options_of(**absent)

    assert options.is_plain is True
    assert options == options_of()


@pytest.mark.parametrize(("options", "is_plain"), [({}, True), ({"tags": []}, False), ({"parentId": "p"}, False)])
def test_a_job_without_options_is_plain(options, is_plain):
    assert options_of(**options).is_plain is is_plain


@pytest.mark.parametrize(
    ("option", "sent", "kept"),
    [
        ("delay", 0.5, 0.5),
        ("delay", 5.0, 5),
        ("delay", 31_536_000_000, 31_536_000_000.0),
        ("priority", 2.0, 2),
        ("timestamp", 2**53 - 1, float(2**53 - 1)),
        ("backoff", 7, 7),
        ("tags", [], []),
        ("dependsOn", [], None),
        ("parentId", "p", "p"),
        ("lifo", False, False),
    ],
)
def test_values_are_brought_into_normal_forms(option, sent, kept):
    field = {"dependsOn": "depends_on", "parentId": "parent_id"}.get(option, option)

    assert getattr(options_of(**{option: sent}), field) == kept


def test_the_object_form_of_backoff_is_read():
    assert options_of(backoff={"type": "fixed", "delay": 7}).backoff == BackoffConfig("fixed", 7)
    assert options_of(backoff={"type": "fixed", "delay": 7, "maxDelay": 9}).backoff == BackoffConfig("fixed", 7, 9)


def test_a_checked_command_stays_as_it_is():
    command = EngineHarness.command("PUSHF", jobs=[flow_job("a", "q", backoff={"type": "fixed", "delay": 7})])
    before = msgspec.structs.asdict(command.plan.jobs[0].input)

    check_push_flow(command)

    assert msgspec.structs.asdict(command.plan.jobs[0].input) == before


def test_nobody_can_send_a_plan_that_has_been_checked():
    command = EngineHarness.command("PUSHF", jobs=[], **{"(plan)": {"jobs": [], "isChecked": True}})

    assert command.plan.jobs == []
    odd = {**flow_job("a", "q"), "(namedParent)": 5, "(namedChildren)": ["x"]}
    [entry] = EngineHarness.command("PUSHF", jobs=[odd]).plan.jobs
    assert (entry.named_parent, entry.named_children) == (None, None)


# data


def test_data_arrive_canonical_whatever_way_the_frame_takes():
    odd = {5: 2**40, "x": "y"}

    assert msgpack.unpackb(options_of(data=odd).data) == {"5": float(2**40), "x": "y"}


def test_data_that_are_no_payload_refuse_the_frame():
    deep: Any = {}
    for _ in range(600):
        deep = {"a": deep}
    with pytest.raises(MalformedFrameError):
        EngineHarness.command("PUSHF", jobs=[flow_job("a", "q", data=deep)])


def test_all_data_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(flow_entry_checks, "MAX_DATA_BYTES", 100)
    jobs = [flow_job(f"j{n}", "q", data={"x": "y" * 40}) for n in range(3)]

    assert refusal(jobs) == TOO_LARGE
    assert len(EngineHarness.command("PUSHF", jobs=jobs[:2]).plan.jobs) == 2


def test_a_flow_whose_reply_no_client_could_take_is_refused(monkeypatch):
    jobs = [flow_job(f"j{n}", "q", data={"x": "y" * 40}) for n in range(3)]
    plan = EngineHarness.command("PUSHF", jobs=jobs).plan
    monkeypatch.setattr(flow_entry_checks, "MAX_FRAME_BYTES", plan.size_bytes + 3 * JOB_MAP_BYTES)

    assert len(EngineHarness.command("PUSHF", jobs=jobs).plan.jobs) == 3
    assert refusal([*jobs[:2], flow_job("j2", "q", data={"x": "y" * 41})]) == TOO_LARGE


def test_a_job_map_adds_no_more_than_what_is_allowed_for():
    """All numbers as wide as they can be, a text wherever one may stand that the client has not sent."""
    harness = EngineHarness()
    options = {"timestamp": 2**53 - 1, "delay": 31_536_000_000, "lifo": True, "stackTraceLimit": 1}
    job = flow_job("a", "q", **options)
    jobs = harness.send("PUSHF", jobs=[job]).data["jobs"]

    assert len(msgspec.msgpack.encode(jobs)) - len(msgpack.packb([job])) < JOB_MAP_BYTES
    widest = JobRecord(
        "", "", raw({}), 1.5, 1.5, 1.5, timeline=(TimelineEntry("waiting-children", 1.5),), own_name="default"
    )
    for field in msgspec.structs.fields(JobRecord):
        if getattr(widest, field.name) in (0, None) or type(getattr(widest, field.name)) is int:
            setattr(widest, field.name, 1.5)
    assert len(msgspec.msgpack.encode(widest)) < JOB_MAP_BYTES
