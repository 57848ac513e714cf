"""One record per command of the wire.

Commands are the members of a union tagged by ``cmd``; the codec decodes a frame straight into one of them. Adding a
command is adding a record in one of these modules, a member below, a row in the engine's dispatch table and, where its
fields need looking at, a check in the protocol.

Fields whose refusal needs the protocol's own wording are typed `Any` and checked when present; None means absent, as
does the wire's "undefined". Payloads stay msgpack bytes (`Raw`); an empty `Raw` means absent.
"""

from bunqueue_trio.model.commands.base import ABSENT, Command
from bunqueue_trio.model.commands.connecting import (
    Auth,
    Hello,
    ListWorkers,
    Ping,
    RegisterWorker,
    UnregisterWorker,
    WorkerHeartbeat,
)
from bunqueue_trio.model.commands.controlling import (
    Clean,
    ClearConcurrency,
    Drain,
    GetDlqConfig,
    GetStallConfig,
    IsPaused,
    Obliterate,
    Pause,
    RateLimit,
    RateLimitClear,
    Resume,
    SetConcurrency,
    SetDlqConfig,
    SetStallConfig,
)
from bunqueue_trio.model.commands.cron import Cron, CronDelete, CronGet, CronList
from bunqueue_trio.model.commands.flowing import FlowEntry, FlowInput, FlowPlan, PushFlow
from bunqueue_trio.model.commands.grouping import (
    GetGroupActiveCount,
    GetGroupConcurrency,
    GetGroupJobsCount,
    GetGroupRateLimit,
    GetGroupRateLimitTtl,
    GetGroupsJobsCount,
    IsGroupPaused,
    PauseGroup,
    RateLimitGroup,
    RemoveGroupConcurrency,
    RemoveGroupRateLimit,
    ResumeGroup,
    SetGroupConcurrency,
    SetGroupRateLimit,
)
from bunqueue_trio.model.commands.managing import (
    Cancel,
    ChangeDelay,
    ChangePriority,
    Discard,
    Move,
    MoveToDelayed,
    MoveToWait,
    MoveToWaitingChildren,
    Promote,
    PromoteJobs,
    PurgeDlq,
    RemoveChildDependency,
    RemoveDeduplicationKey,
    RemoveDlqJob,
    RemoveJobDeduplicationKey,
    RemoveUnprocessedChildren,
    RetryCompleted,
    RetryDlq,
    Update,
    UpdateParent,
)
from bunqueue_trio.model.commands.reading import (
    Count,
    Dlq,
    Explain,
    GetChildrenValues,
    GetCountsPerPriority,
    GetDeduplicationJobId,
    GetDlqStats,
    GetFailedChildrenValues,
    GetIgnoredChildrenFailures,
    GetJob,
    GetJobByCustomId,
    GetJobCounts,
    GetJobs,
    GetProgress,
    GetQueueLimits,
    GetResult,
    GetState,
    ListQueues,
    WaitJob,
)
from bunqueue_trio.model.commands.subscribing import SubscribeEvents, TrimEvents, UnsubscribeEvents
from bunqueue_trio.model.commands.watching import (
    AddLog,
    ClearLogs,
    CompactMemory,
    DashboardOverview,
    DashboardQueue,
    DashboardQueues,
    GetLogs,
    Metrics,
    Prometheus,
    Stats,
    StorageStatus,
)
from bunqueue_trio.model.commands.webhooks import AddWebhook, ListWebhooks, RemoveWebhook, SetWebhookEnabled
from bunqueue_trio.model.commands.working import (
    Ack,
    AckBatch,
    ExtendLock,
    ExtendLocks,
    Fail,
    JobHeartbeat,
    JobHeartbeatBatch,
    ParentLink,
    Progress,
    Pull,
    PullBatch,
    Push,
    PushBatch,
    PushEntry,
    PushOptions,
)

