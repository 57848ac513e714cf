"""Memory figures: near what the operating system says, and growing with what is allocated."""

import mmap
import os
import tracemalloc

import pytest

from bunqueue_trio.memory import MIB, measure_memory

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="compares with Linux's procfs")


def status_mib(key: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(f"{key}:"))


def test_figures_are_near_those_of_the_operating_system():
    memory = measure_memory()

    assert memory.rss == pytest.approx(status_mib("VmRSS"), rel=0.2)
    assert memory.heap_total == pytest.approx(status_mib("RssAnon"), rel=0.2)
    assert 0 < memory.heap_used <= memory.heap_total <= memory.rss


def test_the_heap_grows_with_what_is_allocated():
    before = measure_memory()
    # Not from the allocator: it may hold free space that earlier tests have left.
    kept = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, len(kept), mmap.PAGESIZE):
        kept[offset] = 1
    after = measure_memory()

    assert after.heap_used - before.heap_used == pytest.approx(len(kept) / MIB, abs=4)
    assert after.rss - before.rss == pytest.approx(len(kept) / MIB, abs=4)


def test_tracemalloc_gives_the_used_part_when_it_runs():
    tracemalloc.start()
    try:
        kept = b"x" * (8 * MIB)
        memory = measure_memory()
    finally:
        tracemalloc.stop()

    assert memory.heap_used == pytest.approx(len(kept) / MIB, abs=2)
