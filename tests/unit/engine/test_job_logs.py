"""The store of log lines: newest lines, least recently used jobs, bytes."""

from bunqueue_trio.engine.job_logs import LINE_OVERHEAD_BYTES, MAX_BYTES, MAX_JOBS, MAX_LINES, JobLogs
from bunqueue_trio.model.entries import LogLine
from bunqueue_trio.protocol.watch_checks import MAX_LINE_BYTES
from tests.engine_harness import raw


def line(message="m", at=1.0) -> LogLine:
    return LogLine(at, raw("info"), raw(message))


def shown(logs: JobLogs, job_id: str) -> list[float]:
    return [entry.timestamp for entry in logs.get(job_id)]


def is_sound(logs: JobLogs) -> bool:
    return logs.recounted()[0] == logs.total_bytes


def test_lines_come_back_in_their_order():
    logs = JobLogs()
    for at in range(3):
        logs.add("a", line(at=at))

    assert shown(logs, "a") == [0, 1, 2]
    assert shown(logs, "b") == []
    assert (len(logs), is_sound(logs)) == (1, True)


def test_the_oldest_line_goes_when_there_are_too_many():
    logs = JobLogs()
    for at in range(MAX_LINES + 2):
        logs.add("a", line(at=at))

    assert shown(logs, "a") == list(range(2, MAX_LINES + 2))
    assert is_sound(logs)


def test_the_job_whose_log_was_used_least_lately_goes_when_there_are_too_many():
    logs = JobLogs(max_jobs=3)
    for job_id in "abc":
        logs.add(job_id, line())
    logs.get("a")
    logs.add("b", line())

    logs.add("d", line())

    assert [job_id for job_id in "abcd" if logs.get(job_id)] == ["a", "b", "d"]
    assert (len(logs), is_sound(logs)) == (3, True)


def test_logs_go_when_they_take_too_much_memory():
    size = LINE_OVERHEAD_BYTES + len(raw("info")) + len(raw("x" * 1_000))
    logs = JobLogs(max_bytes=3 * size)
    for job_id in "abc":
        logs.add(job_id, line("x" * 1_000))
    assert len(logs) == 3

    logs.add("d", line("x" * 1_000))

    assert [job_id for job_id in "abcd" if logs.get(job_id)] == ["b", "c", "d"]
    assert is_sound(logs)


def test_the_log_just_written_stays_however_large_it_is():
    logs = JobLogs(max_bytes=10)
    logs.add("a", line("x" * 100))
    logs.add("b", line("x" * 100))

    assert (shown(logs, "a"), shown(logs, "b")) == ([], [1.0])


def test_the_bounds_fit_each_other():
    one_job = MAX_LINES * (MAX_LINE_BYTES + LINE_OVERHEAD_BYTES)

    assert one_job < MAX_BYTES / 2
    assert (MAX_JOBS, MAX_LINES) == (10_000, 100)


def test_the_newest_lines_can_be_kept():
    logs = JobLogs()
    for at in range(4):
        logs.add("a", line(at=at))

    logs.keep_newest("a", 9)
    assert shown(logs, "a") == [0, 1, 2, 3]
    logs.keep_newest("a", 2)
    assert (shown(logs, "a"), is_sound(logs)) == ([2, 3], True)
    logs.keep_newest("a", 0)
    assert (len(logs), logs.total_bytes) == (0, 0)


def test_a_forgotten_log_is_gone_and_others_stay():
    logs = JobLogs()
    logs.add("a", line())
    logs.add("b", line())

    logs.forget("a")
    logs.forget("nobody")

    assert (len(logs), shown(logs, "b"), is_sound(logs)) == (1, [1.0], True)
