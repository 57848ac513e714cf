"""Seeded histories of a whole server on a bad disk; see `tests.simulation.simulation` for what must hold.

A failure names its seed; ``python -m tests.simulation SEED`` tells the story again. `make sim SEEDS=20000` runs more.

Source: R101, R102, R138, R140, R182, R183, R186 to R190, R192 to R196, R200; design, "How it is tested".
"""

import pytest

from tests.simulation.regressions import SEEDS as REGRESSIONS
from tests.simulation.running import SEEDS_AT_ONCE, run_seeds

SEEDS = 2_000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_no_seed_breaks_a_promise(first):
    outcome = run_seeds(range(first, first + SEEDS_AT_ONCE))

    print(outcome.report())
    assert not outcome.failures, "\n\n".join(outcome.failures.values())


def test_a_few_seeds_in_the_quick_run():
    outcome = run_seeds([*range(20), *REGRESSIONS])

    assert not outcome.failures, "\n\n".join(outcome.failures.values())
    assert outcome.books["lost"] == 0


def test_the_same_seed_tells_the_same_story():
    first, again = (run_seeds(range(5)).books for _ in range(2))

    assert first == again
