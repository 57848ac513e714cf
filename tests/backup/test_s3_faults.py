"""The client of the bucket against a store that fails in every way: what is tried again, what is said, when it ends.

Source: S3 backup and restore, BD-7, BD-8, BD-14; R83, R206, R351, R352, B3.
"""

import gzip
import io
import threading
import time
from contextlib import ExitStack
from typing import Any

import minio
import pytest

from bunqueue_trio.backup import s3
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.s3 import S3Store
from bunqueue_trio.clock import SystemClock
from bunqueue_trio.errors import BackupStoppedError, ObjectStoreError
from tests.backup.fakes import settings
from tests.backup.scripted import Answer, Scripted, Seen, error

OK = Answer(200, b"", {"ETag": '"e"'})
SECRET = "the-very-secret-word"
BUSY = error(503, "ServiceUnavailable", "Please reduce your request rate.")


@pytest.fixture
def serve():
    """Start a scripted server; answers in order, the last one for ever."""
    with ExitStack() as stack:

        def start(*answers: Answer) -> Scripted:
            return stack.enter_context(Scripted(lambda seen, number: answers[min(number, len(answers) - 1)]).running())

        yield start


def client(server: Scripted | str, waiting: Patience | None = None, **changes: Any) -> S3Store:
    endpoint = server if isinstance(server, str) else server.endpoint
    how = settings("x.db", endpoint=endpoint, secret_access_key=SECRET, **changes)
    return S3Store(how, waiting or hasty())


def hasty(**options: Any) -> Patience:
    return Patience(SystemClock(), **{"timeout_s": 0.3, "retry_pauses_s": (0.01, 0.02, 0.04), **options})


def put(store: S3Store) -> None:
    store.put("k", b"data", content_type="text/plain")


@pytest.mark.parametrize(
    "fault",
    [
        error(503, "ServiceUnavailable", "Service Unavailable"),
        BUSY,
        error(500, "InternalError", "We encountered an internal error. Please try again."),
        error(429, "TooManyRequests", "slow down"),
        Answer(502, b"<html>", {"Content-Type": "text/html"}),
        Answer(500),
        Answer(504),
        Answer(close=True),
    ],
    ids=["503", "rate", "500", "429", "html", "500 empty", "504 empty", "closed"],
)
@pytest.mark.parametrize("call", ["put", "look", "list", "delete", "get"])
def test_what_may_pass_is_tried_again(serve, fault, call, capsys):
    listing = (
        b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>'
    )
    good = Answer(200, listing if call == "list" else b"body", {"ETag": '"e"', "Content-Type": "application/xml"})
    server = serve(fault, fault, good)
    store = client(server)
    calls = {
        "put": lambda: put(store),
        "look": lambda: store.look("k"),
        "list": lambda: store.list("k"),
        "delete": lambda: store.delete("k"),
        "get": lambda: list(store.get("k")),
    }

    calls[call]()

    assert len(server.seen) == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if "retrying" in line]
    assert [line.partition(" (")[2].partition(" {")[0] for line in lines] == [
        "attempt 1/4), retrying in 10ms",
        "attempt 2/4), retrying in 20ms",
    ]


def test_the_pauses_grow_and_each_try_is_signed_anew(serve):
    server = serve(BUSY, BUSY, BUSY, OK)
    began = time.monotonic()

    put(client(server, hasty(retry_pauses_s=(0.02, 0.3, 0.8))))

    gaps = [seen.at_s - began for seen in server.seen]
    assert gaps[1] - gaps[0] >= 0.02
    assert gaps[2] - gaps[1] >= 0.3
    assert gaps[3] - gaps[2] >= 0.8
    dates = {header(seen, "x-amz-date") for seen in server.seen}
    assert len(dates) > 1


