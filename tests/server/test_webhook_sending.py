"""One try: what goes over the wire, what counts as delivered, and what is never reached.

Source: scheduling and flows, "Delivery", SD-11.
"""

import socket
import ssl
import threading

import httpcore
import pytest
import trio

from bunqueue_trio import __version__
from bunqueue_trio.protocol.webhook_urls import parse_url
from bunqueue_trio.server.webhooks import sending
from bunqueue_trio.server.webhooks.dialing import (
    MAX_ADDRESSES,
    MAX_ANSWER_BYTES,
    MAX_INTERIM,
    MAX_LOOKUPS,
    MAX_LOOKUPS_PER_NAME,
    MAX_READ_BYTES,
    CheckedBackend,
    RefusedTargetError,
    SystemResolver,
)
from bunqueue_trio.server.webhooks.sending import Sender
from tests.server.fakes import wait_for
from tests.server.webhook_fakes import HANG, OK, FakeNetwork, FakeResolver, answer

PUBLIC = "93.184.216.34"
HEADERS = [("Content-Type", "application/json"), ("X-Webhook-Event", "job.pushed")]
BODY = b'{"event":"job.pushed"}'
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Line:
    """A sender over a fake network."""

    def __init__(self, *, internal: bool = False, **names) -> None:
        self.network = FakeNetwork()
        self.resolver = FakeResolver(**(names or {"example_com": [PUBLIC]}))
        backend = CheckedBackend(self.resolver, self.network, allows_internal=internal)
        self.sender = Sender(backend, TLS)

    async def post(self, url: str = "http://example.com/h") -> str | None:
        return await self.sender.post(parse_url(url), HEADERS, BODY)


@pytest.fixture
async def line():
    made = Line()
    yield made
    await made.sender.aclose()


async def test_the_request_is_a_post_with_our_headers_and_the_body(line):
    assert await line.post("http://example.com/h?a=b c#d") is None

    [request] = line.network.requests
    assert request.line == "POST /h?a=b%20c HTTP/1.1"
    assert request.body == BODY
    assert request.headers == {
        "host": "example.com",
        "content-type": "application/json",
        "x-webhook-event": "job.pushed",
        "content-length": str(len(BODY)),
        "user-agent": f"bunqueue-trio/{__version__}",
        "accept": "*/*",
    }


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.com:80/", "example.com"),
        ("http://example.com:8080/", "example.com:8080"),
        ("https://example.com/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("http://[2606:4700::1]/", "[2606:4700::1]"),
        ("http://[2606:4700::1]:81/", "[2606:4700::1]:81"),
    ],
)
async def test_the_host_header_is_the_urls(line, url, host):
    assert await line.post(url) is None

    assert line.network.requests[0].headers["host"] == host


async def test_user_and_password_of_the_url_are_sent_as_basic_authorization(line):
    await line.post("http://u:p@example.com/")

    assert line.network.requests[0].headers["authorization"] == "Basic dTpw"


async def test_the_address_that_was_looked_at_is_dialled_and_the_name_is_presented(line):
    assert await line.post("https://example.com/") is None

    assert line.network.dialled == [(PUBLIC, 443)]
    assert line.network.streams[0].server_hostname == "example.com"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_success(line, status):
    line.network.default = answer(status)

    assert await line.post() is None


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 400, 404, 429, 500, 503])
async def test_any_other_status_is_a_failed_try_and_no_redirect_is_followed(line, status):
    line.network.default = answer(status, b"", "Location: http://127.0.0.1/")

    assert await line.post() == f"HTTP {status}"
    assert line.resolver.asked == ["example.com"]
    assert len(line.network.requests) == 1


async def test_a_connection_is_used_again(line):
    await line.post()
    await line.post()

    assert len(line.network.streams) == 1
    assert len(line.network.requests) == 2


async def test_a_long_answer_is_not_read_and_costs_the_connection(line):
    line.network.default = answer(200, b"x" * 1_000_000)

    assert await line.post() is None
    assert line.network.streams[0].is_closed


