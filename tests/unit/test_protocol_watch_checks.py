"""Checks of logs and dashboards: the texts, and the forms that the engine relies on."""

import math

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.watch_checks import MAX_JOBS_LISTED, MAX_LINE_BYTES
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\0")


def sent(cmd, **fields):
    command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
    checked(command)
    return command


def refusal(cmd, **fields):
    with pytest.raises(ValidationError) as caught:
        sent(cmd, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("cmd", "wire_name", "name"),
    [
        ("GetLogs", "start", "start"),
        ("GetLogs", "end", "end"),
        ("ClearLogs", "keepLogs", "keep_logs"),
        ("DashboardQueue", "jobsLimit", "jobs_limit"),
    ],
)
class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (True, "must be a number"),
            ([1], "must be a number"),
            ({}, "must be a number"),
            ("x", "must be a number"),
            ("", "must be a number"),
            (math.nan, "must be a finite number"),
            (math.inf, "must be a finite number"),
        ],
    )
    def test_what_is_no_number_is_refused(self, cmd, wire_name, name, value, text):
        assert refusal(cmd, queue="q", **{wire_name: value}) == f"{wire_name} {text}"

    @pytest.mark.parametrize("value", [7, 7.0, 7.9, "7", " 7.5 "])
    def test_fractions_are_rounded_down_and_text_is_converted(self, cmd, wire_name, name, value):
        found = getattr(sent(cmd, queue="q", **{wire_name: value}), name)

        assert (type(found), found) == (int, 7)

    @pytest.mark.parametrize("value", [None, UNDEFINED])
    def test_null_and_undefined_mean_absent(self, cmd, wire_name, name, value):
        given = getattr(sent(cmd, queue="q", **{wire_name: value}), name)

        assert given == getattr(sent(cmd, queue="q"), name)


@pytest.mark.parametrize(("value", "kept"), [(1e300, 2**32 - 1), (-1e300, -(2**31)), (-(2**63), -(2**31))])
def test_bounds_of_lines_are_within_32_bits(value, kept):
    assert sent("GetLogs", start=value).start == kept


def test_a_queue_is_required_for_its_dashboard():
    assert refusal("DashboardQueue") == "Queue name is required"
    assert refusal("DashboardQueue", queue=5) == "queue must be a string"
    assert sent("DashboardQueue", queue="").queue == ""


def test_the_limit_of_listed_jobs_is_kept_within_its_bounds():
    assert [sent("DashboardQueue", queue="q", jobsLimit=n).jobs_limit for n in (-1, 0, 50, 51)] == [0, 0, 50, 50]
    assert sent("DashboardQueue", queue="q").jobs_limit == 10
    assert MAX_JOBS_LISTED == 50


@pytest.mark.parametrize(
    ("value", "kept"), [(1, True), ("x", True), ({}, True), (0, False), (None, False), ("", False)]
)
def test_whether_jobs_are_listed_is_truth_as_javascript_sees_it(value, kept):
    assert sent("DashboardQueue", queue="q", includeJobs=value).include_jobs is kept


def test_a_line_has_a_greatest_size():
    header = len(msgpack.packb("x" * 100_000)) - 100_000
    fitting = "x" * (MAX_LINE_BYTES - header - 1)

    assert bytes(sent("AddLog", id="j", message=fitting, level="").message) == msgpack.packb(fitting)
    assert refusal("AddLog", id="j", message=fitting, level="x") == "Log message too large (max 256KB)"
    assert refusal("AddLog", id="j", message="", level="x" * MAX_LINE_BYTES) == "Log message too large (max 256KB)"


def test_a_line_owns_its_bytes_and_is_canonical():
    line = sent("AddLog", id="j", message={1: b"\xff", "wide": 2**40}, level=2**40)

    assert msgpack.unpackb(bytes(line.message)) == {"1": b"\xff", "wide": 2.0**40}
    assert bytes(line.level) == msgpack.packb(2.0**40)
