"""TLS: the certificate at start, and the stream of a TCP connection that speaks it. HTTP uses the same context.

The stream has the surface of `TcpStream`, so that sessions and outboxes know nothing of it. OpenSSL works on memory,
plain non-blocking calls move its bytes.

Source: configuration, "TLS"; Z1.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from bunqueue_trio.errors import StartError
from bunqueue_trio.server.stream import READ_BYTES, TcpStream

if TYPE_CHECKING:
    from bunqueue_trio.config import Config

RECORD_BYTES = 16_384  # the largest piece that TLS encrypts at a time
HANDSHAKE_READ_BYTES = 16_384


def load_tls(config: Config) -> ssl.SSLContext | None:
    """The context of both listeners; None where TLS is not configured.

    Raises:
        StartError: a file is missing, cannot be read or is no PEM, or the key is not that of the certificate.
    """
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    _require_pem("cert", config.tls_cert_file, "CERTIFICATE")
    _require_pem("key", config.tls_key_file, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The empty password: a key that needs one is refused instead of asked for on the terminal.
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        files = f"{config.tls_cert_file} and {config.tls_key_file}"
        raise StartError(f"TLS cert and key cannot be used ({files}): {error}") from error
    return context


def _require_pem(what: str, path: str, label: str) -> None:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise StartError(f"TLS {what} file not found: {path}") from None
    except OSError as error:
        raise StartError(f"TLS {what} file cannot be read: {path}: {error.strerror}") from error
    if f"{label}-----".encode() not in content:
        raise StartError(f"TLS {what} file is not PEM: {path}: there is no {label} in it")


class TlsStream(TcpStream):
    """One accepted connection that speaks TLS. `handshake` comes first."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = b""
        self._encrypted_count = 0

    async def handshake(self) -> bool:
        """Shake hands; False when the peer does not speak TLS, or has gone.

        Cancel: the connection is of no use any more.
        """
        while not self.is_closed:
            try:
                self._tls.do_handshake()
                is_done, is_failed = True, False
            except ssl.SSLWantReadError:
                is_done, is_failed = False, False
            except ssl.SSLError:  # the peer is told why
                is_done, is_failed = False, True
            try:
                while not self._flush():
                    await self.wait_writable()
            except (OSError, trio.ClosedResourceError):
                return False
            if is_done or is_failed:
                return is_done
            data = await super().receive(HANDSHAKE_READ_BYTES)
            if not data:
                return False
            self._incoming.write(data)
        return False

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Wait for bytes; empty at the end of the stream, or when the peer broke it off.

        Cancel: nothing has been read. Always a checkpoint.
        """
        await trio.lowlevel.checkpoint()
        while not self.is_closed:
            data = self.receive_nowait(max_bytes)
            if data is not None:
                return data
            try:
                await trio.lowlevel.wait_readable(self._sock)
            except (OSError, trio.ClosedResourceError):
                break
        return b""

    def receive_nowait(self, max_bytes: int = READ_BYTES) -> bytes | None:
        """The bytes that are there; None when there are none yet, empty at the end of the stream."""
        pieces: list[bytes] = []
        count = 0
        is_over = False
        while count < max_bytes:
            try:
                piece = self._tls.read(max_bytes - count)
            except ssl.SSLWantReadError:
                data = super().receive_nowait(max_bytes)
                if data is None:
                    break
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
                continue
            except ssl.SSLError:  # the end, orderly or not; met again by the next call
                is_over = True
                break
            is_over = not piece
            if is_over:
                break
            pieces.append(piece)
            count += len(piece)
        with suppress(OSError):
            self._flush()  # what TLS itself has to say, such as the answer to a new key
        return b"".join(pieces) if pieces or is_over else None

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Write as much as the kernel takes now; returns how many bytes that was.

        The next call must go on where this one has stopped: what is encrypted already leaves first.

        Raises:
            OSError: the connection is gone.
        """
        if not self._flush():
            return 0
        view = memoryview(data)
        taken, self._encrypted_count = self._encrypted_count, 0
        while taken < len(view):
            count = self._tls.write(view[taken : taken + RECORD_BYTES])
            if not self._flush():
                # Not told of yet, so that somebody waits for the rest to be sent.
                self._encrypted_count = count
                break
            taken += count
        return taken

    def close(self) -> None:
        """Close in order: what was written still arrives, and the peer is told that nothing is missing."""
        if not self.is_closed:
            with suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            with suppress(OSError):
                self._flush()
        super().close()

    def _flush(self) -> bool:
        """Hand what is encrypted to the kernel; whether it took everything."""
        self._unsent += self._outgoing.read()
        if self._unsent:
            self._unsent = self._unsent[super().send_nowait(self._unsent) :]
        return not self._unsent
