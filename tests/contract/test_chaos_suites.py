"""There is a fault-injection suite for each row of the failure table, and no other (R103, R135, R136, K30)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "chaos"
SUITES = {
    "test_server_crash.py",
    "test_faults.py",
    "test_churn.py",
    "test_races.py",
    "test_lock_expiry.py",
    "test_overload.py",
    "test_protocol_garbage.py",
    "test_deploy_restart.py",
    "test_uptime.py",
    "test_durability_gaps.py",
    "test_clock_jumps.py",
    "test_disk_full.py",
}


def test_the_table_of_the_readme_names_all_twelve():
    named = re.findall(r"^\| .* \| `(test_\w+\.py)` \| .* \|$", (ROOT / "README.md").read_text(), re.MULTILINE)

    assert set(named) == SUITES
    assert len(named) == 13  # worker death and crons under clock skew share a file


def test_the_folder_holds_no_other_suites():
    assert {path.name for path in FOLDER.glob("test_*.py")} == SUITES


@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_*.py")), ids=lambda path: path.name)
def test_each_suite_says_what_must_hold(path: Path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""

    assert "Invariant" in docstring
