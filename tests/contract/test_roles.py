"""Every command has its row in the table of roles, and every route and role stands where it should."""

from typing import get_args

import pytest

from bunqueue_trio.model import commands as c
from bunqueue_trio.server.roles import NEEDED, Role, permitted
from bunqueue_trio.web.routes import ROUTES

COMMANDS = set(get_args(c.AnyCommand))
CHANGE_NOTHING = {
    c.Auth, c.Hello, c.Ping, c.GetProgress, c.GetJob, c.GetState, c.GetResult, c.GetJobByCustomId, c.Count,
    c.GetJobCounts, c.ListQueues, c.Dlq, c.GetJobs, c.GetCountsPerPriority, c.GetChildrenValues,
    c.GetDlqStats, c.GetQueueLimits, c.GetDeduplicationJobId,
    c.GetFailedChildrenValues, c.GetIgnoredChildrenFailures, c.WaitJob, c.Explain, c.IsPaused, c.GetStallConfig,
    c.GetDlqConfig, c.CronGet, c.CronList, c.ListWorkers, c.GetLogs, c.Stats, c.Metrics, c.StorageStatus, c.Prometheus,
    c.DashboardOverview, c.DashboardQueues, c.DashboardQueue, c.SubscribeEvents, c.UnsubscribeEvents,
    c.DashboardOverview, c.DashboardQueues, c.DashboardQueue, c.GetGroupJobsCount, c.GetGroupsJobsCount,
    c.GetGroupActiveCount, c.GetGroupConcurrency, c.GetGroupRateLimit, c.GetGroupRateLimitTtl, c.IsGroupPaused,
}  # fmt: skip


def test_every_command_has_its_row():
    assert set(NEEDED) == COMMANDS


def test_readers_change_nothing():
    assert permitted(Role.READ) == CHANGE_NOTHING


@pytest.mark.parametrize("role", [Role.PRODUCE, Role.WORK])
def test_every_role_may_read(role):
    assert permitted(role) > permitted(Role.READ)


def test_producers_run_nothing_and_workers_make_nothing():
    assert not permitted(Role.PRODUCE) & {c.Pull, c.PullBatch, c.Ack, c.AckBatch, c.Fail, c.ExtendLock, c.Discard}
    assert not permitted(Role.WORK) & {c.Push, c.PushBatch, c.Cron, c.Cancel}


def test_roles_add_up_and_all_of_them_allow_everything():
    assert permitted(Role.PRODUCE | Role.WORK) == permitted(Role.PRODUCE) | permitted(Role.WORK)
    assert permitted(Role.ALL) == COMMANDS


def test_a_route_that_changes_something_cannot_be_used_by_readers():
    for route in ROUTES:
        changes = route.method != "GET" or route.has_effects
        may_wait = route.kind is c.WaitJob
        assert may_wait or not changes or route.kind not in permitted(Role.READ), route.pattern
