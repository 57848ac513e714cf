"""What one connection may cost us: strangers, stalled frames, slow readers, and how much may be under way.

Source: protocol 1.1 to 1.5; P-2.
"""

import pytest
import trio

from bunqueue_trio.config import Config
from bunqueue_trio.server import connection as connection_module
from bunqueue_trio.server.session import REPLY_BYTES_PER_TURN
from bunqueue_trio.settings.limits import MAX_FRAME_BYTES
from tests.server.fakes import FULL, QUEUE, Rig, Wire, frame, header, is_cut, pull, pushes, settle_down

TOKENS = Config(auth_tokens=("secret",), preauth_max_frame_bytes=1_000)

# strangers


async def test_a_stranger_may_send_a_frame_up_to_the_limit(rig: Rig, connect, autojump_clock):
    wire = connect(rig, TOKENS)
    body = frame({"cmd": "Auth", "token": "x" * 1_000})[4:][:900]
    await wire.send_bytes(header(1_000) + body + bytes(100))
    assert (await wire.reply())["ok"] is False

    await wire.send_bytes(header(1_001))
    assert await wire.reply() == {"ok": False, "error": "Not authenticated"}
    assert await is_cut(wire)


async def test_a_stranger_who_announces_more_than_anybody_may_send_is_told_so(rig: Rig, connect, autojump_clock):
    wire = connect(rig, TOKENS)
    await wire.send_bytes(header(MAX_FRAME_BYTES + 1))

    assert (await wire.reply())["error"].startswith("Frame too large: 67108865 bytes exceeds maximum 67108864")


async def test_with_the_token_large_frames_are_welcome(rig: Rig, connect, autojump_clock):
    wire = connect(rig, TOKENS)
    assert await wire.call("Auth", token="secret") == {"ok": True}

    assert (await wire.call("PUSH", queue=QUEUE, data="x" * 200_000, jobId="a"))["id"] == "a"


@pytest.mark.parametrize("cut", [None, 3, 20, 21, 30, 60, 64, 200])
async def test_a_large_command_may_share_a_segment_with_the_token(rig: Rig, connect, autojump_clock, cut):
    wire = connect(rig, TOKENS)
    data = b"".join(
        map(
            frame,
            [
                {"cmd": "Ping"},
                {"cmd": "Auth", "token": "secret"},
                {"cmd": "PUSH", "queue": QUEUE, "data": "x" * 5_000, "jobId": "a"},
                {"cmd": "GetState", "id": "a"},
            ],
        )
    )
    await wire.send_bytes(data[:cut])
    if cut is not None:
        await settle_down()
        await wire.send_bytes(data[cut:])

    assert await wire.replies(4) == [
        {"ok": False, "error": "Not authenticated"},
        {"ok": True},
        {"ok": True, "id": "a"},
        {"ok": True, "id": "a", "state": "waiting"},
    ]


async def test_a_wrong_token_in_front_of_a_large_command_opens_nothing(rig: Rig, connect, autojump_clock):
    wire = connect(rig, TOKENS)
    await wire.send({"cmd": "Auth", "token": "guess"}, {"cmd": "PUSH", "queue": QUEUE, "data": "x" * 5_000})

    assert [reply["error"] for reply in await wire.replies(2)] == ["Invalid token", "Not authenticated"]
    assert await is_cut(wire)


async def test_a_stranger_who_does_not_read_is_dropped_early(rig: Rig, connect, autojump_clock):
    wire = connect(rig, TOKENS, buffer_bytes=4_096)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await wire.send_bytes(frame({"cmd": "Ping"}) * 100_000)
    await wire.has_ended.wait()

    assert wire.server_stream.is_closed


# stalled frames


@pytest.mark.parametrize(
    "begun", [b"\0", b"\0\0\0", header(100), header(100) + b"x" * 99, frame({"cmd": "Ping"}) + b"\0"]
)
async def test_a_begun_frame_is_cut_after_the_idle_timeout(rig: Rig, connect, autojump_clock, begun):
    wire = connect(rig)
    began = trio.current_time()
    await wire.send_bytes(begun)
    if len(begun) > 4 and begun[-1:] == b"\0":
        await wire.reply()
    await wire.has_ended.wait()

    assert trio.current_time() - began == pytest.approx(60)
    assert await is_cut(wire)


