"""Steps that many jobs take at once share one timeline."""

from bunqueue_trio.model.job import TIMELINE_MAX, SharedStep, TimelineEntry, replace
from tests.storage.samples import T0, job


def test_jobs_with_one_timeline_share_the_longer_one():
    first = job("a")
    second = replace(job("b"), timeline=first.timeline)
    step = SharedStep("active")

    after = step.after(first, T0 + 5)

    assert after == (*first.timeline, TimelineEntry("active", T0 + 5))
    assert step.after(second, T0 + 5) is after


def test_another_moment_or_another_past_is_a_step_of_its_own():
    first, other = job("a"), job("b", timeline=(TimelineEntry("delayed", T0),))
    step = SharedStep("active")

    step.after(first, T0 + 5)

    assert step.after(first, T0 + 6)[-1].timestamp == T0 + 6
    assert [entry.state for entry in step.after(other, T0 + 6)] == ["delayed", "active"]
    assert [entry.state for entry in step.after(first, T0 + 6)][-1] == "active"


def test_a_full_timeline_takes_no_step_more():
    full = job("a", timeline=tuple(TimelineEntry("waiting", T0 + n) for n in range(TIMELINE_MAX)))

    assert SharedStep("completed").after(full, T0 + 99) == full.timeline
