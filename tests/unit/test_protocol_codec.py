"""Frames to commands and replies to frames: every row of the table of refusals, and the tolerant second look."""

import struct

import msgpack
import msgspec
import pytest
from msgspec import Raw

from bunqueue_trio.errors import MalformedFrameError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.model.replies import ErrorReply, IdReply, Reply, ResultReply
from bunqueue_trio.protocol import codec, tolerant
from bunqueue_trio.protocol.codec import decode_command, encode_event, encode_frame, string_req_id
from bunqueue_trio.protocol.tolerant import NOT_A_LIST, NOT_AN_OBJECT

UNDEFINED = msgpack.ExtType(0, b"\x00")
pack = msgpack.packb


def refusal(body: bytes) -> tuple[str, object]:
    """The text of the refusal and the id to echo, decoded; None for none."""
    with pytest.raises(MalformedFrameError) as caught:
        decode_command(body)
    req_id = caught.value.req_id
    return str(caught.value), None if req_id is None else msgpack.unpackb(bytes(req_id))


NO_VALUE = {
    "empty": b"",
    "truncated": pack({"cmd": "Ping"})[:-1],
    "bytes left over": pack({"cmd": "Ping"}) + b"\xc0",
    "array that lies": b"\xdd\xff\xff\xff\xff",
    "text that lies": b"\x81\xa3cmd\xdb\xff\xff\xff\xff",
    "binary that lies": b"\x81\xa3cmd\xc6\xff\xff\xff\xff",
    "map that lies": b"\xdf\xff\xff\xff\xff",
    "unknown extension 1": b"\x81\xa3cmd\xd4\x01\x00",
    "unknown extension 5 in an option": pack({"cmd": "PUSH", "tags": msgpack.ExtType(5, b"x")}),
    "unknown extension in job data": pack({"cmd": "PUSH", "data": msgpack.ExtType(5, b"x")}),
    "list as a key": b"\x82\xa3cmd\xa4Ping\x91\x01\x02",
    "map as a key": b"\x82\xa3cmd\xa4Ping\x81\x01\x02\x03",
    "map as a key in job data": b"\x82\xa3cmd\xa4PUSH\xa4data\x81\x81\x01\x02\x03",
    "extreme nesting": b"\x91" * 100_000 + b"\xc0",
    "extreme nesting in job data": b"\x82\xa3cmd\xa4PUSH\xa4data" + b"\x91" * 100_000 + b"\xc0",
    "extreme nesting in an option": b"\x82\xa3cmd\xa4PUSH\xa4tags" + b"\x91" * 100_000 + b"\xc0",
    "513 levels in job data": b"\x82\xa3cmd\xa4PUSH\xa4data" + b"\x91" * 513 + b"\xc0",
    "nil": b"\xc0",
    "false": b"\xc2",
    "0": b"\x00",
    "0.0": pack(0.0),
    "NaN": pack(float("nan")),
    "undefined": pack(UNDEFINED),
    "empty text": b"\xa0",
    "malformed timestamp": b"\x82\xa3cmd\xa4PUSH\xa4tags\xd5\xff\x00\x00",
}


@pytest.mark.parametrize("body", NO_VALUE.values(), ids=NO_VALUE)
def test_a_body_that_is_no_value_is_an_invalid_format(body):
    assert refusal(body) == ("Invalid command format", None)


@pytest.mark.parametrize("value", [True, 1, -1, 1.5, "x", [], [1], b"", msgpack.Timestamp(5)], ids=repr)
def test_a_value_that_is_no_map_is_an_invalid_command(value):
    assert refusal(pack(value)) == ("Invalid command", None)


@pytest.mark.parametrize("command", [None, "", 0, 0.0, False, float("nan"), UNDEFINED], ids=repr)
def test_a_map_without_a_command_is_an_invalid_command(command):
    assert refusal(pack({"cmd": command, "reqId": "r"})) == ("Invalid command", "r")


def test_a_missing_command_is_an_invalid_command():
    assert refusal(pack({})) == ("Invalid command", None)


@pytest.mark.parametrize("req_id", [5, 1.5, True, None, [1], {"a": 1}, b"b", UNDEFINED], ids=repr)
def test_only_a_text_is_echoed_before_the_command_check(req_id):
    assert refusal(pack({"reqId": req_id})) == ("Invalid command", None)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("Nope", "Nope"),
        ("push", "push"),
        (5, "5"),
        (5.0, "5"),
        (1.5, "1.5"),
        (True, "true"),
        ([1, 2], "1,2"),
        ({}, "[object Object]"),
    ],
)
def test_an_unknown_command_is_named(command, shown):
    assert refusal(pack({"cmd": command, "reqId": 7})) == (f"Unknown command: {shown}", 7)


@pytest.mark.parametrize("req_id", ["r", "", 5, 2**40, 1.5, True, None, [1, "a"], {"a": 1}, b"b"], ids=repr)
def test_an_unknown_command_echoes_an_id_of_any_type(req_id):
    text, echoed = refusal(pack({"cmd": "Nope", "reqId": req_id}))

    assert text == "Unknown command: Nope"
    assert echoed == req_id