def test_after_four_tries_it_is_given_up(serve):
    server = serve(BUSY)

    with pytest.raises(ObjectStoreError, match=r"^Please reduce your request rate. \(PutObject, HTTP 503\)$"):
        put(client(server))

    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (error(403, "AccessDenied", "Access Denied"), "Access Denied (PutObject, HTTP 403)"),
        (error(404, "NoSuchBucket", "The specified bucket does not exist"),
         "The specified bucket does not exist (PutObject, HTTP 404)"),
        (error(400, "Odd", f"Odd\n key {SECRET} and some-key"), "Odd key *** and *** (PutObject, HTTP 400)"),
        (Answer(403), "an unexpected error has occurred (PutObject, HTTP 403)"),
        (Answer(418, b"tea", {"Content-Type": "text/plain"}), "an unexpected error has occurred (PutObject, HTTP 418)"),
    ],
)  # fmt: skip
def test_what_will_not_pass_is_not_tried_again_and_said_without_secrets(serve, fault, text):
    server = serve(fault)

    with pytest.raises(ObjectStoreError) as refusal:
        put(client(server))

    assert str(refusal.value) == text
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_no_s3_is_said(serve, status):
    server = serve(Answer(status, b"<html><p>Please log in", {"Content-Type": "application/xml"}))

    with pytest.raises(ObjectStoreError, match=r"^the answer cannot be understood: 127"):
        client(server).list("")


def test_a_refused_connection_is_said_with_the_address():
    with pytest.raises(ObjectStoreError, match=r"^connection refused: 127\.0\.0\.1:9 \(PutObject\)$"):
        put(client("http://127.0.0.1:9"))


def test_an_unknown_host_is_said():
    with pytest.raises(ObjectStoreError, match=r"^unknown host: no-such-host\.invalid \(PutObject\)$"):
        put(client("http://no-such-host.invalid", hasty(retry_pauses_s=())))


@pytest.mark.parametrize("fault", [Answer(hang=True), Answer(trickle=True)], ids=["silent", "trickling"])
def test_no_answer_in_time_ends_the_try_and_the_last_one_is_said(serve, fault):
    server = serve(fault)
    began = time.monotonic()

    with pytest.raises(ObjectStoreError, match=r"^S3 metadata upload timed out after 300ms$"):
        put(client(server, hasty(retry_pauses_s=(0.01,))))

    assert len(server.seen) == 2
    assert 0.6 <= time.monotonic() - began < 5


def test_a_body_that_stands_still_is_given_up(serve):
    server = serve(Answer(200, b"part", {"Content-Length": "100000"}))

    with pytest.raises(ObjectStoreError, match=r"^S3 backup download timed out after 300ms$"):
        list(client(server).get("k"))


def test_a_body_that_breaks_off_is_seen(serve):
    server = serve(Answer(200, b"part", {"Content-Length": "100000", "Connection": "close"}))

    with pytest.raises(ObjectStoreError, match=r"^the connection broke off: 127"):
        list(client(server, hasty(timeout_s=20)).get("k"))


@pytest.mark.parametrize("moment", ["request", "pause"])
def test_a_stop_ends_whatever_is_waited_for(serve, moment):
    server = serve(Answer(hang=True) if moment == "request" else BUSY)
    waiting = hasty(timeout_s=60, retry_pauses_s=(60,))
    threading.Timer(0.3, waiting.stop).start()
    began = time.monotonic()

    with pytest.raises(BackupStoppedError):
        put(client(server, waiting))

    assert time.monotonic() - began < 10
    assert len(server.seen) == 1
    with pytest.raises(BackupStoppedError):
        put(client(server, waiting))
    assert len(server.seen) == 1


def test_an_upload_that_is_stopped_is_taken_back_with_one_short_request(serve):
    waiting = hasty(timeout_s=60)

    def script(seen: Seen, number: int) -> Answer:
        if seen.method == "POST":
            body = b'<?xml version="1.0"?><R xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><UploadId>7</UploadId></R>'
            return Answer(200, body, {"Content-Type": "application/xml"})
        if "partNumber=2" in seen.path:
            threading.Timer(0.1, waiting.stop).start()
            return Answer(hang=True)
        return Answer(204) if seen.method == "DELETE" else OK

    server = serve(OK)
    server.script = script

    class Source:
        def read(self, size: int) -> bytes:
            return b"x" * size

    with pytest.raises(BackupStoppedError):
        client(server, waiting).put_stream("k", Source(), content_type="x/y", metadata={}, part_bytes=5 << 20)

    asked = [(seen.method, seen.path.partition("?")[2]) for seen in server.seen]
    assert asked == [
        ("POST", "uploads="),
        ("PUT", "partNumber=1&uploadId=7"),
        ("PUT", "partNumber=2&uploadId=7"),
        ("DELETE", "uploadId=7"),
    ]


