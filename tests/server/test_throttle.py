"""The request limit of one connection: a sliding window, of bounded cost."""

from bunqueue_trio.server.throttle import SLICES, Throttle


def test_exactly_the_limit_is_admitted_and_refused_frames_do_not_count():
    throttle = Throttle(3, 1_000)

    assert [throttle.admit(0) for _ in range(6)] == [True, True, True, False, False, False]
    assert [throttle.admit(1_000) for _ in range(4)] == [True, True, True, False]


def test_the_window_slides():
    throttle = Throttle(3, 1_000)
    assert [throttle.admit(t) for t in (0, 400, 800, 900)] == [True, True, True, False]

    # The frame of 0 leaves the window at 1,000, that of 400 at 1,400.
    assert [throttle.admit(t) for t in (999, 1_000, 1_001, 1_399, 1_400, 1_401)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_long_pause_empties_the_window():
    throttle = Throttle(2, 60_000)
    assert [throttle.admit(0), throttle.admit(59_999), throttle.admit(59_999)] == [True, True, False]

    assert [throttle.admit(1e9) for _ in range(3)] == [True, True, False]


def test_a_window_of_a_million_frames_is_held_in_a_thousand_counters():
    throttle = Throttle(1_000_000, 60_000)

    for number in range(100_000):
        assert throttle.admit(number)

    assert len(throttle._slices) <= SLICES + 1


def test_no_window_ever_holds_noticeably_more_than_the_limit():
    throttle = Throttle(100, 60_000)
    admitted = [t for t in range(0, 300_000, 7) if throttle.admit(t)]

    for start in admitted:
        inside = sum(start <= t < start + 60_000 - 60 for t in admitted)  # but for a thousandth of the window
        assert inside <= 100
