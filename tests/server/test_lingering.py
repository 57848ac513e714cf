"""Whether to look for the next request at once: only while that pays, and never for long."""

from bunqueue_trio.server import lingering as lingering_module
from bunqueue_trio.server.lingering import TRUST_MAX, TURNS_UNTIL_NEXT_TRY, TURNS_WITHOUT_CHECKPOINT, Lingering


class Stream:
    """A client that answers, or does not; counts how often it was looked at."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.look_count = 0

    def receive_nowait(self, max_bytes):
        self.look_count += 1
        return b"x" if self.answers else None


def test_a_client_that_answers_at_once_is_read_at_once_but_others_get_their_turn():
    lingering, stream = Lingering(), Stream(answers=True)

    owed, turns = [], []
    for _ in range(3 * TURNS_WITHOUT_CHECKPOINT):
        owed.append(lingering.owes_checkpoint)
        turns.append(lingering.try_receive(stream, 10))

    assert turns == [b"x"] * len(turns)
    assert [turn for turn, is_owed in enumerate(owed) if is_owed] == [
        TURNS_WITHOUT_CHECKPOINT,
        2 * TURNS_WITHOUT_CHECKPOINT,
    ]


def test_a_client_that_does_not_is_left_alone_and_tried_again_much_later(monkeypatch):
    monkeypatch.setattr(lingering_module, "LINGER_S", 0.0)
    lingering, stream = Lingering(), Stream(answers=False)

    looks = []
    for _ in range(3 * TURNS_UNTIL_NEXT_TRY):
        before = stream.look_count
        assert lingering.try_receive(stream, 10) is None
        looks.append(stream.look_count > before)

    assert [turn for turn, looked in enumerate(looks) if looked] == [
        0,
        TURNS_UNTIL_NEXT_TRY,
        2 * TURNS_UNTIL_NEXT_TRY,
    ]


def test_trust_that_was_earned_is_lost_step_by_step(monkeypatch):
    monkeypatch.setattr(lingering_module, "LINGER_S", 0.0)
    lingering, quick, slow = Lingering(), Stream(answers=True), Stream(answers=False)
    for _ in range(TURNS_WITHOUT_CHECKPOINT):
        lingering.try_receive(quick, 10)
    lingering.try_receive(quick, 10)

    for _ in range(20):
        lingering.try_receive(slow, 10)

    assert slow.look_count <= 2 * TRUST_MAX
    before = slow.look_count
    lingering.try_receive(slow, 10)
    assert slow.look_count == before
