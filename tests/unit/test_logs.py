"""Log lines: their two forms, their streams, and that a stuck reader stops nobody."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader

import pytest

from bunqueue_trio import logs
from bunqueue_trio.clock import ManualClock

WALL_MS = 1_795_977_923_427


def test_text_line_has_component_message_and_compact_json(capsys):
    logs.get_logger("Stats").info("Queue statistics", waiting=3, time="18:47:13", workers={"active": 1})

    assert capsys.readouterr() == (
        '[Stats] Queue statistics {"waiting":3,"time":"18:47:13","workers":{"active":1}}\n',
        "",
    )


def test_text_line_without_data_ends_with_the_message(capsys):
    logs.get_logger("Server").info("Shutdown complete")

    assert capsys.readouterr().out == "[Server] Shutdown complete\n"


@pytest.mark.parametrize(
    ("method", "is_error"), [("debug", False), ("info", False), ("warning", True), ("error", True), ("critical", True)]
)
def test_text_puts_warnings_and_errors_on_stderr(capsys, method, is_error):
    logs.configure("debug")

    getattr(logs.get_logger("TCP"), method)("text")

    out, err = capsys.readouterr()
    assert (err if is_error else out) == "[TCP] text\n"
    assert (out if is_error else err) == ""


@pytest.mark.parametrize(
    ("method", "level"), [("debug", "debug"), ("info", "info"), ("warning", "warn"), ("error", "error")]
)
def test_json_line_has_every_level_on_stdout(capsys, method, level):
    logs.configure("debug", "json", ManualClock(WALL_MS))

    getattr(logs.get_logger("Storage"), method)("Write buffer flush failed", jobCount=2)

    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        f'{{"timestamp":"2026-11-29T18:45:23.427Z","level":"{level}","component":"Storage",'
        '"message":"Write buffer flush failed","data":{"jobCount":2}}\n'
    )


def test_json_line_has_no_data_member_when_there_is_none(capsys):
    logs.configure("info", "json", ManualClock(WALL_MS))

    logs.get_logger("Server").info("Server started")

    assert "data" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "diwe"), ("info", "iwe"), ("warn", "we"), ("error", "e")],
)
def test_level_hides_what_is_below_it(capsys, level, shown):
    logs.configure(level, "json")
    log = logs.get_logger("Server")

    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")

    assert "".join(json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()) == shown


def test_configure_reaches_loggers_made_before(capsys):
    log = logs.get_logger("Server")

    logs.configure("error")
    log.info("hidden")

    assert capsys.readouterr() == ("", "")


def test_an_exception_becomes_data_on_the_same_line(capsys):
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        logs.get_logger("Server").exception("Uncaught exception - initiating shutdown")

    err = capsys.readouterr().err
    head = "[Server] Uncaught exception - initiating shutdown "
    data = json.loads(err.removeprefix(head))
    assert err.startswith(head)
    assert err.count("\n") == 1
    assert data["error"] == "bad\nvalue"
    assert data["stack"].startswith("Traceback")


def test_a_message_with_line_breaks_stays_one_line(capsys):
    logs.get_logger("TCP").info("a\r\n[Server] Shutdown complete")

    assert capsys.readouterr().out == "[TCP] a\\r\\n[Server] Shutdown complete\n"


@pytest.mark.parametrize("value", ["\ud800", 2**80, {(1, 2): 3}, object(), float("nan"), b"\xff"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_value_makes_logging_fail(capsys, form, value):
    logs.configure("info", form)

    logs.get_logger("TCP").info("odd \ud800", value=value)

    assert capsys.readouterr().out.count("\n") == 1


def test_percent_signs_in_a_message_are_text(capsys):
    logs.get_logger("TCP").info("100% of %s")

    assert capsys.readouterr().out == "[TCP] 100% of %s\n"


@contextmanager
def stdout_as_pipe(monkeypatch) -> Iterator[BufferedReader]:
    """Standard output as a pipe that nobody reads yet; gives the reading end, which does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    # Not in a fixture: pytest puts its own stream back before the test begins.
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", writer)
        patch.setitem(logs._pipes, "stdout", logs._Pipe())
        yield reader


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_stopped_loses_lines_but_holds_up_nobody(monkeypatch, form):
    logs.configure("info", form)
    log = logs.get_logger("TCP")

    with stdout_as_pipe(monkeypatch) as pipe:
        for _ in range(200):
            log.info("x" * 2000)
        complete = pipe.read().count(b"\n")
        log.info("after")
        told = pipe.read().decode().splitlines()

    assert 0 < complete < 200
    assert "Log lines dropped: nobody read them" in told[-2]
    assert f'{{"count":{200 - complete}}}' in told[-2]
    assert "after" in told[-1]


def test_a_line_torn_by_a_full_pipe_does_not_swallow_the_next_one(monkeypatch):
    log = logs.get_logger("TCP")

    with stdout_as_pipe(monkeypatch) as pipe:
        log.info("y" * 1_000_000)
        torn = pipe.read()
        log.info("after")
        rest = pipe.read()

    assert torn.endswith(b"y")
    assert rest.splitlines() == [b"", b'[Server] Log lines dropped: nobody read them {"count":1}', b"[TCP] after"]


def test_a_reader_that_is_gone_is_no_error(monkeypatch):
    with stdout_as_pipe(monkeypatch) as pipe:
        pipe.close()
        logs.get_logger("TCP").info("to nobody")
        dropped_count = logs._pipes["stdout"].dropped_count

    assert dropped_count == 1


def test_no_standard_output_at_all_is_no_error(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        logs.get_logger("TCP").info("to nobody")
