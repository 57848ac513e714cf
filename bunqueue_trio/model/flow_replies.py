"""Replies about flows, waits and explanations; one record per shape."""

from typing import Any

from msgspec import UNSET, Raw, UnsetType

from bunqueue_trio.model.replies import Reply


class WaitReply(Reply):
    """WaitJob: ``completed``; ``result`` only with a completed job, null when it has none."""

    completed: bool = False
    result: Raw | UnsetType | None = UNSET


class ValuesReply(Reply):
    """GetFailedChildrenValues, GetIgnoredChildrenFailures: error texts by ``<queue>:<id>``."""

    values: dict[str, str] = {}


class RemovedReply(Reply):
    """RemoveChildDependency."""

    removed: bool = False


class ExplainReply(Reply):
    """Explain: each reason is ``{"reason": str, ...}``; `engine.explaining` lists them."""

    id: str = ""
    state: str = "unknown"
    reasons: list[dict[str, Any]] = []
