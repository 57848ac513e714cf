"""The checks in front of every route: their order, tokens and roles, the rate limit, pages from elsewhere."""

import pytest
import trio
from quart.testing import WebsocketResponseError
from quart_trio import QuartTrio

from bunqueue_trio.config import Config
from bunqueue_trio.server import throttle
from bunqueue_trio.server.throttle import ClientThrottles
from bunqueue_trio.web.routes import ROUTES
from tests.server.fakes import Rig
from tests.server.http import Http

TOKENS = Config(auth_tokens=("tok1", "zwölf"))
UNAUTHORIZED = (401, {"ok": False, "error": "Unauthorized"})
LIMITED = (429, {"ok": False, "error": "Rate limit exceeded"})
PROBES = ["/health", "/healthz", "/live", "/ready"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def told(rig: Rig) -> list:
    """What the gate announces from now on."""
    found: list = []
    rig.broker.announce = lambda event, data: found.append((event, data))  # type: ignore[method-assign]
    return found


# tokens


@pytest.mark.parametrize(
    ("header", "is_in"),
    [
        ("Bearer tok1", True),
        ("tok1", True),
        ("Bearer zwölf", True),  # sent as UTF-8
        ("bearer tok1", False),
        ("BEARER tok1", False),
        ("Bearer  tok1", False),
        ("Bearer tok", False),
        ("Bearer tok12", False),
        ("Bearer TOK1", False),
        ("Bearer Bearer tok1", False),
        ("Basic tok1", False),
        ("Bearer ", False),
        ("", False),
        (None, False),
    ],
)
async def test_which_header_opens(rig: Rig, autojump_clock, header, is_in):
    headers = {} if header is None else {"Authorization": header}

    status, _ = await Http(rig, TOKENS).ask("GET", "/queues", headers=headers)

    assert status == (200 if is_in else 401)


async def test_a_token_elsewhere_opens_nothing(rig: Rig, autojump_clock):
    http = Http(rig, TOKENS)

    assert await http.ask("GET", "/queues?token=tok1", headers={"Cookie": "token=tok1"}) == UNAUTHORIZED
    assert "www-authenticate" not in http.headers


@pytest.mark.parametrize(
    "path",
    [
        *sorted({route.pattern.replace(":", "x") for route in ROUTES} - {"/prometheus"}),
        "/", "/nope", "//queues", "//health", "/health/", "/health/x", "/./health/../queues", "/%68ealth", "/healt%68",
        "/crons", "/crons/x", "/queues/q/dlq", "/queues/q/dlq/stats", "/ws", "/ws/x", "/events", "/events/queues/q",
        "/%2e%2e/queues", "/queues/../gc", "/static/x", "/openapi.json", "/uix",
    ],
)  # fmt: skip
async def test_without_a_token_there_is_nothing_to_learn(rig: Rig, autojump_clock, path):
    rig.push("a")
    before = rig.state("a"), rig.call("Count", queue="q")
    http = Http(rig, TOKENS)

    answers = [await http.ask(method, path, json={"data": 1}) for method in METHODS]

    assert answers == [UNAUTHORIZED] * len(METHODS)
    assert (rig.state("a"), rig.call("Count", queue="q")) == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", [*PROBES, "/x/../health", "/health?x=1"])
async def test_probes_are_open_to_any_method(rig: Rig, autojump_clock, method, path):
    config = Config(auth_tokens=("t",), rate_limit_max_requests=1)
    http = Http(rig, config)

    statuses = {(await http.ask(method, path))[0] for _ in range(3)}

    assert statuses == ({404} if ".." in path else {200})


@pytest.mark.parametrize(
    ("path", "method", "is_event"),
    [
        ("/queues", "GET", True),
        ("/nope", "POST", True),
        ("/gc", "POST", False),
        ("/heapstats", "GET", False),
        ("/ws", "GET", False),
        ("/events/queues/q", "GET", False),
    ],
)
async def test_a_missing_token_is_an_event_on_the_general_routes(rig: Rig, autojump_clock, path, method, is_event):
    events = told(rig)

    await Http(rig, TOKENS).ask(method, path)

    assert events == ([("auth:failed", {"transport": "http"})] if is_event else [])


@pytest.mark.parametrize(
    ("config", "headers", "status"),
    [
        (Config(), {}, 200),
        (TOKENS, {}, 200),
        (TOKENS, bearer("wrong"), 200),
        (Config(auth_tokens=("t",), metrics_auth=True), {}, 401),
        (Config(auth_tokens=("t",), metrics_auth=True), bearer("wrong"), 401),
        (Config(auth_tokens=("t",), metrics_auth=True), bearer("t"), 200),
        (Config(auth_tokens=("t",), auth_tokens_read=("r",), metrics_auth=True), bearer("r"), 200),
    ],
)
async def test_metrics_are_open_unless_told_otherwise(rig: Rig, autojump_clock, config, headers, status):
    assert (await Http(rig, config).ask("GET", "/prometheus", headers=headers))[0] == status


# roles

ROLES = Config(auth_tokens=("all",), auth_tokens_read=("r",), auth_tokens_produce=("p",), auth_tokens_work=("w", "p+w"))


def denied(text: str):
    return 403, {"ok": False, "error": f"Not permitted for this token: {text}"}


@pytest.mark.parametrize(
    ("token", "method", "path", "body", "expected"),
    [
        ("r", "GET", "/queues/q/jobs/list", None, None),
        ("r", "GET", "/stats", None, None),
        ("r", "GET", "/crons", None, None),
        ("r", "GET", "/queues/q/dlq", None, None),
        ("r", "POST", "/queues/q/jobs", {"data": 1}, denied("PUSH needs the role produce")),
        ("r", "GET", "/queues/q/jobs", None, denied("PULL needs the role work")),
        ("r", "POST", "/jobs/a/ack", {}, denied("ACK needs the role work")),
        ("r", "PUT", "/jobs/a/data", {"data": 1}, denied("Update needs the role produce or work")),
        ("r", "DELETE", "/queues/q/rate-limit", None, denied("RateLimitClear needs a token of AUTH_TOKENS")),
        ("r", "POST", "/gc", None, denied("CompactMemory needs a token of AUTH_TOKENS")),
        ("r", "GET", "/heapstats", None, denied("CompactMemory needs a token of AUTH_TOKENS")),
        ("r", "DELETE", "/crons/x", None, denied("CronDelete needs the role produce")),
        ("p", "POST", "/queues/q/jobs", {"data": 1}, None),
        ("p", "POST", "/queues/q/jobs/pull-batch", {}, denied("PULLB needs the role work")),
        ("p", "POST", "/queues/q/pause", None, denied("Pause needs a token of AUTH_TOKENS")),
        ("w", "GET", "/queues/q/jobs", None, None),
        ("w", "POST", "/queues/q/jobs", {"data": 1}, denied("PUSH needs the role produce")),
        ("all", "POST", "/queues/q/obliterate", None, None),
        ("all", "POST", "/gc", None, None),
    ],
)
async def test_a_role_allows_what_it_is_for(rig: Rig, autojump_clock, token, method, path, body, expected):
    answer = await Http(rig, ROLES).ask(method, path, headers=bearer(token), json=body)

    if expected is None:
        assert answer[0] == 200
    else:
        assert answer == expected


async def test_a_refused_role_changes_nothing_and_reads_no_body(rig: Rig, autojump_clock):
    rig.push("a")

    status, _ = await Http(rig, ROLES).ask("POST", "/queues/q/clean", headers=bearer("w"), data=b"{")

    assert status == 403
    assert rig.state("a") == "waiting"


# rate limit

TWO = Config(rate_limit_max_requests=2, rate_limit_window_ms=1_000)


async def test_refusals_are_not_counted_and_say_when_there_is_room(rig: Rig, autojump_clock):
    http = Http(rig, TWO)
    events = told(rig)
    assert [(await http.ask("GET", "/queues"))[0] for _ in range(2)] == [200, 200]
    await trio.sleep(0.4)
    for _ in range(5):
        assert await http.ask("GET", "/queues") == LIMITED
    assert http.headers["retry-after"] == "1"
    assert events == [("ratelimit:hit", {"clientId": "127.0.0.1"})] * 5

    await trio.sleep(0.61)

    assert (await http.ask("GET", "/queues"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "is_limited"),
    [
        ("GET", "/prometheus", True),
        ("GET", "/nope", True),
        ("GET", "/ws", True),
        ("GET", "/events", True),
        ("GET", "/gc", True),
        ("POST", "/gc", False),
        ("GET", "/heapstats", False),
        ("OPTIONS", "/queues", False),
        ("GET", "/healthz", False),
    ],
)
async def test_what_is_limited(rig: Rig, autojump_clock, method, path, is_limited):
    http = Http(rig, TWO)
    for _ in range(2):
        await http.ask("GET", "/queues")

    status, _ = await http.ask(method, path)

    assert (status == 429) is is_limited


async def test_the_limit_comes_before_the_token_and_counts_who_has_none(rig: Rig, autojump_clock):
    http = Http(rig, Config(auth_tokens=("t",), rate_limit_max_requests=1))

    assert await http.ask("GET", "/queues") == UNAUTHORIZED
    assert await http.ask("GET", "/queues", headers=bearer("t")) == LIMITED


PROXIED = Config(rate_limit_max_requests=1, trusted_proxies=("10.0.0.0/8", "::1/128"))


@pytest.mark.parametrize(
    ("config", "first", "second", "is_shared"),
    [
        (PROXIED, ("1.1.1.1", {}), ("1.1.1.1", {}), True),
        (PROXIED, ("1.1.1.1", {}), ("1.1.1.2", {}), False),
        (PROXIED, ("1.1.1.1", {}), ("::ffff:1.1.1.1", {}), True),
        (PROXIED, ("2001:db8::1", {}), ("2001:db8::2:3", {}), True),
        (PROXIED, ("2001:db8::1", {}), ("2001:db8:0:1::1", {}), False),
        # a stranger's headers mean nothing
        (PROXIED, ("1.1.1.1", {"X-Forwarded-For": "5.5.5.5"}), ("1.1.1.1", {"X-Forwarded-For": "6.6.6.6"}), True),
        (Config(rate_limit_max_requests=1), ("10.0.0.1", {"X-Real-IP": "5.5.5.5"}), ("10.0.0.1", {}), True),
        # a proxy's do: the last one that is no proxy itself
        (PROXIED, ("10.0.0.1", {"X-Forwarded-For": "5.5.5.5"}), ("10.0.0.2", {"X-Forwarded-For": "5.5.5.5"}), True),
        (PROXIED, ("10.0.0.1", {"X-Forwarded-For": "5.5.5.5"}), ("10.0.0.1", {"X-Forwarded-For": "6.6.6.6"}), False),
        (
            PROXIED,
            ("10.0.0.1", {"X-Forwarded-For": "1.2.3.4, 5.5.5.5, 10.0.0.9"}),
            ("::1", {"X-Forwarded-For": "4.3.2.1, 5.5.5.5"}),
            True,
        ),
        (PROXIED, ("10.0.0.1", {"X-Real-IP": "5.5.5.5"}), ("10.0.0.1", {"X-Real-IP": "6.6.6.6"}), False),
        (PROXIED, ("10.0.0.1", {"X-Forwarded-For": " , "}), ("10.0.0.1", {}), True),
        # a Unix socket has no address, and is a proxy's
        (PROXIED, (None, {"X-Forwarded-For": "5.5.5.5"}), (None, {"X-Forwarded-For": "6.6.6.6"}), False),
        (PROXIED, (None, {"X-Real-IP": "5.5.5.5"}), ("5.5.5.5", {}), True),
        (PROXIED, (None, {}), (None, {}), True),
    ],
)
async def test_who_is_one_client(rig: Rig, autojump_clock, config, first, second, is_shared):
    http = Http(rig, config)
    statuses = []
    for peer, headers in (first, second):
        http.peer = peer
        statuses.append((await http.ask("GET", "/queues", headers=headers))[0])

    assert statuses == [200, 429 if is_shared else 200]


def test_clients_that_have_gone_quiet_are_forgotten():
    clients = ClientThrottles(1, 1_000, 500)
    clients.refusal_ms("a", 0)
    clients.refusal_ms("b", 900)

    assert clients.refusal_ms("b", 1_500) == pytest.approx(400)

    assert clients.client_count == 1


def test_a_clients_memory_is_bounded_and_so_is_their_number(monkeypatch):
    monkeypatch.setattr(throttle, "MAX_CLIENTS", 3)
    clients = ClientThrottles(1, 1_000, 500)
    for name in "abc":
        clients.refusal_ms(name, 0)

    assert clients.refusal_ms("a", 1) is not None
    assert clients.refusal_ms("d", 2) is None
    assert clients.client_count == 3
    assert clients.refusal_ms("a", 3) is not None
    assert clients.refusal_ms("b", 4) is None

    one = throttle.Throttle(10**9, 60_000, throttle.CLIENT_SLICES)
    for ms in range(60_000):
        one.admit(ms)
    assert len(one._slices) <= throttle.CLIENT_SLICES


# pages from elsewhere

PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
    "access-control-max-age": "86400",
}
A, B = "https://a.example", "https://b.example"


