"""Body, headers and signature of a webhook call, byte by byte."""

import hashlib
import hmac
import json

import pytest
from msgspec import UNSET, Raw

from bunqueue_trio.server.webhooks import bodies
from bunqueue_trio.server.webhooks.bodies import BodyTooLargeError, webhook_body, webhook_headers
from tests.server.webhook_fakes import event, payload

STAMP = 1_795_997_663_499.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (event("pushed"), '{"event":"job.pushed","timestamp":5,"jobId":"j1","queue":"q"}'),
        (event("pulled", "mail", "ü"), '{"event":"job.started","timestamp":5,"jobId":"ü","queue":"mail"}'),
        (
            event("completed", data=payload({"sum": 3.0, "list": [1, None]})),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q","data":{"sum":3,"list":[1,null]}}',
        ),
        (event("completed"), '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q"}'),
        (event("completed", data=Raw(b"")), '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q"}'),
        (
            event("completed", data=payload(None)),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q","data":null}',
        ),
        (
            event("completed", data=payload("")),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q","data":""}',
        ),
        (
            event("failed", data=payload({"b": b"\x01"}), error="boom"),
            '{"event":"job.failed","timestamp":5,"jobId":"j1","queue":"q","data":{"b":{"0":1}},"error":"boom"}',
        ),
        (
            event("failed", error="lock expired"),
            '{"event":"job.failed","timestamp":5,"jobId":"j1","queue":"q","error":"lock expired"}',
        ),
        (
            event("progress", progress=33.3, data=payload({"progress": 33.3, "message": "m"})),
            '{"event":"job.progress","timestamp":5,"jobId":"j1","queue":"q","progress":33.3}',
        ),
        (
            event("progress", progress=40.0),
            '{"event":"job.progress","timestamp":5,"jobId":"j1","queue":"q","progress":40}',
        ),
        (event("pushed", data=payload(1)), '{"event":"job.pushed","timestamp":5,"jobId":"j1","queue":"q"}'),
    ],
)
def test_the_body_is_compact_json_in_the_promised_order(given, text):
    assert webhook_body(given).decode() == text


def test_the_headers_name_the_event_and_repeat_the_time_of_the_body():
    given = event("completed", timestamp=STAMP)
    body = webhook_body(given)

    assert webhook_headers(given, body, None) == [
        ("Content-Type", "application/json"),
        ("X-Webhook-Event", "job.completed"),
        ("X-Webhook-Timestamp", "1795997663499"),
    ]
    assert json.loads(body)["timestamp"] == 1795997663499


def test_the_signature_is_an_hmac_over_exactly_the_body():
    given = event("pushed")
    body = webhook_body(given)
    expected = hmac.new("schlüssel".encode(), body, hashlib.sha256).hexdigest()

    assert webhook_headers(given, body, "schlüssel")[-1] == ("X-Webhook-Signature", expected)


def test_a_known_signature():
    # printf '{"event":"job.pushed","timestamp":5,"jobId":"j1","queue":"q"}' | openssl dgst -sha256 -hmac s3
    given = event("pushed")

    [*_, (_, signature)] = webhook_headers(given, webhook_body(given), "s3")

    assert signature == "b1cd44bbd90172778c049d21ccfcd55d6dc1d488c82bd713196d4751f876f53d"


def test_an_empty_secret_signs_nothing():
    given = event("pushed")

    assert len(webhook_headers(given, webhook_body(given), "")) == 3


def test_a_body_that_is_too_long_is_not_made(monkeypatch):
    given = event("completed", data=payload("x" * 100))
    size = len(webhook_body(given))
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", size)
    assert len(webhook_body(given)) == size

    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", size - 1)
    with pytest.raises(BodyTooLargeError):
        webhook_body(given)


def test_much_binary_is_not_written_out():
    with pytest.raises(BodyTooLargeError, match="binary"):
        webhook_body(event("completed", data=payload(bytes((1 << 20) + 1))))


def test_an_error_is_not_shown_where_there_is_none():
    assert webhook_body(event("failed", error=UNSET)).endswith(b'"queue":"q"}')
