"""The README's first job, run as written against a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import ServerProcess

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
def test_the_first_job_of_the_readme_runs_as_written(server: ServerProcess) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    run = subprocess.run(
        [sys.executable, "-c", program.replace("6789", str(server.tcp_port))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "to ada@example.com" in run.stdout
    assert "completed {'sent': True}" in run.stdout
