"""The page in a browser, against a real server: it moves by itself, acts, and makes no markup of anybody's text."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.process import Client, ServerProcess, StartServer

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=\"document.title='owned'\">"
# Nothing may move while figures change.
WATCH_SHIFTS = """() => {
    window.shifts = [];
    const note = list => shifts.push(...list.getEntries().map(entry => entry.value));
    new PerformanceObserver(note).observe({type: "layout-shift"});
}"""
Picture = Callable[[Any, str], None]


def address(server: ServerProcess, route: str = "") -> str:
    return f"http://127.0.0.1:{server.http_port}/ui/{route}"


def cell(page: Any, queue: str, column: int) -> Any:
    """A cell of a line of the list of queues."""
    return page.locator("tbody tr", has_text=queue).locator("td").nth(column)


def expect(locator: Any, text: str) -> None:
    from playwright.sync_api import expect as expect_of

    expect_of(locator).to_have_text(text, timeout=10_000)


def fail_some(client: Client, queue: str, count: int) -> None:
    """Leave that many dead letters."""
    for number in range(count):
        client.ok("PUSH", queue=queue, data={"name": "welcome", "to": number}, maxAttempts=1, jobId=f"{queue}-{number}")
        pulled = client.ok("PULL", queue=queue, owner="w")
        client.ok("FAIL", id=pulled["job"]["id"], token=pulled["token"], error="SMTP 550: mailbox full")


def populate(client: Client, queue: str) -> None:
    """A day in the life of a queue: jobs in every state. It is left with 71, 56 of them waiting."""
    fail_some(client, queue, 5)
    names = ["digest", "welcome", "welcome"]
    jobs = [{"data": {"name": names[number % 3], "to": f"u{number}@x.example"}} for number in range(64)]
    client.ok("PUSHB", queue=queue, jobs=jobs)
    client.ok("PUSH", queue=queue, data={"name": "later"}, delay=3_600_000, jobId=f"{queue}-later")
    client.ok("PUSH", queue=queue, data={"name": "urgent"}, priority=9)
    client.ok("PUSH", queue="reports", data={"rows": [1, 2]}, dependsOn=[f"{queue}-later"], jobId=f"{queue}-sum")
    for _ in range(8):
        pulled = client.ok("PULL", queue=queue, owner="mailer-1")
        client.ok("ACK", id=pulled["job"]["id"], token=pulled["token"], result={"sent": True})
    held = client.ok("PULL", queue=queue, owner="mailer-1")["job"]
    client.ok("Progress", id=held["id"], progress=40, message="rendered")
    client.ok("AddLog", id=held["id"], message="template loaded", level="info")
    client.ok("AddLog", id=held["id"], message="slow answer of the relay", level="warn")


def test_counts_move_without_a_reload(page: Any, server: ServerProcess, client: Client, picture: Picture) -> None:
    populate(client, "emails")
    page.goto(address(server))
    expect(cell(page, "emails", 2), "56")
    expect(page.locator("#link"), "Live")
    page.wait_for_timeout(300)
    page.evaluate(WATCH_SHIFTS)

    client.ok("PUSHB", queue="emails", jobs=[{"data": {"name": "welcome"}}] * 25)

    expect(cell(page, "emails", 2), "81")
    expect(page.locator(".tile", has_text="Waiting").locator("strong"), str(client.ok("Stats")["stats"]["waiting"]))
    page.wait_for_timeout(1_500)
    assert page.evaluate("window.shifts") == []  # and a reload would have lost them
    picture(page, "queues")
    page.get_by_role("button", name="Change to the dark theme").click()
    picture(page, "queues-dark")


def test_a_queue_is_paused_after_a_question(page: Any, server: ServerProcess, client: Client, picture: Picture) -> None:
    populate(client, "invoices")
    page.goto(address(server))

    page.get_by_role("button", name="Pause invoices").click()
    picture(page, "pause-question")
    page.keyboard.press("Escape")
    assert not client.ok("IsPaused", queue="invoices")["paused"]
    page.get_by_role("button", name="Pause invoices").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()

    expect(cell(page, "invoices", 1), "paused")
    assert client.ok("IsPaused", queue="invoices")["paused"]


def test_jobs_are_listed_opened_and_explained(
    page: Any, server: ServerProcess, client: Client, picture: Picture
) -> None:
    populate(client, "newsletters")
    page.goto(address(server))
    page.get_by_role("link", name="newsletters", exact=True).click()
    expect(page.locator(".pager-text"), "1–50 of 71")
    picture(page, "jobs")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pager-text"), "51–71 of 71")

    page.get_by_role("searchbox").fill("digest")
    page.keyboard.press("Enter")
    page.locator(".note", has_text="22 of the 71 oldest jobs").wait_for()
    page.get_by_role("link", name="Active").click()
    page.get_by_role("link", name="Active").wait_for()
    page.goto(address(server, "#/queues/newsletters?state=active"))
    page.locator("tbody td a").first.click()
    page.locator(".logs", has_text="slow answer of the relay").wait_for()
    picture(page, "job")

    page.goto(address(server, "#/jobs/newsletters-sum"))
    page.locator('[data-reason="dependencies"] a', has_text="newsletters-later").click()
    page.locator('[data-reason="delayed"]').wait_for()
    page.get_by_role("button", name="Promote").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.locator(".heading .badge"), "waiting")
    expect(page.locator("#announcer"), "The job is now waiting")
    assert client.state("newsletters-later") == "waiting"


def test_dead_letters_are_replayed_as_many_as_asked_for(
    page: Any, server: ServerProcess, client: Client, picture: Picture
) -> None:
    populate(client, "receipts")
    page.goto(address(server, "#/letters/receipts"))
    page.get_by_role("button", name="Retry job receipts-4").wait_for()
    picture(page, "letters")

    page.get_by_role("button", name="Retry job receipts-4").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.locator(".chip b"), "4")
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("spinbutton").fill("3")
    picture(page, "replay-question")
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()

    expect(page.locator(".chip b"), "1")
    assert [client.state(f"receipts-{number}") for number in range(5)] == ["waiting"] * 3 + ["failed", "waiting"]


def test_backups_are_shown_where_the_server_makes_some(page: Any, start_server: StartServer, picture: Picture) -> None:
    settings = {"S3_ACCESS_KEY_ID": "a", "S3_SECRET_ACCESS_KEY": "s", "S3_BUCKET": "UPPER CASE"}  # fails at once
    server = start_server(S3_BACKUP_ENABLED=1, **settings)
    page.goto(address(server, "#/queues"))
    shown = page.locator(".panel", has=page.get_by_role("heading", name="Backups"))
    expect(shown.locator("p").first, "None yet.")
    shown.get_by_text("Nothing could be restored yet if this machine were lost.").wait_for()

    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/backups")
    assert json.loads(connection.getresponse().read())["ok"] is False
    connection.close()

    shown.get_by_text("Failing since").wait_for()
    picture(page, "backups")
    expect(page.locator("#health"), "degraded")


def test_crons_and_workers(page: Any, server: ServerProcess, client: Client, picture: Picture) -> None:
    client.ok("RegisterWorker", name="mailer", queues=["emails"], concurrency=4, hostname="web-1", pid=412)
    client.ok("Cron", name="nightly-report", queue="reports", schedule="0 3 * * *", timezone="Europe/Berlin", data={})
    client.ok("Cron", name="heartbeat", queue="emails", repeatEvery=90_000_000, maxLimit=2, data={})
    client.ok("Cron", name="month-end", queue="reports", schedule="30 23 28-31 * *", data={})
    page.goto(address(server, "#/crons"))
    expect(page.locator("tbody tr", has_text="heartbeat").locator("td").nth(2), "every 1 d 1 h")
    assert page.locator("tbody tr", has_text="nightly").locator("li").count() == 5
    assert page.locator("tbody tr", has_text="heartbeat").locator("li").count() == 2
    picture(page, "crons")

    page.get_by_role("link", name="Workers").click()
    page.locator("tbody tr", has_text="mailer").wait_for()
    picture(page, "workers")


def test_texts_of_jobs_stay_texts(page: Any, server: ServerProcess, client: Client) -> None:
    data = {"name": EVIL, "html": EVIL, EVIL: EVIL}
    client.ok("PUSH", queue="evil", data=data, jobId=EVIL, tags=[EVIL], groupId=EVIL, maxAttempts=1)
    client.ok("Cron", name=EVIL, queue="evil", schedule="0 3 * * *", data={})
    client.ok("RegisterWorker", name=EVIL, queues=[EVIL], hostname=EVIL)
    client.ok("AddLog", id=EVIL, message=EVIL, level="info")
    pulled = client.ok("PULL", queue="evil", owner=EVIL)
    client.ok("Progress", id=EVIL, progress=1, message=EVIL)

    page.goto(address(server, "#/queues/evil"))
    page.locator("tbody td", has_text=EVIL).nth(1).wait_for()
    page.locator("tbody td a").first.click()
    page.locator("pre", has_text="onerror").first.wait_for()
    client.ok("FAIL", id=EVIL, token=pulled["token"], error=EVIL, stack=[EVIL])
    page.locator('[data-reason="failed"]', has_text=EVIL).wait_for()
    for route in ("letters/evil", "crons", "workers"):
        page.goto(address(server, f"#/{route}"))
        page.locator("tbody td", has_text=EVIL).first.wait_for()
        assert page.locator("main img").count() == 0

    assert "owned" not in page.title()


def test_it_works_behind_a_prefix_and_with_a_token(page: Any, start_server: StartServer, picture: Picture) -> None:
    server = start_server(AUTH_TOKENS="sesame")
    with server.connect(token="sesame") as client:
        client.ok("PUSH", queue="emails", data=1)
        # A proxy that takes the prefix away.
        page.route(
            "**/tools/queue/**", lambda asked: asked.continue_(url=asked.request.url.replace("/tools/queue", ""))
        )

        page.goto(address(server).replace("/ui/", "/tools/queue/ui/"))
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert"), "The server does not accept this token.")
        picture(page, "sign-in")
        page.get_by_label("Token").fill("sesame")
        page.keyboard.press("Enter")
        expect(cell(page, "emails", 2), "1")

        page.reload()
        expect(cell(page, "emails", 2), "1")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        assert page.locator("tbody").count() == 0


def test_without_a_stream_it_polls_and_can_be_used_with_the_keyboard(
    page: Any, server: ServerProcess, client: Client
) -> None:
    client.ok("PUSH", queue="keys", data=1)
    page.route("**/events", lambda asked: asked.abort())
    page.goto(address(server))
    expect(page.locator("#link"), "Polling")
    button = page.get_by_role("button", name="Pause keys")
    button.focus()

    client.ok("PUSH", queue="keys", data=1)
    expect(cell(page, "keys", 2), "2")
    assert button.evaluate("node => node === document.activeElement")
    page.keyboard.press("Enter")
    assert (
        page.get_by_role("dialog")
        .get_by_role("button", name="Cancel")
        .evaluate("node => node === document.activeElement")
    )
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(cell(page, "keys", 1), "paused")
