"""Which room carries out which command. A new command is a new row.

Pulls, RegisterWorker and UnregisterWorker are not here: they need to know the connection as well.
"""

from collections.abc import Callable
from typing import Any

from bunqueue_trio.engine.admission import Admission
from bunqueue_trio.engine.awaiting import Awaiting
from bunqueue_trio.engine.cleaning import Cleaning
from bunqueue_trio.engine.control import Control
from bunqueue_trio.engine.crons import Crons
from bunqueue_trio.engine.dashboards import Dashboards
from bunqueue_trio.engine.emptying import Emptying
from bunqueue_trio.engine.explaining import Explaining
from bunqueue_trio.engine.finishing import Finishing
from bunqueue_trio.engine.flow_admission import FlowAdmission
from bunqueue_trio.engine.flows import Flows
from bunqueue_trio.engine.group_commands import GroupCommands
from bunqueue_trio.engine.keys import Keys
from bunqueue_trio.engine.letter_commands import LetterCommands
from bunqueue_trio.engine.letter_views import LetterViews
from bunqueue_trio.engine.limit_views import LimitViews
from bunqueue_trio.engine.linking import Linking
from bunqueue_trio.engine.lists import Lists
from bunqueue_trio.engine.log_commands import LogCommands
from bunqueue_trio.engine.moving import Moving
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.reruns import Reruns
from bunqueue_trio.engine.running import Running
from bunqueue_trio.engine.state import State
from bunqueue_trio.engine.workers import Workers
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply, Reply

Handler = Callable[[Any, Now], Reply | None]


def job_handlers(state: State, admission: Admission, queries: Queries, running: Running) -> dict[type, Handler]:
    """What is done with a job, or with a batch of them."""
    finishing, control, moving = Finishing(state), Control(state), Moving(state)
    flows, logs = Flows(state, queries), LogCommands(state, queries)
    return {
        c.Push: admission.push,
        c.PushBatch: admission.push_batch,
        c.PushFlow: FlowAdmission(state, admission).push_flow,
        c.Ack: finishing.ack,
        c.AckBatch: finishing.ack_batch,
        c.Fail: finishing.fail,
        c.JobHeartbeat: running.heartbeat,
        c.JobHeartbeatBatch: running.heartbeat_batch,
        c.ExtendLock: running.extend_lock,
        c.ExtendLocks: running.extend_locks,
        c.Progress: running.progress,
        c.GetProgress: queries.get_progress,
        c.GetJob: queries.get_job,
        c.GetState: queries.get_state,
        c.GetResult: queries.get_result,
        c.GetJobByCustomId: queries.get_job_by_custom_id,
        c.Cancel: control.cancel,
        c.Update: moving.update,
        c.ChangePriority: moving.change_priority,
        c.Promote: moving.promote,
        c.ChangeDelay: moving.change_delay,
        c.MoveToDelayed: moving.move_to_delayed,
        c.MoveToWait: moving.move_to_wait,
        c.MoveToWaitingChildren: moving.move_to_waiting_children,
        c.Discard: moving.discard,
        c.AddLog: logs.add,
        c.GetLogs: logs.get,
        c.ClearLogs: logs.clear,
        c.WaitJob: Awaiting(state, queries).wait_job,
        c.Explain: Explaining(state, queries).explain,
        c.UpdateParent: Linking(state).update_parent,
        c.GetChildrenValues: flows.get_children_values,
        c.GetFailedChildrenValues: flows.get_failed_children_values,
        c.GetIgnoredChildrenFailures: flows.get_ignored_children_failures,
        c.RemoveChildDependency: flows.remove_child_dependency,
        c.RemoveUnprocessedChildren: flows.remove_unprocessed_children,
    }


def queue_handlers(state: State, queries: Queries, emptying: Emptying, reruns: Reruns) -> dict[type, Handler]:
    """What is done with a queue, its dead letters and its settings."""
    control, letters, lists, moving = Control(state), LetterCommands(state), Lists(state), Moving(state)
    letter_views, keys = LetterViews(state, queries), Keys(state)
    return {
        c.Count: queries.count,
        c.GetJobCounts: queries.get_job_counts,
        c.IsPaused: queries.is_paused,
        c.ListQueues: queries.list_queues,
        c.Dlq: letter_views.dlq,
        c.GetDlqStats: letter_views.statistics,
        c.GetQueueLimits: LimitViews(state).get_queue_limits,
        c.GetDeduplicationJobId: keys.get_job_id,
        c.GetStallConfig: queries.get_stall_config,
        c.GetDlqConfig: queries.get_dlq_config,
        c.Pause: control.pause,
        c.Resume: control.resume,
        c.SetStallConfig: control.set_stall_config,
        c.SetDlqConfig: control.set_dlq_config,
        c.RateLimit: control.set_rate_limit,
        c.RateLimitClear: control.clear_rate_limit,
        c.SetConcurrency: control.set_concurrency,
        c.ClearConcurrency: control.clear_concurrency,
        c.PromoteJobs: moving.promote_jobs,
        c.RetryDlq: letters.retry_dlq,
        c.PurgeDlq: letters.purge_dlq,
        c.RemoveDlqJob: letters.remove_dlq_job,
        c.RemoveDeduplicationKey: keys.remove,
        c.RemoveJobDeduplicationKey: keys.remove_of_job,
        c.RetryCompleted: reruns.retry_completed,
        c.Drain: emptying.drain,
        c.Obliterate: emptying.obliterate,
        c.GetJobs: lists.get_jobs,
        c.GetCountsPerPriority: queries.get_counts_per_priority,
        c.Clean: Cleaning(state).clean,
    }


def group_handlers(state: State) -> dict[type, Handler]:
    """What is done with the named groups of a queue."""
    groups = GroupCommands(state)
    return {
        c.GetGroupJobsCount: groups.jobs_count,
        c.GetGroupsJobsCount: groups.all_jobs_count,
        c.GetGroupActiveCount: groups.active_count,
        c.SetGroupConcurrency: groups.set_concurrency,
        c.GetGroupConcurrency: groups.concurrency,
        c.RemoveGroupConcurrency: groups.remove_concurrency,
        c.SetGroupRateLimit: groups.set_rate_limit,
        c.GetGroupRateLimit: groups.rate_limit,
        c.RemoveGroupRateLimit: groups.remove_rate_limit,
        c.GetGroupRateLimitTtl: groups.rate_limit_ttl,
        c.PauseGroup: groups.pause,
        c.ResumeGroup: groups.resume,
        c.IsGroupPaused: groups.is_paused,
        c.RateLimitGroup: groups.let_rest,
    }


def server_handlers(state: State, queries: Queries, crons: Crons, workers: Workers) -> dict[type, Handler]:
    """Crons, workers, and what watches all queues."""
    dashboards = Dashboards(state, queries)
    return {
        c.DashboardQueues: dashboards.queues,
        c.DashboardQueue: dashboards.queue,
        c.Cron: crons.put,
        c.CronGet: crons.get,
        c.CronList: crons.show_all,
        c.CronDelete: crons.delete,
        c.WorkerHeartbeat: workers.heartbeat,
        c.ListWorkers: workers.list,
        c.Ping: _ping,
        c.TrimEvents: _trim_events,
    }


def _ping(command: c.Ping, now: Now) -> DataReply:
    return DataReply(data={"pong": True, "time": now.wall_ms})


def _trim_events(command: c.TrimEvents, now: Now) -> DataReply:
    return DataReply(data={"removed": 0})  # no events are kept
