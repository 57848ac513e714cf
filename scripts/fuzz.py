"""Run every fuzz target for a while, a few at a time; exit code 1 if one of them has found something.

    python scripts/fuzz.py --seconds 30 [--jobs 2] [--plain] [TARGET ...]

What was found is kept in build/fuzz, with the log of each target; `python fuzz/fuzz_TARGET.py FILE` runs it again.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / "build" / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in (ROOT / "fuzz").glob("fuzz_*.py"))
PATIENCE_S = 200  # beyond the time it was given: to watch imports takes a minute where others need the processor


def fuzz(target: str, seconds: int, *, is_plain: bool) -> bool:
    """Run one target; True when it found nothing."""
    command = [sys.executable, str(ROOT / "fuzz" / f"fuzz_{target}.py"), f"-max_total_time={seconds}"]
    command += ["--plain"] if is_plain else []
    began = time.monotonic()
    log = FOUND / f"{target}.log"
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command, cwd=FOUND, stdout=output, stderr=subprocess.STDOUT, timeout=seconds + PATIENCE_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    lines = log.read_text("utf-8", "replace").splitlines() or ["(no output)"]
    print(f"{target}: exit {code} after {time.monotonic() - began:.0f} s: {lines[-1]}", flush=True)
    if code:
        print("\n".join(lines[-40:]), flush=True)
    return code == 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="made-up inputs only, also where atheris is installed")
    options = parser.parse_args()
    FOUND.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        ends = pool.map(lambda target: fuzz(target, options.seconds, is_plain=options.plain), options.targets)
        return 0 if all(list(ends)) else 1


if __name__ == "__main__":
    sys.exit(main())
