"""What a token allows: the one table of roles and commands, for every transport.

A token of ``AUTH_TOKENS`` may do everything. One of ``AUTH_TOKENS_READ``, ``_PRODUCE`` or ``_WORK`` has that role; one
that stands in several lists has all of theirs. Every role may read.

Source: settings of our own.
"""

from __future__ import annotations

import hmac
from enum import Flag, auto
from functools import cache
from typing import TYPE_CHECKING, Final

from bunqueue_trio.model import commands as c

if TYPE_CHECKING:
    from bunqueue_trio.config import Config


class Role(Flag):
    """What the holder of a token is there for."""

    READ = auto()
    PRODUCE = auto()
    WORK = auto()
    ADMIN = auto()
    ALL = READ | PRODUCE | WORK | ADMIN


_ANY = Role.READ | Role.PRODUCE | Role.WORK
_EITHER = Role.PRODUCE | Role.WORK

NEEDED: Final[dict[type, Role]] = {
    # whoever is there
    c.Auth: _ANY,
    c.Hello: _ANY,
    c.Ping: _ANY,
    # looking
    c.GetProgress: _ANY,
    c.GetJob: _ANY,
    c.GetState: _ANY,
    c.GetResult: _ANY,
    c.GetJobByCustomId: _ANY,
    c.Count: _ANY,
    c.GetJobCounts: _ANY,
    c.ListQueues: _ANY,
    c.Dlq: _ANY,
    c.GetDlqStats: _ANY,
    c.GetQueueLimits: _ANY,
    c.GetDeduplicationJobId: _ANY,
    c.GetJobs: _ANY,
    c.GetCountsPerPriority: _ANY,
    c.GetChildrenValues: _ANY,
    c.GetFailedChildrenValues: _ANY,
    c.GetIgnoredChildrenFailures: _ANY,
    c.WaitJob: _ANY,
    c.Explain: _ANY,
    c.IsPaused: _ANY,
    c.GetStallConfig: _ANY,
    c.GetDlqConfig: _ANY,
    c.CronGet: _ANY,
    c.CronList: _ANY,
    c.ListWorkers: _ANY,
    c.GetLogs: _ANY,
    c.Stats: _ANY,
    c.Metrics: _ANY,
    c.StorageStatus: _ANY,
    c.Prometheus: _ANY,
    c.DashboardOverview: _ANY,
    c.DashboardQueues: _ANY,
    c.DashboardQueue: _ANY,
    c.SubscribeEvents: _ANY,  # they tell nothing that GetJob and GetResult do not
    c.UnsubscribeEvents: _ANY,
    c.GetGroupJobsCount: _ANY,
    c.GetGroupsJobsCount: _ANY,
    c.GetGroupActiveCount: _ANY,
    c.GetGroupConcurrency: _ANY,
    c.GetGroupRateLimit: _ANY,
    c.GetGroupRateLimitTtl: _ANY,
    c.IsGroupPaused: _ANY,
    # making jobs, and seeing to them until they run
    c.Push: Role.PRODUCE,
    c.PushBatch: Role.PRODUCE,
    c.PushFlow: Role.PRODUCE,
    c.Cron: Role.PRODUCE,
    c.CronDelete: Role.PRODUCE,
    c.Cancel: Role.PRODUCE,
    c.ChangePriority: Role.PRODUCE,
    c.Promote: Role.PRODUCE,
    c.UpdateParent: Role.PRODUCE,
    c.RemoveUnprocessedChildren: Role.PRODUCE,
    c.RemoveDeduplicationKey: Role.PRODUCE,
    c.RemoveJobDeduplicationKey: Role.PRODUCE,
    # what both sides do with a job of theirs
    c.Update: _EITHER,
    c.ChangeDelay: _EITHER,
    c.AddLog: _EITHER,
    c.RemoveChildDependency: _EITHER,
    # running jobs
    c.Pull: Role.WORK,
    c.PullBatch: Role.WORK,
    c.Ack: Role.WORK,
    c.AckBatch: Role.WORK,
    c.Fail: Role.WORK,
    c.JobHeartbeat: Role.WORK,
    c.JobHeartbeatBatch: Role.WORK,
    c.ExtendLock: Role.WORK,
    c.ExtendLocks: Role.WORK,
    c.Progress: Role.WORK,
    c.MoveToDelayed: Role.WORK,
    c.MoveToWait: Role.WORK,
    c.MoveToWaitingChildren: Role.WORK,
    c.Discard: Role.WORK,
    c.ClearLogs: Role.WORK,
    c.RegisterWorker: Role.WORK,
    c.UnregisterWorker: Role.WORK,
    c.WorkerHeartbeat: Role.WORK,
    c.RateLimitGroup: Role.WORK,
    # whole queues, and the server
    c.PromoteJobs: Role.ADMIN,
    c.RetryDlq: Role.ADMIN,
    c.PurgeDlq: Role.ADMIN,
    c.RemoveDlqJob: Role.ADMIN,
    c.RetryCompleted: Role.ADMIN,
    c.Pause: Role.ADMIN,
    c.Resume: Role.ADMIN,
    c.SetStallConfig: Role.ADMIN,
    c.SetDlqConfig: Role.ADMIN,
    c.RateLimit: Role.ADMIN,
    c.RateLimitClear: Role.ADMIN,
    c.SetConcurrency: Role.ADMIN,
    c.ClearConcurrency: Role.ADMIN,
    c.SetGroupConcurrency: Role.ADMIN,
    c.RemoveGroupConcurrency: Role.ADMIN,
    c.SetGroupRateLimit: Role.ADMIN,
    c.RemoveGroupRateLimit: Role.ADMIN,
    c.PauseGroup: Role.ADMIN,
    c.ResumeGroup: Role.ADMIN,
    c.Drain: Role.ADMIN,
    c.Obliterate: Role.ADMIN,
    c.Clean: Role.ADMIN,
    c.CompactMemory: Role.ADMIN,
    c.TrimEvents: Role.ADMIN,
    c.AddWebhook: Role.ADMIN,
    c.RemoveWebhook: Role.ADMIN,
    c.ListWebhooks: Role.ADMIN,  # the URL of many a receiver is a secret itself
    c.SetWebhookEnabled: Role.ADMIN,
}
"""Which roles may send a command: any one of them is enough. A command without an entry needs `Role.ALL`."""


