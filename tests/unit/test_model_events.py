"""The event as one record: which keys it has, and when."""

import msgspec
from msgspec import Raw

from bunqueue_trio.model.events import JobEvent, SystemEvent


def plain(event) -> dict:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(event))


def test_an_event_has_four_keys_and_no_more_unless_it_says_more():
    assert plain(JobEvent("pushed", "mail", "j1", 5.0)) == {
        "eventType": "pushed",
        "queue": "mail",
        "jobId": "j1",
        "timestamp": 5.0,
    }


def test_every_further_key_has_the_name_of_the_wire():
    event = JobEvent(
        "failed", "q", "j", 1.0, data=Raw(b"\x81\xa1a\x01"), error="boom", progress=3, prev="active", delay=7
    )

    assert list(plain(event)) == [
        "eventType",
        "queue",
        "jobId",
        "timestamp",
        "data",
        "error",
        "progress",
        "prev",
        "delay",
    ]
    assert plain(event)["data"] == {"a": 1}


def test_the_size_of_an_event_is_that_of_payload_and_error():
    assert JobEvent("pushed", "q", "j", 1.0).payload_bytes == 0
    assert JobEvent("failed", "q", "j", 1.0, data=Raw(b"\x01\x02\x03"), error="ab").payload_bytes == 5
    assert SystemEvent("cron:fired", 1.0, {"name": "c"}).payload_bytes == 0
