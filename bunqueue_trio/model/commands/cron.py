"""Commands about crons: definitions from which the server pushes jobs by itself, at set times."""

from typing import Any

from msgspec import Raw

from bunqueue_trio.model.commands.base import ABSENT, Command


class Cron(Command, tag="Cron"):
    """Make a cron, or replace the definition of the one of that name."""

    name: Any = None
    queue: Any = None
    data: Raw = ABSENT
    schedule: Any = None
    repeat_every: Any = None
    priority: Any = None
    timezone: Any = None
    max_limit: Any = None
    immediately: Any = None
    unique_key: Any = None
    dedup: Any = None
    prevent_overlap: Any = None
    skip_missed_on_restart: Any = None
    skip_if_no_worker: Any = None
    job_options: Any = None
    job_name: Any = None


class CronGet(Command, tag="CronGet"):
    """One cron."""

    name: Any = None


class CronList(Command, tag="CronList"):
    """All crons, in the order in which they were made."""


class CronDelete(Command, tag="CronDelete"):
    """Remove a cron; jobs that it has pushed stay."""

    name: Any = None
