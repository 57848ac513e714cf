"""CompactMemory: what the server can give back at once, without anybody noticing."""

from __future__ import annotations

import gc
import sys

from bunqueue_trio.engine.state import State

PAUSE_MS = 1_000  # a client that asks all the time must not keep the loop busy
SPARSE_BYTES = 1_048_576  # an index smaller than this is not worth a copy
SPARSE_BYTES_PER_JOB = 400  # a full one takes 40 to 80


class Compaction:
    """Collects garbage, and shrinks the index of jobs after a peak: a dict keeps the room it once needed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._next_mono_ms = 0.0

    def run(self, mono_ms: float) -> bool:
        """Do it now, unless that was done less than a second ago. Returns whether anything was done.

        Cost: 10 ms of the loop with 100,000 jobs, 50 ms with a million.
        """
        if mono_ms < self._next_mono_ms:
            return False
        self._next_mono_ms = mono_ms + PAUSE_MS
        state = self._state
        index_bytes = sys.getsizeof(state.jobs)
        if index_bytes > SPARSE_BYTES and index_bytes > SPARSE_BYTES_PER_JOB * len(state.jobs):
            state.jobs = dict(state.jobs)
        gc.collect()
        return True
