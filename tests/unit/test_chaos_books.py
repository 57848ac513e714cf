"""The books of the fault-injection suites see what they are there to see."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.chaos.ledger import Ledger
from tests.chaos.soak import parse_soak


def balanced() -> Ledger:
    """One job pushed, run again after its first worker died, and completed."""
    books = Ledger("suite")
    books.push("a")
    books.acknowledge("a")
    books.begin("a", 1)
    books.end_all(1)
    books.begin("a", 2)
    books.end("a", 2)
    books.complete("a")
    books.find(["a"])
    return books


def lose(books: Ledger) -> None:
    books.push("b")
    books.acknowledge("b")


def run_twice(books: Ledger) -> None:
    books.push("b")
    books.begin("b", 1)
    books.begin("b", 2)
    books.end("b", 2)


def run_again(books: Ledger) -> None:
    books.begin("a", 3)


def complete_again(books: Ledger) -> None:
    books.complete("a")


def show_what_was_refused(books: Ledger) -> None:
    books.push("b")
    books.refuse("b")
    books.find(["b"])


def invent(books: Ledger) -> None:
    books.find(["b"])


def test_a_job_that_ran_again_after_a_death_is_no_fault():
    books = balanced()

    books.check()

    assert books.run_again == {"a"}
    assert "acknowledged 1, found 1" in books.report()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lose, "lost (1): ['b']"),
        (run_twice, "run twice at once (1): ['b']"),
        (run_again, "run after its end (1): ['a']"),
        (complete_again, "ended twice (1): ['a']"),
        (show_what_was_refused, "never pushed (1): ['b']"),
        (invent, "never pushed (1): ['b']"),
    ],
)
def test_each_fault_is_named(fault: Callable[[Ledger], None], words: str):
    books = balanced()

    fault(books)

    with pytest.raises(AssertionError) as caught:
        books.check()
    assert words in str(caught.value)
    assert str(caught.value).count("(1):") == 1


def test_what_is_excused_is_missing_and_not_lost():
    books = balanced()
    lose(books)

    books.excuse("b")

    books.check()
    assert books.missing == {"b"}


def test_a_push_without_an_answer_may_be_there_or_not():
    for found in ([], ["b"]):
        books = balanced()
        books.push("b")

        books.find(found)

        books.check()


def test_what_is_settled_is_counted_and_may_not_come_back():
    books = balanced()
    before = books.report()

    books.settle(["a"])

    books.check()
    assert books.report() == before
    assert not books.pushed | books.acknowledged | books.completed | set(books.runs)
    books.begin("a", 3)
    with pytest.raises(AssertionError, match="never pushed"):
        books.check()


def test_what_was_not_found_cannot_be_settled():
    books = balanced()
    lose(books)

    with pytest.raises(AssertionError, match="b was not found"):
        books.settle(["b"])


def test_after_the_end_of_a_lease_somebody_else_may_run_the_job():
    books = balanced()
    books.push("b")
    books.begin("b", 1, lease_ends=time.monotonic() - 1)

    books.begin("b", 2, lease_ends=time.monotonic() + 60)
    books.complete("b", worker=2)
    books.complete("b", worker=1)  # too late: the server says ok and does nothing

    books.find(["b"])
    books.check()


def test_before_the_end_of_a_renewed_lease_nobody_else_may():
    books = balanced()
    books.push("b")
    books.begin("b", 1, lease_ends=time.monotonic() - 1)
    books.renew("b", 1, lease_ends=time.monotonic() + 60)

    books.begin("b", 2)

    with pytest.raises(AssertionError, match="run twice at once"):
        books.check()


def test_nothing_is_lost_before_the_server_was_asked():
    books = Ledger("suite")
    lose(books)

    books.check()

    assert "found not asked" in books.report()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"SOAK": ""}, None),
        ({"SOAK": "45"}, 45),
        ({"SOAK": "30s"}, 30),
        ({"SOAK": "10m"}, 600),
        ({"SOAK": "24h"}, 86_400),
        ({"SOAK": "2d"}, 172_800),
        ({"SOAK_SECONDS": "86400"}, 86_400),
    ],
)
def test_lengths_of_a_soak(variables: dict[str, str], seconds: float | None):
    assert parse_soak(variables).seconds == seconds
    assert parse_soak(variables).duration_s(7) == (7 if seconds is None else seconds)


@pytest.mark.parametrize("text", ["soon", "0", "-5s", "infh", "nan"])
def test_no_length_is_refused(text: str):
    with pytest.raises(ValueError, match="SOAK is"):
        parse_soak({"SOAK": text})


def test_rounds_are_at_least_so_many_and_go_on_for_so_long():
    assert list(parse_soak({}).rounds(3)) == [0, 1, 2]
    assert len(list(parse_soak({"SOAK": "0.001s"}).rounds(2))) >= 2
