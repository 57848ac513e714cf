"""How a job is shown: every row of the two tables, in every reply that holds jobs.

Source: newer clients, 3.2 to 3.5.
"""

import json

import msgpack
import msgspec
import pytest
from msgspec import UNSET, Raw

from bunqueue_trio.engine import job_forms
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.job import TimelineEntry
from bunqueue_trio.model.naming import NO_DATA, classed, fits_inside
from bunqueue_trio.protocol.json_bodies import json_of
from tests.engine_harness import EngineHarness, decoded, needs_facts
from tests.storage.samples import T0, job, raw

MISSING = object()
LONG = {f"k{number}": number for number in range(40)}

# name and data as pushed; name and data in the E form; name and data in the 3 form
ROWS = {
    "unnamed": (MISSING, {"z": 1}, MISSING, {"z": 1}, "default", {"z": 1}),
    "unnamed, a name inside": (
        MISSING,
        {"name": "leg", "z": 1},
        MISSING,
        {"name": "leg", "z": 1},
        "leg",
        {"z": 1},
    ),
    "unnamed, no valid name inside": (MISSING, {"name": 7}, MISSING, {"name": 7}, "default", {"name": 7}),
    "unnamed, an empty name inside": (MISSING, {"name": ""}, MISSING, {"name": ""}, "default", {"name": ""}),
    "unnamed text": (MISSING, "str", MISSING, "str", "default", "str"),
    "unnamed null": (MISSING, None, MISSING, None, "default", None),
    "named map": ("send", {"to": "x"}, MISSING, {"name": "send", "to": "x"}, "send", {"to": "x"}),
    "named empty map": ("send", {}, MISSING, {"name": "send"}, "send", {}),
    "named long map": ("é😀", LONG, MISSING, {"name": "é😀", **LONG}, "é😀", LONG),
    "default": ("default", {"to": "x"}, "default", {"to": "x"}, "default", {"to": "x"}),
    "its own name": ("send", {"name": "Bob"}, "send", {"name": "Bob"}, "send", {"name": "Bob"}),
    "its own null name": ("send", {"name": None}, "send", {"name": None}, "send", {"name": None}),
    "default, its own name": ("default", {"name": "Bob"}, "default", {"name": "Bob"}, "default", {"name": "Bob"}),
    "named null": ("send", None, "send", None, "send", None),
    "named text": ("send", "text", "send", "text", "send", "text"),
    "named number": ("send", 7, "send", 7, "send", 7),
    "named bool": ("send", False, "send", False, "send", False),
    "named list": ("send", [1], "send", [1], "send", [1]),
    "named binary": ("send", b"\x80", "send", b"\x80", "send", b"\x80"),
    "named, no data": ("send", MISSING, "send", MISSING, "send", MISSING),
}
ALL_ROWS = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def fields_of(name, data):
    return {key: value for key, value in (("name", name), ("data", data)) if value is not MISSING}


def form_of(shown):
    return shown.get("name", MISSING), shown.get("data", MISSING)


def bare_record(name, data):
    """The record of a push."""
    fields = {} if name is MISSING else {"own_name": name}
    return classed(job("a", data=NO_DATA if data is MISSING else Raw(msgpack.packb(data)), **fields))


def seen(record):
    return form_of(msgpack.unpackb(msgspec.msgpack.encode(record)))


# the table


@ALL_ROWS
def test_the_form_for_everybody(row):
    name, data, *shown, _, _ = row

    assert seen(job_forms.given(bare_record(name, data), is_newer=False)) == tuple(shown)


@ALL_ROWS
def test_the_form_for_protocol_3(row):
    name, data, _, _, *shown = row

    assert seen(job_forms.given(bare_record(name, data), is_newer=True)) == tuple(shown)


@ALL_ROWS
@pytest.mark.parametrize("is_newer", [False, True])
def test_showing_changes_no_record(row, is_newer):
    record = bare_record(*row[:2])
    before = msgspec.msgpack.encode(record)

    job_forms.read(record, None, is_newer=is_newer)

    assert msgspec.msgpack.encode(record) == before


