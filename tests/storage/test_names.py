"""Names of jobs over a restart, whatever state the jobs are in, and in files that know no names.

Source: newer clients, 3.1.
"""

from collections.abc import Iterator

import pytest

from tests.stored_engine import Stored

DATA = {
    "inside": {"to": "x"},
    "beside": {"name": "Bob"},
    "list": [1],
    "null": None,
}
SHOWN = {
    "inside": (None, {"name": "send", "to": "x"}),
    "beside": ("send", {"name": "Bob"}),
    "list": ("send", [1]),
    "null": ("send", None),
    "none": ("send", "no data"),
}


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.file.close()


def push_all(stored: Stored, **options) -> None:
    for job_id, data in DATA.items():
        stored.send("PUSH", queue="q", name="send", data=data, jobId=job_id, **options)
    stored.send("PUSH", queue="q", name="send", jobId="none", **options)
    stored.commit()


def forms(stored: Stored) -> dict[str, tuple[str | None, object]]:
    shown = {job_id: stored.ask_file("GetJob", id=job_id).job for job_id in SHOWN}
    return {job_id: stored.form(record) for job_id, record in shown.items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"delay": 60_000}, {"durable": True}, {"dependsOn": ["other"]}, {"maxAttempts": 9, "tags": ["t"]}],
    ids=str,
)
def test_queued_and_parked_jobs_keep_their_names(stored, options):
    stored.push("elsewhere", jobId="other")
    push_all(stored, **options)
    assert forms(stored) == SHOWN

    stored.restart()

    assert forms(stored) == SHOWN


def test_a_job_with_a_name_and_a_place_in_its_queue_keeps_both(stored):
    stored.push(jobId="a", name="send", priority=3)
    stored.push(jobId="b", name="send", delay=50)
    stored.push(jobId="c", name="send", timestamp=1_000)
    stored.commit()
    before = {job_id: stored.shown(job_id) for job_id in "abc"}

    stored.restart()

    assert {job_id: stored.shown(job_id) for job_id in "abc"} == before
    assert [before[job_id]["state"] for job_id in "abc"] == ["prioritized", "delayed", "waiting"]


@pytest.mark.parametrize(
    "how", ["pulled", "pulled and failed", "completed", "failed", "updated", "after a failed flush"]
)
def test_a_job_whose_first_row_is_not_that_of_its_push_keeps_its_name(stored, how):
    with stored.pending():
        [job_id] = stored.push_many("q", [{"name": "send", "data": {"to": "x"}, "customId": "inside"}])
        if how == "after a failed flush":
            stored.reject()
        elif how == "updated":
            stored.send("Update", id=job_id, data={"to": "x"})
        else:
            _, token = stored.pull()
            if how == "completed":
                stored.ack(job_id, token)
            elif how != "pulled":
                stored.fail(job_id, token, unrecoverable=how == "failed")
        stored.commit()

    stored.restart()

    assert stored.form(stored.ask_file("GetJob", id="inside").job) == SHOWN["inside"]


@pytest.mark.parametrize("end", ["active", "retry", "failed", "completed"])
def test_jobs_that_have_begun_keep_their_names(stored, end):
    push_all(stored, maxAttempts=1 if end == "failed" else 3)
    for job_id, token in list(iter(stored.pull, None)):
        if end == "completed":
            stored.ack(job_id, token, result=1)
        elif end != "active":
            stored.fail(job_id, token, error="e")
    stored.commit()

    stored.restart()

    assert forms(stored) == SHOWN


def test_a_job_that_runs_again_keeps_its_name(stored):
    push_all(stored)
    for job_id, token in list(iter(stored.pull, None)):
        stored.ack(job_id, token)
    stored.restart()
    for job_id in SHOWN:
        stored.ask_file("RetryCompleted", queue="q", id=job_id)
    stored.restart()

    assert forms(stored) == SHOWN


def test_dead_letters_that_come_back_keep_their_names(stored):
    push_all(stored, maxAttempts=1)
    for job_id, token in list(iter(stored.pull, None)):
        stored.fail(job_id, token)
    stored.restart()

    stored.send("RetryDlq", queue="q")
    stored.restart()

    assert forms(stored) == SHOWN
    assert stored.counts() == {"waiting": 5}


def test_other_data_decide_over_a_restart_too(stored):
    push_all(stored)
    stored.send("Update", id="inside", data={"name": "own"})
    stored.send("Update", id="beside", data={})
    stored.restart()

    shown = forms(stored)

    assert (shown["inside"], shown["beside"]) == (("send", {"name": "own"}), (None, {"name": "send"}))


def test_a_child_that_is_linked_keeps_its_name(stored):
    push_all(stored)
    stored.push("q", jobId="dad")
    stored.send("UpdateParent", childId="inside", parentId="dad")
    stored.restart()

    name, data = forms(stored)["inside"]

    assert (name, data["name"], data["to"], data["__parentId"]) == (None, "send", "x", "dad")


def test_data_are_stored_exactly_as_pushed(stored):
    push_all(stored)

    rows = dict(stored.file.execute("SELECT id, data FROM jobs"))

    assert rows["inside"] == b"\x81\xa2to\xa1x"
    assert rows["none"] == b"\xd4\x00\x00"  # what the reference writes for no data


def test_without_our_side_rows_jobs_are_unnamed(stored):
    push_all(stored)
    stored.file.execute("DELETE FROM bqt_jobs")

    stored.restart()

    assert {job_id: form for job_id, form in forms(stored).items() if job_id != "none"} == {
        job_id: (None, data) for job_id, data in DATA.items()
    }


def test_a_side_row_with_an_empty_name_makes_no_named_job(stored):
    push_all(stored)
    stored.file.execute("UPDATE bqt_jobs SET extra = ?", (b"\x81\xa4name\xa0",))

    stored.restart()

    assert forms(stored)["inside"] == (None, {"to": "x"})
