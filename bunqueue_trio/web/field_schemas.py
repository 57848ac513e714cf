"""What the fields of requests are, as JSON schema: for people and for generated clients.

Nothing here is checked by the server, whose rules stand in `protocol`; a test holds the two together.

Source: HTTP, "Route table"; commands, the tables of fields.
"""

from __future__ import annotations

from typing import Any, Final

from bunqueue_trio.model import commands as c

Schema = dict[str, Any]

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 31_536_000_000
ANY: Final[Schema] = {}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
NULLS: Final[Schema] = {"type": "array", "items": {"type": ["string", "null"]}}
OBJECT: Final[Schema] = {"type": "object"}
JOB_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 256}


def _number(minimum: float, maximum: float | None = None, about: str = "", kind: str = "number") -> Schema:
    bounds: Schema = {"type": kind, "minimum": minimum}
    if maximum is not None:
        bounds["maximum"] = maximum
    return {**bounds, "description": about} if about else bounds


def _whole(minimum: int, maximum: int | None = None, about: str = "") -> Schema:
    return _number(minimum, maximum, about, "integer")


_BACKOFF: Final[Schema] = {
    "oneOf": [
        _number(0, DAY_MS, "ms"),
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["fixed", "exponential"]},
                "delay": _number(0, DAY_MS, "ms"),
                "maxDelay": _number(0, None, "ms"),
            },
            "required": ["type", "delay"],
        },
    ]
}
_REPEAT: Final[Schema] = {
    "type": "object",
    "properties": {
        "every": _number(1, None, "ms"),
        "pattern": TEXT,
        "tz": TEXT,
        "limit": _whole(1),
        "endDate": _number(0, None, "epoch ms"),
    },
}
_ENTRY: Final[Schema] = {
    "type": "object",
    "properties": {"name": JOB_NAME, "data": ANY, "customId": TEXT, "priority": _whole(-1_000_000, 1_000_000)},
    "anyOf": [{"required": ["data"]}, {"required": ["name"]}],
    "description": "An entry has the options of a push under their names on the wire: `maxAttempts`, `customId`.",
}

FIELDS: Final[dict[str, Schema]] = {
    "activeJobs": _number(0),
    "attempts": _whole(1, 1_000, "another name for `maxAttempts`"),
    "backoff": _BACKOFF,
    "concurrency": _whole(1),
    "config": {**OBJECT, "description": "the policy; the fields may also be sent without this wrapping"},
    "count": _whole(0),
    "data": ANY,
    "dedup": OBJECT,
    "delay": _number(0, YEAR_MS, "ms"),
    "dependsOn": TEXTS,
    "duration": _number(0, None, "ms"),
    "durable": {"oneOf": [FLAG, {"const": "fsync"}]},
    "durations": {"type": "array", "items": {"type": ["number", "null"]}, "description": "ms"},
    "enabled": FLAG,
    "error": TEXT,
    "events": {
        "type": "array",
        "items": {"enum": ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]},
    },
    "failed": _number(0),
    "grace": _number(0, None, "ms"),
    "groupId": TEXT,
    "hostname": TEXT,
    "id": TEXT,
    "ids": TEXTS,
    "immediately": FLAG,
    "includeJobs": {"enum": ["true", "false"]},
    "jobId": TEXT,
    "jobName": {**JOB_NAME, "description": "the name of the jobs that it makes"},
    "jobOptions": OBJECT,
    "jobs": {"type": "array", "items": _ENTRY},
    "level": {"enum": ["info", "warn", "error"]},
    "lifo": FLAG,
    "limit": _whole(0),
    "lockTtl": _number(1, None, "ms"),
    "maxAttempts": _whole(1, 1_000),
    "maxLimit": _whole(1),
    "message": TEXT,
    "name": TEXT,
    "offset": _whole(0),
    "owner": TEXT,
    "pid": _number(0),
    "preventOverlap": FLAG,
    "priority": _whole(-1_000_000, 1_000_000),
    "processed": _number(0),
    "progress": _number(0, 100),
    "queue": TEXT,
    "queues": TEXTS,
    "receipt": FLAG,
    "removeOnComplete": FLAG,
    "removeOnFail": FLAG,
    "repeat": _REPEAT,
    "repeatEvery": _whole(1, None, "ms"),
    "result": ANY,
    "results": {"type": "array", "items": ANY},
    "schedule": {**TEXT, "description": "a cron expression"},
    "secret": TEXT,
    "skipIfNoWorker": FLAG,
    "skipMissedOnRestart": FLAG,
    "stack": TEXTS,
    "startedAt": _number(0, None, "epoch ms"),
    "state": TEXT,
    "states": TEXT,
    "status": TEXT,
    "tags": TEXTS,
    "timeout": _number(0, DAY_MS, "ms"),
    "timezone": TEXT,
    "token": TEXT,
    "tokens": NULLS,
    "ttl": _number(0, YEAR_MS, "ms"),
    "uniqueKey": TEXT,
    "unrecoverable": FLAG,
    "url": {**TEXT, "format": "uri"},
    "workerId": TEXT,
}
"""By the name in requests, wherever it stands."""

SPECIAL: Final[dict[tuple[type, str], Schema]] = {
    (c.Pull, "timeout"): _whole(0, 60_000, "ms to wait for a job"),
    (c.PullBatch, "timeout"): _number(0, 60_000, "ms to wait for a job"),
    (c.PullBatch, "count"): _whole(1, 1_000),
    (c.WaitJob, "timeout"): _number(0, 600_000, "ms to wait for the end of the job"),
    (c.Push, "name"): {**JOB_NAME, "description": "the name of the job, beside its data"},
    (c.RateLimit, "limit"): _number(1),
    (c.SetConcurrency, "limit"): _whole(1, None, "another name for `concurrency`"),
    (c.RegisterWorker, "concurrency"): _number(1),
}
"""Where it is not what it is elsewhere."""

REQUIRED: Final[dict[type, tuple[str, ...]]] = {
    c.PushBatch: ("jobs",),
    c.AckBatch: ("ids",),
    c.ExtendLocks: ("ids",),
    c.JobHeartbeatBatch: ("ids",),
    c.Update: ("data",),
    c.Progress: ("progress",),
    c.ChangePriority: ("priority",),
    c.ChangeDelay: ("delay",),
    c.MoveToDelayed: ("delay",),
    c.AddLog: ("message",),
    c.RateLimit: ("limit",),
    c.Cron: ("name", "queue"),
    c.AddWebhook: ("url", "events"),
    c.SetWebhookEnabled: ("enabled",),
    c.RegisterWorker: ("name",),
}
"""Fields without which a command is refused."""

EITHER: Final[dict[type, tuple[str, ...]]] = {c.Push: ("data", "name")}
"""Fields of which one has to be there."""


def schema_of(kind: type, field: str) -> Schema:
    """What *field* is in requests that become a command of that kind."""
    return SPECIAL.get((kind, field)) or FIELDS[field]
