"""The books of a fault-injection suite: what was pushed and confirmed, what ran and where, what is there in the end.

Threads write down what they know *before* it can stop being true: a push is pushed before it is sent, a run has ended
before its ACK is sent or its connection is cut. So what the books call wrong is wrong, whatever the schedule.

Invariants that `Ledger.check` holds against the server:

- lost: a job whose push was confirmed is not there in the end. Pushes that a fault may cost by contract (buffered ones
  at a hard kill) are named with `Ledger.excuse`.
- run twice at once: a run began while another one of the same job had neither ended nor outlived its lease.
- run after its end: a run began although a completion of the job had been confirmed before.
- ended twice: two completions of one job were confirmed.
- never pushed: a job is there, or runs, that nobody pushed, or whose push was refused.

What has come to its end and was checked can be settled: it is counted and forgotten, so that a run of a day needs no
more memory than one of a minute. Should it come back, it is a job that nobody has pushed.

That a job runs again after its worker or server has died is no fault: delivery is at least once (R200).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable


class Ledger:
    """What the clients of one suite know. Any thread may write."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.pushed: set[str] = set()
        """Sent, answered or not."""
        self.acknowledged: set[str] = set()
        """Pushes the server said ok to."""
        self.refused_count = 0
        """Pushes it said no to."""
        self.excused: set[str] = set()
        """Acknowledged ones that a fault may have cost by contract."""
        self.runs: Counter[str] = Counter()
        """How often each job was begun."""
        self.completed: set[str] = set()
        """Completions the server said ok to."""
        self.found: set[str] | None = None
        """What the server has in the end; None: not asked yet, and nothing can be said of losses."""
        self.came_from_nowhere: set[str] = set()
        """Were found, or ran, and nobody has pushed them."""
        self.run_twice_at_once: set[str] = set()
        self.run_after_end: set[str] = set()
        self.ended_twice: set[str] = set()
        self.remarks: list[str] = []
        """Whatever else the report should say, such as a seed or a measured figure."""
        self._running: dict[str, tuple[object, float]] = {}
        """Worker, and when its lease ends."""
        self._newest: dict[str, object] = {}
        """Who was given each job last."""
        self._settled: Counter[str] = Counter()
        self._lock = threading.RLock()

    # pushes

    def push(self, *job_ids: str) -> None:
        """These are about to be pushed."""
        with self._lock:
            self.pushed.update(job_ids)

    def acknowledge(self, *job_ids: str) -> None:
        """The server has said ok to the push of these."""
        with self._lock:
            self.acknowledged.update(self.pushed.intersection(job_ids))  # others were settled meanwhile

    def refuse(self, *job_ids: str) -> None:
        """The server has said no to the push of these: they must never be seen."""
        with self._lock:
            self.refused_count += len(job_ids)
            self.pushed.difference_update(job_ids)

    def excuse(self, *job_ids: str) -> None:
        """These may be gone: their pushes were buffered when the server was killed."""
        with self._lock:
            self.excused.update(job_ids)

    # runs

    def begin(self, job_id: str, worker: object, *, lease_ends: float = math.inf) -> None:
        """*worker* was given the job. From *lease_ends* on, on the monotonic clock, somebody else may be given it too.

        A lease begins when the server grants it: reckoned from the moment of asking, it ends too early and never late.
        """
        with self._lock:
            self.runs[job_id] += 1
            if job_id not in self.pushed:
                self.came_from_nowhere.add(job_id)
            if time.monotonic() < self._running.get(job_id, (None, -math.inf))[1]:
                self.run_twice_at_once.add(job_id)
            if job_id in self.completed:
                self.run_after_end.add(job_id)
            self._running[job_id] = (worker, lease_ends)
            self._newest[job_id] = worker

    def renew(self, job_id: str, worker: object, *, lease_ends: float) -> None:
        """*worker* has prolonged its lease."""
        with self._lock:
            if self._running.get(job_id, (None, 0.0))[0] == worker:
                self._running[job_id] = (worker, lease_ends)

    def end(self, job_id: str, worker: object) -> None:
        """*worker* no longer works on the job: it is about to say so, or to die."""
        with self._lock:
            if self._running.get(job_id, (None, 0.0))[0] == worker:
                del self._running[job_id]

    def end_all(self, worker: object | None = None) -> None:
        """*worker*, or everybody, is about to die."""
        with self._lock:
            ended = [job_id for job_id, (holder, _) in self._running.items() if worker is None or holder == worker]
            for job_id in ended:
                del self._running[job_id]

    def complete(self, *job_ids: str, worker: object | None = None) -> None:
        """The server has said ok to the completion of these.

        It also says so, and does nothing, to the *worker* of a lease that was over when another one has completed the
        job: what another worker was given since is not written down.
        """
        with self._lock:
            ended = {job_id for job_id in job_ids if worker is None or self._newest.get(job_id) == worker}
            ended &= self.pushed  # others were settled meanwhile
            self.ended_twice.update(self.completed & ended)
            self.completed.update(ended)

    # the end

    def find(self, job_ids: Iterable[str]) -> None:
        """The server has these, in whatever state."""
        with self._lock:
            found = set(job_ids)
            self.found = found if self.found is None else self.found | found
            self.came_from_nowhere |= found - self.pushed

    def settle(self, job_ids: Iterable[str]) -> None:
        """Nothing is to be expected of these any more; they must have been found."""
        with self._lock:
            found = self.found or set()
            for job_id in job_ids:
                assert job_id in found, f"{job_id} was not found"
                assert job_id not in self._running, f"{job_id} is running"
                figures = self._figures_of(job_id)
                self._settled.update(figures)
                found.discard(job_id)
                self._drop(job_id)

    def forget(self, job_ids: Iterable[str]) -> None:
        """These are gone and excused, or their push was never answered. They are counted, and may not come back."""
        with self._lock:
            for job_id in list(job_ids):
                is_answered = job_id in self.acknowledged
                assert job_id in self.excused or not is_answered, f"{job_id} is not excused"
                self._settled.update(self._figures_of(job_id) | {"found": 0, "gone": int(is_answered)})
                self._drop(job_id)

    def _drop(self, job_id: str) -> None:
        for books in (self.pushed, self.acknowledged, self.excused, self.completed):
            books.discard(job_id)
        self.runs.pop(job_id, None)
        self._newest.pop(job_id, None)

    def _figures_of(self, job_id: str) -> dict[str, int]:
        return {
            "pushed": int(job_id in self.pushed),
            "acknowledged": int(job_id in self.acknowledged),
            "found": 1,
            "excused": int(job_id in self.excused),
            "runs": self.runs[job_id],
            "run again": int(self.runs[job_id] > 1),
            "completed": int(job_id in self.completed),
        }

    def remark(self, text: str) -> None:
        """Have the report say this too."""
        with self._lock:
            self.remarks.append(text)

    @property
    def lost(self) -> set[str]:
        """Confirmed pushes that are not there and should be."""
        if self.found is None:
            return set()
        return self.acknowledged - self.found - self.excused

    @property
    def missing(self) -> set[str]:
        """Like `lost`, with what is excused."""
        return set() if self.found is None else self.acknowledged - self.found

    @property
    def run_again(self) -> set[str]:
        """Jobs with more than one run, one after the other: no fault."""
        return {job_id for job_id, count in self.runs.items() if count > 1}

    @property
    def open_count(self) -> int:
        """Confirmed pushes without a confirmed completion: what is left to do, about."""
        return len(self.acknowledged) - len(self.completed)

    @property
    def found_count(self) -> int:
        """What was found, whether settled since or not."""
        return len(self.found or ()) + self._settled["found"]

    def report(self) -> str:
        """The books in one line."""
        past = self._settled
        found = "not asked" if self.found is None else self.found_count
        figures = {
            "pushed": len(self.pushed) + past["pushed"] + self.refused_count,
            "refused": self.refused_count,
            "acknowledged": len(self.acknowledged) + past["acknowledged"],
            "found": found,
            "missing": f"{len(self.missing) + past['gone']} of {len(self.excused) + past['excused']} that might",
            "lost": len(self.lost),
            "runs": self.runs.total() + past["runs"],
            "run again": len(self.run_again) + past["run again"],
            "run twice at once": len(self.run_twice_at_once),
            "completed": len(self.completed) + past["completed"],
        }
        line = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        return "; ".join([f"{self.suite}: {line}", *self.remarks])

    def check(self) -> None:
        """Compare the books.

        Raises:
            AssertionError: an invariant is broken; it names which, with up to twenty jobs.
        """
        with self._lock:
            faults = {
                "lost": self.lost,
                "run twice at once": self.run_twice_at_once,
                "run after its end": self.run_after_end,
                "ended twice": self.ended_twice,
                "never pushed": self.came_from_nowhere,
            }
            broken = [f"{name} ({len(ids)}): {sorted(ids)[:20]}" for name, ids in faults.items() if ids]
        assert not broken, "\n".join([*broken, self.report()])