def test_an_unnamed_job_is_shown_as_it_is_and_not_even_copied():
    record = bare_record(MISSING, {"name": "leg"})

    assert job_forms.given(record, is_newer=False) is record
    assert job_forms.read(record, Raw(b"\xc0"), is_newer=False) is record


@ALL_ROWS
def test_json_shows_the_same(row):
    name, data, *shown, _, _ = row
    if isinstance(data, bytes):
        shown = [name, {"$binary": "gA=="}]
    reply = msgspec.msgpack.encode({"job": job_forms.given(bare_record(name, data), is_newer=False)})

    assert form_of(json.loads(json_of(reply))["job"]) == tuple(shown)


# bytes


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x81"),
        (14, b"\x8f"),
        (15, b"\xde\x00\x10"),
        (16, b"\xde\x00\x11"),
        (65_534, b"\xde\xff\xff"),
        (65_535, b"\xdf\x00\x01\x00\x00"),
        (65_536, b"\xdf\x00\x01\x00\x01"),
    ],
)
def test_a_header_grows_where_it_has_to(size, head):
    data = {f"{number:x}": number for number in range(size)}

    envelope = job_forms.put_in("send", raw(data))

    assert bytes(envelope).startswith(head + b"\xa4name\xa4send")
    assert msgpack.unpackb(envelope) == {"name": "send", **data}


@pytest.mark.parametrize("packed", [b"\xde\x00\x01\xa1a\x01", b"\xdf\x00\x00\x00\x01\xa1a\x01"])
def test_headers_that_are_longer_than_they_need_be_are_understood(packed):
    assert fits_inside("send", Raw(packed))
    assert msgpack.unpackb(job_forms.put_in("send", Raw(packed))) == {"name": "send", "a": 1}


@pytest.mark.parametrize("name", ["n", "x" * 31, "x" * 32, "é" * 128, "x" * 256])
def test_names_of_any_length_are_put_in(name):
    assert msgpack.unpackb(job_forms.put_in(name, raw({"a": [1]}))) == {"name": name, "a": [1]}


def test_payloads_inside_are_copied_byte_by_byte():
    odd = b"\x81\xd9\x01k\x92\xd4\x00\x00\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x00"

    assert bytes(job_forms.put_in("n", Raw(odd))) == b"\x82\xa4name\xa1n" + odd[1:]


def test_data_at_their_limit_get_their_name(harness):
    data = {"x": "y" * (10_485_760 - 8)}
    job_id = harness.push(name="send", data=data)

    shown = harness.shown(job_id)

    assert (shown["data"]["name"], len(shown["data"]["x"])) == ("send", 10_485_752)


# every reply


@ALL_ROWS
def test_every_reply_with_jobs_has_the_form_for_everybody(harness, row):
    name, data, *shown, _, _ = row
    check_replies(harness, fields_of(name, data), tuple(shown))


@ALL_ROWS
def test_every_reply_with_jobs_has_the_form_for_protocol_3(harness, row):
    name, data, _, _, *shown = row
    harness.speaks_3 = True
    check_replies(harness, fields_of(name, data), tuple(shown))


def check_replies(harness, fields, expected):
    harness.send("PUSH", queue="q", jobId="a", maxAttempts=1, **fields)
    harness.send("PUSHB", queue="q", jobs=[{"customId": "b", **fields}, {"customId": "c", **fields}])

    found = [form_of(shown) for shown in harness.ask("GetJobs", queue="q")["jobs"]]
    found += [form_of(harness.ask("GetJob", id=job_id)["job"]) for job_id in "abc"]
    found += [form_of(harness.ask("GetJobByCustomId", customId=job_id)["job"]) for job_id in "abc"]
    found.append(form_of(harness.ask("PULL", queue="q")["job"]))
    found += [form_of(shown) for shown in harness.ask("PULLB", queue="q", count=5)["jobs"]]
    harness.fail("a", error="e")
    harness.send("ACK", id="b")
    found += [form_of(shown) for shown in harness.ask("Dlq", queue="q")["jobs"]]
    found += [form_of(harness.ask("GetJob", id=job_id)["job"]) for job_id in "ab"]

    assert found == [expected] * 15