async def test_between_frames_a_connection_may_idle_for_ever(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send({"cmd": "Ping"})
    await wire.reply()
    await trio.sleep(1_000)

    assert (await wire.call("Ping"))["ok"]


async def test_a_timeout_of_zero_is_none(rig: Rig, connect, autojump_clock):
    wire = connect(rig, Config(tcp_idle_timeout_ms=0))
    await wire.send_bytes(b"\0")
    await trio.sleep(1_000)
    await wire.send_bytes(frame({"cmd": "Ping"})[1:])

    assert (await wire.reply())["ok"]


async def trickle(wire: Wire, data: bytes, step: int, every_s: float) -> None:
    for start in range(0, len(data), step):
        await wire.send_bytes(data[start : start + step])
        await trio.sleep(every_s)


async def test_a_byte_now_and_then_does_not_keep_a_frame_alive(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    began = trio.current_time()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await trickle(wire, header(1_000) + bytes(1_000), 1, 30)

    assert trio.current_time() - began <= 60 + 30 + 1


async def test_a_slow_but_honest_frame_arrives(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    data = frame({"cmd": "PUSH", "queue": QUEUE, "data": "x" * 20_000, "jobId": "a"})
    await trickle(wire, data, 600, 30)

    assert await wire.reply() == {"ok": True, "id": "a"}


async def test_small_frames_that_always_overlap_segments_are_no_stall(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    one = frame({"cmd": "Ping"})
    await wire.send_bytes(one[:6])
    for _ in range(10):
        await trio.sleep(40)
        await wire.send_bytes(one[6:] + one[:6])
        assert (await wire.reply())["ok"]


async def test_time_in_which_we_do_not_read_is_not_held_against_the_client(rig: Rig, connect, autojump_clock):
    wire = connect(rig, Config(tcp_idle_timeout_ms=1_000))
    await wire.send_bytes(b"\0\0")
    await trio.sleep(0.5)
    rig.store.close_gate()
    behind = frame({"cmd": "Ping"})
    first, *rest = map(frame, [*pushes(["a"], durable=True), {"cmd": "GetState", "id": "a"}])
    await wire.send_bytes(first[2:] + b"".join(rest) + behind[:3])
    await trio.sleep(5)
    rig.store.open_gate()
    assert len(await wire.replies(2)) == 2
    await wire.send_bytes(behind[3:])

    assert (await wire.reply())["ok"]


# slow readers


async def test_a_client_that_does_not_read_is_dropped_at_its_budget_and_its_jobs_are_released(
    rig: Rig, connect, autojump_clock, log
):
    slow, other = connect(rig, Config(tcp_max_write_queue_bytes=100_000), buffer_bytes=4_096), connect(rig)
    rig.push("a")
    await slow.send(pull())
    await slow.reply()
    rig.push("big", data="x" * 50_000)
    await other.send(pull(timeout=60_000, queue="elsewhere"))
    await slow.send(*[{"cmd": "GetJob", "id": "big"}] * 2)
    await settle_down()
    assert not slow.has_ended.is_set()
    assert rig.state("a") == "active"

    await slow.send({"cmd": "GetJob", "id": "big"})
    await slow.has_ended.wait()

    assert rig.state("a") == "waiting"
    assert (await other.call("Ping"))["ok"]
    assert [line["message"] for line in log()] == ["Closing connection: write queue exceeded budget"]


async def test_a_slow_reader_gets_everything_in_order(rig: Rig, connect, autojump_clock):
    wire = connect(rig, buffer_bytes=4_096)
    rig.push("big", data="x" * 50_000)
    await wire.send(*[{"cmd": "GetJob", "id": "big", "reqId": number} for number in range(20)])
    await settle_down()

    assert [reply["reqId"] for reply in await wire.replies(20)] == list(range(20))


# limits of what one connection may have under way


async def test_a_connection_is_read_no_further_with_too_many_promises(rig: Rig, connect, autojump_clock, monkeypatch):
    monkeypatch.setattr(connection_module, "MAX_UNCONFIRMED", 10)
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes([f"a{n}" for n in range(9)], durable=True))
    await settle_down()
    await wire.send(*pushes(["b"], durable=True))
    await settle_down()
    await wire.send({"cmd": "Ping", "reqId": "late"})
    await wire.silence()

    rig.store.open_gate()

    replies = await wire.replies(11)
    assert [reply.get("id") for reply in replies[:9]] == [f"a{n}" for n in range(9)]
    assert {replies[9].get("id"), replies[10].get("reqId")} == {"b", "late"}


async def test_a_connection_is_read_no_further_with_too_much_behind_its_waits(
    rig: Rig, connect, autojump_clock, monkeypatch
):
    monkeypatch.setattr(connection_module, "MAX_BACKLOG", 5)
    wire = connect(rig)
    await wire.send(*[pull(timeout=60_000)] * 50, *[{"cmd": "Ping"}] * 4)
    await settle_down()
    await wire.send_bytes(frame({"cmd": "Nope"}))
    assert (await wire.reply())["ok"] is False  # four are few enough to read on
    await wire.send({"cmd": "Ping"})
    await settle_down()
    await wire.send_bytes(frame({"cmd": "Nope"}))
    await wire.silence()

    rig.push("a")

    replies = await wire.replies(7)
    assert replies[0]["job"]["id"] == "a"
    assert [reply["ok"] for reply in replies[1:]] == [True] * 5 + [False]


async def test_a_producer_waits_while_a_flush_is_under_way_and_the_next_is_full(
    rig: Rig, connect, autojump_clock, monkeypatch
):
    monkeypatch.setattr("bunqueue_trio.server.broker.ROWS_IN_FILLING", 20)
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes(["first"], durable=True))
    await settle_down()
    await wire.send(*pushes([f"j{n}" for n in range(20)]))
    assert len(await wire.replies(20)) == 20
    await wire.send(*pushes(["held"]))
    await wire.silence()

    rig.store.open_gate()

    assert {reply["id"] for reply in await wire.replies(2)} == {"first", "held"}


async def test_a_full_disk_does_not_hold_a_connection(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    rig.store.fill_disk()
    assert await wire.call("PUSH", queue=QUEUE, data=1, durable=True) == {"ok": False, "error": FULL}
    began = trio.current_time()
    await wire.send(*pushes(["a"], durable=True), {"cmd": "GetState", "id": "a"}, *pushes(["b"]))

    assert [reply["ok"] for reply in await wire.replies(3)] == [False, True, True]
    assert trio.current_time() - began < 0.5


# what one read may bring back: small commands with large replies

LARGE = 100_000
MANY = 200


async def asks_for_much(rig: Rig, wire: Wire) -> None:
    """A segment of small commands whose replies are 20 MB together, and a push behind them."""
    rig.push("large", data="x" * LARGE)
    asks = [{"cmd": "GetJob", "id": "large", "reqId": number} for number in range(MANY)]
    await wire.send(*asks, {"cmd": "PUSH", "queue": QUEUE, "data": 1, "jobId": "behind", "reqId": MANY})


async def test_large_replies_leave_in_pieces_and_in_order(rig: Rig, connect, autojump_clock, monkeypatch):
    wire = connect(rig)
    sent: list[int] = []
    send = wire.server_stream.send_nowait
    monkeypatch.setattr(wire.server_stream, "send_nowait", lambda data: sent.append(len(data)) or send(data))

    await asks_for_much(rig, wire)

    assert [reply["reqId"] for reply in await wire.replies(MANY + 1)] == list(range(MANY + 1))
    assert max(sent) < REPLY_BYTES_PER_TURN + 2 * LARGE


async def test_others_are_served_between_large_replies(rig: Rig, connect, autojump_clock, monkeypatch):
    wire, other = connect(rig), connect(rig)
    executed: list[str] = []
    execute = rig.broker.execute

    def note(command, *rest):
        executed.append(type(command).__name__)
        if len(executed) == 5:
            other._raw.send(frame({"cmd": "Ping"}))
        return execute(command, *rest)

    await settle_down()
    rig.push("large", data="x" * LARGE)
    monkeypatch.setattr(rig.broker, "execute", note)
    await wire.send(*[{"cmd": "GetJob", "id": "large"}] * MANY)
    await wire.replies(MANY)

    assert executed.index("Ping") < MANY // 4


async def test_whoever_is_cut_off_amid_large_replies_has_the_rest_left_undone(rig: Rig, connect, autojump_clock):
    config = Config(tcp_max_write_queue_bytes=3 * REPLY_BYTES_PER_TURN)
    wire = connect(rig, config, buffer_bytes=8_192)
    executed_before = rig.engine.state.totals.pushed

    await asks_for_much(rig, wire)
    with trio.fail_after(60):
        await wire.has_ended.wait()

    assert rig.engine.state.totals.pushed == executed_before + 1
    assert rig.state("behind") == "unknown"