async def test_an_answer_of_unknown_length_is_a_success_and_costs_the_connection(line):
    line.network.default = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"

    assert await line.post() is None
    assert line.network.streams[0].is_closed


@pytest.mark.parametrize(("size", "is_kept"), [(16_384, True), (16_385, False)])
async def test_how_much_of_an_answer_is_read(line, size, is_kept):
    line.network.default = answer(200, b"x" * size)

    assert await line.post() is None
    assert line.network.streams[0].is_closed is not is_kept


async def test_an_answer_whose_rest_never_comes_is_a_success(line, autojump_clock):
    line.network.answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
    started = trio.current_time()

    assert await line.post() is None
    assert trio.current_time() - started < 1


async def test_an_answer_just_in_time_stays_a_success_while_its_rest_is_waited_for(line, autojump_clock, monkeypatch):
    monkeypatch.setattr(sending, "TRY_TIMEOUT_S", 0.1)
    line.network.answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")

    assert await line.post() is None


async def test_a_try_lasts_ten_seconds_at_most(line, autojump_clock):
    line.network.default = HANG
    started = trio.current_time()

    assert await line.post() == "no answer within 10 s"
    assert trio.current_time() - started == pytest.approx(10)


async def test_looking_the_name_up_counts_as_part_of_the_try(line, autojump_clock):
    line.resolver.hangs = True
    started = trio.current_time()

    assert await line.post() == "no answer within 10 s"
    assert trio.current_time() - started == pytest.approx(10)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH\r\n", b"", b"HTTP/1.1 abc\r\n\r\n"])
async def test_a_peer_that_speaks_no_http_is_a_failed_try(line, garbage, autojump_clock):
    line.network.default = garbage

    assert await line.post() is not None


async def test_a_broken_connection_is_a_failed_try(line):
    line.network.default = httpcore.ReadError("connection reset")

    assert await line.post() == "connection reset"


async def test_a_name_that_is_not_known_is_a_failed_try(line):
    assert "not known" in await line.post("http://nowhere.example/")


async def test_names_that_cannot_exist_are_not_asked_for(line):
    assert "cannot exist" in await line.post("http://receiver.invalid/hook")
    assert line.resolver.asked == []


INTERNAL = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "::1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
]


@pytest.mark.parametrize("address", INTERNAL)
async def test_a_name_that_leads_inside_is_refused_and_nothing_is_dialled(address):
    line = Line(evil_com=[address])

    error = await line.post("http://evil.com/")

    assert error is not None
    assert error.startswith("evil.com points to")
    assert line.network.dialled == []


@pytest.mark.parametrize("order", [["93.184.216.34", "10.0.0.1"], ["10.0.0.1", "93.184.216.34"]])
async def test_one_internal_address_among_public_ones_refuses_them_all(order):
    line = Line(evil_com=order)

    assert await line.post("http://evil.com/") == "evil.com points to private IP"
    assert line.network.dialled == []


async def test_a_name_that_changes_its_mind_reaches_nothing_inside():
    line = Line(evil_com=[["93.184.216.34"], ["127.0.0.1"]])
    line.network.default = answer(200, b"", "Connection: close")

    assert await line.post("http://evil.com/") is None
    assert await line.post("http://evil.com/") == "evil.com points to loopback IP"
    assert line.network.dialled == [("93.184.216.34", 80)]
    assert line.resolver.asked == ["evil.com", "evil.com"]


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://localhost/", "http://a.internal/", "http://[::1]/"])
async def test_what_registration_refuses_is_refused_here_too(line, url):
    assert "points to" in await line.post(url)
    assert line.network.dialled == []
    assert line.resolver.asked == []


async def test_the_switch_of_the_operator_lets_internal_receivers_pass():
    line = Line(internal=True, hooks_internal=["10.0.0.1"])

    assert await line.post("http://hooks.internal:81/") is None
    assert await line.post("http://127.0.0.1:82/") is None
    assert line.network.dialled == [("10.0.0.1", 81), ("127.0.0.1", 82)]


