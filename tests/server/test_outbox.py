"""What a client has still to receive: at once when the kernel takes it, else in order, within a budget."""

import socket

import pytest
import trio

from bunqueue_trio.server.outbox import Outbox
from bunqueue_trio.server.stream import TcpStream
from tests.server.fakes import settle_down


class Ends:
    """An outbox and the socket of the client that should read."""

    def __init__(self, nursery: trio.Nursery, max_bytes: int) -> None:
        self.client, far = socket.socketpair()
        self.client.setblocking(False)
        self.stream = TcpStream(far)
        self.overflow_count = 0
        self.outbox = Outbox(self.stream, max_bytes, self._count, nursery)

    def _count(self) -> None:
        self.overflow_count += 1

    def fill_kernel(self) -> int:
        """Send until the kernel takes no more; how many bytes it took."""
        taken = 0
        while sent := self.stream.send_nowait(b"-" * 1_024):
            taken += sent
        return taken

    def read_all(self) -> bytes:
        found = bytearray()
        try:
            while data := self.client.recv(1 << 20):
                found += data
        except BlockingIOError:
            pass
        return bytes(found)


@pytest.fixture
async def ends(nursery):
    made = []

    def make(max_bytes: int = 1_000) -> Ends:
        made.append(Ends(nursery, max_bytes))
        return made[-1]

    yield make
    for pair in made:
        pair.stream.close()
        pair.client.close()


async def test_what_the_kernel_takes_is_sent_at_once(ends):
    pair = ends()

    pair.outbox.send(b"hello")

    assert pair.read_all() == b"hello"
    assert pair.outbox.pending_bytes == 0


async def test_what_it_does_not_take_follows_in_order(ends):
    pair = ends(0)
    taken = pair.fill_kernel()

    for piece in (b"a" * 300_000, bytearray(b"b" * 300_000), b"c"):
        pair.outbox.send(piece)
    assert pair.outbox.pending_bytes == 600_001

    found = b""
    while len(found) < taken + 600_001:
        found += pair.read_all()
        await settle_down()
    assert found[taken:] == b"a" * 300_000 + b"b" * 300_000 + b"c"
    assert pair.outbox.pending_bytes == 0

    pair.outbox.send(b"straight again")
    assert pair.read_all() == b"straight again"


async def test_a_budget_may_be_used_to_the_last_byte_and_no_further(ends):
    pair = ends(1_000)
    pair.fill_kernel()

    pair.outbox.send(b"x" * 400)
    pair.outbox.send(b"x" * 600)
    await settle_down()
    assert (pair.stream.is_closed, pair.overflow_count, pair.outbox.pending_bytes) == (False, 0, 1_000)

    pair.outbox.send(b"x")
    pair.outbox.send(b"x" * 2_000)
    await settle_down()

    assert (pair.stream.is_closed, pair.overflow_count, pair.outbox.pending_bytes) == (True, 1, 0)


async def test_one_reply_larger_than_the_budget_is_too_much_for_a_reader_that_does_not_read(ends):
    pair = ends(1_000)
    taken = pair.fill_kernel()

    pair.outbox.send(b"x" * 1_001)

    assert pair.stream.is_closed
    assert pair.overflow_count == 1
    assert len(pair.read_all()) == taken


async def test_a_budget_of_zero_is_none(ends):
    pair = ends(0)
    pair.fill_kernel()

    pair.outbox.send(b"x" * 10_000_000)

    assert not pair.stream.is_closed
    assert pair.outbox.pending_bytes == 10_000_000


async def test_the_budget_may_overflow_just_when_the_reader_reads_again(ends):
    pair = ends(1_000)
    pair.fill_kernel()
    wait_writable = pair.stream.wait_writable

    async def overflow_between_wake_up_and_writing():
        await wait_writable()
        pair.outbox.send(b"x")

    pair.stream.wait_writable = overflow_between_wake_up_and_writing
    pair.outbox.send(b"x" * 1_000)
    await settle_down()

    pair.read_all()
    await pair.outbox.wait_drained()

    assert pair.overflow_count == 1
    assert pair.stream.is_closed


async def test_waiting_until_everything_is_with_the_kernel(ends, nursery):
    pair = ends(0)
    await pair.outbox.wait_drained()
    pair.fill_kernel()
    pair.outbox.send(b"x" * 10)
    drained = trio.Event()

    async def wait():
        await pair.outbox.wait_drained()
        drained.set()

    nursery.start_soon(wait)
    await settle_down()
    assert not drained.is_set()

    pair.read_all()
    await drained.wait()
    assert pair.read_all() == b"x" * 10


async def test_waiting_ends_with_the_stream(ends, nursery):
    pair = ends(0)
    pair.fill_kernel()
    pair.outbox.send(b"x" * 10)

    nursery.start_soon(pair.outbox.wait_drained)
    await settle_down()
    pair.stream.close()

    await pair.outbox.wait_drained()


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_client_that_has_gone_costs_nothing(ends, is_full):
    pair = ends(0)
    if is_full:
        pair.fill_kernel()
        pair.outbox.send(b"x" * 10)
    pair.client.close()

    pair.outbox.send(b"hello")
    await settle_down()
    pair.outbox.send(b"hello")
    await pair.outbox.wait_drained()

    assert pair.stream.is_closed
    assert pair.overflow_count == 0