def test_a_parked_pull_asks_for_the_form_of_its_connection(harness):
    harness.speaks_3 = True
    pull = harness._command("PULL", {"queue": "q"})
    harness.speaks_3 = False
    harness.push(name="send", data={"a": 1})

    reply = harness.engine.execute(pull, harness.now, 1)

    assert seen(reply.job) == ("send", {"a": 1})


# results and errors


def more_of(shown):
    return shown.get("returnvalue", MISSING), shown.get("failedReason", MISSING)


def finished(harness, **fields):
    """A job that has failed once and then returned something."""
    job_id = harness.push(backoff=0, **fields)
    harness.fail(*harness.pull(), error="e1")
    harness.ack(*harness.pull(), result={"r": 1})
    return job_id


def test_queries_show_result_and_error_of_a_named_job_to_everybody(harness):
    job_id = finished(harness, name="n")

    assert more_of(harness.shown(job_id)) == ({"r": 1}, "e1")


def test_those_of_an_unnamed_job_are_shown_over_protocol_3_only(harness):
    job_id = finished(harness)

    assert more_of(harness.shown(job_id)) == (MISSING, MISSING)
    harness.speaks_3 = True
    assert more_of(harness.shown(job_id)) == ({"r": 1}, "e1")


def test_a_null_result_is_a_result_and_none_is_none(harness):
    nothing, null = (harness.push(name="n") for _ in range(2))
    harness.ack(*harness.pull())
    harness.ack(*harness.pull(), result=None)

    assert [more_of(harness.shown(job_id)) for job_id in (nothing, null)] == [(MISSING, MISSING), (None, MISSING)]


def test_the_error_is_shown_while_the_job_waits_for_its_retry_and_runs_again(harness):
    job_id = harness.push(name="n", jobId="a", maxAttempts=3, backoff=0)
    harness.fail(*harness.pull(), error="e1")
    waiting = harness.shown(job_id), harness.ask("GetJobByCustomId", customId="a")["job"]
    harness.fail(*harness.pull())  # without an error
    pulled = harness.ask("PULL", queue="q")["job"]

    assert [more_of(shown) for shown in (*waiting, harness.shown(job_id))] == [(MISSING, "e1")] * 3
    assert more_of(pulled) == (MISSING, MISSING)


def test_dead_letters_show_neither(harness):
    job_id = harness.push(name="n", maxAttempts=1)
    harness.fail(*harness.pull(), error="e")

    assert [more_of(shown) for shown in harness.ask("Dlq", queue="q")["jobs"]] == [(MISSING, MISSING)]
    assert more_of(harness.shown(job_id)) == (MISSING, "e")


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([], UNSET),
        ([("waiting", UNSET)], UNSET),
        ([("failed", "a"), ("waiting", UNSET), ("failed", "b"), ("waiting", UNSET)], "b"),
        ([("failed", "a"), ("failed", UNSET)], "a"),
        ([("failed", ""), ("active", "x")], ""),
    ],
)
def test_the_last_failure_with_an_error_counts(steps, error):
    timeline = tuple(TimelineEntry(state, T0, text) for state, text in steps)

    assert job_forms.last_error(job("a", timeline=timeline)) == error


def test_a_job_that_runs_again_shows_what_it_has_returned(harness):
    finished(harness, name="n", jobId="a")
    completed = harness.engine.state.history.get("a")
    harness.send("RetryCompleted", queue="q", id="a")

    for cmd, fields in (("GetJob", {"id": "a"}), ("GetJobByCustomId", {"customId": "a"})):
        assert needs_facts(harness, cmd, **fields) == ["a"]
        harness.engine.find_facts({"a": completed_again(completed)})
        assert more_of(harness.ask(cmd, **fields)["job"])[0] == {"r": 1}
        harness.engine.clear_facts()


