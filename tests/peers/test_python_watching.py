"""The published Python client against a real server: logs of jobs, gauges and totals."""

from __future__ import annotations

import pytest
from bunqueue import Job

from tests.peers.test_python_client import queue_of, worker_of
from tests.process import ServerProcess, wait_until


@pytest.mark.slow
def test_logs_gauges_and_totals_are_what_the_client_expects(server: ServerProcess) -> None:
    def process(job: Job) -> str:
        job.log("begun")
        job.log("half way", "warn")
        return "done"

    with queue_of(server, "watched") as queue, worker_of(server, "watched", process):
        queue.add("later", {}, delay=60_000, job_id="later")
        queue.add("n", {}, job_id="j", durable=True)
        wait_until(lambda: queue.get_state("j") == "completed", "the job is completed")
        queue.add_job_log("j", "looked at")

        lines = [(line["level"], line["message"]) for line in queue.get_job_logs("j")]
        assert lines == [("info", "begun"), ("warn", "half way"), ("info", "looked at")]
        assert [line["message"] for line in queue.get_job_logs("j", start=1, end=1)] == ["half way"]
        queue.clear_job_logs("j", keep_logs=1)
        assert [line["message"] for line in queue.get_job_logs("j")] == ["looked at"]
        stats = queue.get_stats()
        assert (stats["waiting"], stats["delayed"], stats["completed"], stats["failed"]) == (0, 1, 1, 0)
        metrics = queue.get_metrics()
        assert (metrics["totalPushed"], metrics["totalPulled"], metrics["totalCompleted"]) == (2, 1, 1)
