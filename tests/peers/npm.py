"""Programs of `tests/peers/js/`, run by bun with one of the published packages: what they say, line by line."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.peers import packages
from tests.process import PATIENCE_S, ServerProcess

PROGRAMS = Path(__file__).parent / "js"

NOT_TESTED = "THE JAVASCRIPT CLIENTS ARE NOT TESTED"


def require_packages() -> None:
    """Skip the test, and say so, where the packages are not installed; with ``PEERS_REQUIRED=1`` it fails."""
    reason = packages.missing()
    if reason is None:
        return
    what = f"{NOT_TESTED}: {reason}"
    if os.environ.get("PEERS_REQUIRED") == "1":
        pytest.fail(what)
    pytest.skip(what)


class Program:
    """A program that runs beside the test. Its output is JSON lines; what it writes to stderr is shown when it fails.

    Args:
        version: of the package it drives.
        arguments: of bun: the program and its arguments.
    """

    def __init__(self, server: ServerProcess, version: str, *arguments: str | Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [str(packages.bun()), *map(str, arguments)],
            env=environment_of(server, version) | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)
            self._lines.put(line)
        self._lines.put(None)

    @property
    def output(self) -> str:
        """Everything it has written, for messages."""
        return "".join(self._output)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Everything it has said so far."""
        return [json.loads(line) for line in self._output if line.startswith("{")]

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def said(self, *keys: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next thing it says that has these keys; what it says before is passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not said within {timeout_s:.0f} s: {keys}\n{self.output}") from None
            assert line is not None, f"the program ended without saying {keys}:\n{self.output}"
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                if all(key in message for key in keys):
                    return message

    def finish(self) -> list[dict[str, Any]]:
        """Close its standard input and wait for its end; all that it has said."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program does not end:\n{self.output}") from None
        self._reader.join()
        assert code == 0, self.output
        return self.messages


def environment_of(server: ServerProcess, version: str) -> dict[str, str]:
    """What `js/client.ts` reads, beside the environment of the tests."""
    return os.environ | {"PEERS_PACKAGE": str(packages.package_folder(version)), "PEERS_PORT": str(server.tcp_port)}


def prefix_of(file: str, version: str) -> str:
    """What the names of the queues of a file's scenarios begin with; a hyphen and the scenario follow."""
    return re.sub(r"\W", "-", f"{Path(file).stem}-{version}")


class Outcomes:
    """What came of the scenarios of one file, which all ran at once in one program."""

    def __init__(self, server: ServerProcess, version: str, file: str, **environment: str) -> None:
        environment["PEERS_PREFIX"] = prefix_of(file, version)
        with Program(server, version, PROGRAMS / "run.ts", PROGRAMS / file, **environment) as program:
            self._said = {line["scenario"]: line for line in program.finish()}

    def __getitem__(self, scenario: str) -> Any:
        """The outcome of a scenario in which no ``error`` event was seen."""
        outcome, errors = self.with_errors(scenario)
        assert errors == [], errors
        return outcome

    def with_errors(self, scenario: str) -> tuple[Any, list[str]]:
        """The outcome of a scenario, and what ``error`` events said."""
        said = self._said[scenario]
        assert "failure" not in said, f"{scenario}: {said['failure']}\nerrors: {said['errors']}"
        return said.get("outcome"), said["errors"]


def run_cli(server: ServerProcess, version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command of the package's command line."""
    script = packages.package_folder(version) / "node_modules" / "bunqueue" / "dist" / "cli" / "index.js"
    command: Sequence[str] = [str(packages.bun()), str(script), "--port", str(server.tcp_port), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL
    )