def test_what_makes_progress_is_not_cut_off():
    waiting = hasty()

    with waiting.request():
        for _ in range(8):
            time.sleep(0.1)
            waiting.note_progress()
    assert not waiting.has_timed_out

    with waiting.request():
        time.sleep(0.6)
    assert waiting.has_timed_out


def header(seen: Seen, name: str) -> str:
    return {key.lower(): value for key, value in seen.headers.items()}.get(name, "")


def test_requests_are_signed_whole_and_carry_nothing_that_old_stores_refuse(serve):
    server = serve(OK)

    put(client(server, region="eu-x-1", session_token="of-the-session"))

    (seen,) = server.seen
    assert seen.path == "/the-bucket/k"
    assert "/eu-x-1/s3/aws4_request" in header(seen, "authorization")
    assert len(header(seen, "x-amz-content-sha256")) == 64
    assert header(seen, "x-amz-security-token") == "of-the-session"
    assert header(seen, "content-encoding") == ""
    assert not [name for name in seen.headers if "checksum" in name.lower() or "trailer" in name.lower()]
    assert SECRET not in repr(seen.headers)


@pytest.mark.parametrize(
    ("endpoint", "host", "is_https"),
    [
        ("", "s3.us-east-1.amazonaws.com", True),
        ("https://s3.eu-central-1.amazonaws.com", "s3.us-east-1.amazonaws.com", True),
        ("https://account.r2.cloudflarestorage.com", "account.r2.cloudflarestorage.com", True),
        ("http://localhost:9000/", "localhost:9000", False),
        ("https://fra1.digitaloceanspaces.com", "fra1.digitaloceanspaces.com", True),
    ],
)
def test_urls_of_the_four_stores_are_path_style(endpoint, host, is_https, monkeypatch):
    asked: list[str] = []

    def note(self: object, method: str, url: str, **_options: object) -> None:
        asked.append(url)
        raise OSError("enough")

    monkeypatch.setattr(s3.urllib3.PoolManager, "urlopen", note)

    with pytest.raises(ObjectStoreError):
        client(endpoint, hasty(retry_pauses_s=()), bucket="with.dots").look("a b/k.db")

    assert asked == [f"{'https' if is_https else 'http'}://{host}/with.dots/a%20b/k.db"]


@pytest.mark.parametrize("bucket", ["x", "UPPER CASE", "with/slash"])
def test_a_bucket_that_cannot_exist_is_said(bucket):
    with pytest.raises(ObjectStoreError, match="bucket"):
        put(client("http://127.0.0.1:9", bucket=bucket))


def test_the_library_still_has_one_way_out_and_what_is_called_of_it():
    assert callable(minio.Minio._url_open)
    for name in ("put_object", "create_multipart_upload", "upload_part", "complete_multipart_upload"):
        assert callable(getattr(minio.Minio, f"_{name}"))
    for name in ("list_multipart_uploads", "abort_multipart_upload"):
        assert callable(getattr(minio.Minio, f"_{name}"))


def test_an_upload_that_fails_in_the_body_of_a_good_answer_has_failed(serve):
    """S3 answers 200 to the completion of an upload before it knows."""
    begun = Answer(200, b"<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>")

    def script(seen: Seen, number: int) -> Answer:
        if seen.method == "POST":
            return begun if "uploads" in seen.path else Answer(200, error(500, "InternalError", "Sorry").body)
        return Answer(204) if seen.method == "DELETE" else OK

    server = serve(OK)
    server.script = script

    with pytest.raises(ObjectStoreError, match=r"The upload could not be completed \(CompleteMultipartUpload"):
        client(server).put_stream("k", io.BytesIO(b"xxx"), content_type="x/y", metadata={}, part_bytes=2)

    assert [seen.method for seen in server.seen] == ["POST", "PUT", "PUT", "POST", "DELETE"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "aws-chunked"])
def test_bytes_come_as_they_are_stored_whatever_encoding_they_are_said_to_have(serve, encoding):
    packed = gzip.compress(b"data")
    server = serve(Answer(200, packed, {"ETag": '"e"', "Content-Encoding": encoding}))

    assert b"".join(client(server).get("k")) == packed
