"""Replies about crons; one record per shape."""

from msgspec import UNSET, Struct, UnsetType

from bunqueue_trio.model.replies import Reply


class MadeCron(Struct, frozen=True, gc=False, rename="camel"):
    """A cron as `Cron` answers with it; times epoch ms, ``repeat_every`` ms; ``job_name`` only if it has one."""

    name: str = ""
    queue: str = ""
    schedule: str | None = None
    repeat_every: float | int | None = None
    next_run: float = 0.0
    timezone: str | None = None
    priority: int = 0
    job_name: str | UnsetType = UNSET


class ShownCron(Struct, frozen=True, gc=False, rename="camel"):
    """A cron as CronGet and CronList show it; the last two only of one whose jobs are named."""

    name: str = ""
    queue: str = ""
    schedule: str | None = None
    repeat_every: float | int | None = None
    next_run: float = 0.0
    executions: int = 0
    max_limit: float | int | None = None
    timezone: str | None = None
    priority: int | UnsetType = UNSET
    job_name: str | UnsetType = UNSET


class MadeCronReply(Reply):
    """Cron."""

    cron: MadeCron = MadeCron()


class CronReply(Reply):
    """CronGet."""

    cron: ShownCron = ShownCron()


class CronsReply(Reply):
    """CronList."""

    crons: list[ShownCron] = []
