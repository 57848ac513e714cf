"""Starts of the server that cost no second of processor time: one process imports it once and forks off every server.

What is forked is a process of its own as any other, with its own group, log, environment and signals; it has only not
looked up and executed a thousand modules itself. Tests of the start and of the command line do without, and so does
everybody with ``BUNQUEUE_COLD_STARTS=1`` in the environment.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.01
PRELOADED = ("LD_PRELOAD", "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONHASHSEED")
"""Who sets one of these means the process from its very beginning."""


class WarmProcess:
    """A server that was forked off; the part of `subprocess.Popen` that tests use."""

    def __init__(self, starter: WarmStarter, pid: int) -> None:
        self._starter = starter
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._starter.ask({"poll": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("bunqueue_trio", timeout or 0.0)
            time.sleep(POLL_S)
        return code


class WarmStarter:
    """The process that forks, and the way to it. Started at the first use; ends with its maker."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self, *, env: Mapping[str, str], cwd: Path, log: Path, new_session: bool = False) -> WarmProcess:
        """``python -m bunqueue_trio`` with that environment; what it prints is appended to *log*."""
        request = {"env": dict(env), "cwd": str(cwd), "log": str(log), "new_session": new_session}
        return WarmProcess(self, self.ask(request)["pid"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One question to the process, and its answer."""
        with self._lock:
            if self._process is None:
                atexit.register(self._stop)
                self._process = subprocess.Popen(
                    [sys.executable, __file__],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            to, answers = self._process.stdin, self._process.stdout
            assert to is not None
            assert answers is not None
            to.write(json.dumps(request) + "\n")
            to.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

    def _stop(self) -> None:
        if self._process is not None:
            self._process.communicate()  # it ends when nobody can ask any more


STARTER = WarmStarter()


def is_wanted(env: Mapping[str, str]) -> bool:
    """Whether a server with that environment may be started warm."""
    return not os.environ.get("BUNQUEUE_COLD_STARTS") and not any(name in env for name in PRELOADED)


def _serve(requests: IO[str], answers: IO[str]) -> dict[str, Any] | None:
    """Fork for each request; returns None when nobody asks any more, and in each child what it was asked for."""
    ended: dict[int, int] = {}
    for line in requests:
        request = json.loads(line)
        if "poll" in request:
            answer = {"code": _exit_code(request["poll"], ended)}
        else:
            pid = os.fork()
            if pid == 0:
                return request  # type: ignore[no-any-return]
            answer = {"pid": pid}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return None


def _exit_code(pid: int, ended: dict[int, int]) -> int | None:
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended[pid]


def _become(request: dict[str, Any]) -> None:
    """What `subprocess.Popen` and the interpreter would have seen to."""
    if request["new_session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = ["bunqueue-trio"]
    sys.path[0] = str(ROOT)


if __name__ == "__main__":
    import bunqueue_trio.app  # noqa: F401  (what `main` would import)
    from bunqueue_trio.cli.main import main

    with os.fdopen(os.dup(0)) as incoming, os.fdopen(os.dup(1), "w") as outgoing:
        asked = _serve(incoming, outgoing)
    if asked is not None:
        _become(asked)
        main()
