"""Which URLs and addresses webhooks may have: every row of the table, in every spelling."""

from ipaddress import ip_address

import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.webhook_urls import (
    MAX_URL_UNITS,
    address_refusal,
    host_refusal,
    is_never_resolved,
    literal_address,
    parse_url,
)

LOCALHOST = "localhost"
PRIVATE = "private IP"
LINK_LOCAL = "link-local IP"
UNSPECIFIED = "unspecified IP"
LOOPBACK = "loopback IP"
METADATA = "cloud metadata endpoints"
NEAREST = "local network name"


@pytest.mark.parametrize("value", [None, "", 0, False, float("nan")])
def test_a_url_is_required(value):
    with pytest.raises(ValidationError, match=r"^Webhook URL is required$"):
        parse_url(value)


@pytest.mark.parametrize("value", [5, True, ["http://example.com"], {"url": 1}, b"http://example.com"])
def test_what_is_no_text_is_no_url(value):
    with pytest.raises(ValidationError, match=r"^Invalid URL format$"):
        parse_url(value)


def test_the_longest_url_passes_and_one_character_more_does_not():
    longest = "http://example.com/" + "x" * (MAX_URL_UNITS - 19)

    assert parse_url(longest).host == "example.com"
    with pytest.raises(ValidationError, match=r"^Webhook URL too long \(max 2048 characters\)$"):
        parse_url(longest + "x")


def test_characters_beyond_the_basic_plane_count_twice():
    assert parse_url("http://example.com/" + "😀" * 1_014)
    with pytest.raises(ValidationError, match="too long"):
        parse_url("http://example.com/" + "😀" * 1_015)


def test_length_is_looked_at_before_anything_else():
    with pytest.raises(ValidationError, match="too long"):
        parse_url("x" * 3_000)


@pytest.mark.parametrize(
    "value",
    [
        "notaurl",
        "//example.com",
        "http://",
        "http:///",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://999.1.1.1/",
        "http://1.2.3.4.5/",
        "http://0x1ffffffff/",
        "http://exa mple.com/",
        "http://[::1/",
        "http://[:::1]/",
        "http://%zz/",
        "http://\ud800/",
        " ",
        "http://[fe80::1%25eth0]/",
        "http://[::1%lo]/",
        "http://[::ffff:0x7f.1]/",
        "http://localhost%00.example.com/",
        "http://%2Frun%2Fdocker.sock/",
        "http://12345678901234567890/",
        "http://0xffffffffff/",
    ],
)
def test_what_a_browser_cannot_parse_is_refused(value):
    with pytest.raises(ValidationError, match=r"^Invalid URL format$"):
        parse_url(value)


@pytest.mark.parametrize(
    "value",
    [
        "ftp://example.com/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ws://a/",
        "a:b",
        "unix:/run/x",
        "http+unix://%2Frun/x",
    ],
)
def test_only_http_and_https_pass(value):
    with pytest.raises(ValidationError, match=r"^Webhook URL must use http or https protocol$"):
        parse_url(value)


def test_a_url_is_taken_apart_as_a_browser_does():
    url = parse_url("  HTTP://us%40er:p%3Aw@EXAMPLE.com:8080/a b/../c?q=ü 1#frag\n")

    assert (url.scheme, url.host, url.port) == ("http", "example.com", 8_080)
    assert url.target == "/c?q=%C3%BC%201"
    assert url.authorization == "Basic dXNAZXI6cDp3"


@pytest.mark.parametrize(
    ("value", "port"),
    [("http://a.com", 80), ("https://a.com", 443), ("https://a.com:443", 443), ("https://a.com:80", 80)],
)
def test_the_port_is_the_schemes_unless_it_is_named(value, port):
    url = parse_url(value)

    assert url.port == port
    assert url.authorization is None
    assert url.target == "/"


def test_an_ipv6_host_has_no_brackets():
    assert parse_url("http://[2606:4700::1111]:81/").host == "2606:4700::1111"


def test_names_in_other_scripts_become_ascii():
    assert parse_url("http://Bücher.example/").host == "xn--bcher-kva.example"