__all__ = [
    "ABSENT",
    "Ack",
    "AckBatch",
    "AddLog",
    "AddWebhook",
    "AnyCommand",
    "Auth",
    "Cancel",
    "ChangeDelay",
    "ChangePriority",
    "Clean",
    "ClearConcurrency",
    "ClearLogs",
    "Command",
    "CompactMemory",
    "Count",
    "Cron",
    "CronDelete",
    "CronGet",
    "CronList",
    "DashboardOverview",
    "DashboardQueue",
    "DashboardQueues",
    "Discard",
    "Dlq",
    "Drain",
    "Explain",
    "ExtendLock",
    "ExtendLocks",
    "Fail",
    "FlowEntry",
    "FlowInput",
    "FlowPlan",
    "GetChildrenValues",
    "GetCountsPerPriority",
    "GetDeduplicationJobId",
    "GetDlqConfig",
    "GetDlqStats",
    "GetFailedChildrenValues",
    "GetGroupActiveCount",
    "GetGroupConcurrency",
    "GetGroupJobsCount",
    "GetGroupRateLimit",
    "GetGroupRateLimitTtl",
    "GetGroupsJobsCount",
    "GetIgnoredChildrenFailures",
    "GetJob",
    "GetJobByCustomId",
    "GetJobCounts",
    "GetJobs",
    "GetLogs",
    "GetProgress",
    "GetQueueLimits",
    "GetResult",
    "GetStallConfig",
    "GetState",
    "Hello",
    "IsGroupPaused",
    "IsPaused",
    "JobHeartbeat",
    "JobHeartbeatBatch",
    "ListQueues",
    "ListWebhooks",
    "ListWorkers",
    "Metrics",
    "Move",
    "MoveToDelayed",
    "MoveToWait",
    "MoveToWaitingChildren",
    "Obliterate",
    "ParentLink",
    "Pause",
    "PauseGroup",
    "Ping",
    "Progress",
    "Prometheus",
    "Promote",
    "PromoteJobs",
    "Pull",
    "PullBatch",
    "PurgeDlq",
    "Push",
    "PushBatch",
    "PushEntry",
    "PushFlow",
    "PushOptions",
    "RateLimit",
    "RateLimitClear",
    "RateLimitGroup",
    "RegisterWorker",
    "RemoveChildDependency",
    "RemoveDeduplicationKey",
    "RemoveDlqJob",
    "RemoveGroupConcurrency",
    "RemoveGroupRateLimit",
    "RemoveJobDeduplicationKey",
    "RemoveUnprocessedChildren",
    "RemoveWebhook",
    "Resume",
    "ResumeGroup",
    "RetryCompleted",
    "RetryDlq",
    "SetConcurrency",
    "SetDlqConfig",
    "SetGroupConcurrency",
    "SetGroupRateLimit",
    "SetStallConfig",
    "SetWebhookEnabled",
    "Stats",
    "StorageStatus",
    "SubscribeEvents",
    "TrimEvents",
    "UnregisterWorker",
    "UnsubscribeEvents",
    "Update",
    "UpdateParent",
    "WaitJob",
    "WorkerHeartbeat",
]

AnyCommand = (
    Push
    | PushBatch
    | PushFlow
    | Pull
    | PullBatch
    | Ack
    | AckBatch
    | Fail
    | JobHeartbeat
    | JobHeartbeatBatch
    | ExtendLock
    | ExtendLocks
    | Progress
    | GetProgress
    | GetJob
    | GetState
    | GetResult
    | GetJobByCustomId
    | Count
    | GetJobCounts
    | ListQueues
    | Dlq
    | GetDlqStats
    | GetQueueLimits
    | GetDeduplicationJobId
    | GetJobs
    | GetCountsPerPriority
    | GetChildrenValues
    | GetFailedChildrenValues
    | GetIgnoredChildrenFailures
    | WaitJob
    | Explain
    | Cancel
    | Update
    | ChangePriority
    | Promote
    | PromoteJobs
    | ChangeDelay
    | MoveToDelayed
    | MoveToWait
    | MoveToWaitingChildren
    | Discard
    | RetryDlq
    | PurgeDlq
    | RemoveDlqJob
    | RemoveDeduplicationKey
    | RemoveJobDeduplicationKey
    | UpdateParent
    | RemoveChildDependency
    | RemoveUnprocessedChildren
    | RetryCompleted
    | Pause
    | Resume
    | IsPaused
    | SetStallConfig
    | GetStallConfig
    | RateLimit
    | RateLimitClear
    | SetConcurrency
    | ClearConcurrency
    | Drain
    | Obliterate
    | Clean
    | SetDlqConfig
    | GetDlqConfig
    | Cron
    | CronGet
    | CronList
    | CronDelete
    | RegisterWorker
    | UnregisterWorker
    | ListWorkers
    | WorkerHeartbeat
    | Auth
    | Hello
    | Ping
    | AddLog
    | GetLogs
    | ClearLogs
    | Stats
    | Metrics
    | StorageStatus
    | CompactMemory
    | Prometheus
    | DashboardOverview
    | DashboardQueues
    | DashboardQueue
    | AddWebhook
    | RemoveWebhook
    | ListWebhooks
    | SetWebhookEnabled
    | SubscribeEvents
    | UnsubscribeEvents
    | TrimEvents
    | GetGroupJobsCount
    | GetGroupsJobsCount
    | GetGroupActiveCount
    | SetGroupConcurrency
    | GetGroupConcurrency
    | RemoveGroupConcurrency
    | SetGroupRateLimit
    | GetGroupRateLimit
    | RemoveGroupRateLimit
    | GetGroupRateLimitTtl
    | PauseGroup
    | ResumeGroup
    | IsGroupPaused
    | RateLimitGroup
)
"""Every command the server knows. A new command is a new member here."""
