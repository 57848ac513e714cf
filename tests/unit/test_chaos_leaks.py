"""The leak check of the fault-injection suites sees a leak, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.chaos.bounds import MIB
from tests.chaos.leaks import SWEPT, TYPES_LEFT, Baseline, RssWatch
from tests.process import ServerProcess


def held(descriptors: int = 9, *, internals: dict[str, int] | None = None, types: dict[str, int] | None = None) -> Any:
    return Baseline({"internals": internals or {}, "ownTypes": types or {}}, descriptors)


def test_one_more_entry_is_left_over():
    left = held(internals={"jobs": 3}).left_over(held(internals={"jobs": 4, "held": 0}))

    assert left == {"jobs": (3, 4)}


def test_less_than_before_is_no_leak():
    assert held(internals={"jobs": 3}).left_over(held(internals={"jobs": 1})) == {}


def test_caches_and_what_is_swept_later_may_stay():
    now = held(internals={"history": 500, "timers": SWEPT["timers"]})

    assert held().left_over(now) == {}
    assert held().left_over(held(internals={"timers": SWEPT["timers"] + 1})) == {"timers": (0, SWEPT["timers"] + 1)}


def test_what_a_suite_leaves_on_purpose_does_not_count():
    assert held().left_over(held(internals={"jobs": 1, "queues": 1}), but={"jobs"}) == {"queues": (0, 1)}


def test_objects_and_descriptors_are_counted_too():
    now = held(9 + TYPES_LEFT + 1, types={"Session": TYPES_LEFT + 3, "Connection": TYPES_LEFT})

    left = held(types={"Session": 2}).left_over(now)

    assert left == {"Session": (2, TYPES_LEFT + 3), "descriptors": (9, 9 + TYPES_LEFT + 1)}


class Growing:
    """A server whose memory is what it is told."""

    def __init__(self, *mib: int) -> None:
        self._left = list(mib)

    def rss_bytes(self) -> int:
        return self._left.pop(0) * MIB


def watched(*mib: int) -> RssWatch:
    watch = RssWatch(cast(ServerProcess, Growing(*mib)))
    for _ in mib:
        watch.note()
    return watch


def test_memory_that_levels_off_is_flat():
    watched(50, 90, 101, 100, 102, 101, 100, 102).assert_flat(5 * MIB)


def test_memory_that_grows_with_every_round_is_not():
    with pytest.raises(AssertionError, match="after each round"):
        watched(50, 90, 100, 110, 120, 130, 140, 150).assert_flat(5 * MIB)


def test_nothing_is_said_of_two_rounds():
    with pytest.raises(AssertionError, match="too few"):
        watched(50, 60, 70).assert_flat()
