"""Replay the recorded transcripts against a server, several at a time, as far as its commands reach.

    python scripts/goldens.py [--jobs 2] [--only SUBSTRING-OR-RECORDING] [--start 'python -m bunqueue_trio']

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
from typing import Any, get_args

from bunqueue_trio.model.commands import AnyCommand

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
RECORDINGS = ("core.json", "persistence.json", "commands.json", "scheduling.json", "http.json", "newer.json")
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


def replay(scenario: dict[str, Any], start: str, folder: Path, number: int) -> tuple[bool, str]:
    """Run one scenario with the transcript tool; its verdict and what it printed."""
    path = folder / f"{number}.json"
    path.write_text(json.dumps({"scenarios": [scenario]}))
    run = subprocess.run(
        [sys.executable, str(GOLDEN / "golden.py"), "replay", str(path), "--start", start],
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode == 0, run.stdout + run.stderr


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--start", default=f"{sys.executable} -m bunqueue_trio")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="goldens-"))
    found = [(name, s) for name in RECORDINGS for s in json.loads((GOLDEN / name).read_text())["scenarios"]]
    found.append(("reference-small.json", reference_file_scenario(folder)))
    wanted = [s for name, s in found if options.only in s["name"] or name == f"{options.only}.json"]
    in_scope = [s for s in wanted if s["name"] not in LATER and all(is_known(step) for step in s["steps"])]
    for scenario in wanted:
        if scenario not in in_scope:
            print(f"later: {scenario['name']}")
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda pair: replay(pair[1], options.start, folder, pair[0]), enumerate(in_scope)))
    shutil.rmtree(folder, ignore_errors=True)
    for is_good, output in runs:
        if not is_good:
            print(output.strip())
    failed = sum(not is_good for is_good, _ in runs)
    print(f"{len(runs) - failed} passed, {failed} failed, {len(wanted) - len(in_scope)} need later commands")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
