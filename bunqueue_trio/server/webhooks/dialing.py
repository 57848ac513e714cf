"""Connections to receivers: the name is resolved here, every address is looked at, and the one that was looked at is
dialled. So a name that resolves to something else a moment later reaches nothing (DNS rebinding).

Source: scheduling and flows, SD-11.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import httpcore
import trio

from bunqueue_trio.protocol.webhook_urls import (
    IPAddress,
    address_refusal,
    host_refusal,
    is_never_resolved,
    is_this_machine,
    literal_address,
)

MAX_LOOKUPS = 64  # threads that wait for name servers; one that was given up still holds its place until it ends
MAX_LOOKUPS_PER_NAME = 4  # so that a name whose servers are silent does not take all of them
MAX_ADDRESSES = 64  # of one name: nobody needs more, and each is looked at and may be dialled
PATIENCE_PER_ADDRESS_S = 3.0  # a receiver with several addresses is not lost to one that does not answer
MAX_READ_BYTES = 2_048  # what h11 takes apart in some 5 ms at worst, before others get their turn
MAX_ANSWER_BYTES = 32_768  # of one request: what is read of a body, and as much of head
MAX_INTERIM = 8  # answers of one request that announce a further one; each costs 0.1 ms
INTERIM = re.compile(rb"HTTP/\d\.\d 1\d\d")
INTERIM_BYTES = 12
THIS_MACHINE: list[IPAddress] = [IPv4Address("127.0.0.1"), IPv6Address("::1")]

Resolver = Callable[[str, int], Awaitable[list[IPAddress]]]
"""The addresses of a name. Raises OSError when there is none."""


class RefusedTargetError(OSError):
    """The name leads to where nothing is sent."""


class SystemResolver:
    """Asks the operating system, in threads of its own limiter.

    Cancel: a lookup that is given up goes on in its thread and is forgotten; the C library cannot be interrupted.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MAX_LOOKUPS)
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    async def __call__(self, host: str, port: int) -> list[IPAddress]:
        """The addresses of *host*, each once, in the system's order.

        Raises:
            OSError: there is none, or earlier questions for this name have not been answered yet.
        """
        self._refuse_busy(host)
        try:
            found = await trio.to_thread.run_sync(
                self._look_up, host, port, abandon_on_cancel=True, limiter=self._limiter
            )
        except UnicodeError as error:  # a label that no name server could be asked for
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is no host name") from error
        addresses = (literal_address(str(entry[4][0])) for entry in found)
        return list(dict.fromkeys(address for address in addresses if address is not None))

    def _look_up(self, host: str, port: int) -> list[Any]:
        """In a thread, which counts itself: only it knows when a question that was given up has ended."""
        with self._lock:
            self._refuse_busy(host)  # many may have asked at once, when none was under way yet
            self._under_way[host] += 1
        try:
            return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        finally:
            with self._lock:
                self._under_way[host] -= 1
                if not self._under_way[host]:
                    del self._under_way[host]

    def _refuse_busy(self, host: str) -> None:
        if self._under_way[host] >= MAX_LOOKUPS_PER_NAME:
            raise socket.gaierror(socket.EAI_AGAIN, f"the name servers do not answer for {host}")


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection whose far end may say only so much for each request, and only a little at a time.

    Interim answers (1xx) have no end by themselves; taken apart 64 KiB at a time, they would hold up all other tasks
    for a quarter of a second, again and again.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_bytes = 0
        self._interim_count = 0
        self._tail = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  (httpcore's)
        """A piece of the answer.

        Raises:
            httpcore.ReadError: it is longer than `MAX_ANSWER_BYTES`, comes after more than `MAX_INTERIM`, or the
                connection broke.
        """
        data = await self._stream.read(min(max_bytes, MAX_READ_BYTES), timeout)
        self._read_bytes += len(data)
        joined = self._tail + data  # a receiver may cut where it likes
        self._interim_count += len(INTERIM.findall(joined))
        self._tail = joined[1 - INTERIM_BYTES :]
        if self._read_bytes > MAX_ANSWER_BYTES or self._interim_count > MAX_INTERIM:
            raise httpcore.ReadError("the answer does not end")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  (httpcore's)
        """A piece of a request; it may be answered anew."""
        self._read_bytes = self._interim_count = 0
        self._tail = b""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """As httpcore wants it."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of httpcore)
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted, and bounded too."""
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """As httpcore wants it."""
        return self._stream.get_extra_info(info)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """The network as webhooks may see it.

    Args:
        resolve: finds the addresses of a name.
        dial: opens the connection, to an address only.
        allows_internal: whether the machine itself and its network may be reached.
    """

    def __init__(self, resolve: Resolver, dial: httpcore.AsyncNetworkBackend, *, allows_internal: bool) -> None:
        self._resolve = resolve
        self._dial = dial
        self._allows_internal = allows_internal

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of httpcore)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of *host* that answers.

        Raises:
            RefusedTargetError: one of its addresses must not be reached. None of them is tried then.
            OSError: no such name, or one of more than `MAX_ADDRESSES`.
            httpcore.ConnectError: no address answers.
        """
        addresses = await self._addresses(host, port)
        for address in addresses[:-1]:
            with trio.move_on_after(PATIENCE_PER_ADDRESS_S):
                try:
                    return BoundedStream(
                        await self._dial.connect_tcp(str(address), port, timeout, local_address, socket_options)
                    )
                except (httpcore.ConnectError, httpcore.ConnectTimeout):
                    continue
        return BoundedStream(
            await self._dial.connect_tcp(str(addresses[-1]), port, timeout, local_address, socket_options)
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface of httpcore)
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never: a URL names a host."""
        raise RefusedTargetError("webhooks do not reach local sockets")

    async def sleep(self, seconds: float) -> None:
        """As httpcore wants it."""
        await trio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        """The addresses of *host*, all of them legal; at least one."""
        if is_never_resolved(host):
            raise socket.gaierror(socket.EAI_NONAME, f"{host} cannot exist")
        if not self._allows_internal:
            # The URL has passed this at its registration; whatever else may bring us here has not.
            self._refuse(host, host_refusal(host))
        literal = literal_address(host)
        if literal is not None:
            addresses = [literal]
        else:
            addresses = THIS_MACHINE if is_this_machine(host) else await self._resolve(host, port)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} has no address")
        if len(addresses) > MAX_ADDRESSES:
            raise socket.gaierror(socket.EAI_FAIL, f"{host} has too many addresses")
        if not self._allows_internal:
            for address in addresses:
                self._refuse(host, address_refusal(address))
        return addresses

    @staticmethod
    def _refuse(host: str, refusal: str | None) -> None:
        if refusal is not None:
            raise RefusedTargetError(f"{host} points to {refusal}")
