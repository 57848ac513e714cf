"""Checks of what protocol 3 adds to the ends and moves of jobs, and to RetryCompleted."""

import msgpack
import pytest
from msgspec import UNSET

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\x00")
MOVES = ["ChangeDelay", "MoveToDelayed", "MoveToWait", "MoveToWaitingChildren", "Discard"]
LENGTHS = "ACKB removeOnCompletes length must match ids length"


def sent(cmd, **fields):
    command = decode_command(msgpack.packb({"cmd": cmd, "delay": 0, **fields}))
    checked(command)
    checked(command)  # as it is when it is executed a second time
    return command


def refusal(cmd, **fields):
    with pytest.raises(ValidationError) as caught:
        sent(cmd, **fields)
    return str(caught.value)


@pytest.mark.parametrize("given", [None, UNDEFINED])
def test_no_removals_are_none(given):
    assert sent("ACKB", ids=["a"], removeOnCompletes=given).remove_on_completes is None


@pytest.mark.parametrize("given", [[], [True, None], True, {}, {"0": True}, "x", 1, False])
def test_removals_are_a_list_as_long_as_the_ids(given):
    assert refusal("ACKB", ids=["a"], removeOnCompletes=given) == LENGTHS


@pytest.mark.parametrize("given", [[True], [None], [False], [1], ["x"], [UNDEFINED]])
def test_what_stands_in_the_list_is_nobodys_business(given):
    assert len(sent("ACKB", ids=["a"], removeOnCompletes=given).remove_on_completes) == 1


def test_tokens_and_results_are_looked_at_first():
    assert refusal("ACKB", ids=["a"], tokens=[], removeOnCompletes=[]) == "tokens must match ids length"
    assert refusal("ACKB", ids=["a"], results=[], removeOnCompletes=[]) == "results must match ids length"


@pytest.mark.parametrize(("cmd", "name"), [("ACK", "removeOnComplete"), ("FAIL", "removeOnFail")])
@pytest.mark.parametrize("given", [None, UNDEFINED, True, False, 1, "x", [], {}])
def test_a_removal_may_be_anything(cmd, name, given):
    sent(cmd, id="a", **{name: given})


@pytest.mark.parametrize("cmd", MOVES)
@pytest.mark.parametrize(("given", "token"), [(None, None), ("", None), (UNDEFINED, None), ("t", "t")])
def test_tokens_of_moves(cmd, given, token):
    assert sent(cmd, id="a", token=given).token == token


@pytest.mark.parametrize("cmd", MOVES)
@pytest.mark.parametrize("given", [5, True, [], {}, b"t"])
def test_a_token_of_a_move_must_be_a_string(cmd, given):
    assert refusal(cmd, id="a", token=given) == "token must be a string"


@pytest.mark.parametrize("cmd", ["ChangeDelay", "MoveToDelayed"])
def test_a_delay_is_looked_at_before_the_token(cmd):
    assert refusal(cmd, id="a", delay=-1, token=5) == "delay must be at least 0"


@pytest.mark.parametrize("cmd", ["RetryCompleted", "RetryDlq", "PromoteJobs"])
@pytest.mark.parametrize(
    ("given", "count"),
    [({}, UNSET), ({"count": None}, 0), ({"count": 0}, 0), ({"count": -1}, 0), ({"count": 2.9}, 2), ({"count": "3"}, 3),
     ({"count": UNDEFINED}, UNSET), ({"count": "x"}, 0), ({"count": [1]}, 0), ({"count": 2**40}, 2**40)],
)  # fmt: skip
def test_a_count_that_is_undefined_means_all_and_null_means_none(cmd, given, count):
    assert sent(cmd, queue="q", **given).count == count


@pytest.mark.parametrize(("given", "kept"), [(None, None), (UNDEFINED, None), (5, 5), (1.5, 1.5), (2**40, 2.0**40)])
def test_timestamps_of_retry_completed(given, kept):
    assert sent("RetryCompleted", queue="q", timestamp=given).timestamp == kept


@pytest.mark.parametrize("given", ["5", True, [], {}])
def test_a_timestamp_must_be_a_number(given):
    assert refusal("RetryCompleted", queue="q", timestamp=given) == "timestamp must be a number"


@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
@pytest.mark.parametrize("group", [{}, {"concurrency": 1, "limit": {"max": 1, "duration": 10}, "affinity": None}])
def test_a_pull_may_bring_a_token_and_a_group(cmd, group):
    assert sent(cmd, queue="q", token="t", group=group).queue == "q"