@cache
def permitted(roles: Role) -> frozenset[type]:
    """The commands that somebody with these roles may send."""
    return frozenset(kind for kind, needed in NEEDED.items() if needed & roles)


def refusal(kind: type) -> str:
    """What somebody is told who may not send a command of this kind."""
    needed = NEEDED.get(kind, Role.ADMIN)
    name = str(getattr(kind, "__struct_config__").tag)  # noqa: B009  (mypy does not know it)
    if needed is Role.ADMIN:
        return f"Not permitted for this token: {name} needs a token of AUTH_TOKENS"
    names = " or ".join(str(role.name).lower() for role in needed)
    return f"Not permitted for this token: {name} needs the role {names}"


class Tokens:
    """The tokens of a configuration, compared in constant time."""

    def __init__(self, config: Config) -> None:
        self._roles: dict[bytes, Role] = {}
        lists = (
            (Role.ALL, config.auth_tokens),
            (Role.READ, config.auth_tokens_read),
            (Role.PRODUCE, config.auth_tokens_produce),
            (Role.WORK, config.auth_tokens_work),
        )
        for role, tokens in lists:
            for token in tokens:
                secret = token.encode("utf-8", "surrogatepass")
                self._roles[secret] = self._roles.get(secret, Role(0)) | role

    @property
    def is_empty(self) -> bool:
        """Whether nobody has to present a token."""
        return not self._roles

    def roles_of(self, given: bytes) -> Role | None:
        """The roles of a token; None for one that is not listed. All of them are compared, whatever matches."""
        found: Role | None = None
        for secret, roles in self._roles.items():
            if hmac.compare_digest(given, secret):
                found = roles
        return found
