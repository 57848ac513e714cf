"""The published Python client against a real server: the main job, and nothing lost over kills and restarts.

Source: requirement "A server that runs"; design, "What ok means".
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bunqueue import AuthError, CommandError, Job, Queue, UnrecoverableError, Worker

from tests.peers.ledger import read_ledger
from tests.process import ROOT, Client, ServerProcess, StartServer, wait_until

PUSHES = 2_000
KILLS = 5
QUEUE = "counting"
SECOND_NS = 1_000_000_000


# the main job


def test_a_job_pushed_with_the_client_is_worked_by_its_worker_and_its_result_kept(server: ServerProcess) -> None:
    seen = []

    def process(job: Job) -> dict[str, object]:
        job.update_progress(50, "half")
        seen.append((job.name, job.data["to"], job.attempts, job.priority))
        return {"sent": True, "text": "héllo", "size": 2**40}

    with queue_of(server, "mail") as queue, worker_of(server, "mail", process):
        job = queue.add("send", {"to": "a@example.org"}, priority=5, durable=True)
        wait_until(lambda: queue.get_state(job.id) == "completed", "the job is completed")

        assert seen == [("send", "a@example.org", 0, 5)]
        assert queue.get_result(job.id) == {"sent": True, "text": "héllo", "size": 2.0**40}
        assert queue.get_job_counts()["completed"] == 1


@pytest.mark.slow
def test_every_option_of_the_client_reaches_the_job(server: ServerProcess) -> None:
    options = {
        "priority": 7, "delay": 60_000, "attempts": 9, "backoff": {"type": "exponential", "delay": 20, "maxDelay": 90},
        "ttl": 90_000, "timeout": 8_000, "job_id": "mine", "unique_key": "only", "tags": ["a", "b"],
        "group_id": "g", "lifo": True, "remove_on_complete": True, "remove_on_fail": True, "stall_timeout": 5_000,
        "stack_trace_limit": 3, "keep_logs": 4, "timestamp": 1_700_000_000_000,
    }  # fmt: skip

    with queue_of(server, "options") as queue:
        added = queue.add("send", {"n": 1}, **options)
        job = queue.get_job("mine")

        assert added.id == "mine"
        assert job is not None
        assert (job.priority, job.max_attempts, job.custom_id, job.tags) == (7, 9, "mine", ["a", "b"])
        assert (job.group_id, job.created_at, job.name, job.state) == ("g", 1_700_000_000_000, "send", "prioritized")
        raw = {name: job.raw[name] for name in ("runAt", "ttl", "timeout", "uniqueKey", "lifo", "removeOnComplete")}
        assert raw == {
            "runAt": 1_700_000_060_000, "ttl": 90_000, "timeout": 8_000, "uniqueKey": "only", "lifo": True,
            "removeOnComplete": True,
        }  # fmt: skip
        assert job.raw["backoffConfig"] == {"type": "exponential", "delay": 20, "maxDelay": 90}
        assert (job.raw["removeOnFail"], job.raw["stallTimeout"], job.raw["stackTraceLimit"]) == (True, 5_000, 3)


@pytest.mark.slow
def test_bulk_pushes_keep_their_order_and_their_ids(server: ServerProcess) -> None:
    with queue_of(server, "bulk") as queue:
        jobs = [{"name": "n", "data": {"i": i}, "job_id": f"b{i}", "durable": i % 2 == 0} for i in range(100)]

        assert queue.add_bulk(jobs) == [f"b{i}" for i in range(100)]
        assert queue.add_bulk(jobs) == [f"b{i}" for i in range(100)]
        assert queue.count() == 100


@pytest.mark.slow
def test_a_failing_job_is_retried_and_ends_among_the_dead_letters_with_its_stack(server: ServerProcess) -> None:
    runs = []

    def process(job: Job) -> None:
        runs.append((job.id, job.attempts))
        if job.id == "hopeless":
            raise UnrecoverableError("no use")
        raise ValueError("boom")

    with queue_of(server, "failing") as queue, worker_of(server, "failing", process):
        queue.add("n", {}, job_id="tried", attempts=3, backoff=10)
        queue.add("n", {}, job_id="hopeless", attempts=3, backoff=10)
        wait_until(lambda: queue.get_job_counts()["failed"] == 2, "both are dead")

        assert [attempts for job_id, attempts in runs if job_id == "tried"] == [0, 1, 2]
        assert [attempts for job_id, attempts in runs if job_id == "hopeless"] == [0]
        letters = {letter["id"]: letter for letter in queue.get_dlq()}
        assert set(letters) == {"tried", "hopeless"}
        assert letters["tried"]["attempts"] == 3
        assert letters["tried"]["stacktrace"][-1] == "ValueError: boom"


@pytest.mark.slow
def test_a_batching_worker_and_a_long_job_under_a_short_lease(server: ServerProcess) -> None:
    runs: list[str] = []
    pause = threading.Event()

    def process(job: Job) -> int:
        runs.append(job.id)
        if job.data["n"] == 0:
            pause.wait(4)
        return int(job.data["n"])

    options = {"ack_batch": {"max_size": 10, "max_delay_ms": 5}, "lock_ttl_ms": 1_500, "heartbeat_interval_s": 0.3}
    with queue_of(server, "batch") as queue, worker_of(server, "batch", process, **options):
        ids = queue.add_bulk([{"name": "n", "data": {"n": n}} for n in range(50)])
        wait_until(lambda: queue.get_job_counts()["completed"] == 50, "all are completed")

        assert sorted(runs) == sorted(ids)
        assert [queue.get_result(job_id) for job_id in ids] == list(range(50))


@pytest.mark.slow
def test_pause_resume_cancel_and_the_stall_policy_through_the_client(server: ServerProcess) -> None:
    with queue_of(server, "control") as queue:
        queue.pause()
        job = queue.add("n", {})
        assert queue.is_paused()
        assert queue.get_job_counts()["paused"] == 1
        queue.resume()
        assert not queue.is_paused()
        queue.remove(job.id)
        assert queue.get_state(job.id) == "unknown"
        queue.set_stall_config({"maxStalls": 9})
        assert queue.get_stall_config()["maxStalls"] == 9
        assert queue.list_queues() == ["control"]
        assert queue.connection.hello()["protocolVersion"] == 2


@pytest.mark.slow
def test_a_token_lets_the_client_in_and_a_wrong_one_does_not(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="right,other")

    with queue_of(server, "guarded", token="other") as queue:
        assert queue.add("n", {}).id
    with queue_of(server, "guarded", token="wrong") as queue, pytest.raises(AuthError):
        queue.add("n", {})
    with queue_of(server, "guarded") as queue, pytest.raises(CommandError, match="Not authenticated"):
        queue.add("n", {})


# nothing is lost


@pytest.mark.slow
def test_kill_9_under_load_loses_no_promise_and_repeats_nothing_confirmed(
    server: ServerProcess, tmp_path: Path
) -> None:
    kills = run_campaign(server, tmp_path, signal.SIGKILL)
    pushes = list(read_ledger(tmp_path / "pushes"))
    states = final_states(server, pushes)

    promised = promised_ids(pushes, kills)
    assert sum(fact == "durable" for _, _, fact in pushes) == PUSHES // 2
    assert [job_id for job_id in promised if states[job_id] != "completed"] == []
    # Each kill may take at most what was pushed since the last commit that somebody waited for.
    assert sum(state != "completed" for state in states.values()) <= KILLS * 5
    runs = check_runs(tmp_path, kills)
    assert any(attempts > 0 for run in runs.values() for _, attempts in run)


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_and_repeats_nothing(server: ServerProcess, tmp_path: Path) -> None:
    run_campaign(server, tmp_path, signal.SIGTERM)
    pushes = list(read_ledger(tmp_path / "pushes"))
    states = final_states(server, pushes)

    assert len(states) == PUSHES
    assert set(states.values()) == {"completed"}
    runs = check_runs(tmp_path, [])
    assert {job_id: [attempts for _, attempts in run] for job_id, run in runs.items() if len(run) != 1} == {}
    assert {attempts for run in runs.values() for _, attempts in run} == {0}


def run_campaign(server: ServerProcess, directory: Path, number: signal.Signals) -> list[int]:
    """One producer, two workers, five ends of the server under load. Returns the moments of the ends."""
    ends = []
    with server.connect() as client:
        client.ok("SetStallConfig", queue=QUEUE, config={"maxStalls": 1_000})
    port = str(server.tcp_port)
    with (
        program("ledger_worker", port, QUEUE, str(directory / "w1")) as first,
        program("ledger_worker", port, QUEUE, str(directory / "w2")) as second,
        program("ledger_producer", port, QUEUE, str(PUSHES), str(directory / "pushes")) as producer,
    ):
        for end in range(1, KILLS + 1):
            wait_for_pushes(directory, end * PUSHES // (KILLS + 1))
            server.signal(number)
            code = server.wait_exit()
            ends.append(time.monotonic_ns())
            assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL), server.last_log
            server.start()
        assert producer.wait(300) == 0
        with server.connect() as client:
            wait_until(lambda: is_drained(client), "everything is worked", 300)
        stop(first, second)
    server.restart()
    return ends


def promised_ids(pushes: list[tuple[int, str, str]], kills: list[int]) -> set[str]:
    """Durable pushes, and buffered ones followed by a durable one that was confirmed before the kill.

    The producer makes one push at a time and a flush carries everything that is dirty, so the later confirmation
    proves that the earlier push is in the file.
    """
    promised: set[str] = set()
    buffered: set[str] = set()
    coming = sorted(kills)
    for moment, job_id, fact in pushes:
        if coming and moment > coming[0]:  # sent to a later run
            buffered.clear()
            coming = [kill for kill in coming if kill >= moment]
        if fact == "durable":
            promised |= buffered | {job_id}
            buffered.clear()
        else:
            buffered.add(job_id)
    return promised


def check_runs(directory: Path, kills: list[int]) -> dict[str, list[tuple[int, int]]]:
    """No run after a confirmed ACK; attempts count up. Returns moment and attempts of each run, by job."""
    runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    acks: dict[str, int] = {}
    for name in ("w1", "w2"):
        for moment, job_id, fact in read_ledger(directory / name):
            if fact == "ack":
                acks[job_id] = min(moment, acks.get(job_id, moment))
            else:
                runs[job_id].append((moment, int(fact.removeprefix("run:"))))
    again = {job_id: run for job_id, run in runs.items() if max(run)[0] > acks.get(job_id, max(run)[0])}
    assert {job_id: (acks[job_id], run) for job_id, run in again.items()} == {}
    for job_id, run in runs.items():
        run.sort()
        for (moment, before), (_, after) in pairwise(run):
            # A pull is written with the next flush: a kill right after it leaves no trace of that run.
            is_unwritten = any(abs(kill - moment) < SECOND_NS for kill in kills)
            assert after > before or (after == before and is_unwritten), (job_id, run, kills)
    return runs


def final_states(server: ServerProcess, pushes: list[tuple[int, str, str]]) -> dict[str, str]:
    ids = [job_id for _, job_id, _ in pushes]
    assert len(ids) == len(set(ids)) == PUSHES
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in ids])
    server.assert_no_faults()
    return {job_id: reply["state"] for job_id, reply in zip(ids, replies, strict=True)}


def wait_for_pushes(directory: Path, count: int) -> None:
    wait_until(lambda: sum(1 for _ in read_ledger(directory / "pushes")) >= count, f"{count} pushes", 300)


def is_drained(client: Client) -> bool:
    counts = client.ok("GetJobCounts", queue=QUEUE)["counts"]
    assert counts["failed"] == 0
    return bool(sum(counts.values()) == counts["completed"])


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of the programs beside this file; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.peers.{name}", *arguments], cwd=ROOT, stdin=subprocess.PIPE, process_group=0
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def stop(*workers: subprocess.Popen[bytes]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    assert [worker.wait(60) for worker in workers] == [0] * len(workers)


@contextmanager
def queue_of(server: ServerProcess, name: str, **options: Any) -> Iterator[Queue]:
    queue = Queue(name, host="127.0.0.1", port=server.tcp_port, command_timeout=60, **options)
    try:
        yield queue
    finally:
        queue.close()


@contextmanager
def worker_of(server: ServerProcess, queue: str, process: Callable[[Job], object], **options: Any) -> Iterator[Worker]:
    settings: dict[str, Any] = {"poll_timeout_ms": 500, **options}
    worker = Worker(queue, process, host="127.0.0.1", port=server.tcp_port, **settings)
    try:
        yield worker
    finally:
        assert worker.close(timeout=30)