@pytest.mark.parametrize("body", [pack({"cmd": "Nope"}), pack({"cmd": "Nope", "reqId": UNDEFINED})])
def test_an_unknown_command_without_id_echoes_none(body):
    assert refusal(body) == ("Unknown command: Nope", None)


@pytest.mark.parametrize("req_id", ["r", "", "é" * 40, 5, -5, 1.5, True, None, [1, "a"], {"a": {}}, b"\xcf"], ids=repr)
def test_an_id_of_any_type_is_kept(req_id):
    command = decode_command(pack({"cmd": "Ping", "reqId": req_id}))

    assert bytes(command.req_id) == pack(req_id)


def test_a_wide_id_leaves_as_a_float():
    command = decode_command(pack({"cmd": "Ping", "reqId": 2**40}))

    assert bytes(command.req_id) == pack(2.0**40)


@pytest.mark.parametrize("body", [pack({"cmd": "Ping"}), pack({"cmd": "Ping", "reqId": UNDEFINED})])
def test_an_id_that_is_missing_or_undefined_is_absent(body):
    assert decode_command(body).req_id is c.ABSENT


def test_an_id_with_bad_utf8_is_mended():
    command = decode_command(b"\x82\xa3cmd\xa4Ping\xa5reqId\xa1\xff")

    assert bytes(command.req_id) == pack("�")


def test_undefined_options_are_absent():
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, "priority": UNDEFINED, "tags": UNDEFINED}))

    assert isinstance(command, c.Push)
    assert command.priority is None
    assert command.tags is None


PAYLOADS = {
    "PUSH": lambda data: (decode_command(pack({"cmd": "PUSH", "data": data})), "data"),
    "ACK": lambda data: (decode_command(pack({"cmd": "ACK", "result": data})), "result"),
    "Progress": lambda data: (decode_command(pack({"cmd": "Progress", "message": data})), "message"),
}


@pytest.mark.parametrize("take", PAYLOADS.values(), ids=PAYLOADS)
def test_payloads_leave_canonical_and_undefined_is_absent(take):
    absent, name = take(UNDEFINED)
    wide, _ = take({1: 2**40})

    assert getattr(absent, name) is c.ABSENT
    assert bytes(getattr(wide, name)) == pack({"1": 2.0**40})


def test_payloads_of_batches_leave_canonical():
    pushed = decode_command(pack({"cmd": "PUSHB", "jobs": [{"data": {1: 2**40}}, {"data": UNDEFINED}, {}]}))
    acked = decode_command(pack({"cmd": "ACKB", "results": [2**40, UNDEFINED, None]}))

    assert isinstance(pushed, c.PushBatch)
    assert pushed.jobs is not None
    assert bytes(pushed.jobs[0].data) == pack({"1": 2.0**40})
    assert pushed.jobs[1].data is pushed.jobs[2].data is c.ABSENT
    assert isinstance(acked, c.AckBatch)
    assert [bytes(result) for result in acked.results or ()] == [pack(2.0**40), b"", b"\xc0"]


def test_payloads_of_batches_may_be_missing():
    assert decode_command(pack({"cmd": "PUSHB"})).jobs is None
    assert decode_command(pack({"cmd": "ACKB", "results": None})).results is None


def test_odd_entries_of_a_batch_are_marked():
    command = decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, 5, None, UNDEFINED]}))

    assert isinstance(command, c.PushBatch)
    assert command.jobs is not None
    assert [job is NOT_AN_OBJECT for job in command.jobs] == [False, True, True, True]
    assert command.queue == "q"


@pytest.mark.parametrize("jobs", [5, "x", {}, True, UNDEFINED], ids=repr)
def test_jobs_that_are_no_list_are_as_if_missing(jobs):
    command = decode_command(pack({"cmd": "PUSHB", "jobs": jobs, "reqId": "r"}))

    assert isinstance(command, c.PushBatch)
    assert command.jobs is None
    assert bytes(command.req_id) == pack("r")


def test_results_that_are_no_list_are_marked():
    assert decode_command(pack({"cmd": "ACKB", "results": 5})).results is NOT_A_LIST
    assert decode_command(pack({"cmd": "ACKB", "results": UNDEFINED})).results is None


def test_bad_utf8_in_a_field_becomes_the_replacement_character():
    command = decode_command(b"\x83\xa3cmd\xa4PUSH\xa5queue\xa2a\xff\xa4data\x01")

    assert isinstance(command, c.Push)
    assert command.queue == "a�"


def test_integer_keys_are_read_as_strings():
    command = decode_command(b"\x83\xa3cmd\xa3ACK\x01\x02\xa2id\xa1a")

    assert isinstance(command, c.Ack)
    assert command.id == "a"


def test_the_last_of_two_commands_wins():
    assert isinstance(decode_command(b"\x82\xa3cmd\xa4Ping\xa3cmd\xa9GetResult"), c.GetResult)