@pytest.mark.parametrize("path", ["/queues", "/nope", "/health", "/gc", "/%ZZ"])
async def test_a_preflight_is_answered_on_any_path(rig: Rig, autojump_clock, path):
    http = Http(rig, Config(auth_tokens=("t",), cors_allow_origin=("*",), rate_limit_max_requests=1))

    for _ in range(2):
        assert await http.ask("OPTIONS", path) == (204, "")
        assert {name: http.headers[name] for name in PREFLIGHT} == PREFLIGHT
        assert http.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("origins", "origin", "allowed", "vary"),
    [
        ((), A, None, None),
        (("*",), A, "*", None),
        ((A, "*"), None, "*", None),
        ((A,), None, A, None),
        ((A,), B, A, None),
        ((A, B), A, A, "Origin"),
        ((A, B), B, B, "Origin"),
        ((A, B), "https://c.example", None, "Origin"),
        ((A, B), None, None, "Origin"),
    ],
)
@pytest.mark.parametrize(
    ("path", "status"), [("/queues", 200), ("/nope", 404), ("/health", 200), ("/jobs/%ZZ", 400), ("/jobs/x", 404)]
)
async def test_who_may_read_is_said_on_every_answer(
    rig: Rig, autojump_clock, origins, origin, allowed, vary, path, status
):
    http = Http(rig, Config(cors_allow_origin=origins))

    assert (await http.ask("GET", path, headers={} if origin is None else {"Origin": origin}))[0] == status

    assert http.headers.get("access-control-allow-origin") == allowed
    assert http.headers.get("vary") == vary


