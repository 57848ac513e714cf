"""Names of jobs as each connection is told of them: before Hello, after it, over HTTP and over WebSocket.

Source: newer clients, 3 and 4.
"""

import json

import pytest

from bunqueue_trio.engine.history import History
from tests.server.fakes import Rig, Wire, settle_down
from tests.server.http import Http

HELLO = {"cmd": "Hello", "protocolVersion": 3}
BAD_NAME = "Job name must be a non-empty string of at most 256 characters"
INSIDE = (None, {"name": "send", "to": "x"})
BESIDE = ("send", {"to": "x"})


def form_of(reply):
    return reply["job"].get("name"), reply["job"].get("data", "no data")


async def test_a_connection_is_told_in_the_form_that_it_has_asked_for_last(rig: Rig, mock_clock):
    rig.push("a", name="send", data={"to": "x"})
    talker = rig.talker()
    get = {"cmd": "GetJob", "id": "a"}

    talker.segment(get, HELLO, get, {"cmd": "Hello", "protocolVersion": 2}, get, HELLO, {"cmd": "Hello"}, get)

    shown = [form_of(reply) for reply in talker.replies if "job" in reply]
    assert shown == [INSIDE, BESIDE, INSIDE, INSIDE]
    assert form_of(rig.call("GetJob", id="a")) == INSIDE


async def test_parked_pulls_of_both_kinds_are_served_from_one_queue(rig: Rig, mock_clock):
    old, new = rig.talker(), rig.talker()
    new.segment(HELLO)
    for talker in (old, new):
        talker.segment(
            {"cmd": "PULL", "queue": "q", "timeout": 1_000, "owner": "w"},
            {"cmd": "PULLB", "queue": "q", "timeout": 1_000, "owner": "w"},
        )
    for number in range(4):
        rig.push(str(number), name="send", data={"to": "x"})

    assert form_of(old.replies[0]) == INSIDE
    assert [form_of({"job": job}) for job in old.replies[1]["jobs"]] == [INSIDE]
    assert form_of(new.replies[1]) == BESIDE
    assert [form_of({"job": job}) for job in new.replies[2]["jobs"]] == [BESIDE]


async def test_jobs_that_memory_has_let_go_of_are_shown_alike(start_rig, connect, autojump_clock):
    rig = await start_rig(history=History(max_jobs=1))
    wire = connect(rig)
    for job_id in "abc":
        push = {"queue": "q", "name": "send", "data": {"to": "x"}, "jobId": job_id}
        assert (await wire.call("PUSH", **push))["ok"]
        pulled = await wire.call("PULL", queue="q", owner="w")
        assert (await wire.call("ACK", id=job_id, token=pulled["token"], result={"r": job_id}))["ok"]

    for speaks_3, form in ((False, INSIDE), (True, BESIDE)):
        if speaks_3:
            await wire.call("Hello", protocolVersion=3)
        for job_id in "abc":
            reply = await wire.call("GetJob", id=job_id)
            assert (form_of(reply), reply["job"]["returnvalue"]) == (form, {"r": job_id})
        listed = (await wire.call("GetJobs", queue="q", state="completed"))["jobs"]
        assert [(form_of({"job": job}), job["returnvalue"]) for job in listed] == [
            (form, {"r": job_id}) for job_id in "abc"
        ]


async def test_lists_from_the_newest_on_mix_completed_and_live_jobs(rig: Rig, connect, autojump_clock):
    wire: Wire = connect(rig)
    for number, job_id in enumerate("abcd"):
        await wire.call("PUSH", queue="q", data=1, jobId=job_id, timestamp=1_700_000_000_000 + number)
    for _ in "ab":
        pulled = await wire.call("PULL", queue="q", owner="w")
        await wire.call("ACK", id=pulled["job"]["id"], token=pulled["token"], result=pulled["job"]["id"])

    async def listed(**fields):
        reply = await wire.call("GetJobs", queue="q", **fields)
        return [(job["id"], job.get("returnvalue")) for job in reply["jobs"]]

    assert await listed() == [("a", None), ("b", None), ("c", None), ("d", None)]
    assert await listed(asc=True) == [("a", "a"), ("b", "b"), ("c", None), ("d", None)]
    assert await listed(asc=False) == [("d", None), ("c", None), ("b", "b"), ("a", "a")]
    assert await listed(asc=False, offset=1, limit=2) == [("c", None), ("b", "b")]
    assert await listed(asc=False, state="completed", limit=1) == [("b", "b")]