async def test_a_dead_address_is_passed_over():
    line = Line(two_com=["93.184.216.34", "93.184.216.35"])
    line.network.dead.add("93.184.216.34")

    assert await line.post("http://two.com/") is None
    assert line.network.dialled == [("93.184.216.34", 80), ("93.184.216.35", 80)]


async def test_a_silent_address_is_passed_over_in_time(autojump_clock):
    line = Line(two_com=["93.184.216.34", "93.184.216.35"])
    line.network.silent.add("93.184.216.34")

    assert await line.post("http://two.com/") is None


async def test_all_addresses_dead_is_a_failed_try():
    line = Line(two_com=["93.184.216.34", "93.184.216.35"])
    line.network.dead |= {"93.184.216.34", "93.184.216.35"}

    assert await line.post("http://two.com/") == "connection refused"


async def test_a_name_without_addresses_is_a_failed_try():
    assert "no address" in await Line(empty_com=[]).post("http://empty.com/")


@pytest.mark.parametrize(("count", "is_taken"), [(MAX_ADDRESSES, True), (MAX_ADDRESSES + 1, False)])
async def test_a_name_makes_us_dial_so_many_addresses_at_most(count, is_taken):
    line = Line(many_com=[f"93.184.1.{n}" for n in range(count)])
    line.network.dead = set(line.resolver.names["many.com"][:-1])

    error = await line.post("http://many.com/")

    assert error == (None if is_taken else "[Errno -4] many.com has too many addresses")
    assert len(line.network.dialled) == (count if is_taken else 0)


async def test_a_cancelled_try_leaves_no_connection_open(line, autojump_clock):
    line.network.default = HANG
    with trio.move_on_after(1):
        await line.post()

    assert line.network.streams[0].is_closed
    line.network.default = OK
    assert await line.post() is None


async def test_closing_ends_idle_connections():
    line = Line()
    await line.post()

    await line.sender.aclose()

    assert line.network.streams[0].is_closed


@pytest.mark.parametrize(
    "url", ["http://printer.local/", "http://x.LOCAL./", "http://a.localhost../", "http://a.onion/"]
)
async def test_names_that_are_nobody_elses_business_are_not_asked_for(line, url):
    assert await line.post(url) is not None
    assert line.resolver.asked == []
    assert line.network.dialled == []


@pytest.mark.parametrize("host", ["localhost", "hooks.localhost", "hooks.localhost."])
async def test_the_names_of_the_machine_itself_are_not_asked_for(host):
    line = Line(internal=True)
    line.network.dead.add("127.0.0.1")

    assert await line.post(f"http://{host}:81/") is None
    assert line.resolver.asked == []
    assert line.network.dialled == [("127.0.0.1", 81), ("::1", 81)]


async def test_a_name_that_resolves_to_an_address_with_a_zone_is_refused(monkeypatch):
    entry = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%2", 80, 0, 2))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: [entry])
    network = FakeNetwork()
    sender = Sender(CheckedBackend(SystemResolver(), network, allows_internal=False), TLS)

    assert await sender.post(parse_url("http://evil.com/"), HEADERS, BODY) == "evil.com points to link-local IP"
    assert network.dialled == []