async def test_refusals_say_it_too(rig: Rig, autojump_clock, capsys):
    http = Http(rig, Config(auth_tokens=("t",), cors_allow_origin=(A,), rate_limit_max_requests=1))
    assert await http.ask("GET", "/queues") == UNAUTHORIZED
    assert http.headers["access-control-allow-origin"] == A
    assert await http.ask("GET", "/queues") == LIMITED
    assert http.headers["access-control-allow-origin"] == A

    broken = Http(rig, Config(cors_allow_origin=(A,)))
    rig.broker.monitoring.totals = None  # type: ignore[method-assign]
    assert (await broken.ask("GET", "/metrics"))[0] == 500
    assert broken.headers["access-control-allow-origin"] == A


OWN = {"Host": "127.0.0.1:6790", "Origin": "http://127.0.0.1:6790"}


@pytest.mark.parametrize(
    ("config", "headers", "is_refused"),
    [
        (Config(), {}, False),
        (Config(), OWN, False),
        (Config(), {"Host": "127.0.0.1:6790", "Origin": "http://evil.example"}, True),
        (Config(), {"Host": "127.0.0.1:6790", "Origin": "http://127.0.0.1:80"}, True),
        # a name of somebody else that leads here
        (Config(), {"Host": "evil.example:6790", "Origin": "http://evil.example:6790"}, True),
        (Config(host="jobs.example"), {"Host": "jobs.example:6790", "Origin": "http://jobs.example:6790"}, False),
        (Config(), {"Host": "[::1]:6790", "Origin": "http://[::1]:6790"}, False),
        (Config(), {"Origin": "null"}, True),
        (Config(), {"Origin": "http://["}, True),
        (Config(), {"Sec-Fetch-Site": "cross-site"}, True),
        (Config(), {"Sec-Fetch-Site": "same-site"}, True),
        (Config(), {"Sec-Fetch-Site": "same-origin"}, False),
        (Config(), {"Sec-Fetch-Site": "none"}, False),
        (Config(cors_allow_origin=(A, B)), {"Origin": B}, False),
        (Config(cors_allow_origin=(A, B)), {"Origin": "https://c.example"}, True),
        (Config(cors_allow_origin=("*",)), {"Origin": "https://c.example"}, False),
        # no page of somebody else has a token
        (Config(auth_tokens=("t",)), {"Origin": "http://evil.example", **bearer("t")}, False),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/queues/q/pause"),
        ("DELETE", "/jobs/x"),
        ("POST", "/crons"),
        ("GET", "/queues/q/jobs"),
        ("POST", "/gc"),
    ],
)
async def test_without_tokens_pages_from_elsewhere_change_nothing(
    rig: Rig, autojump_clock, config, headers, is_refused, method, path
):
    status, _ = await Http(rig, config).ask(method, path, headers={"Content-Type": "text/plain", **headers}, data=b"{}")

    assert (status == 403) is is_refused
    if is_refused:
        assert not rig.engine.state.queues