# HTTP


async def test_http_takes_names_and_shows_them_where_every_client_looks(rig: Rig, autojump_clock):
    http = Http(rig)
    pushes = [{"name": "send", "data": {"to": "x"}, "customId": "b"}, {"name": "send", "customId": "c"}]

    one = await http.reply("POST", "/queues/q/jobs", json={"name": "send", "data": {"to": "x"}, "jobId": "a"})
    many = await http.reply("POST", "/queues/q/jobs/bulk", json={"jobs": pushes})

    assert (one["id"], many["ids"]) == ("a", ["b", "c"])
    assert [form_of(await http.reply("GET", f"/jobs/{job_id}")) for job_id in "abc"] == [
        INSIDE,
        INSIDE,
        ("send", "no data"),
    ]
    assert form_of(await http.reply("GET", "/queues/q/jobs")) == INSIDE
    listed = await http.reply("GET", "/queues/q/jobs/list")
    assert [form_of({"job": job}) for job in listed["jobs"]] == [INSIDE, INSIDE, ("send", "no data")]


@pytest.mark.parametrize("name", ["", None, 5])
async def test_http_refuses_what_is_no_name(rig: Rig, autojump_clock, name):
    http = Http(rig)

    one = await http.ask("POST", "/queues/q/jobs", json={"name": name, "data": 1})
    many = await http.ask("POST", "/queues/q/jobs/bulk", json={"jobs": [{"name": name, "data": 1}]})

    assert one == (400, {"ok": False, "error": BAD_NAME})
    assert many == (400, {"ok": False, "error": f"jobs[0]: {BAD_NAME}"})


async def test_http_shows_named_dead_letters_alike(rig: Rig, autojump_clock):
    for job_id, fields in {"a": {"data": {"to": "x"}}, "b": {"data": {"name": "Bob"}}}.items():
        rig.push(job_id, name="send", maxAttempts=1, **fields)
    talker = rig.talker()
    for job_id in "ab":
        talker.segment({"cmd": "PULL", "queue": "q"})
        talker.segment({"cmd": "FAIL", "id": job_id, "error": "no"})
        await settle_down()

    page = await Http(rig).reply("GET", "/queues/q/dlq")

    assert [form_of(entry) for entry in page["entries"]] == [INSIDE, ("send", {"name": "Bob"})]


async def test_crons_are_named_over_http(rig: Rig, autojump_clock):
    http = Http(rig)
    made = await http.reply(
        "POST", "/crons", json={"name": "c", "queue": "q", "repeatEvery": 3_600_000, "jobName": "tick", "priority": 3}
    )

    assert made["cron"]["jobName"] == "tick"
    shown = (await http.reply("GET", "/crons/c"))["cron"]
    assert (shown["jobName"], shown["priority"]) == ("tick", 3)


# WebSocket


async def test_a_socket_may_ask_for_protocol_3(rig: Rig, nursery, autojump_clock):
    rig.push("a", name="send", data={"to": "x"})
    http = Http(rig)
    await nursery.start(http.live.run)

    async with http.app.test_client().websocket("/ws") as socket:

        async def ask(**fields):
            await socket.send(json.dumps(fields))
            return json.loads(await socket.receive())

        before = await ask(cmd="GetJob", id="a")
        assert (await ask(**HELLO))["protocolVersion"] == 3
        after = await ask(cmd="GetJob", id="a")

    assert (form_of(before), form_of(after)) == (INSIDE, BESIDE)
