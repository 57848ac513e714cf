"""The table of HTTP: which method and path means which command, or which look at the server, and where its fields
come from.

A row knows no rule: the fields are what the request holds, and the command is checked and carried out as if it had come
over the wire. Only the probes stand elsewhere (`probes`).

Source: HTTP, "Route table", "Bodies", "Status codes of mapped commands".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct
from werkzeug.datastructures import MultiDict

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import MAX_SAFE_INTEGER

MAX_PAGE = 500
DEFAULT_PAGE = 100
MAX_CRONS = 100
MAX_RUNS = 10
MAX_REPLAYED = 1_000
MAX_SUMMARY = 1_000
MAX_LETTERS = 1_000
OPENAPI: Final = "openapi"
"""The look that is no look at the server, but at this table."""
_LEADING_INTEGER: Final = re.compile(r"\s*([+-]?\d{1,15})", re.ASCII)


class Body(Enum):
    """What a route makes of the body."""

    UNREAD = auto()
    OPTIONAL = auto()
    """Empty or blank is as if it were ``{}``."""
    REQUIRED = auto()
    LENIENT = auto()
    """Whatever is no JSON object is as if it were ``{}``."""


class Asked(Struct, gc=False):
    """What a request holds: decoded path parameters, query, body, and how long that was as it came."""

    path: Mapping[str, str]
    query: MultiDict[str, str]
    body: Mapping[str, Any]
    body_bytes: int = 0


Fields = Callable[[Asked], dict[str, Any]]
"""Makes the fields of a command, under their names on the wire."""


class Route(Struct, frozen=True, kw_only=True, gc=False):
    """One row. ``kind`` is the command that is carried out, or whose role a look at the server needs.

    ``fields`` are copied from the body; ``path`` names the parameters of the path and the fields they become;
    ``more`` makes fields that are more than copied: of what ``query`` names there, and ``also`` names in the body.
    ``refused`` is the status of ``ok: false`` (groups A, B, C).
    ``look`` names the method of `server.overviews.Overviews` that answers instead of the command, ``more`` then makes
    its arguments. ``has_effects``: a GET that changes something.
    """

    method: str
    pattern: str
    kind: type
    refused: int = 200
    body: Body = Body.UNREAD
    path: dict[str, str] = {}
    fields: tuple[str, ...] = ()
    more: Fields | None = None
    query: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    look: str = ""
    has_effects: bool = False

    def fields_of(self, asked: Asked) -> dict[str, Any]:
        """The fields of the command, or the arguments of the look."""
        made = {name: asked.body[name] for name in self.fields if name in asked.body}
        if self.more is not None:
            made.update(self.more(asked))
        made.update({field: asked.path[name] for name, field in self.path.items()})
        return made


# fields that are more than copied


def _leading_integer(text: str) -> float:
    """The number that *text* begins with; NaN where it begins with none (Wire)."""
    found = _LEADING_INTEGER.match(text)
    return int(found[1]) if found else math.nan


def _given_integers(*names: str) -> Fields:
    def fields(asked: Asked) -> dict[str, Any]:
        return {name: _leading_integer(asked.query[name]) for name in names if name in asked.query}

    return fields


def _max_attempts(asked: Asked) -> dict[str, Any]:
    """``attempts`` is another name for ``maxAttempts``."""
    for name in ("maxAttempts", "attempts"):
        if asked.body.get(name) is not None:
            return {"maxAttempts": asked.body[name]}
    return {}


def _listed(asked: Asked) -> dict[str, Any]:
    """``state``, ``status`` and ``states``, each any number of times and with commas."""
    given = [text for name in ("state", "status", "states") for text in asked.query.getlist(name)]
    states = [name for text in given for part in text.split(",") if (name := part.strip())]
    made = _given_integers("offset", "limit")(asked)
    if states:
        made["state"] = states[0] if len(states) == 1 else states
    return made


def _grace(asked: Asked) -> dict[str, Any]:
    """Wire: over HTTP ``grace`` may be missing. What is there and no number is refused: as 0 it would delete more."""
    return {"grace": 0 if asked.body.get("grace") is None else asked.body["grace"]}


def _concurrency(asked: Asked) -> dict[str, Any]:
    limit = asked.body.get("concurrency")
    return {"limit": asked.body.get("limit") if limit is None else limit}


def _config(asked: Asked) -> dict[str, Any]:
    """A policy, or the body itself if it holds none."""
    config = asked.body.get("config")
    return {"config": config if type(config) is dict else dict(asked.body)}


def _replayed(asked: Asked) -> dict[str, Any]:
    """However many are asked for, a bounded number of them.

    Raises:
        ValidationError: the count is no number.
    """
    count = asked.body.get("count", DEFAULT_PAGE)
    if type(count) not in (int, float):
        raise ValidationError("count must be a number")
    return {"count": min(count, MAX_REPLAYED)}


# arguments of looks


def _number(text: str | None, default: int) -> float:
    number = math.nan if text is None else _leading_integer(text)
    return default if math.isnan(number) else number


def _dashboard_page(asked: Asked) -> dict[str, Any]:
    limit = _number(asked.query.get("limit"), DEFAULT_PAGE) or DEFAULT_PAGE
    offset = _number(asked.query.get("offset"), 0)
    return {"limit": int(min(max(limit, 1), MAX_PAGE)), "offset": int(max(offset, 0))}


def _crons_page(asked: Asked) -> dict[str, Any]:
    page = _dashboard_page(asked)
    runs = _number(asked.query.get("runs"), 0)
    return {"limit": min(page["limit"], MAX_CRONS), "offset": page["offset"], "runs": int(min(max(runs, 0), MAX_RUNS))}


def _summary_page(asked: Asked) -> dict[str, Any]:
    limit = _number(asked.query.get("limit"), MAX_SUMMARY)
    offset = _number(asked.query.get("offset"), 0)
    return {"limit": int(min(max(limit, 0), MAX_SUMMARY)), "offset": int(max(offset, 0))}


def _letters_page(asked: Asked) -> dict[str, Any]:
    limit = min(_truncated(asked.query.get("limit"), MAX_LETTERS), MAX_LETTERS)
    return {"limit": limit, "offset": _truncated(asked.query.get("offset"), 0)}


def _truncated(text: str | None, default: int) -> int:
    """Wire: toward zero and not below it; *default* where there is none or it is no number, 0 where it is empty."""
    if text is None:
        return default
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return default
    return min(max(0, math.trunc(value)), MAX_SAFE_INTEGER) if math.isfinite(value) else default


def _includes_jobs(asked: Asked) -> dict[str, Any]:
    return {"includes_jobs": asked.query.get("includeJobs") == "true"}


# the table

_QUEUE: Final = {"queue": "queue"}
_ID: Final = {"id": "id"}
_PAGE: Final = ("limit", "offset")
_PUSH_FIELDS: Final = (
    "data", "priority", "delay", "backoff", "timeout", "jobId", "removeOnComplete", "removeOnFail", "durable", "ttl",
    "uniqueKey", "groupId", "dependsOn", "tags", "lifo", "repeat", "receipt", "name",
)  # fmt: skip
_CRON_FIELDS: Final = (
    "name", "queue", "data", "schedule", "repeatEvery", "priority", "maxLimit", "timezone", "uniqueKey", "dedup",
    "skipMissedOnRestart", "immediately", "skipIfNoWorker", "preventOverlap", "jobOptions",
    "jobName",
)  # fmt: skip
_WORKER_FIELDS: Final = ("name", "queues", "concurrency", "workerId", "hostname", "pid", "startedAt")


def _reads(pattern: str, kind: type, path: dict[str, str], **options: Any) -> Route:
    return Route(method="GET", pattern=pattern, kind=kind, path=path, **options)


def _changes(method: str, pattern: str, kind: type, *fields: str, **options: Any) -> Route:
    """Group B, the id in the path; a body where there are fields to take from it."""
    body = Body.OPTIONAL if fields else Body.UNREAD
    options = {"path": _ID, "body": body, "refused": 400, **options}
    return Route(method=method, pattern=pattern, kind=kind, fields=fields, **options)


def _controls(method: str, pattern: str, kind: type, *fields: str, **options: Any) -> Route:
    """Group A, the queue's name in the path."""
    body = Body.OPTIONAL if fields or "more" in options else Body.UNREAD
    return Route(method=method, pattern=pattern, kind=kind, path=_QUEUE, body=body, fields=fields, **options)


