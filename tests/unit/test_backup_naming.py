"""Names of backups: made, recognised, and which of them retention gives up."""

import pytest

from bunqueue_trio.backup.naming import believed_at, iso, key_of, made_at, newest_first, surplus
from bunqueue_trio.backup.object_store import StoredObject

NOON = 1_796_040_000_000.0


def stored(key: str, modified_at: float = 0) -> StoredObject:
    return StoredObject(key, 1, modified_at)


def named(*moments: float, prefix: str = "backups/") -> list[StoredObject]:
    return [stored(key_of(prefix, moment)) for moment in moments]


def test_a_key_is_the_prefix_as_it_is_and_the_time():
    assert key_of("backups/", NOON + 7) == "backups/bunqueue-2026-11-30T12-00-00-007Z.db"
    assert key_of("noslash", NOON) == "noslashbunqueue-2026-11-30T12-00-00-000Z.db"
    assert key_of("", NOON) == "bunqueue-2026-11-30T12-00-00-000Z.db"


@pytest.mark.parametrize("prefix", ["backups/", "", "a b/", "x.y"])
@pytest.mark.parametrize("moment", [0.0, NOON, NOON + 999])
def test_a_key_tells_when_it_was_made(prefix, moment):
    assert made_at(prefix, key_of(prefix, moment)) == moment


def test_random_characters_behind_the_time_are_taken():
    assert made_at("b/", "b/bunqueue-2026-11-30T12-00-00-000Z-fabfd757-6765-448e-b087-843a8a4a341b.db") == NOON


@pytest.mark.parametrize(
    "key",
    [
        "backups/other.db",
        "backups/bunqueue-2026-11-30T12-00-00-000Z.db.meta.json",
        "backups/bunqueue-2026-11-30T12-00-00-000Z.sqlite",
        "backups/bunqueue-2026-13-30T12-00-00-000Z.db",
        "backups/bunqueue-2026-11-30T25-00-00-000Z.db",
        "backups/sub/bunqueue-2026-11-30T12-00-00-000Z.db",
        "elsewhere/bunqueue-2026-11-30T12-00-00-000Z.db",
        "bunqueue-2026-11-30T12-00-00-000Z.db",
    ],
)
def test_what_is_not_ours_is_not_recognised(key):
    assert made_at("backups/", key) is None


def test_order_is_by_the_time_in_the_name_and_not_by_that_of_the_upload():
    older, newer = stored(key_of("b/", NOON), NOON + 9_000), stored(key_of("b/", NOON + 1), NOON)

    assert newest_first("b/", [older, newer, stored("b/foreign.db")]) == [newer, older]


def test_the_newest_stay_and_the_others_go_oldest_first_each_with_its_sidecar_behind_it():
    objects = named(NOON, NOON + 1, NOON + 2, NOON + 3)
    sidecars = [stored(item.key + ".meta.json") for item in objects[1:]]
    foreign = [stored("backups/foreign.db"), stored("backups/foreign.db.meta.json"), stored("backups/notes.txt")]

    doomed = surplus("backups/", [*foreign, *sidecars, *objects], 2)

    assert doomed == [objects[0].key, objects[1].key, sidecars[0].key]


def test_fewer_than_the_limit_all_stay():
    assert surplus("backups/", named(NOON, NOON + 1), 7) == []


def test_moments_have_milliseconds():
    assert iso(NOON + 45) == "2026-11-30T12:00:00.045Z"


def test_a_time_that_lies_behind_the_upload_is_not_believed():
    assert believed_at(NOON, stored("k", NOON - 1_000)) == NOON  # clocks differ
    assert believed_at(NOON, stored("k", NOON + 10_000_000_000)) == NOON  # copied from elsewhere, much later
    assert believed_at(NOON, stored("k", NOON - 86_400_000)) == NOON - 86_400_000


def test_a_name_of_a_wrong_future_is_not_the_newest():
    wrong, right = stored(key_of("b/", NOON + 10_000_000_000), NOON), stored(key_of("b/", NOON + 1), NOON + 1)

    assert newest_first("b/", [wrong, right]) == [right, wrong]


def test_what_is_spared_stays_and_counts_for_nothing():
    objects = named(NOON, NOON + 1, NOON + 2, NOON + 3)

    assert surplus("backups/", objects, 2, spared={objects[0].key, None}) == [objects[1].key]