def completed_again(completed):
    """What the file tells of a completed job that runs again."""
    return CompletedJob(msgspec.structs.replace(completed.record, completed_at=None), completed.result)


@pytest.mark.parametrize("state", [None, "waiting"])
def test_in_a_list_the_file_tells_what_it_has_returned(harness, state):
    finished(harness, name="n", jobId="a")
    finished(harness, jobId="b")
    for job_id in "ab":
        harness.send("RetryCompleted", queue="q", id=job_id)

    command, question = harness.question("GetJobs", queue="q", state=state)
    question.page, question.results = question.live, {"a": raw(5)}
    listed = decoded(harness.answered(command, question))["jobs"]

    assert (question.rerun, question.wants_completed, question.wants_results) == ({"a"}, False, False)
    assert [(shown["id"], shown["state"], more_of(shown)) for shown in listed] == [
        ("a", "waiting", (5, "e1")),
        ("b", "waiting", (MISSING, MISSING)),
    ]
    _, question = harness.question("GetJobs", queue="q", state=state, asc=True)
    assert (question.rerun, question.wants_results) == ({"a", "b"}, True)


# Update


def updated(harness, name, data, new, *, speaks_3=False):
    """What is stored when *new* is written to a job of that name and data."""
    harness.speaks_3 = speaks_3
    [job_id] = harness.push_many("q", [fields_of(name, data)])
    harness.send("Update", id=job_id, data=new)
    record = harness.job(job_id).record
    return record.name, msgpack.unpackb(record.data)


def test_who_writes_an_envelope_back_changes_no_data(harness):
    assert updated(harness, "send", {"to": 1}, {"name": "send", "to": 2}) == ("send", {"to": 2})
    assert updated(harness, "send", {}, {"to": 2, "name": "send"}) == ("send", {"to": 2})


@pytest.mark.parametrize(
    ("name", "data", "new"),
    [
        ("send", {"to": 1}, {"name": "Bob"}),  # another name
        ("send", {"to": 1}, {"name": None}),
        ("send", {"name": "x"}, {"name": "send"}),  # its own name before
        ("send", [1], {"name": "send"}),  # no map before
        ("send", MISSING, {"name": "send"}),
        ("default", {"to": 1}, {"name": "default"}),  # never given inside
        ("send", {"to": 1}, {"x": {"name": "send"}}),
        ("send", {"to": 1}, "send"),
        ("send", {"to": 1}, None),
        (MISSING, {"name": "send"}, {"name": "send"}),
    ],
)
def test_any_other_data_are_taken_as_they_are(harness, name, data, new):
    assert updated(harness, name, data, new) == (None if name is MISSING else name, new)


def test_over_protocol_3_a_name_in_data_is_data(harness):
    assert updated(harness, "send", {"to": 1}, {"name": "send"}, speaks_3=True) == ("send", {"name": "send"})


def test_later_replies_follow_the_new_data(harness):
    job_id = harness.push(name="send", data={"to": 1})
    forms = []
    for data in ([1], {"a": 1}, {"name": "x"}, {}):
        harness.send("Update", id=job_id, data=data)
        forms.append(form_of(harness.shown(job_id)))

    assert forms == [
        ("send", [1]),
        (MISSING, {"name": "send", "a": 1}),
        ("send", {"name": "x"}),
        (MISSING, {"name": "send"}),
    ]


def test_events_carry_the_data_as_stored(harness):
    harness.engine.state.events = events = []
    harness.push(name="send", data={"to": 1}, maxAttempts=1)
    harness.fail(*harness.pull(), error="e")

    [failed] = [event for event in events if getattr(event, "event_type", None) == "failed"]
    assert msgpack.unpackb(failed.data) == {"to": 1}
