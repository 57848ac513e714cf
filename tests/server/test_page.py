"""The page at /ui: what is served to whom, with which headers, and that its parts fit together."""

import re

import pytest

from bunqueue_trio.config import Config
from bunqueue_trio.web.page import Page
from tests.server.fakes import Rig
from tests.server.http import Http

TOKENS = Config(auth_tokens=("tok1",))
FILES = sorted(Page().files)
OURS = [name for name in FILES if name and not name.startswith("vendor/")]


async def test_the_page_is_served_without_a_token(rig: Rig, autojump_clock):
    http = Http(rig, TOKENS)

    status, text = await http.ask("GET", "/ui/")

    assert (status, text.startswith("<!doctype html>")) == (200, True)
    assert (await http.ask("GET", "/queues"))[0] == 401


@pytest.mark.parametrize("name", FILES)
async def test_every_file_comes_with_its_type_and_its_guards(rig: Rig, autojump_clock, name):
    http = Http(rig)

    status, _ = await http.ask("GET", f"/ui/{name}")

    types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
    expected = types.get(name.rpartition(".")[2], "text/html")
    assert (status, http.headers["content-type"].partition(";")[0]) == (200, expected)
    assert http.headers["x-content-type-options"] == "nosniff"
    assert http.headers["cache-control"] == "no-cache"
    assert http.headers["referrer-policy"] == "no-referrer"
    assert http.headers["x-frame-options"] == "DENY"


async def test_the_policy_lets_nothing_run_that_is_not_a_file_of_the_page(rig: Rig, autojump_clock):
    http = Http(rig)
    await http.ask("GET", "/ui/")

    policy = dict(part.strip().split(" ", 1) for part in http.headers["content-security-policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"


async def test_what_has_not_changed_is_not_sent_again(rig: Rig, autojump_clock):
    http = Http(rig)
    await http.ask("GET", "/ui/app.js")
    etag = http.headers["etag"]

    same = await http.ask("GET", "/ui/app.js", headers={"If-None-Match": f'"old", W/{etag}'})
    headers = http.headers
    other = await http.ask("GET", "/ui/app.js", headers={"If-None-Match": '"old"'})

    assert same == (304, "")
    assert (headers["etag"], headers["cache-control"]) == (etag, "no-cache")
    assert other[0] == 200


async def test_the_bare_path_leads_into_the_directory_whatever_stands_before_it(rig: Rig, autojump_clock):
    http = Http(rig, TOKENS)

    status, _ = await http.ask("GET", "/ui")

    assert (status, http.headers["location"]) == (302, "ui/")


async def test_head_is_answered_as_get_is(rig: Rig, autojump_clock):
    http = Http(rig, TOKENS)

    status, _ = await http.ask("HEAD", "/ui/app.js")

    assert (status, http.headers["content-type"]) == (200, "text/javascript; charset=utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing.js",
        "/ui//app.js",
        "/ui/vendor",
        "/ui/vendor/",
        "/ui/%2e%2e/page.py",
        "/ui/..%2fpage.py",
        "/uix",
        "/ui/app.js/",
    ],
)
async def test_there_is_nothing_beside_the_files(rig: Rig, autojump_clock, path):
    assert await Http(rig).ask("GET", path) == (404, {"ok": False, "error": "Not found"})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_other_methods_have_no_page_and_need_the_token(rig: Rig, autojump_clock, method):
    assert (await Http(rig, TOKENS).ask(method, "/ui/"))[0] == 401
    assert (await Http(rig).ask(method, "/ui/"))[0] == 404


async def test_the_page_counts_for_the_rate_limit(rig: Rig, autojump_clock):
    http = Http(rig, Config(rate_limit_max_requests=1))

    assert [(await http.ask("GET", "/ui/"))[0] for _ in range(2)] == [200, 429]


# what is in the files


def text_of(name: str) -> str:
    return Page().files[name].content.decode()


@pytest.mark.parametrize("name", OURS)
def test_no_address_is_absolute(name):
    found = re.findall(r"""(?:href|src)="([^"]*)"|from "([^"]*)"|url\(([^)]*)\)""", text_of(name))

    addresses = [address for group in found for address in group if address]
    assert [address for address in addresses if address.startswith(("/", "http"))] == []


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"""(?:href|src)="([^"#]+)\"""", text_of("index.html")))
    for name in OURS:
        named |= set(re.findall(r'from "\./([^"]+)"', text_of(name)))

    assert named - set(FILES) == set()
    assert {name for name in OURS if name.endswith(".js")} <= named


@pytest.mark.parametrize("name", [name for name in OURS if name.endswith(".js")])
def test_no_text_becomes_markup_or_code(name):
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(|new Function|createContextualFragment"
    )

    assert re.findall(sinks, text_of(name)) == []


def test_nothing_stands_inline():
    text = text_of("index.html")

    assert re.findall(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", text) == []


def test_the_chart_comes_with_its_licence():
    assert "MIT License" in text_of("vendor/uPlot.LICENSE.txt")
