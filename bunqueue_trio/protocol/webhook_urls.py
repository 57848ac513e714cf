"""Which URLs a webhook may have, and which addresses it may reach. Pure: names are resolved elsewhere.

URLs are parsed as browsers do (WHATWG): blanks around them, the case of scheme and host, percent and IDNA encodings and
every spelling of an IPv4 address are undone before anything is compared. The same rules about addresses hold for one
that is written in the URL and for one that a name resolves to.

Source: scheduling and flows, "Validation: first the URL, then the events", SD-11.
"""

import base64
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import ada_url
from msgspec import Struct

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.values import is_truthy

MAX_URL_UNITS = 2_048
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

IPAddress = IPv4Address | IPv6Address


class WebhookUrl(Struct, frozen=True, gc=False):
    """A parsed URL: what a request to it needs.

    ``host`` is a lower-case name in its ASCII form or an address without brackets; ``target`` path and query, in ASCII;
    ``authorization`` what user name and password of the URL make, else None.
    """

    scheme: str
    host: str
    port: int
    target: str
    authorization: str | None


def parse_url(value: Any) -> WebhookUrl:
    """Parse a webhook's URL.

    Raises:
        ValidationError: absent, too long, no URL, or neither http nor https, in the protocol's words.
    """
    if not is_truthy(value):
        raise ValidationError("Webhook URL is required")
    if type(value) is not str:
        raise ValidationError("Invalid URL format")
    if len(value) > MAX_URL_UNITS or sum(2 if char > "\uffff" else 1 for char in value) > MAX_URL_UNITS:
        raise ValidationError(f"Webhook URL too long (max {MAX_URL_UNITS} characters)")
    try:
        parsed = ada_url.URL(value)
    except ValueError:  # a lone surrogate is one too
        raise ValidationError("Invalid URL format") from None
    scheme = parsed.protocol.removesuffix(":")
    if scheme not in DEFAULT_PORTS:
        raise ValidationError("Webhook URL must use http or https protocol")
    return WebhookUrl(
        scheme=scheme,
        host=parsed.hostname.removeprefix("[").removesuffix("]"),
        port=int(parsed.port) if parsed.port else DEFAULT_PORTS[scheme],
        target=parsed.pathname + parsed.search,
        authorization=_basic(parsed.username, parsed.password),
    )


def _basic(username: str, password: str) -> str | None:
    if not username and not password:
        return None
    credentials = unquote_to_bytes(username) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(credentials).decode("ascii")


def host_refusal(host: str) -> str | None:
    """Why a webhook may not point to *host*, a name or an address; None when it may.

    Returns:
        How the sentence "... cannot point to" ends. A name that passes must still be resolved and its addresses looked
        at with `address_refusal`.
    """
    name = host.rstrip(".")
    address = literal_address(name)
    if is_this_machine(name) or str(address) in ("127.0.0.1", "::1"):
        return "localhost"
    if address is not None:
        return address_refusal(address)
    if name.endswith(".internal"):
        return "cloud metadata endpoints"
    # Whoever stands nearest answers for such a name (RFC 6762), so that not even the question is for others.
    return "local network name" if _is_in(name, "local") else None


def literal_address(host: str) -> IPAddress | None:
    """The address that *host* is, or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_this_machine(host: str) -> bool:
    """True for the names of the machine itself, which no name server is to be asked for (RFC 6761, 6.3)."""
    return _is_in(host.rstrip("."), "localhost")


def is_never_resolved(host: str) -> bool:
    """True for names that no name server may know, and that are not to be asked for (RFC 6761, 6.4; RFC 7686)."""
    name = host.rstrip(".")
    return _is_in(name, "invalid") or _is_in(name, "onion")


def _is_in(name: str, zone: str) -> bool:
    return name == zone or name.endswith(f".{zone}")


def address_refusal(address: IPAddress) -> str | None:
    """Why nothing is sent to *address*; None when it is a public one.

    An IPv6 address that stands for an IPv4 one (mapped, compatible, NAT64, 6to4) is judged by that: a network without
    IPv4 reaches every public receiver through NAT64.
    """
    if isinstance(address, IPv4Address):
        return _refusal_of(address, _IPV4_RULES)
    embedded = _embedded_ipv4(address)
    if embedded is not None:
        return address_refusal(embedded)
    return _refusal_of(address, _IPV6_RULES)


def _refusal_of(address: IPAddress, rules: Any) -> str | None:
    for network, text in rules:
        if address in network:
            return str(text)
    return None


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    value = int(address)
    if address in _COMPATIBLE:
        # Wire: ``::`` itself and ``::1`` are no embedded addresses.
        return IPv4Address(value) if value > 1 else None
    if address in _MAPPED or address in _NAT64:
        return IPv4Address(value & 0xFFFF_FFFF)
    return address.sixtofour


_COMPATIBLE: Final = IPv6Network("::/96")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")

_IPV4_RULES: Final = [
    (IPv4Network(network), text)
    for network, text in (
        ("10.0.0.0/8", "private IP"),
        ("172.16.0.0/12", "private IP"),
        ("192.168.0.0/16", "private IP"),
        ("169.254.0.0/16", "link-local IP"),
        ("0.0.0.0/8", "unspecified IP"),
        ("127.0.0.0/8", "loopback IP"),
        ("100.64.0.0/10", "shared (CGNAT) IP"),
        ("224.0.0.0/4", "multicast IP"),
        ("255.255.255.255/32", "broadcast IP"),
        ("240.0.0.0/4", "reserved IP"),
        ("192.0.0.0/24", "reserved IP"),
        ("192.0.2.0/24", "reserved IP"),
        ("192.88.99.0/24", "reserved IP"),
        ("198.18.0.0/15", "reserved IP"),
        ("198.51.100.0/24", "reserved IP"),
        ("203.0.113.0/24", "reserved IP"),
        # Public by its number, but on machines of one cloud it is what 169.254.169.254 is on those of the others.
        ("168.63.129.16/32", "cloud metadata endpoints"),
    )
]
_IPV6_RULES: Final = [
    (IPv6Network(network), text)
    for network, text in (
        ("::/128", "unspecified IP"),
        ("::1/128", "loopback IP"),
        ("fc00::/7", "private (ULA) IP"),
        ("fe80::/10", "link-local IP"),
        ("fec0::/10", "private IP"),
        ("ff00::/8", "multicast IP"),
        # All that is public lies in 2000::/3; of that, Teredo, benchmarks, documentation and the like do not.
        ("2001::/23", "reserved IP"),
        ("2001:db8::/32", "reserved IP"),
        ("3fff::/20", "reserved IP"),
        ("::/3", "reserved IP"),
        ("4000::/2", "reserved IP"),
        ("8000::/1", "reserved IP"),
    )
]
"""The first that holds decides; the last three are everything outside 2000::/3."""
