"""Smoothed rates."""

import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.holdings import Totals
from bunqueue_trio.server.rates import Rates


class Reading:
    """A clock, totals, and rates over both."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.totals = Totals()
        self.rates = Rates(self.totals, self.clock.now())

    def after(self, ms: float, **counts: int) -> dict[str, float]:
        for name, count in counts.items():
            setattr(self.totals, name, getattr(self.totals, name) + count)
        return self.rates.read(self.clock.advance(ms))


def test_nothing_has_happened():
    assert Reading().after(1_000) == {"pushPerSec": 0, "pullPerSec": 0, "completePerSec": 0, "failPerSec": 0}


@pytest.mark.parametrize(
    ("total", "name"),
    [("pushed", "pushPerSec"), ("pulled", "pullPerSec"), ("completed", "completePerSec"), ("failed", "failPerSec")],
)
def test_each_total_has_its_rate(total, name):
    rates = Reading().after(500, **{total: 10})

    assert {key: rate for key, rate in rates.items() if rate} == {name: 20}


def test_the_first_sample_that_is_not_zero_counts_whole_and_later_ones_three_tenths():
    reading = Reading()
    reading.after(1_000)

    assert reading.after(1_000, pushed=100)["pushPerSec"] == 100
    assert reading.after(1_000, pushed=200)["pushPerSec"] == 130
    assert reading.after(2_000)["pushPerSec"] == 91


def test_a_reading_within_a_tenth_of_a_second_repeats_the_last():
    reading = Reading()
    reading.after(1_000, pushed=100)

    assert reading.after(99, pushed=50)["pushPerSec"] == 100
    assert reading.after(1, pushed=0)["pushPerSec"] == 220


def test_two_decimals_are_shown():
    assert Reading().after(3_000, pushed=1)["pushPerSec"] == 0.33