def test_wide_integers_in_options_count_by_value():
    command = decode_command(b"\x82\xa3cmd\xa4PUSH\xa5delay\xcf" + struct.pack(">Q", 5_000))

    assert isinstance(command, c.Push)
    assert command.delay == 5_000


def test_a_rewritten_frame_that_still_does_not_fit_is_refused_with_its_text_id(monkeypatch):
    def never(body):
        raise RecursionError

    monkeypatch.setattr(codec, "_decode", never)

    assert refusal(pack({"cmd": "Ping", "reqId": "r"})) == ("Invalid command format", "r")


@pytest.mark.parametrize("command", ["Ping", "Nope"])
def test_a_frame_too_deep_to_be_rewritten_is_refused(monkeypatch, command):
    def encode_shallow(value):
        if isinstance(value, dict | list):
            raise RecursionError
        return pack(value)

    monkeypatch.setattr(tolerant, "_encode", encode_shallow)
    echoed = "r" if command == "Ping" else None
    req_id = "r" if command == "Ping" else [[]]

    assert refusal(pack({"cmd": command, "reqId": req_id, 1: 2})) == ("Invalid command format", echoed)


def test_the_wire_cannot_claim_to_be_plain():
    name = c.PushOptions.__struct_encode_fields__[c.PushOptions.__struct_fields__.index("is_plain")]

    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": 1, name: True}))

    assert isinstance(command, c.Push)
    assert command.is_plain is False


def test_a_reply_is_one_frame():
    frame = encode_frame(IdReply(id="a", req_id=Raw(pack("r"))))

    assert frame[:4] == struct.pack(">I", len(frame) - 4)
    assert msgpack.unpackb(frame[4:]) == {"ok": True, "reqId": "r", "id": "a"}


def test_a_reply_without_id_omits_the_key():
    assert msgpack.unpackb(encode_frame(Reply())[4:]) == {"ok": True}


def test_a_reply_too_long_for_clients_becomes_an_error(monkeypatch):
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 50)

    frame = encode_frame(ResultReply(id="a", result=Raw(pack("x" * 100)), req_id=Raw(pack("r"))))

    assert msgpack.unpackb(frame[4:]) == {"ok": False, "reqId": "r", "error": "Response too large"}


def test_an_error_reply_names_its_text():
    assert msgpack.unpackb(encode_frame(ErrorReply(error="no"))[4:]) == {"ok": False, "error": "no"}


@pytest.mark.parametrize(
    ("body", "echoed"),
    [
        (pack({"cmd": "Ping", "reqId": "r"}), "r"),
        (pack({"cmd": "Ping", "reqId": 5}), None),
        (pack({"cmd": "Ping"}), None),
        (pack({"reqId": UNDEFINED}), None),
        (pack({"reqId": msgpack.ExtType(5, b"")}), None),
        (b"\xc1", None),
        (b"\x91" * 100_000, None),
    ],
)
def test_the_text_id_of_a_frame_refused_undecoded(body, echoed):
    req_id = string_req_id(body)

    assert req_id == (None if echoed is None else Raw(pack(echoed)))


# events


def test_an_event_is_a_frame_with_its_type_and_no_wide_integer():
    payload = Raw(msgspec.msgpack.encode({"n": 1}))
    frame = encode_event(JobEvent("failed", "q", "j", 1.7e12, payload, "x", terminal=False))

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert msgpack.unpackb(frame[4:]) == {
        "type": "event",
        "event": {
            "eventType": "failed",
            "queue": "q",
            "jobId": "j",
            "timestamp": 1.7e12,
            "data": {"n": 1},
            "error": "x",
            "terminal": False,
        },
    }
    assert b"\xcb" in frame
    assert not {0xCF, 0xD3} & set(frame)


@pytest.mark.parametrize("fields", [{}, {"error": "x" * 100}])
def test_an_event_that_no_client_can_receive_leaves_without_its_payload(monkeypatch, fields):
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 120)
    payload = Raw(msgspec.msgpack.encode("x" * 100))

    event = msgpack.unpackb(encode_event(JobEvent("failed", "q", "j", 1.0, payload, **fields))[4:])["event"]

    assert event.get("error") == (codec.TOO_LARGE if fields else None)
    assert "data" not in event


@pytest.mark.parametrize(("sent", "received"), [(b"\xa2a\xff", "a\ufffd"), (b"\xc4\x01a", None)])
def test_a_name_with_bad_utf8_is_mended_like_any_text(sent, received):
    job = b"\x82\xa4name" + sent + b"\xa4data\x80"
    flow_job = b"\x83\xa2id\xa1f\xa5queue\xa1q\xa5input" + job

    single = decode_command(b"\x84\xa3cmd\xa4PUSH\xa5queue\xa1q" + job[1:])
    batch = decode_command(b"\x83\xa3cmd\xa5PUSHB\xa5queue\xa1q\xa4jobs\x91" + job)
    flow = decode_command(b"\x82\xa3cmd\xa5PUSHF\xa4jobs\x91" + flow_job)

    assert [single.name, batch.jobs[0].name, flow.plan.jobs[0].input.name] == [received] * 3
