"""The token on moves of an active job: who has one must have the right one, who speaks protocol 3 must have one.

Source: newer clients, "Moves of an active job"; NC-7.
"""

import pytest

from tests.engine_harness import EngineHarness

NEWER = {"(newer)": True}
MOVES = {
    "MoveToWait": ({}, "waiting"),
    "MoveToDelayed": ({"delay": 60_000}, "delayed"),
    "ChangeDelay": ({"delay": 60_000}, "delayed"),
    "Discard": ({}, "failed"),
    "MoveToWaitingChildren": ({}, "waiting-children"),
}
OTHER = "00000000-0000-4000-a000-000000000000"
INVALID = "Invalid or expired lock token for job j"
REQUIRED = "Lock token required for job j"
TTL = 30_000

pytestmark = pytest.mark.parametrize("cmd", MOVES)


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


@pytest.fixture
def token(harness: EngineHarness) -> str:
    """Of the active job "j"."""
    harness.push(jobId="j")
    pulled = harness.pull()
    assert pulled is not None
    assert pulled[1] is not None
    return pulled[1]


@pytest.mark.parametrize("newer", [{}, NEWER])
def test_the_token_of_the_lock_moves_the_job(harness, token, cmd, newer):
    fields, state = MOVES[cmd]

    harness.send(cmd, id="j", token=token, **fields, **newer)

    assert harness.state("j") == state


@pytest.mark.parametrize("newer", [{}, NEWER])
def test_another_token_is_refused(harness, token, cmd, newer):
    assert harness.refusal(cmd, id="j", token=OTHER, **MOVES[cmd][0], **newer) == INVALID
    assert harness.state("j") == "active"


def test_an_expired_token_is_refused(harness, token, cmd):
    harness.advance(TTL)

    assert harness.refusal(cmd, id="j", token=token, **MOVES[cmd][0]) == INVALID
    assert harness.state("j") == "active"


@pytest.mark.parametrize("none", [{}, {"token": ""}, {"token": None}])
def test_who_sends_none_is_asked_for_it_only_if_they_speak_protocol_3(harness, token, cmd, none):
    fields, state = MOVES[cmd]

    assert harness.refusal(cmd, id="j", **none, **fields, **NEWER) == REQUIRED
    harness.send(cmd, id="j", **none, **fields)

    assert harness.state("j") == state


@pytest.mark.parametrize("newer", [{}, NEWER])
@pytest.mark.parametrize("given", [{}, {"token": OTHER}])
def test_a_job_without_a_lock_needs_none(harness, cmd, newer, given):
    fields, state = MOVES[cmd]
    harness.push(jobId="j")
    harness.send("PULL", queue="q")

    harness.send(cmd, id="j", **given, **fields, **newer)

    assert harness.state("j") == state


@pytest.mark.parametrize("newer", [{}, NEWER])
@pytest.mark.parametrize("given", [{}, {"token": OTHER}])
def test_a_queued_job_needs_none(harness, cmd, newer, given):
    fields, state = MOVES[cmd]
    harness.push(jobId="j", delay=1_000)

    if cmd == "MoveToWaitingChildren":
        assert harness.refusal(cmd, id="j", **given, **fields, **newer) == "Job is not active"
    else:
        harness.send(cmd, id="j", **given, **fields, **newer)
        assert harness.state("j") == state


def test_a_dead_letter_needs_none(harness, token, cmd):
    harness.fail("j", token, unrecoverable=True)

    if cmd == "MoveToWait":
        harness.send(cmd, id="j", token=OTHER, **NEWER)
        assert harness.state("j") == "waiting"
    else:
        harness.refusal(cmd, id="j", token=OTHER, **MOVES[cmd][0], **NEWER)
