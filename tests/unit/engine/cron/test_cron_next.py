"""Every row that was recorded from the reference server."""

import json
from datetime import UTC
from pathlib import Path

import pytest

from bunqueue_trio.engine.cron.timing import open_timing

ROWS = json.loads((Path(__file__).parents[3] / "golden" / "cron_next.json").read_text())["rows"]


def test_the_table_is_whole():
    assert len(ROWS) == 187


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['schedule']}|{row['timezone']}|{row['after_ms']}")
def test_the_next_run_is_that_of_the_reference(row):
    timing = open_timing(row["schedule"], None, row["timezone"], local_zone=UTC)

    assert timing.first_run(row["after_ms"]) == row["next_ms"]
