"""The executable: flags, banner, exit codes.

Exit codes: 0 stopped by a signal, 1 crashed or could not start, 2 malformed settings or flags. Nothing is opened
before the settings have been checked.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator, Sequence

import click
import trio

from bunqueue_trio import __version__, logs
from bunqueue_trio.cli.banner import banner
from bunqueue_trio.config import Config
from bunqueue_trio.errors import ConfigError, CorruptDatabaseError, StartError

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_MISCONFIGURED = 2
EXIT_INTERRUPTED = 130  # Ctrl+C before the server had taken over the signals; the shells' 128 + SIGINT

_BIND_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT})
_OPTIONS_OF_THE_GROUP = frozenset({"--help", "--version", "-v"})


@click.group(context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, "--version", "-v", message="bunqueue-trio v%(version)s")
def cli() -> None:
    """A job-queue server on Trio: one process, one SQLite file.

    Without a command the server starts; options of `start` may then be given directly.
    """


@cli.command()
@click.option("--tcp-port", metavar="PORT", help="Port of the wire protocol; 0: any free one.")
@click.option("--http-port", metavar="PORT", help="Port of HTTP; 0: any free one.")
@click.option("--host", metavar="ADDRESS", help="Address of both listeners.")
@click.option("--data-path", metavar="FILE", help="Data file; :memory: keeps everything in memory only.")
@click.option("--auth-tokens", metavar="A,B", help="Tokens, one of which clients must present.")
@click.option("--tls-cert", "tls_cert_file", metavar="FILE", help="PEM file of the certificate; turns TLS on.")
@click.option("--tls-key", "tls_key_file", metavar="FILE", help="PEM file of its key.")
def start(**flags: str | None) -> None:
    """Start the server. Flags outrank the environment variables of the same meaning."""
    try:
        config = Config.from_environment(os.environ, **flags)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(EXIT_MISCONFIGURED)
    sys.exit(run(config))


@cli.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True, "help_option_names": ["--help"]}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def backup(arguments: tuple[str, ...]) -> None:
    """Back up to S3, and back: now, list, restore KEY -f, verify KEY, status.

    With --to TIME or --to latest in place of KEY: the state of that moment. --json: for programs.

    Needs no server. Settings come from the environment: BUNQUEUE_DATA_PATH, S3_BUCKET, S3_ACCESS_KEY_ID, ...
    """
    # Imported here: the client library of the store takes time that the other commands need not spend.
    from bunqueue_trio.cli.backup import run_backup

    sys.exit(run_backup(arguments))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process.

    Args:
        arguments: Without the program's name; ``sys.argv`` if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["--json", "backup"]:
        given = [*given[1:], "--json"]
    if not given or (given[0].startswith("-") and given[0] not in _OPTIONS_OF_THE_GROUP):
        given.insert(0, "start")
    cli.main(given, prog_name="bunqueue-trio")


def run(config: Config) -> int:
    """Serve until stopped; the exit code."""
    # Imported here: the web framework takes half a second, which wrong settings and --help need not wait for.
    from bunqueue_trio.app import run_server

    logs.configure(config.log_level, config.log_format)
    if config.log_format == "text":
        # None: click decides by whether stdout is a terminal.
        click.echo(banner(config), color=False if os.environ.get("NO_COLOR") else None)
    for warning in config.warnings():
        logs.get_logger("Server").warning(warning)
    try:
        trio.run(run_server, config)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        return report_failure(error)
    return EXIT_STOPPED


def report_failure(error: BaseException) -> int:
    """Say why the server ended: one line where it could not start, a traceback in the log where it crashed.

    Errors arrive wrapped, a group per nursery.
    """
    leaves = list(_leaves(error))
    if all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return EXIT_INTERRUPTED
    start_failures = [leaf for leaf in leaves if _is_start_failure(leaf)]
    if start_failures:
        for leaf in start_failures:
            click.echo(f"Failed to start server: {_one_line(leaf)}", err=True)
    else:
        logs.get_logger("Server").error("Server crashed", exc_info=error)
    return EXIT_FAILED


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_start_failure(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, socket.gaierror) or error.errno in _BIND_ERRNOS
    return isinstance(error, StartError | CorruptDatabaseError)


def _one_line(error: BaseException) -> str:
    # An OSError's own text begins with its number, which helps nobody.
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())
