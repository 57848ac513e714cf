"""Who may do how much: the request limit and authentication of one connection. Source: protocol 1.5 and 2."""

import msgpack
import pytest

from bunqueue_trio.config import Config
from tests.server.fakes import QUEUE, Rig, pushes


def error(text, **fields):
    return {"ok": False, "error": text, **fields}


# the throttle


async def test_the_rate_limit_counts_every_frame_and_refuses_under_its_id(rig: Rig, mock_clock):
    talker = rig.talker(Config(rate_limit_max_requests=3, rate_limit_window_ms=1_000))
    talker.bodies(b"\xc1")
    talker.segment({"cmd": "Ping"}, {"cmd": "Ping"}, {"cmd": "Ping", "reqId": "x"}, {"cmd": "Ping", "reqId": 1})
    talker.bodies(b"\xc1")

    assert talker.take()[1:3] == [error("Rate limit exceeded", reqId="x"), error("Rate limit exceeded")]
    mock_clock.jump(1.0)
    talker.segment({"cmd": "Ping"})
    assert talker.take()[0]["ok"]


async def test_the_rate_limit_is_of_one_connection(rig: Rig, mock_clock):
    config = Config(rate_limit_max_requests=1)
    for _ in range(3):
        talker = rig.talker(config)
        talker.segment({"cmd": "Ping"}, {"cmd": "Ping"})
        assert sorted(reply["ok"] for reply in talker.replies) == [False, True]


async def test_strangers_are_throttled_as_well(rig: Rig, mock_clock):
    talker = rig.talker(Config(auth_tokens=("t",), rate_limit_max_requests=1))
    talker.segment({"cmd": "Auth", "token": "bad"}, {"cmd": "Auth", "token": "t"})

    assert sorted(reply["error"] for reply in talker.replies) == ["Invalid token", "Rate limit exceeded"]
    assert not talker.session.is_authenticated


# authentication


async def test_nothing_but_auth_before_authentication(rig: Rig, mock_clock):
    talker = rig.talker(Config(auth_tokens=("one", "two")))
    talker.segment(
        {"cmd": "Ping"}, {"cmd": "Hello"}, {"cmd": "PUSH", "queue": QUEUE, "data": 1, "reqId": 4}, {"cmd": "PULL"}
    )
    assert talker.take() == [
        error("Not authenticated"),
        error("Not authenticated"),
        error("Not authenticated", reqId=4),
        error("Not authenticated"),
    ]
    talker.bodies(msgpack.packb({"cmd": "Nope"}), b"\xc1")
    assert [reply["error"] for reply in talker.take()] == ["Not authenticated", "Invalid command format"]
    assert not rig.engine.state.changes


@pytest.mark.parametrize("token", ["one", "two", "zwölf"])
async def test_each_listed_token_opens_and_a_command_may_follow_in_the_segment(rig: Rig, mock_clock, token):
    talker = rig.talker(Config(auth_tokens=("one", "two", "zwölf")))
    talker.segment({"cmd": "Auth", "token": token, "reqId": 1}, *pushes(["a"]))

    assert talker.replies == [{"ok": True, "reqId": 1}, {"ok": True, "id": "a"}]


@pytest.mark.parametrize("token", ["", "on", "one ", "ONE", None, 1, ["one"], b"one"])
async def test_any_other_token_is_invalid(rig: Rig, mock_clock, token):
    talker = rig.talker(Config(auth_tokens=("one", "two")))
    talker.say("Auth", token=token)
    talker.say("Auth")

    assert talker.replies == [error("Invalid token")] * 2
    assert not talker.session.is_authenticated


async def test_a_wrong_token_never_logs_out(rig: Rig, mock_clock):
    talker = rig.talker(Config(auth_tokens=("one",)))
    talker.segment({"cmd": "Auth", "token": "one"}, {"cmd": "Auth", "token": "bad"}, {"cmd": "Ping"})

    assert [reply["ok"] for reply in talker.replies] == [True, False, True]


async def test_without_tokens_everybody_is_in_and_every_token_is_invalid(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment({"cmd": "Auth", "token": ""}, {"cmd": "Auth", "token": "x"}, {"cmd": "Ping"})

    assert [reply.get("error") for reply in talker.replies] == ["Invalid token", "Invalid token", None]
