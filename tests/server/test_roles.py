"""Tokens with a role, over TCP: what they may send, and what they are told."""

import pytest

from bunqueue_trio.config import Config
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.roles import Role, Tokens, refusal
from tests.server.fakes import QUEUE, Rig, Talker

CONFIG = Config(
    auth_tokens=("all", "r-too"),
    auth_tokens_read=("r", "r-too"),
    auth_tokens_produce=("p", "pw"),
    auth_tokens_work=("w", "pw"),
)


def entered(rig: Rig, token: str) -> Talker:
    talker = rig.talker(CONFIG)
    talker.say("Auth", token=token)
    assert talker.take() == [{"ok": True}]
    return talker


def said(talker: Talker, cmd, /, **fields):
    """Whether it was done, or the error."""
    talker.say(cmd, **fields)
    [reply] = talker.take()
    return reply.get("error", reply["ok"])


PUSH = ("PUSH", {"queue": QUEUE, "data": 1})
PULL = ("PULL", {"queue": QUEUE})
PAUSE = ("Pause", {"queue": QUEUE})
COUNT = ("Count", {"queue": QUEUE})
NO = "Not permitted for this token: "


@pytest.mark.parametrize(
    ("token", "command", "expected"),
    [
        ("r", COUNT, True),
        ("r", ("Hello", {}), True),
        ("r", PUSH, NO + "PUSH needs the role produce"),
        ("r", PULL, NO + "PULL needs the role work"),
        ("r", PAUSE, NO + "Pause needs a token of AUTH_TOKENS"),
        ("r", ("Update", {"id": "x", "data": 1}), NO + "Update needs the role produce or work"),
        ("p", COUNT, True),
        ("p", PUSH, True),
        ("p", PULL, NO + "PULL needs the role work"),
        ("w", COUNT, True),
        ("w", PULL, True),
        ("w", PUSH, NO + "PUSH needs the role produce"),
        ("w", PAUSE, NO + "Pause needs a token of AUTH_TOKENS"),
        ("pw", PUSH, True),
        ("pw", PULL, True),
        ("pw", PAUSE, NO + "Pause needs a token of AUTH_TOKENS"),
        ("all", PUSH, True),
        ("r-too", PUSH, True),
    ],
)
async def test_what_a_token_allows(rig: Rig, mock_clock, token, command, expected):
    cmd, fields = command

    assert said(entered(rig, token), cmd, **fields) == expected


async def test_what_is_not_permitted_changes_nothing_and_echoes_its_id(rig: Rig, mock_clock):
    talker = entered(rig, "r")

    talker.say("PUSH", queue=QUEUE, data=1, reqId=7)

    assert talker.take() == [{"ok": False, "error": NO + "PUSH needs the role produce", "reqId": 7}]
    assert not rig.engine.state.changes
    assert not rig.engine.state.queues


async def test_it_is_not_even_checked(rig: Rig, mock_clock):
    assert said(entered(rig, "r"), "PUSH") == NO + "PUSH needs the role produce"


async def test_the_last_good_token_decides(rig: Rig, mock_clock):
    talker = entered(rig, "all")
    talker.segment({"cmd": "Auth", "token": "r"}, {"cmd": "PUSH", "queue": QUEUE, "data": 1})
    assert [reply["ok"] for reply in talker.take()] == [True, False]

    talker.segment({"cmd": "Auth", "token": "wrong"}, {"cmd": "PUSH", "queue": QUEUE, "data": 1})
    assert [reply["ok"] for reply in talker.take()] == [False, False]

    talker.segment({"cmd": "Auth", "token": "p"}, {"cmd": "PUSH", "queue": QUEUE, "data": 1})
    assert [reply["ok"] for reply in talker.take()] == [True, True]


async def test_tokens_with_roles_alone_keep_strangers_out(rig: Rig, mock_clock):
    talker = rig.talker(Config(auth_tokens_read=("r",)))

    assert said(talker, *COUNT[:1], **COUNT[1]) == "Not authenticated"


@pytest.mark.parametrize(
    ("token", "roles"),
    [
        ("all", Role.ALL),
        ("r-too", Role.ALL),
        ("r", Role.READ),
        ("pw", Role.PRODUCE | Role.WORK),
        ("", None),
        ("al", None),
        ("zwölf", None),
    ],
)
def test_the_roles_of_a_token(token, roles):
    assert Tokens(CONFIG).roles_of(token.encode()) == roles


def test_a_command_without_a_row_is_for_admins():
    class Unheard(c.Command, tag="Unheard"):
        """Not in the table."""

    assert refusal(Unheard) == NO + "Unheard needs a token of AUTH_TOKENS"
