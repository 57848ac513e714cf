"""Ids: their shape, their order, and what makes them reproducible."""

import random
import re
import uuid
from itertools import pairwise

import pytest

from bunqueue_trio.ids import BLOCK, Ids

SECRET = bytes(range(32))
WALL_MS = 1_795_977_923_427.0
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_job_id_is_a_lower_case_uuid_version_7_of_its_millisecond(ids):
    job_id = ids.job_id(WALL_MS)
    parsed = uuid.UUID(job_id)

    assert UUID.fullmatch(job_id)
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == WALL_MS


def test_job_ids_of_one_millisecond_increase_strictly_over_several_blocks(ids):
    made = [ids.job_id(WALL_MS) for _ in range(3 * BLOCK)]

    assert all(earlier < later for earlier, later in pairwise(made))
    assert all(UUID.fullmatch(job_id) for job_id in made)


def test_job_ids_increase_over_milliseconds(ids):
    made = [ids.job_id(WALL_MS + step) for step in range(500)]

    assert all(earlier < later for earlier, later in pairwise(made))


def test_job_ids_increase_when_the_wall_clock_is_put_back(ids):
    before = ids.job_id(WALL_MS)

    after = [ids.job_id(WALL_MS - 3_600_000), ids.job_id(WALL_MS - 1), ids.job_id(WALL_MS), ids.job_id(WALL_MS + 1)]

    assert before < after[0] < after[1] < after[2] < after[3]


def test_job_id_at_the_epoch_has_the_right_shape(ids):
    assert UUID.fullmatch(ids.job_id(0.0))
    assert UUID.fullmatch(ids.job_id(1.0))


@pytest.mark.parametrize("bit", [0, 1])
def test_job_ids_keep_their_shape_and_order_at_both_ends_of_the_random_range(bit):
    class Fixed(random.Random):
        def getrandbits(self, k: int) -> int:
            return bit * (2**k - 1)

    ids = Ids(SECRET, Fixed())

    made = [ids.job_id(WALL_MS) for _ in range(2 * BLOCK)]

    assert all(UUID.fullmatch(job_id) and uuid.UUID(job_id).version == 7 for job_id in made)
    assert all(earlier < later for earlier, later in pairwise(made))


def test_two_servers_in_the_same_millisecond_make_different_ids():
    first, second = Ids(SECRET), Ids(SECRET)

    assert {first.job_id(WALL_MS) for _ in range(1000)}.isdisjoint({second.job_id(WALL_MS) for _ in range(1000)})


def test_a_seed_makes_everything_reproducible():
    def sample(ids: Ids) -> list[object]:
        return [ids.job_id(1.0), ids.job_id(1.0), ids.job_id(2.0), ids.worker_id(3.0), ids.jitter()]

    assert sample(Ids(SECRET, random.Random(1))) == sample(Ids(SECRET, random.Random(1)))
    assert sample(Ids(SECRET, random.Random(1))) != sample(Ids(SECRET, random.Random(2)))


def test_worker_ids_share_the_sequence_of_the_job_ids(ids):
    assert ids.job_id(WALL_MS) < ids.worker_id(WALL_MS) < ids.job_id(WALL_MS)


def test_webhook_ids_share_the_sequence_of_the_job_ids(ids):
    assert ids.job_id(WALL_MS) < ids.webhook_id(WALL_MS) < ids.job_id(WALL_MS)


def test_lease_token_has_the_shape_of_a_uuid(ids):
    token = ids.lease_token("job", 1, WALL_MS, 0)

    assert UUID.fullmatch(token)
    assert uuid.UUID(token).version == 4


def test_lease_token_is_the_same_after_a_restart():
    before = Ids(SECRET).lease_token("job", 1, WALL_MS + 5, 0)

    # SQLite gives the stamps back as integers.
    assert Ids(SECRET).lease_token("job", 1, int(WALL_MS) + 5, 0) == before


@pytest.mark.parametrize(
    ("job_id", "seq", "started_at", "attempts"),
    [
        ("jo", 1, 2.0, 0),
        ("job", 2, 2.0, 0),
        ("job", 1, 3.0, 0),
        ("2 job", 1, 2.0, 0),
        ("job", 1, 22.0, 0),
        ("job", 12, 2.0, 0),
        ("job", 1, 2.0, 1),
        ("0 job", 1, 2.0, 0),
    ],
)
def test_lease_token_differs_with_each_of_its_values(ids, job_id, seq, started_at, attempts):
    assert ids.lease_token(job_id, seq, started_at, attempts) != ids.lease_token("job", 1, 2.0, 0)


def test_the_start_of_a_delivery_can_be_read_back_from_its_token(ids):
    assert ids.lease_start(ids.lease_token("job", 1, WALL_MS + 5, 0)) == WALL_MS + 5


@pytest.mark.parametrize("other", ["", "x", "not-a-token-but-as-long-as-one-is-36", "ü" * 36])
def test_what_is_no_token_has_no_start(ids, other):
    assert ids.lease_start(other) is None


def test_lease_token_cannot_be_made_without_the_secret():
    assert Ids(SECRET).lease_token("job", 1, 2.0, 0) != Ids(SECRET[::-1]).lease_token("job", 1, 2.0, 0)


def test_lease_token_takes_any_custom_id(ids):
    tokens = {ids.lease_token(job_id, 1, 2.0, 0) for job_id in ("", "ü", "\0", "a b", "x" * 10_000)}

    assert len(tokens) == 5


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_of_the_wrong_length_is_refused(length):
    with pytest.raises(ValueError, match=f"{length} bytes"):
        Ids(bytes(length))


def test_jitter_lies_between_zero_and_one(ids):
    drawn = [ids.jitter() for _ in range(1000)]

    assert all(0 <= value < 1 for value in drawn)
    assert max(drawn) - min(drawn) > 0.9