def _makes(pattern: str, kind: type, *fields: str, **options: Any) -> Route:
    """Group B, everything in the body."""
    return Route(method="POST", pattern=pattern, kind=kind, refused=400, body=Body.REQUIRED, fields=fields, **options)


def _removes(pattern: str, kind: type, **path: str) -> Route:
    """Group C, the name in the path."""
    return Route(method="DELETE", pattern=pattern, kind=kind, refused=404, path=path)


def _looks(pattern: str, look: str, kind: type, method: str = "GET", **options: Any) -> Route:
    return Route(method=method, pattern=pattern, kind=kind, look=look, **options)


ROUTES: Final = (
    # jobs
    _makes(
        "/queues/:queue/jobs", c.Push, *_PUSH_FIELDS, path=_QUEUE, more=_max_attempts,
        also=("maxAttempts", "attempts"),
    ),
    _makes("/queues/:queue/jobs/bulk", c.PushBatch, "jobs", "receipt", path=_QUEUE),
    _reads(
        "/queues/:queue/jobs", c.Pull, _QUEUE, more=_given_integers("timeout"), query=("timeout",), has_effects=True
    ),
    _controls("POST", "/queues/:queue/jobs/pull-batch", c.PullBatch, "count", "timeout", "owner", "lockTtl"),
    _reads(
        "/queues/:queue/jobs/list", c.GetJobs, _QUEUE, more=_listed,
        query=("state", "status", "states", "limit", "offset"),
    ),
    _reads("/jobs/:id", c.GetJob, _ID, refused=404),
    _changes("DELETE", "/jobs/:id", c.Cancel, refused=200),
    _reads("/jobs/custom/:customId", c.GetJobByCustomId, {"customId": "customId"}, refused=404),
    _reads("/jobs/:id/state", c.GetState, _ID, refused=404),
    _reads("/jobs/:id/result", c.GetResult, _ID, refused=404),
    _reads("/jobs/:id/progress", c.GetProgress, _ID, refused=404),
    _reads("/jobs/:id/children", c.GetChildrenValues, _ID, refused=404),
    _reads("/jobs/:id/explain", c.Explain, _ID, refused=404),
    _changes("POST", "/jobs/:id/ack", c.Ack, "result", "token"),
    _changes("POST", "/jobs/:id/fail", c.Fail, "error", "token", "unrecoverable", "stack"),
    _changes("POST", "/jobs/ack-batch", c.AckBatch, "ids", "results", "tokens", path={}),
    _changes("POST", "/jobs/extend-locks", c.ExtendLocks, "ids", "tokens", "durations", path={}),
    _changes("POST", "/jobs/heartbeat-batch", c.JobHeartbeatBatch, "ids", "tokens", path={}),
    _changes("POST", "/jobs/:id/heartbeat", c.JobHeartbeat, "token", "duration"),
    _changes("POST", "/jobs/:id/extend-lock", c.ExtendLock, "duration", "token"),
    _changes("POST", "/jobs/:id/promote", c.Promote),
    _changes("PUT", "/jobs/:id/data", c.Update, "data", body=Body.REQUIRED),
    _changes("POST", "/jobs/:id/progress", c.Progress, "progress", "message"),
    _changes("PUT", "/jobs/:id/priority", c.ChangePriority, "priority", "lifo"),
    _changes("PUT", "/jobs/:id/delay", c.ChangeDelay, "delay"),
    _changes("POST", "/jobs/:id/move-to-delayed", c.MoveToDelayed, "delay"),
    _changes("POST", "/jobs/:id/move-to-wait", c.MoveToWait),
    _changes("POST", "/jobs/:id/discard", c.Discard),
    _reads("/jobs/:id/logs", c.GetLogs, _ID),
    _changes("POST", "/jobs/:id/logs", c.AddLog, "message", "level"),
    _changes("DELETE", "/jobs/:id/logs", c.ClearLogs, refused=200),
    _changes("POST", "/jobs/:id/wait", c.WaitJob, "timeout", refused=200),
    # queues
    _reads("/queues", c.ListQueues, {}),
    _looks("/queues/summary", "summary", c.ListQueues, more=_summary_page, query=_PAGE),
    _reads("/queues/:queue/counts", c.GetJobCounts, _QUEUE),
    _reads("/queues/:queue/count", c.Count, _QUEUE),
    _reads("/queues/:queue/priority-counts", c.GetCountsPerPriority, _QUEUE),
    _reads("/queues/:queue/paused", c.IsPaused, _QUEUE),
    _controls("POST", "/queues/:queue/pause", c.Pause),
    _controls("POST", "/queues/:queue/resume", c.Resume),
    _controls("POST", "/queues/:queue/drain", c.Drain),
    _controls("POST", "/queues/:queue/obliterate", c.Obliterate),
    _controls("POST", "/queues/:queue/clean", c.Clean, "state", "limit", more=_grace, also=("grace",)),
    _controls("POST", "/queues/:queue/promote-jobs", c.PromoteJobs, "count"),
    _controls("POST", "/queues/:queue/retry-completed", c.RetryCompleted, "id"),
    _looks("/queues/:queue/workers", "workers_of", c.ListWorkers, path=_QUEUE),
    _looks("/queues/:queue/scale", "scale", c.GetJobCounts, path=_QUEUE),
    _looks("/queues/:queue/dlq", "dead_letters", c.Dlq, path=_QUEUE, more=_letters_page, query=_PAGE),
    _looks("/queues/:queue/dlq/stats", "dead_letter_stats", c.Dlq, path=_QUEUE),
    _controls("POST", "/queues/:queue/dlq/retry", c.RetryDlq, "jobId"),
    _controls("POST", "/queues/:queue/dlq/replay", c.RetryDlq, more=_replayed, also=("count",)),
    _controls("POST", "/queues/:queue/dlq/purge", c.PurgeDlq),
    _controls("PUT", "/queues/:queue/rate-limit", c.RateLimit, "limit", "duration", "ttl"),
    _controls("DELETE", "/queues/:queue/rate-limit", c.RateLimitClear),
    _controls("PUT", "/queues/:queue/concurrency", c.SetConcurrency, more=_concurrency, also=("concurrency", "limit")),
    _controls("DELETE", "/queues/:queue/concurrency", c.ClearConcurrency),
    _reads("/queues/:queue/stall-config", c.GetStallConfig, _QUEUE),
    _controls("PUT", "/queues/:queue/stall-config", c.SetStallConfig, more=_config, also=("config",)),
    _reads("/queues/:queue/dlq-config", c.GetDlqConfig, _QUEUE),
    _controls("PUT", "/queues/:queue/dlq-config", c.SetDlqConfig, more=_config, also=("config",)),
    # crons
    _reads("/crons", c.CronList, {}),
    _makes("/crons", c.Cron, *_CRON_FIELDS),
    _reads("/crons/:name", c.CronGet, {"name": "name"}, refused=404),
    _removes("/crons/:name", c.CronDelete, name="name"),
    # webhooks
    _reads("/webhooks", c.ListWebhooks, {}),
    _makes("/webhooks", c.AddWebhook, "url", "events", "queue", "secret"),
    _removes("/webhooks/:id", c.RemoveWebhook, id="webhookId"),
    _changes("PUT", "/webhooks/:id/enabled", c.SetWebhookEnabled, "enabled"),
    # workers: what is registered here belongs to no connection, and stays until it is withdrawn or silent for too long
    _reads("/workers", c.ListWorkers, {}),
    _makes("/workers", c.RegisterWorker, *_WORKER_FIELDS),
    _removes("/workers/:id", c.UnregisterWorker, id="workerId"),
    _changes(
        "POST", "/workers/:id/heartbeat", c.WorkerHeartbeat, "activeJobs", "processed", "failed", body=Body.LENIENT,
        refused=200,
    ),
    # the server
    _looks("/openapi.json", OPENAPI, c.Hello),
    _reads("/ping", c.Ping, {}),
    _reads("/storage", c.StorageStatus, {}),
    _looks("/backups", "backups", c.StorageStatus),
    _looks("/backups", "back_up", c.CompactMemory, method="POST"),
    _looks("/metrics", "metrics", c.Metrics),
    _looks("/stats", "stats", c.Stats),
    _looks("/dashboard", "dashboard", c.DashboardOverview),
    _looks("/dashboard/queues", "dashboard_queues", c.DashboardQueues, more=_dashboard_page, query=_PAGE),
    _looks(
        "/dashboard/queues/:queue", "dashboard_queue", c.DashboardQueue, path={"queue": "name"}, more=_includes_jobs,
        query=("includeJobs",),
        refused=400,
    ),
    _looks("/dashboard/crons", "dashboard_crons", c.CronList, more=_crons_page),
    _looks("/prometheus", "prometheus", c.Prometheus),
    _looks("/heapstats", "heap", c.CompactMemory),
    _looks("/gc", "compact", c.CompactMemory, method="POST"),
)  # fmt: skip
