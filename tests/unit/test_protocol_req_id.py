"""Every command takes a request id, whatever else it has."""

from typing import get_args

import msgpack
import pytest

from bunqueue_trio.model.commands import AnyCommand, Command
from bunqueue_trio.protocol.codec import decode_command


@pytest.mark.parametrize("kind", get_args(AnyCommand), ids=lambda kind: kind.__struct_config__.tag)
@pytest.mark.parametrize("req_id", ["r-7", 7])
def test_every_command_keeps_its_request_id(kind: type[Command], req_id: object) -> None:
    command = decode_command(msgpack.packb({"cmd": kind.__struct_config__.tag, "reqId": req_id}))

    assert type(command) is kind
    assert bytes(command.req_id) == msgpack.packb(req_id)
