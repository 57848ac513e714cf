"""Requests that are made from the document of the HTTP API find no error of the server's own."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.process import ServerProcess

schemathesis = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.slow

EXAMPLES = 3
PATIENCE_MS = 5  # the long polls of the document would take minutes
LEFT_OUT = {("post", "/gc"), ("get", "/heapstats")}  # a collection of garbage each


def request_of(case: Any) -> tuple[str, str, bytes | None]:
    """Method, target and body of a case."""
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    query = dict(case.query or {})
    body = case.body if isinstance(case.body, dict) else None
    for fields in (query, body or {}):
        if "timeout" in fields:
            fields["timeout"] = PATIENCE_MS
    target = f"{path}?{urlencode(query, doseq=True)}" if query else path
    return case.method, target, None if body is None else json.dumps(body, default=repr).encode()


def ask(server: ServerProcess, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request on a connection of its own: making the next one may take longer than an idle one is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(method, target, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_nothing_that_the_document_allows_is_an_internal_error(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_dict(json.loads(ask(server, "GET", "/openapi.json")[1]))
    asked = 0

    for result in schema.get_all_operations():
        operation = result.ok()
        if (operation.method.lower(), operation.path) in LEFT_OUT:
            continue

        @seed(1)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            nonlocal asked
            status, text = ask(server, *request_of(case))
            asked += 1
            assert status < 500, (case.method, case.path, case.body, text)

        check()

    assert asked > 100
    assert server.is_running