# what a receiver may say


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "piece",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n"],
)
async def test_an_answer_that_never_ends_is_given_up_before_it_has_cost_much(line, scheme, piece):
    line.network.default = piece * (1_000_000 // len(piece))

    assert await line.post(f"{scheme}://example.com/") is not None
    [stream] = line.network.streams
    assert stream.is_closed
    assert stream.read_bytes <= MAX_ANSWER_BYTES + MAX_READ_BYTES
    assert stream.largest_read == MAX_READ_BYTES  # others get their turn after each


@pytest.mark.parametrize("trickle_s", [0, 0.001])
@pytest.mark.parametrize(("interim", "is_taken"), [(MAX_INTERIM, True), (MAX_INTERIM + 1, False)])
async def test_so_many_interim_answers_may_come_before_the_last_however_they_are_cut(
    line, autojump_clock, trickle_s, interim, is_taken
):
    line.network.trickle_s = trickle_s
    line.network.default = b"HTTP/1.1 103 Early Hints\r\n\r\n" * interim + answer(200)

    for _ in range(2):
        assert ((await line.post()) is None) is is_taken


async def test_a_body_that_speaks_of_http_is_no_failure(line):
    line.network.default = answer(200, b"HTTP/1.1 200 OK\r\n\r\n" * 100)

    assert await line.post() is None


async def test_a_receiver_that_trickles_takes_its_ten_seconds_and_no_more(line, autojump_clock):
    line.network.trickle_s = 0.5
    line.network.default = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000
    started = trio.current_time()

    assert await line.post() == "no answer within 10 s"
    assert trio.current_time() - started == pytest.approx(10)


async def test_a_receiver_that_trickles_its_body_has_answered(line, autojump_clock):
    line.network.trickle_s = 0.1
    line.network.default = answer(200, b"x" * 1_000)

    assert await line.post() is None
    assert trio.current_time() < 10


async def test_interim_answers_and_long_heads_are_no_harm(line):
    line.network.default = b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + answer(200, b"x" * 16_000, "X: " + "y" * 12_000)

    for _ in range(4):  # on one connection, which is given its measure anew
        assert await line.post() is None

    [stream] = line.network.streams
    assert not stream.is_closed
    assert stream.read_bytes > 2 * MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a\r\nX-Evil: 1",
        "http://example.com/a%0d%0aX-Evil:%201",
        "http://example.com/?q=\rX-Evil: 1",
        "http://us%0d%0aX-Evil: 1:pw%0d%0a@example.com/",
        "http://exam\r\nple.com/",
    ],
)
async def test_no_url_adds_a_header(line, url):
    assert await line.post(url) is None

    [request] = line.network.requests
    assert set(request.headers) - {"authorization"} == {
        *("host", "content-type", "x-webhook-event", "content-length", "user-agent", "accept")
    }
    assert request.line.startswith("POST /")
    assert request.line.endswith(" HTTP/1.1")


async def test_local_sockets_are_out_of_reach():
    backend = CheckedBackend(FakeResolver(), FakeNetwork(), allows_internal=True)

    with pytest.raises(RefusedTargetError):
        await backend.connect_unix_socket("/run/docker.sock")


async def test_the_system_resolver_gives_each_address_once(monkeypatch):
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: [entry, entry])

    assert [str(address) for address in await SystemResolver()("example.com", 80)] == ["93.184.216.34"]


async def test_a_name_whose_servers_are_silent_takes_a_few_threads_only(monkeypatch):
    release = threading.Event()
    resolver = SystemResolver()
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: release.wait(10) and [])

    async def give_up(host: str) -> None:
        with trio.move_on_after(0.05):
            await resolver(host, 80)

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_LOOKUPS_PER_NAME):
            nursery.start_soon(give_up, "silent.com")
    with pytest.raises(socket.gaierror, match="do not answer for silent"):
        await resolver("silent.com", 80)
    release.set()

    assert await resolver("other.com", 80) == []
    await wait_for(lambda: not resolver._under_way)
    assert await resolver("silent.com", 80) == []


async def test_many_questions_at_once_for_one_name_take_a_few_threads_only(monkeypatch):
    """So many webhooks may point to one host; the others' names are to be found meanwhile."""
    release = threading.Event()
    resolver = SystemResolver()
    started: list[str] = []

    def look_up(host, port, type):
        started.append(host)
        if host == "silent.com":
            release.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    refused: list[str] = []

    async def ask() -> None:
        try:
            await resolver("silent.com", 80)
        except socket.gaierror as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(3 * MAX_LOOKUPS):
            nursery.start_soon(ask)
        await wait_for(lambda: len(refused) == 3 * MAX_LOOKUPS - MAX_LOOKUPS_PER_NAME)
        assert await resolver("other.com", 80) == []
        release.set()

    assert started.count("silent.com") == MAX_LOOKUPS_PER_NAME
    assert not resolver._under_way


async def test_the_system_resolver_refuses_what_is_no_host_name():
    with pytest.raises(socket.gaierror, match="no host name"):
        await SystemResolver()("x" * 70 + ".example", 80)
