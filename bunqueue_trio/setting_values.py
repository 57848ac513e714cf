"""Values of settings: text to value, strictly. What is not legal is a ValueError whose text says what would be.

Source: configuration, C1, C4.
"""

import re
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

MAX_COUNT = 2**53  # the largest whole number that every client language can hold

_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,15})", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)

Parser = Callable[[str], Any]
"""Text to value. Raises ValueError whose text completes the sentence '... is not'."""


def whole(unit: str, low: int, high: int = MAX_COUNT, zero: str = "") -> Parser:
    """A decimal whole number within bounds; *zero* says what 0 means, for the refusal."""
    allowed = f"a whole number of {unit} between {low} and {high}{zero}"

    def parse(text: str) -> int:
        stripped = text.strip()
        # Checked before int(), which would also take underscores and other scripts' digits.
        if not _WHOLE_NUMBER.fullmatch(stripped) or not low <= (value := int(stripped)) <= high:
            raise ValueError(allowed)
        return value

    return parse


def port(text: str) -> int:
    """A port."""
    try:
        return int(whole("", 0, 65_535)(text))
    except ValueError:
        raise ValueError("a port between 0 and 65535 (0: any free one)") from None


def one_of(*words: str) -> Parser:
    """One of some words, in any case; the value is spelled as here."""

    def parse(text: str) -> str:
        for word in words:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError(f"one of {', '.join(words)}")

    return parse


def switch(text: str) -> bool:
    """On or off."""
    return one_of("on", "off", "true", "false", "1", "0", "yes", "no")(text) in ("on", "true", "1", "yes")


def leading_integer(default: int) -> Parser:
    """The whole number that a text begins with; *default* where that is none or 0. Nothing is refused.

    Wire: settings of the reference that scripts rely on are read as leniently as there.
    """

    def parse(text: str) -> int:
        match = _LEADING_INTEGER.match(text)
        return (int(match[1]) if match else 0) or default

    return parse


def verbatim(text: str) -> str:
    """The text as it is, also an empty one."""
    return text


def switch_or_nothing(text: str) -> bool:
    """On or off; empty is off."""
    return bool(text.strip()) and switch(text)


def host_name(text: str) -> str:
    """An address or a name; IPv6 also in brackets."""
    host = text.strip()
    if not host or any(character.isspace() for character in host):
        raise ValueError("a host name or an address")
    # IPv6 addresses are often written as in a URL.
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def tokens(text: str) -> tuple[str, ...]:
    """A comma-separated list of tokens, at least one."""
    tokens = members(text)
    if not tokens:
        raise ValueError("a comma-separated list with at least one token (unset it to run without)")
    return tokens


def members(text: str) -> tuple[str, ...]:
    """The members of a comma-separated list, each once; blanks around them and empty ones do not count."""
    return tuple(dict.fromkeys(member for part in text.split(",") if (member := part.strip())))


def networks(text: str) -> tuple[str, ...]:
    """Addresses and networks, as networks."""
    try:
        return tuple(str(ip_network(member, strict=False)) for member in members(text))
    except ValueError:
        raise ValueError("a comma-separated list of addresses and networks such as 10.0.0.0/8") from None
