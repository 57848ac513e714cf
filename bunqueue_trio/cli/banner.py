"""What the server says of itself before it starts."""

import click

from bunqueue_trio import __version__
from bunqueue_trio.config import Config

RULE = "-" * 64
ART = (
    r"  (\(\   ",
    r"  ( -.-) ",
    r'  o_(")")',
)

_GUARANTEES = {
    "NORMAL": "NORMAL (what was confirmed survives a killed process)",
    "FULL": "FULL (what was confirmed survives a power cut)",
}


def banner(config: Config) -> str:
    """Three lines of art with name and version, a rule, a line per item, a rule, an empty line. Has ANSI colours."""
    beside = (
        click.style("bunqueue_trio", bold=True) + f" v{__version__}",
        "A job queue in one process and one file",
        "",
    )
    head = [f"{click.style(art, fg='magenta')}  {text}".rstrip() for art, text in zip(ART, beside, strict=True)]
    items = [f"  {click.style(f'{name:<12}', fg='cyan')} {text}" for name, text in _items(config)]
    return "\n".join([*head, RULE, *items, RULE, ""])


def _items(config: Config) -> list[tuple[str, str]]:
    return [
        ("TCP", _address(config.bind_host, config.tcp_port)),
        ("HTTP", config.http_socket_path or _address(config.bind_host, config.http_port)),
        ("Data", "in-memory" if config.is_in_memory else config.data_path),
        ("Auth", _auth(config)),
        ("TLS", "enabled" if config.has_tls else "disabled"),
        (
            "Synchronous",
            "off (in memory nothing survives the process)"
            if config.is_in_memory
            else _GUARANTEES[config.sqlite_synchronous],
        ),
    ]


def _address(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" + (" (any free port)" if port == 0 else "")


def _auth(config: Config) -> str:
    if config.has_tokens:
        return "enabled"
    if config.host is None:
        # K37: who wonders why other machines cannot connect finds the answer here.
        return "disabled (loopback only; AUTH_TOKENS opens it to the network)"
    return "disabled"
