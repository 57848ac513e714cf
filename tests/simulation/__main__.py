"""Replay one seed step by step, or run many.

    python -m tests.simulation 4711
    python -m tests.simulation --seeds 20000 [--first 0] [--jobs 2]

Exit code 1 if one of them has failed; what is printed names the seed.
"""

import argparse
import sys
import time

from tests.simulation.running import Outcome, run_many, run_seeds

FAILURES_SHOWN = 3


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, nargs="?", help="replay this one and say everything")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=None, help="processes; one per processor if not given")
    options = parser.parse_args()
    began = time.monotonic()
    total = Outcome()
    if options.seed is not None:
        total.add(run_seeds([options.seed], is_verbose=True))
    else:
        for outcome in run_many(options.first, options.seeds, options.jobs):
            total.add(outcome)
            for failure in outcome.failures.values():
                if len(total.failures) <= FAILURES_SHOWN:
                    print(failure, end="\n\n", flush=True)
    print(f"simulation: {total.report()}; {time.monotonic() - began:.1f} s")
    print(f"failing seeds: {' '.join(map(str, total.failures)) or 'none'}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