REFUSED = [
    ("localhost", LOCALHOST),
    ("LOCALHOST:80", LOCALHOST),
    ("localhost.", LOCALHOST),
    ("foo.localhost", LOCALHOST),
    ("a.b.LocalHost.", LOCALHOST),
    ("%6cocalhost", LOCALHOST),
    ("ｌocalhost", LOCALHOST),
    ("127.0.0.1", LOCALHOST),
    ("127.0.0.1.", LOCALHOST),
    ("127.1", LOCALHOST),
    ("2130706433", LOCALHOST),
    ("0x7f000001", LOCALHOST),
    ("0x7f.1", LOCALHOST),
    ("0177.0.0.1", LOCALHOST),
    ("127。0。0。1", LOCALHOST),
    ("user:pw@127.0.0.1", LOCALHOST),
    ("[::1]", LOCALHOST),
    ("[0:0:0:0:0:0:0:1]", LOCALHOST),
    ("[::ffff:127.0.0.1]", LOOPBACK),
    ("[::ffff:7f00:1]", LOOPBACK),
    ("[::127.0.0.1]", LOOPBACK),
    ("127.1.2.3", LOOPBACK),
    ("[::ffff:127.9.9.9]", LOOPBACK),
    ("10.0.0.1", PRIVATE),
    ("012.0.0.1", PRIVATE),
    ("user:pw@10.1.1.1", PRIVATE),
    ("[::ffff:10.0.0.1]", PRIVATE),
    ("[::10.0.0.1]", PRIVATE),
    ("172.16.0.1", PRIVATE),
    ("172.31.255.255", PRIVATE),
    ("192.168.0.1", PRIVATE),
    ("169.254.1.1", LINK_LOCAL),
    ("169.254.169.254", LINK_LOCAL),
    ("[::ffff:169.254.169.254]", LINK_LOCAL),
    ("0.0.0.0", UNSPECIFIED),
    ("0", UNSPECIFIED),
    ("0.1.2.3", UNSPECIFIED),
    ("[::]", UNSPECIFIED),
    ("[::ffff:0.0.0.0]", UNSPECIFIED),
    ("[::2]", UNSPECIFIED),
    ("[fc00::1]", "private (ULA) IP"),
    ("[fdff:ffff::1]", "private (ULA) IP"),
    ("[fe80::1]", LINK_LOCAL),
    ("[febf::1]", LINK_LOCAL),
    ("localhost..", LOCALHOST),
    ("foo.localhost..", LOCALHOST),
    ("127.0.0.1..", LOCALHOST),
    ("10.0.0.1..", PRIVATE),
    ("ⓛocalhost", LOCALHOST),
    ("loc\u00adalhost", LOCALHOST),
    ("①②⑦.⓪.⓪.①", LOCALHOST),
    ("a@b@127.0.0.1", LOCALHOST),
    ("example.com:80@127.0.0.1", LOCALHOST),
    ("127.0.0.1:80\\@example.com", LOCALHOST),
    ("127.0.0.1\t", LOCALHOST),
    ("127.0.\r\n0.1", LOCALHOST),
    ("[64:ff9b::7f00:1]", LOOPBACK),
    ("[2002:7f00:1::]", LOOPBACK),
    ("168.63.129.16", METADATA),
    ("printer.local", NEAREST),
    ("Printer.LOCAL.", NEAREST),
    ("local", NEAREST),
    ("metadata.google.internal", METADATA),
    ("foo.INTERNAL", METADATA),
    ("foo.internal.", METADATA),
    ("foo.internal..", METADATA),
]


@pytest.mark.parametrize(("host", "text"), REFUSED)
def test_hosts_of_the_machine_and_its_network_are_refused(host, text):
    assert host_refusal(parse_url(f"http://{host}/").host) == text


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "EXAMPLE.COM.",
        "localhost.example.com",
        "notlocalhost",
        "notlocal",
        "local.example.com",
        "127.0.0.1@example.com",
        "168.63.129.17",
        "internal",
        "internal.example.com",
        "9.255.255.255",
        "11.0.0.0",
        "172.15.255.255",
        "172.32.0.1",
        "192.167.255.255",
        "192.169.0.1",
        "169.253.255.255",
        "169.255.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "1.0.0.0",
        "[2606:4700::1111]",
        "[::ffff:8.8.8.8]",
    ],
)
def test_public_hosts_pass(host):
    assert host_refusal(parse_url(f"http://{host}/").host) is None


ADDRESSES = [
    ("100.64.0.0", "shared (CGNAT) IP"),
    ("100.127.255.255", "shared (CGNAT) IP"),
    ("224.0.0.1", "multicast IP"),
    ("239.255.255.255", "multicast IP"),
    ("255.255.255.255", "broadcast IP"),
    ("240.0.0.1", "reserved IP"),
    ("192.0.0.8", "reserved IP"),
    ("192.0.2.1", "reserved IP"),
    ("192.88.99.1", "reserved IP"),
    ("198.18.0.1", "reserved IP"),
    ("198.19.255.255", "reserved IP"),
    ("198.51.100.1", "reserved IP"),
    ("203.0.113.1", "reserved IP"),
    ("127.0.0.1", LOOPBACK),
    ("::1", LOOPBACK),
    ("::", UNSPECIFIED),
    ("64:ff9b::a00:1", PRIVATE),
    ("64:ff9b::7f00:1", LOOPBACK),
    ("64:ff9b::6440:1", "shared (CGNAT) IP"),
    ("64:ff9b:1::8.8.8.8", "reserved IP"),
    ("2002:a00:1::", PRIVATE),
    ("2002:7f00:1::1", LOOPBACK),
    ("2002:a9fe:a9fe::", LINK_LOCAL),
    ("::ffff:0:10.0.0.1", "reserved IP"),
    ("ff02::1", "multicast IP"),
    ("fec0::1", PRIVATE),
    ("2001::1", "reserved IP"),
    ("2001:db8::1", "reserved IP"),
    ("3fff::1", "reserved IP"),
    ("100::1", "reserved IP"),
    ("4000::1", "reserved IP"),
    ("8000::1", "reserved IP"),
    ("f000::1", "reserved IP"),
    ("fe80::1%eth0", LINK_LOCAL),
]


@pytest.mark.parametrize(("address", "text"), ADDRESSES)
def test_addresses_that_are_not_public_are_refused(address, text):
    assert address_refusal(ip_address(address)) == text


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::1",
        "2a00::1",
        "2001:200::1",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_public_addresses_pass(address):
    assert address_refusal(ip_address(address)) is None


@pytest.mark.parametrize("host", ["invalid", "receiver.invalid", "a.b.invalid.", "a.invalid..", "x.onion"])
def test_names_that_cannot_exist_are_known(host):
    assert is_never_resolved(host)


@pytest.mark.parametrize("host", ["example.test", "invalid.com", "notinvalid", "onions", "onion.com", "a.local"])
def test_names_that_may_exist_are_asked_for(host):
    assert not is_never_resolved(host)


def test_a_literal_is_told_from_a_name():
    assert literal_address("1.2.3.4") == ip_address("1.2.3.4")
    assert literal_address("example.com") is None
