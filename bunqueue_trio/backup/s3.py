"""The bucket of an S3-compatible store, over the client library of MinIO.

Every request of the library goes through one method, which is overridden here: it tries again what may pass (connection
errors, time-outs, 429, 5xx), signs each try anew, cuts off what makes no progress, and turns every error into one line
that names operation and status and no secret.

Source: S3 backup and restore, "Settings", "Taking a backup", BD-7, BD-8, BD-14; R83, R206, R351, R352, B3.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

import certifi
import minio
import urllib3
from minio.datatypes import Part
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as UrllibTimeoutError
from urllib3.response import BaseHTTPResponse

from bunqueue_trio.backup.object_store import Readable, StoredObject, Unfinished
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.errors import ObjectStoreError
from bunqueue_trio.logs import get_logger

log = get_logger("Backup")

AWS_ENDPOINT: Final = "https://s3.amazonaws.com"
DEFAULT_REGION: Final = "us-east-1"
BLOCK_BYTES: Final = 1 << 18
MISSING: Final = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound"})

T = TypeVar("T")
_OPERATIONS: Final = {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_REASONS: Final = {
    ConnectionRefusedError: "connection refused",
    ConnectionResetError: "connection reset",
    ConnectionAbortedError: "connection aborted",
    BrokenPipeError: "connection closed",
    TimeoutError: "timed out",
    ssl.SSLError: "TLS error",
}


class S3Store:
    """One bucket of an S3-compatible store.

    Raises:
        ObjectStoreError: the settings name no bucket that could exist.
    """

    def __init__(self, settings: BackupSettings, patience: Patience) -> None:
        endpoint = urlsplit(settings.endpoint or AWS_ENDPOINT)
        self._bucket = settings.bucket
        self._patience = patience
        try:
            self._client = _Client(
                endpoint.netloc,
                settings.access_key_id,
                settings.secret_access_key,
                settings.session_token,
                secure=endpoint.scheme == "https",
                region=settings.region or DEFAULT_REGION,
                http_client=_pools(patience),
            )
        except ValueError as error:
            raise ObjectStoreError(str(error), status=400) from error
        cast(Any, self._client).disable_virtual_style_endpoint()
        self._client.patience = patience
        self._client.secrets = (settings.secret_access_key, settings.access_key_id, settings.session_token or "")

    def put(self, key: str, data: bytes, *, content_type: str) -> None:
        """See `ObjectStore.put`."""
        self._call(
            "metadata upload",
            lambda: self._client.put_object(self._bucket, key, io.BytesIO(data), len(data), content_type),
        )

    def put_stream(
        self, key: str, source: Readable, *, content_type: str, metadata: dict[str, str], part_bytes: int
    ) -> None:
        """See `ObjectStore.put_stream`. More than one part is a multipart upload, which is taken back on failure.

        The library could do this, but copies each part several times, and whoever copies megabytes holds the
        interpreter for milliseconds: here one buffer serves all parts.
        """
        headers: Any = {"Content-Type": content_type, **{f"x-amz-meta-{name}": text for name, text in metadata.items()}}
        buffer = memoryview(bytearray(part_bytes))
        size = _fill(buffer, source)
        if size < part_bytes:
            self._call(
                "backup upload",
                lambda: self._client._put_object(self._bucket, key, cast(Any, buffer[:size]), headers),
            )
            return
        upload_id = self._call(
            "backup upload", lambda: self._client._create_multipart_upload(self._bucket, key, headers)
        )
        try:
            self._call("backup upload", lambda: self._put_parts(key, upload_id, buffer, source))
        except Exception:
            with suppress(ObjectStoreError):  # what went wrong first is what is said
                self.abandon(Unfinished(key, upload_id, 0.0))
            raise

    def _put_parts(self, key: str, upload_id: str, buffer: memoryview, source: Readable) -> None:
        """The first part is in *buffer*."""
        parts: list[Part] = []
        size = len(buffer)
        while size:
            number, data = len(parts) + 1, cast(Any, buffer[:size])
            parts.append(Part(number, self._client._upload_part(self._bucket, key, data, None, upload_id, number)))
            size = _fill(buffer, source)
        if not self._client._complete_multipart_upload(self._bucket, key, upload_id, parts).etag:
            # S3 answers before it knows, and may say only in the body that it has failed.
            raise ObjectStoreError("The upload could not be completed (CompleteMultipartUpload)", status=500)

    def look(self, key: str) -> StoredObject | None:
        """See `ObjectStore.look`."""
        try:
            found = self._call("look", lambda: self._client.stat_object(self._bucket, key))
        except ObjectStoreError as error:
            if error.status == 404:
                return None
            raise
        names = cast(Any, found.metadata or {})
        metadata = {
            name.lower().removeprefix("x-amz-meta-"): str(value)
            for name, value in names.items()
            if name.lower().startswith("x-amz-meta-")
        }
        return _stored(found, metadata)

    def get(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.get`. A body that breaks off is not tried again; the request for it is.

        The bytes are those that are stored: whoever has copied the object may have said that its gzip is an encoding.
        """
        response = self._call("backup download", lambda: self._client.get_object(self._bucket, key))
        try:
            with self._patience.request():
                while block := self._call("backup download", lambda: response.read(BLOCK_BYTES, decode_content=False)):
                    self._patience.note_progress()
                    yield block
                    self._patience.check()
                    self._patience.note_progress()  # what the reader does with it is no fault of the peer
        finally:
            response.close()

    def list(self, prefix: str) -> list[StoredObject]:
        """See `ObjectStore.list`."""
        # One page of the library's objects at a time: there may be many, and most of no interest.
        return self._call(
            "listing",
            lambda: [
                _stored(item, {}) for item in self._client.list_objects(self._bucket, prefix=prefix, recursive=True)
            ],
        )

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._call("deletion", lambda: self._client.remove_object(self._bucket, key))

    def unfinished(self, prefix: str) -> Sequence[Unfinished]:
        """See `ObjectStore.unfinished`."""
        found = self._call(
            "listing", lambda: self._client._list_multipart_uploads(self._bucket, prefix=prefix, max_uploads=1000)
        )
        return [
            Unfinished(upload.object_name, upload.upload_id, upload.initiated_time.timestamp() * 1000)
            for upload in found.uploads
            if upload.upload_id is not None and upload.initiated_time is not None
        ]

    def abandon(self, upload: Unfinished) -> None:
        """See `ObjectStore.abandon`."""
        self._call("deletion", lambda: self._client._abort_multipart_upload(self._bucket, upload.key, upload.upload_id))

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """Errors of the library that have not been seen to below: bad names, bodies that break off."""
        former, self._client.what = self._client.what, what  # the sidecar goes up in the midst of the data
        try:
            return function()
        except (MinioException, HTTPError, OSError, ValueError, ParseError) as error:
            self._patience.check()
            raise self._client.explained(error, "") from error
        finally:
            self._client.what = former


