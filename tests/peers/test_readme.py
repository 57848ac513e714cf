"""The README's first jobs, run as written against a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.packages import NEWEST, bun, package_folder
from tests.process import ServerProcess

README = Path(__file__).resolve().parents[2] / "README.md"


def program_of_readme(language: str, server: ServerProcess) -> str:
    """The only program of that language, with the port of *server*."""
    (program,) = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return str(program).replace("6789", str(server.tcp_port))


@pytest.mark.slow
def test_the_first_job_of_the_readme_runs_as_written(server: ServerProcess) -> None:
    run = subprocess.run(
        [sys.executable, "-c", program_of_readme("python", server)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "to ada@example.com" in run.stdout
    assert "completed {'sent': True}" in run.stdout


@pytest.mark.slow
def test_the_first_job_in_javascript_runs_as_written(packages: None, server: ServerProcess, tmp_path: Path) -> None:
    assert f"bunqueue@{NEWEST}" in README.read_text()
    (tmp_path / "first.js").write_text(program_of_readme("javascript", server))
    (tmp_path / "node_modules").symlink_to(package_folder(NEWEST) / "node_modules")

    run = subprocess.run(
        [str(bun()), "first.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert run.returncode == 0, run.stderr
    assert "to ada@example.com" in run.stdout
    assert run.stdout.endswith("completed {\n  sent: true,\n}\n")
