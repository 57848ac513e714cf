"""Promises of a commit: each reply leaves once, with what became of the commit."""

import msgspec
import trio

from bunqueue_trio.model.replies import ErrorReply, IdReply, Reply
from bunqueue_trio.server.tickets import Ticket
from tests.server.fakes import settle_down


class Recorder:
    """A client that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[list[Reply]] = []

    def confirm(self, replies: list[Reply]) -> None:
        self.calls.append(replies)


def raw(value):
    return msgspec.Raw(msgspec.msgpack.encode(value))


def test_settling_delivers_to_each_client_its_replies_in_order_and_at_once():
    one, two, ticket = Recorder(), Recorder(), Ticket()
    for client, name in [(one, "a"), (two, "b"), (one, "c")]:
        ticket.add(client, IdReply(id=name))

    ticket.settle()

    assert one.calls == [[IdReply(id="a"), IdReply(id="c")]]
    assert two.calls == [[IdReply(id="b")]]


def test_refusing_tells_each_request_by_its_own_id():
    client, ticket = Recorder(), Ticket()
    ticket.add(client, IdReply(id="a", req_id=raw(1)))
    ticket.add(client, Reply(req_id=raw("two")))
    ticket.add(client, Reply())

    ticket.refuse("disk I/O error")

    assert client.calls == [
        [
            ErrorReply(error="disk I/O error", req_id=raw(1)),
            ErrorReply(error="disk I/O error", req_id=raw("two")),
            ErrorReply(error="disk I/O error"),
        ]
    ]


def test_a_ticket_is_delivered_once():
    client, ticket = Recorder(), Ticket()
    ticket.add(client, Reply())
    ticket.settle()

    ticket.settle()
    ticket.refuse("no")

    assert len(client.calls) == 1


def test_a_ticket_is_awaited_once_somebody_waits():
    ticket = Ticket()
    assert not ticket.is_awaited

    ticket.add(Recorder(), Reply())

    assert ticket.is_awaited


async def test_a_task_waits_until_the_flush_has_ended(nursery):
    for end in (Ticket.settle, lambda ticket: ticket.refuse("no")):
        ticket, woken = Ticket(), trio.Event()

        async def wait(ticket=ticket, woken=woken):
            await ticket.wait()
            woken.set()

        nursery.start_soon(wait)
        await settle_down()
        assert ticket.is_awaited
        assert not woken.is_set()

        end(ticket)
        await settle_down()

        assert woken.is_set()


async def test_who_waited_for_a_flush_that_was_put_off_waits_for_the_next(nursery):
    older, newer = Ticket(), Ticket()
    client, woken = Recorder(), []
    older.add(client, IdReply(id="a"))
    newer.add(client, IdReply(id="b"))

    async def wait(ticket, name):
        await ticket.wait()
        woken.append(name)

    nursery.start_soon(wait, older, "older")
    nursery.start_soon(wait, newer, "newer")
    await settle_down()

    older.absorb(newer)
    await settle_down()
    assert (client.calls, woken) == ([], [])

    older.settle()
    await settle_down()

    assert client.calls == [[IdReply(id="a"), IdReply(id="b")]]
    assert sorted(woken) == ["newer", "older"]


def test_absorbing_a_flush_that_nobody_awaits_keeps_the_older_ones_promise():
    older, newer = Ticket(), Ticket()
    older.add(Recorder(), Reply())

    older.absorb(newer)
    assert older.is_awaited

    idle = Ticket()
    idle.absorb(Ticket())
    assert not idle.is_awaited