class _Client(minio.Minio):
    """The library's client with one way out."""

    patience: Patience
    secrets: tuple[str, ...] = ()
    what = "request"

    def _url_open(
        self,
        method: str,
        region: str,
        bucket_name: str | None = None,
        object_name: str | None = None,
        body: bytes | None = None,
        headers: Any = None,
        query_params: Any = None,
        preload_content: bool = True,
        no_body_trace: bool = False,
    ) -> BaseHTTPResponse:
        """One request of the library, with all its tries."""
        operation = _operation(method, object_name, query_params or {})
        if operation == "AbortMultipartUpload" and not self.patience.is_parting:
            with self.patience.parting():
                return self._url_open(method, region, bucket_name, object_name, body, headers, query_params)
        pauses = iter(() if self.patience.is_parting else self.patience.retry_pauses_s)
        attempt = 1
        while True:
            self.patience.check()
            try:
                with self.patience.request():
                    return super()._url_open(
                        method,
                        region,
                        bucket_name,
                        object_name,
                        body,
                        dict(headers or {}),
                        query_params,
                        preload_content,
                        no_body_trace,
                    )
            except (MinioException, HTTPError, OSError, ParseError) as error:
                self.patience.check()  # cut off because of the stop, not by the peer
                failure = self.explained(error, operation)
                pause_s = next(pauses, None)
                if not failure.is_transient or pause_s is None:
                    raise failure from error
            tries = len(self.patience.retry_pauses_s) + 1
            text = f"S3 {self.what} failed (attempt {attempt}/{tries}), retrying in {pause_s * 1000:.0f}ms"
            log.warning(text, error=str(failure))
            attempt += 1
            self.patience.pause(pause_s)

    def explained(self, error: Exception, operation: str) -> ObjectStoreError:
        """*error* in one line of ours."""
        if isinstance(error, ObjectStoreError):
            return error
        status = _status(error)
        is_late = isinstance(error, UrllibTimeoutError | TimeoutError) and not isinstance(error, NewConnectionError)
        if status is None and (is_late or self.patience.has_timed_out):
            return ObjectStoreError(f"S3 {self.what} timed out after {self.patience.timeout_s * 1000:.0f}ms")
        if isinstance(error, ValueError):
            return ObjectStoreError(self._clean(str(error)), status=400)
        text = self._clean(self._words(error))
        place = [part for part in (operation, "" if status is None else f"HTTP {status}") if part]
        return ObjectStoreError(f"{text} ({', '.join(place)})" if place else text, status=status)

    def _words(self, error: Exception) -> str:
        if isinstance(error, S3Error):
            return error.message or error.code or "an unexpected error has occurred"
        if isinstance(error, MinioException):
            return "an unexpected error has occurred"
        reason = "the answer cannot be understood" if isinstance(error, ParseError) else _reason(error)
        return f"{reason}: {self._base_url.host}"

    def _clean(self, text: str) -> str:
        """Some stores quote what they were sent."""
        for secret in self.secrets:
            if len(secret) > 3:
                text = text.replace(secret, "***")
        return " ".join(text.split())