async def test_pages_from_elsewhere_may_look_if_they_can(rig: Rig, autojump_clock):
    assert (await Http(rig).ask("GET", "/queues", headers={"Sec-Fetch-Site": "cross-site"}))[0] == 200


# websockets


@pytest.mark.parametrize(
    ("config", "headers", "status"),
    [
        (Config(), {}, None),
        (TOKENS, {}, 401),
        (TOKENS, bearer("tok1"), None),
        (Config(), {"Origin": "http://evil.example"}, 403),
        (Config(), {"Origin": "http://localhost"}, None),
    ],
)
async def test_the_gate_stands_in_front_of_sockets_too(rig: Rig, autojump_clock, config, headers, status):
    app: QuartTrio = Http(rig, config).app
    if status is None:
        async with app.test_client().websocket("/ws", headers=headers) as socket:
            await socket.send("no JSON")
            assert await socket.receive() == '{"ok":false,"error":"Invalid JSON"}'
        return
    found = []
    try:
        async with app.test_client().websocket("/ws", headers=headers) as socket:
            await socket.receive()
    except* WebsocketResponseError as group:
        found += [error.response.status_code for error in group.exceptions]
    assert found == [status]


@pytest.mark.parametrize("path", ["/ws", "/ws/../gc", "/ws/../heapstats", "/ws/../prometheus"])
async def test_every_socket_counts_for_the_limit_whatever_its_path(rig: Rig, autojump_clock, path):
    client = Http(rig, Config(rate_limit_max_requests=1)).app.test_client()
    async with client.websocket("/ws") as socket:
        await socket.send("no JSON")
        await socket.receive()

    found = []
    try:
        with trio.fail_after(5):
            async with client.websocket(path) as socket:
                await socket.receive()
    except* WebsocketResponseError as group:
        found += [error.response.status_code for error in group.exceptions]
    assert found == [429]


# bodies


@pytest.mark.parametrize(
    ("config", "headers", "size", "status"),
    [
        (TOKENS, {}, 70_000, 401),
        (TOKENS, bearer("tok1"), 70_000, 200),
        (Config(), {}, 70_000, 200),
        (Config(), {"Content-Length": str(134_217_729)}, 10, 413),
    ],
)
async def test_who_may_send_how_much(rig: Rig, config, headers, size, status):
    body = b'{"data":"' + b"x" * size + b'"}'

    answer = await Http(rig, config).ask("POST", "/queues/q/jobs", headers=headers, data=body)

    assert answer[0] == status
    assert answer[1]["ok"] is (status == 200)
