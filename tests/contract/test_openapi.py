"""The document of the HTTP API is valid, complete, and speaks of the fields that the server knows."""

import json
import re
from typing import get_args

import msgspec
import pytest

from bunqueue_trio.model import commands as c
from bunqueue_trio.web.field_schemas import FIELDS, REQUIRED, SPECIAL
from bunqueue_trio.web.openapi import REPLIES, document_text
from bunqueue_trio.web.routes import ROUTES, Body

DOCUMENT = json.loads(document_text())
OPERATIONS = {(m.upper(), path): found for path, methods in DOCUMENT["paths"].items() for m, found in methods.items()}
OTHER_NAMES = {"attempts", "concurrency", "status", "states"}
"""Of fields that have another name in their command."""


def operation_of(route):
    return OPERATIONS[route.method, re.sub(r":(\w+)", r"{\1}", route.pattern)]


def test_the_document_is_valid():
    pytest.importorskip("openapi_spec_validator").validate(DOCUMENT)


def test_it_has_every_row_of_the_table_and_the_probes_and_nothing_else():
    rows = {(route.method, re.sub(r":(\w+)", r"{\1}", route.pattern)) for route in ROUTES}
    probes = {("GET", path) for path in ("/health", "/healthz", "/live", "/ready")}

    assert set(OPERATIONS) == rows | probes


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.pattern}")
def test_an_operation_shows_what_its_row_takes(route):
    found = operation_of(route)
    parameters = {(p["in"], p["name"]) for p in found.get("parameters", [])}
    in_path = {("path", name) for name in re.findall(r":(\w+)", route.pattern)}

    assert parameters == in_path | {("query", name) for name in route.query}
    assert ("requestBody" in found) is (route.body is not Body.UNREAD)
    if route.body is not Body.UNREAD:
        schema = found["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == {*route.fields, *route.also}
        assert set(schema.get("required", [])) <= set(schema["properties"])
        assert found["requestBody"]["required"] is (route.body is Body.REQUIRED)
    assert found["summary"]
    assert str(route.refused) in found["responses"]


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if not r.look], ids=lambda route: f"{route.method} {route.pattern}"
)
def test_every_field_is_one_of_the_command(route):
    known = {field.encode_name for field in msgspec.structs.fields(route.kind)}

    assert {*route.fields, *route.path.values(), *route.also, *route.query} - OTHER_NAMES <= known


def test_a_job_is_pushed_with_data_or_with_a_name():
    body = OPERATIONS["POST", "/queues/{queue}/jobs"]["requestBody"]["content"]["application/json"]["schema"]

    assert body["anyOf"] == [{"required": ["data"]}, {"required": ["name"]}]


def test_a_job_is_shown_with_all_that_it_may_have():
    job = DOCUMENT["components"]["schemas"]["JobRecord"]

    assert {"name", "data", "returnvalue", "failedReason", "state"} <= set(job["properties"])
    assert {"id", "queue"} <= set(job["required"])
    assert not {"name", "data", "returnvalue", "failedReason"} & set(job["required"])
    assert "ReadRecord" not in document_text().decode()


def test_names_of_operations_are_unique():
    names = [found["operationId"] for found in OPERATIONS.values()]

    assert len(names) == len(set(names))


def test_no_schema_is_left_over():
    used = {(route.kind, name) for route in ROUTES for name in (*route.fields, *route.also, *route.query)}

    assert set(FIELDS) == {name for _, name in used}
    assert set(SPECIAL) <= used
    assert set(REQUIRED) <= {route.kind for route in ROUTES if route.body is not Body.UNREAD}
    assert set(REPLIES) <= set(get_args(c.AnyCommand)) & {route.kind for route in ROUTES}


def test_nothing_internal_is_shown():
    assert "reqId" not in document_text().decode()