def _fill(buffer: memoryview, source: Readable) -> int:
    """Read as much as fits; how much that was, less only at the end."""
    at = 0
    while at < len(buffer) and (block := source.read(min(BLOCK_BYTES, len(buffer) - at))):
        buffer[at : at + len(block)] = block
        at += len(block)
    return at


def _operation(method: str, object_name: str | None, query: dict[str, Any]) -> str:
    if object_name is None:
        kinds = {"list-type": "ListObjectsV2", "uploads": "ListMultipartUploads"}
        return next((name for mark, name in kinds.items() if mark in query), "GetBucketLocation")
    if "uploads" in query:
        return "CreateMultipartUpload"
    if "uploadId" in query:
        return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload"}.get(method, "AbortMultipartUpload")
    return _OPERATIONS.get(method, method)


def _status(error: Exception) -> int | None:
    if isinstance(error, S3Error):
        return 404 if error.code in MISSING else int(error.response.status)
    if isinstance(error, ServerError):
        return error.status_code
    if isinstance(error, InvalidResponseError):
        return int(error._code)
    return None


def _reason(error: BaseException) -> str:
    """Why there was no answer: what the system said, below all that wraps it."""
    inner: BaseException | None = error
    while inner is not None:
        for kind, words in _REASONS.items():
            if isinstance(inner, kind):
                return words
        if isinstance(inner, socket.gaierror):
            return "unknown host"
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        arguments = [part for part in inner.args if isinstance(part, BaseException)]
        inner = inner.__cause__ or (arguments[0] if arguments else None) or inner.__context__
    return "connection failed" if isinstance(error, NewConnectionError) else "the connection broke off"


def _stored(item: Any, metadata: dict[str, str]) -> StoredObject:
    modified = item.last_modified
    return StoredObject(
        key=str(item.object_name),
        size_bytes=int(item.size or 0),
        modified_at=None if modified is None else modified.timestamp() * 1000,
        metadata=metadata,
    )


def _pools(patience: Patience) -> urllib3.PoolManager:
    """Connections that *patience* can cut, and that send in blocks, so that progress shows."""

    class Watch:
        sock: socket.socket | None

        def connect(self) -> None:
            cast(Any, super()).connect()
            if self.sock is not None:
                patience.register(self.sock)

        def send(self, data: Any) -> None:
            send: Callable[[Any], None] = cast(Any, super()).send
            if not isinstance(data, bytes | memoryview) or len(data) <= BLOCK_BYTES:
                send(data)
                return
            view = memoryview(data)
            for start in range(0, len(data), BLOCK_BYTES):
                send(view[start : start + BLOCK_BYTES])
                patience.note_progress()

        def close(self) -> None:
            patience.unregister(self.sock)
            cast(Any, super()).close()

    class Watched(Watch, HTTPConnection):
        pass

    class WatchedTls(Watch, HTTPSConnection):
        pass

    class Pool(HTTPConnectionPool):
        ConnectionCls = Watched

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = WatchedTls

    pools = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=patience.timeout_s, read=patience.timeout_s),
        retries=False,
        maxsize=1,
        cert_reqs="CERT_REQUIRED",
        ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
    )
    pools.pool_classes_by_scheme = {"http": Pool, "https": TlsPool}
    return pools
