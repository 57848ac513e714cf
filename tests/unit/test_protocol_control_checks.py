"""Checks of Drain, Obliterate, RetryCompleted and the dead-letter policy, with the spec's texts (CD-1, CD-16)."""

import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.wire import checked

WITH_QUEUE = (c.Drain, c.Obliterate, c.RetryCompleted, c.SetDlqConfig, c.GetDlqConfig)


@pytest.mark.parametrize("kind", WITH_QUEUE)
def test_a_queue_is_required(kind):
    with pytest.raises(ValidationError, match=r"^Queue name is required$"):
        checked(kind())


@pytest.mark.parametrize("kind", WITH_QUEUE)
def test_a_queue_is_a_string(kind):
    with pytest.raises(ValidationError, match=r"^queue must be a string$"):
        checked(kind(queue=5))


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("queue", ["", "with blanks", "x" * 300])
def test_any_string_names_a_queue(kind, queue):
    command = kind(queue=queue)
    checked(command)
    assert command.queue == queue


@pytest.mark.parametrize(("given", "found"), [(None, None), ("", None), ("a", "a")])
def test_the_id_of_a_rerun(given, found):
    command = c.RetryCompleted(queue="q", id=given)
    checked(command)
    assert command.id == found


def test_an_id_that_is_no_string_must_not_mean_all_of_them():
    with pytest.raises(ValidationError, match=r"^id must be a string$"):
        checked(c.RetryCompleted(queue="q", id=5))


def policy(**config: object) -> dict[str, object]:
    command = c.SetDlqConfig(queue="q", config=config)
    checked(command)
    return command.config


@pytest.mark.parametrize("config", [None, [], "x", 7])
def test_a_config_that_is_no_map_changes_nothing(config):
    command = c.SetDlqConfig(queue="q", config=config)
    checked(command)
    assert command.config == {}


def test_unknown_keys_are_dropped():
    assert policy(other=1, auto_retry=True, max_entries=4) == {}


@pytest.mark.parametrize(("given", "found"), [(True, {"auto_retry": True}), (False, {"auto_retry": False})])
def test_auto_retry_is_a_flag(given, found):
    assert policy(autoRetry=given) == found


@pytest.mark.parametrize("given", [None, 1, 0, "true", []])
def test_what_is_no_flag_is_dropped(given):
    assert policy(autoRetry=given) == {}


@pytest.mark.parametrize(
    ("key", "name", "low", "high"),
    [
        ("autoRetryInterval", "auto_retry_interval", 1, 31_536_000_000),
        ("maxAutoRetries", "max_auto_retries", 0, 1_000_000),
        ("maxAge", "max_age", 0, 315_360_000_000),
    ],
)
def test_numbers_within_their_bounds_are_taken(key, name, low, high):
    assert policy(**{key: low}) == {name: low}
    assert policy(**{key: high}) == {name: high}
    assert policy(**{key: "500.5"}) == {name: 500.5}
    assert type(policy(**{key: 500.0})[name]) is int
    for bad in (low - 1, high + 1, True, "x", "", float("nan"), float("inf"), [1], {}):
        assert policy(**{key: bad}) == {}


@pytest.mark.parametrize("key", ["autoRetryInterval", "maxAutoRetries", "autoRetry"])
def test_null_keeps_the_old_value(key):
    assert policy(**{key: None}) == {}


def test_a_null_age_means_for_ever():
    assert policy(maxAge=None) == {"max_age": None}


@pytest.mark.parametrize(
    ("given", "found"),
    [(20, 20), ("20", 20), (2.9, 2), (1_000_000, 1_000_000), (0, 1), (0.5, 1), (-3, 1), (None, 1), (float("-inf"), 1)],
)
def test_at_least_one_entry_is_kept(given, found):
    entries = policy(maxEntries=given)["max_entries"]
    assert entries == found
    assert type(entries) is int


@pytest.mark.parametrize("given", ["x", True, [], float("nan"), float("inf"), 1_000_001])
def test_a_bound_that_is_no_number_or_absurd_is_dropped(given):
    assert policy(maxEntries=given) == {}
