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
from bunqueue_trio.model.commands.managing import (
    Cancel,
    ChangeDelay,
    ChangePriority,
    Discard,
    MoveToDelayed,
    MoveToWait,
    Promote,
    PromoteJobs,
    PurgeDlq,
    RemoveChildDependency,
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
    GetFailedChildrenValues,
    GetIgnoredChildrenFailures,
    GetJob,
    GetJobByCustomId,
    GetJobCounts,
    GetJobs,
    GetProgress,
    GetResult,
    GetState,
    ListQueues,
    WaitJob,
)
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
    "GetChildrenValues",
    "GetCountsPerPriority",
    "GetDlqConfig",
    "GetFailedChildrenValues",
    "GetIgnoredChildrenFailures",
    "GetJob",
    "GetJobByCustomId",
    "GetJobCounts",
    "GetJobs",
    "GetLogs",
    "GetProgress",
    "GetResult",
    "GetStallConfig",
    "GetState",
    "Hello",
    "IsPaused",
    "JobHeartbeat",
    "JobHeartbeatBatch",
    "ListQueues",
    "ListWebhooks",
    "ListWorkers",
    "Metrics",
    "MoveToDelayed",
    "MoveToWait",
    "Obliterate",
    "Pause",
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
    "PushOptions",
    "RateLimit",
    "RateLimitClear",
    "RegisterWorker",
    "RemoveChildDependency",
    "RemoveUnprocessedChildren",
    "RemoveWebhook",
    "Resume",
    "RetryCompleted",
    "RetryDlq",
    "SetConcurrency",
    "SetDlqConfig",
    "SetStallConfig",
    "SetWebhookEnabled",
    "Stats",
    "StorageStatus",
    "UnregisterWorker",
    "Update",
    "UpdateParent",
    "WaitJob",
    "WorkerHeartbeat",
]

AnyCommand = (
    Push
    | PushBatch
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
    | Discard
    | RetryDlq
    | PurgeDlq
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
)
"""Every command the server knows. A new command is a new member here."""
