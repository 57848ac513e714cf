"""The runs to come, as people are shown them."""

from datetime import UTC
from itertools import islice

import pytest
from msgspec import Raw

from bunqueue_trio.engine.cron.timing import open_timing
from bunqueue_trio.engine.cron_forecast import runs_ahead
from bunqueue_trio.engine.cron_table import Cron
from bunqueue_trio.model.cron_job import CronJob
from bunqueue_trio.model.instant import Now

DAY_MS = 86_400_000
MIDNIGHT_MS = 20_000 * DAY_MS
NOW = Now(MIDNIGHT_MS, 0)


def cron(
    schedule: str | None,
    every_ms: float | None = None,
    *,
    next_run: float = MIDNIGHT_MS + 1,
    executions: int = 0,
    max_limit: int | None = None,
) -> Cron:
    timing = open_timing(schedule, every_ms, None, local_zone=UTC)
    job = CronJob(
        name="c",
        queue="q",
        data=Raw(),
        schedule=schedule,
        repeat_every=every_ms,
        priority=0,
        next_run=next_run,
        executions=executions,
        max_limit=max_limit,
        timezone=None,
        unique_key=None,
        dedup=None,
        skip_missed_on_restart=False,
        skip_if_no_worker=False,
        prevent_overlap=True,
        options=None,
    )
    return Cron(job, timing)


def five(of: Cron, now: Now = NOW) -> list[float]:
    return list(islice(runs_ahead(of, now), 5))


def test_an_interval_goes_on_in_its_phase():
    assert five(cron(None, 10)) == [MIDNIGHT_MS + 1 + 10 * number for number in range(5)]


def test_a_pattern_goes_on_from_run_to_run():
    daily = cron("30 3 * * *", next_run=MIDNIGHT_MS + 12_600_000)

    assert five(daily) == [MIDNIGHT_MS + 12_600_000 + DAY_MS * number for number in range(5)]


@pytest.mark.parametrize(("executions", "limit", "left"), [(0, 3, 3), (2, 3, 1), (3, 3, 0), (0, None, 5), (0, 9, 5)])
def test_the_limit_ends_it(executions, limit, left):
    assert len(five(cron(None, 10, executions=executions, max_limit=limit))) == left


def test_the_end_of_the_pattern_ends_it():
    year = "0 0 0 1 1 * 2025,2026"
    first = open_timing(year, None, None, local_zone=UTC).first_run(MIDNIGHT_MS)
    assert first is not None

    assert len(five(cron(year, next_run=first))) == 2


def test_an_overdue_run_comes_first_and_those_missed_are_passed_over():
    late = cron(None, 1_000, next_run=MIDNIGHT_MS - 10_500)

    assert five(late)[:3] == [MIDNIGHT_MS - 10_500, MIDNIGHT_MS + 500, MIDNIGHT_MS + 1_500]
