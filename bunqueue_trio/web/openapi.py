"""The HTTP API as an OpenAPI 3.1 document, made of the route table and of the records of commands and replies.

Source: HTTP, "Route table"; https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

import re
from functools import cache
from inspect import getdoc
from typing import Any, Final

import msgspec

from bunqueue_trio import __version__
from bunqueue_trio.model import commands as c
from bunqueue_trio.model import cron_replies, flow_replies, replies
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.model.job import ReadRecord
from bunqueue_trio.server.overviews import Overviews
from bunqueue_trio.web.field_schemas import EITHER, REQUIRED, schema_of
from bunqueue_trio.web.routes import OPENAPI, ROUTES, Body, Route

Schema = dict[str, Any]

REPLIES: Final[dict[type, type]] = {
    c.Push: replies.IdReply,
    c.PushBatch: replies.IdsReply,
    c.Pull: replies.JobReply,
    c.PullBatch: replies.JobsReply,
    c.GetJobs: replies.JobsReply,
    c.GetJob: replies.JobReply,
    c.GetJobByCustomId: replies.JobReply,
    c.GetState: replies.StateReply,
    c.GetResult: replies.ResultReply,
    c.GetProgress: replies.ProgressReply,
    c.GetChildrenValues: replies.DataReply,
    c.ExtendLocks: replies.CountReply,
    c.JobHeartbeat: replies.DataReply,
    c.JobHeartbeatBatch: replies.DataReply,
    c.GetLogs: replies.DataReply,
    c.AddLog: replies.DataReply,
    c.WaitJob: flow_replies.WaitReply,
    c.ListQueues: replies.QueuesReply,
    c.GetJobCounts: replies.CountsReply,
    c.Count: replies.CountReply,
    c.GetCountsPerPriority: replies.PriorityCountsReply,
    c.IsPaused: replies.PausedReply,
    c.Drain: replies.CountReply,
    c.Clean: replies.CleanReply,
    c.PromoteJobs: replies.CountReply,
    c.RetryCompleted: replies.CountReply,
    c.RetryDlq: replies.CountReply,
    c.PurgeDlq: replies.CountReply,
    c.GetStallConfig: replies.StallConfigReply,
    c.GetDlqConfig: replies.DlqConfigReply,
    c.CronList: cron_replies.CronsReply,
    c.Cron: cron_replies.MadeCronReply,
    c.CronGet: cron_replies.CronReply,
    c.ListWebhooks: replies.DataReply,
    c.AddWebhook: replies.DataReply,
    c.RemoveWebhook: replies.DataReply,
    c.ListWorkers: replies.DataReply,
    c.RegisterWorker: replies.DataReply,
    c.UnregisterWorker: replies.DataReply,
    c.WorkerHeartbeat: replies.DataReply,
    c.Ping: replies.DataReply,
    c.StorageStatus: replies.DataReply,
}
"""What a command is answered with where that is more than plain ok."""

_TEMPLATE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r":(\w+)")
_TEXT_LOOKS: Final = {"prometheus"}
_LIST_LOOKS: Final = {"summary"}
_PROBES: Final = {
    "/health": ("Whether the server is healthy, and what it has to do", "HealthReport"),
    "/ready": ("Whether commands are served", None),
}
_SIGNS_OF_LIFE: Final = ("/healthz", "/live")
_ERRORS: Final = {
    "400": "A field, the body or the path is malformed",
    "401": "No token, or an unknown one",
    "403": "The token lacks the role, or a page from elsewhere asks",
    "413": "The body is too large",
    "429": "Too many requests",
    "500": "An internal error",
    "503": "Too many connections",
}


@cache
def document_text() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


def document() -> Schema:
    """The document: every row of the table, and the probes."""
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(_PARAMETER.sub(r"{\1}", route.pattern), {})[route.method.lower()] = _operation(route)
    paths.update(_probes())
    return {
        "openapi": "3.1.0",
        "info": {"title": "bunqueue_trio", "version": __version__, "license": {"name": "MIT", "identifier": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": _components(),
            "responses": {name: _json(about, _ref("ErrorReply")) for name, about in _ERRORS.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        # Without configured tokens nobody has to present one.
        "security": [{"bearer": []}, {}],
    }


def _operation(route: Route) -> Schema:
    parts = [part for part in re.split(r"\W+", route.pattern) if part]
    operation: Schema = {
        "operationId": "_".join([route.method.lower(), *parts]),
        "tags": [parts[0]],
        "summary": _summary(route),
        "responses": _responses(route),
    }
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
          for name in _PARAMETER.findall(route.pattern)),
        *({"name": name, "in": "query", "schema": schema_of(route.kind, name)} for name in route.query),
    ]  # fmt: skip
    if parameters:
        operation["parameters"] = parameters
    if route.body is not Body.UNREAD:
        operation["requestBody"] = _body(route)
    return operation


def _summary(route: Route) -> str:
    if route.look == OPENAPI:
        return "This document."
    about: object = getattr(Overviews, route.look) if route.look else route.kind
    return _first_sentences(getdoc(about) or "")


def _first_sentences(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


def _body(route: Route) -> Schema:
    names = sorted({*route.fields, *route.also})
    schema: Schema = {"type": "object", "properties": {name: schema_of(route.kind, name) for name in names}}
    required = REQUIRED.get(route.kind, ())
    if required:
        schema["required"] = list(required)
    if route.kind in EITHER:
        schema["anyOf"] = [{"required": [name]} for name in EITHER[route.kind]]
    return {"required": route.body is Body.REQUIRED, "content": {"application/json": {"schema": schema}}}


def _responses(route: Route) -> Schema:
    answered: dict[str, Schema] = {name: {"$ref": f"#/components/responses/{name}"} for name in _ERRORS}
    if route.look in _TEXT_LOOKS:
        answered["200"] = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
        return answered
    if route.look:
        answered["200"] = _json("What was asked for", {"type": "array" if route.look in _LIST_LOOKS else "object"})
        return answered
    reply = _ref(REPLIES.get(route.kind, replies.Reply).__name__)
    if route.refused == 200:
        answered["200"] = _json("The reply; `ok` says whether it was refused", {"anyOf": [reply, _ref("ErrorReply")]})
    else:
        answered["200"] = _json("The reply", reply)
        answered[str(route.refused)] = _json("Refused, or malformed", _ref("ErrorReply"))
    return answered


def _probes() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for path, (about, record) in _PROBES.items():
        shown = {"type": "object"} if record is None else _ref(record)
        answers = {"200": _json("Yes", shown), "503": _json("No", shown)}
        found[path] = {"get": _probe(path, about, answers)}
    for path in _SIGNS_OF_LIFE:
        answers = {"200": {"description": "`OK`", "content": {"text/plain": {"schema": {"type": "string"}}}}}
        found[path] = {"get": _probe(path, "Whether the process lives", answers)}
    return found


def _probe(path: str, about: str, answers: Schema) -> Schema:
    name = path.strip("/")
    return {"operationId": name, "tags": ["probes"], "summary": about, "security": [], "responses": answers}


def _components() -> dict[str, Schema]:
    shown = [*{replies.Reply, replies.ErrorReply, HealthReport, ReadRecord, *REPLIES.values()}]
    _, components = msgspec.json.schema_components(shown, ref_template=_TEMPLATE)
    # Where a job is shown it may be in the longer form; a named one may have no data.
    components["JobRecord"]["properties"] = components.pop("ReadRecord")["properties"]
    components["JobRecord"]["required"].remove("data")
    for component in components.values():
        component.get("properties", {}).pop("reqId", None)  # nothing that HTTP knows
        if "description" in component:
            component["description"] = _first_sentences(component["description"])
    return dict(sorted(components.items()))


def _json(about: str, schema: Schema) -> Schema:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> Schema:
    return {"$ref": _TEMPLATE.format(name=name)}
