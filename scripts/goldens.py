"""Replay the recorded transcripts against a server, several at a time, as far as its commands reach.

    python scripts/goldens.py [--jobs 2] [--only SUBSTRING-OR-RECORDING] [--start 'COMMAND']

A scenario is replayed when every command in it is known to the server; the names of the others are
printed, so that nothing is left out in silence. Exit code 1 if any scenario differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, get_args

from bunqueue_trio.model.commands import AnyCommand

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import warm
from tests.golden import golden

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
RECORDINGS = ("core.json", "persistence.json", "commands.json", "scheduling.json", "http.json", "newer.json")
start_cold = golden.start_process
LATER = frozenset({})
"""Scenarios whose commands are known, though not yet all that they are asked to do."""
KNOWN_COMMANDS = {str(record.__struct_config__.tag) for record in get_args(AnyCommand)}


def is_known(step: dict[str, Any]) -> bool:
    """Whether the server can answer this step at all. Unknown commands that a scenario sends on purpose count."""
    if "send" in step:
        command = step["send"].get("cmd")
        meant = str(step.get("expect", {}).get("error", "")).startswith(("Unknown command", "Not auth", "Invalid"))
        return command in KNOWN_COMMANDS or meant
    return True


def reference_file_scenario(folder: Path) -> dict[str, Any]:
    """The steps of reference-small.json as one scenario over a copy of the file."""
    recording = json.loads((GOLDEN / "reference-small.json").read_text())
    data = folder / "reference-small.db"
    shutil.copy(GOLDEN / "reference-small.db", data)
    steps = [step for step in recording["steps"] if is_known(step)]
    left_out = len(recording["steps"]) - len(steps)
    env = {"BUNQUEUE_DATA_PATH": str(data), "SHUTDOWN_TIMEOUT_MS": 300}
    name = f"reference-small ({left_out} of {len(recording['steps'])} steps need later commands)"
    return {"name": name, "env": env, "steps": steps}


def replay(scenario: dict[str, Any], start: str) -> list[str]:
    """Run one scenario with the transcript tool; the first of what differs."""
    try:
        found: list[str] = golden.run(scenario, start, False, False)
    except Exception as error:  # one that cannot run is a difference
        found = [f"could not run: {type(error).__name__}: {error}"]
    return found[:12]


def start_warm(_command: str, env: dict[str, str], log: IO[bytes]) -> warm.WarmProcess | subprocess.Popen[bytes]:
    """The server as ``python -m bunqueue_trio`` starts it, without its imports."""
    if not warm.is_wanted(env):
        return start_cold(_command, env, log)
    return warm.STARTER.start(env=env, cwd=Path.cwd(), log=Path(log.name), new_session=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--start", help="a command; without it the server of this tree, imported only once")
    options = parser.parse_args()
    if options.start is None:
        golden.start_process = start_warm
    folder = Path(tempfile.mkdtemp(prefix="goldens-"))
    found = [(name, s) for name in RECORDINGS for s in json.loads((GOLDEN / name).read_text())["scenarios"]]
    found.append(("reference-small.json", reference_file_scenario(folder)))
    wanted = [s for name, s in found if options.only in s["name"] or name == f"{options.only}.json"]
    in_scope = [s for s in wanted if s["name"] not in LATER and all(is_known(step) for step in s["steps"])]
    for scenario in wanted:
        if scenario not in in_scope:
            print(f"later: {scenario['name']}")
    with ThreadPoolExecutor(options.jobs) as pool:
        start = options.start or f"{sys.executable} -m bunqueue_trio"
        runs = list(pool.map(lambda scenario: replay(scenario, start), in_scope))
    shutil.rmtree(folder, ignore_errors=True)
    for scenario, differences in zip(in_scope, runs, strict=True):
        if differences:
            print("\n    ".join([f"DIFF {scenario['name']}", *differences]))
    failed = sum(map(bool, runs))
    print(f"{len(runs) - failed} passed, {failed} failed, {len(wanted) - len(in_scope)} need later commands")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
