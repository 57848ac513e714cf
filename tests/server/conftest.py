"""Fixtures: the keepers over a store in memory, and connections to them. A test asks for ``autojump_clock`` itself."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from bunqueue_trio import logs
from bunqueue_trio.config import Config
from bunqueue_trio.server.reaper import run_reaper
from tests.server.fakes import Rig, Wire


@pytest.fixture
async def start_rig(nursery: trio.Nursery):
    """Make a `Rig` whose flusher and, unless told otherwise, whose reaper run."""
    rigs: list[Rig] = []

    async def start(*, reaper: bool = True, flusher: bool = True, **options: Any) -> Rig:
        rig = Rig(**options)
        rigs.append(rig)
        if flusher:
            await nursery.start(rig.flusher.run)
        if reaper:
            interval_ms = Config().worker_cleanup_interval_ms
            nursery.start_soon(lambda: run_reaper(rig.broker, worker_cleanup_interval_ms=interval_ms))
        return rig

    yield start
    for rig in rigs:
        rig.check()
        rig.store.open_gate()


@pytest.fixture
async def rig(start_rig: Callable[..., Any]) -> Rig:
    """The usual one."""
    return await start_rig()


@pytest.fixture
async def connect(nursery: trio.Nursery):
    """Open a served connection to a rig."""
    wires: list[Wire] = []

    def open_wire(rig: Rig, config: Config | None = None, **options: Any) -> Wire:
        wire = Wire(rig, config, **options)
        wires.append(wire)
        nursery.start_soon(wire.serve)
        return wire

    yield open_wire
    for wire in wires:
        wire.close()
        wire.server_stream.close()


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Read the log lines since the last call."""
    logs.configure("debug", "json")

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read
