"""Whatever a client sends to any route: an answer that is never a fault of ours, and an engine that is sound."""

from __future__ import annotations

import json
import random
from typing import Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_trio.ids import Ids
from bunqueue_trio.server.reaper import run_reaper
from bunqueue_trio.web.routes import ROUTES
from tests.server.fakes import SECRET, Rig
from tests.server.http import Http
from tests.server.webhook_fakes import Hooks

NAMES = ["a", "b", "q", "", "%2F", "%ZZ", "x y", "..", "a" * 300, "\xfc"]
NUMBERS = st.sampled_from([0, 1, -1, 5, 0.5, 1e308, 2**31, 2**53, 2**64, -(2**64), 10**30])
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "5", "waiting", "fixed", "x" * 300, "\x00"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "delay", "every", "limit", "data", "$binary", "customId", "enabled"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """A request to a route of the table, with fields that may be right."""
    route = draw(st.sampled_from(ROUTES))
    path = "/".join(draw(st.sampled_from(NAMES)) if part.startswith(":") else part for part in route.pattern.split("/"))
    fields = [*route.fields, "config", "concurrency", "attempts", "grace"]
    body: Any = draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=5) | VALUES)
    if isinstance(body, dict) and "data" in route.fields:
        body = {"data": 1, "jobId": draw(st.sampled_from(["a", "b"])), **body}
    if isinstance(body, dict):
        body.pop("timeout", None) if draw(st.integers(0, 9)) else None  # most need not wait
    query = draw(
        st.sampled_from(["", "?limit=-5&offset=x", "?state=a,b&states=", "?timeout=1e9", "?timeout=5", "?%ZZ=&&="])
    )
    return route.method, path + query, json.dumps(body).encode()


@settings(max_examples=25)
@given(st.lists(requests(), min_size=1, max_size=12))
def test_any_request_has_an_answer(asked: list[tuple[str, str, bytes]]) -> None:
    trio.run(_ask_all, asked, clock=trio.testing.MockClock(autojump_threshold=0))


async def _ask_all(asked: list[tuple[str, str, bytes]]) -> None:
    rig = Rig()
    hooks = Hooks(Ids(SECRET, random.Random(3)), events=rig.broker.events)
    rig.broker.rooms.update(hooks.webhooks.handlers)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.flusher.run)
        await nursery.start(hooks.deliveries.run)
        nursery.start_soon(lambda: run_reaper(rig.broker, worker_cleanup_interval_ms=60_000))
        http = Http(rig)
        with trio.fail_after(100_000):
            for method, path, body in asked:
                status, answer = await http.ask(method, path, data=body)
                assert status < 500, (method, path, body, answer)
                assert status == 200 or answer["ok"] is False
        rig.check()
        nursery.cancel_scope.cancel()
