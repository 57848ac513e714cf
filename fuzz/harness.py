"""What all fuzz targets share: who makes the inputs, and how bytes become decisions.

With atheris installed a target is a coverage-guided fuzzer and takes libFuzzer's options; its corpus is the folder of
its name under ``fuzz/corpus``, to which a run adds nothing unless ``--keep`` is given. Without atheris, or with
``--plain``, it runs made-up inputs from a seed; it then understands ``-runs=N``, ``-seed=N`` and
``-max_total_time=SECONDS``. The corpus is run first either way, and a file given by name is run alone.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

try:
    import atheris
except ImportError:  # the plain loop needs nothing but the package
    atheris = None

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

T = TypeVar("T")
CORPUS = Path(__file__).parent / "corpus"
MAX_INPUT_BYTES = 4_096
ODD = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**32,
    2**53,
    -(2**63),
    2**64 - 1,
    0.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
)
ODD_TEXTS = ("", "0", "5", "-1", "1e999", "true", "null", "\0", "a:b", "../x", "\ud800", "ü😀", " ", "x" * 300)


def instrumented() -> AbstractContextManager[Any]:
    """Imports of the package within are watched for coverage."""
    if atheris is None or "--plain" in sys.argv:
        return nullcontext()
    return atheris.instrument_imports(include=["bunqueue_trio"])


class Choices:
    """Decisions read off the bytes of an input; when they have run out, every further one is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decide by."""
        return self._at >= len(self._data)

    def number(self, limit: int) -> int:
        """A number below *limit*, which is at most 65,536."""
        taken = self._data[self._at : self._at + (1 if limit <= 256 else 2)]
        self._at += len(taken)
        return int.from_bytes(taken, "big") % limit

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.number(len(options))]

    def raw(self) -> bytes:
        """Some bytes of the input as they are."""
        size = self.number(48)
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def value(self, depth: int = 0) -> Any:
        """Any value that msgpack can carry, odd ones most of all."""
        kind = self.number(8 if depth < 3 else 5)
        if kind == 0:
            return self.number(100)
        if kind == 1:
            return self.pick(ODD)
        if kind == 2:
            return self.pick(ODD_TEXTS)
        if kind == 3:
            return self.raw().decode("utf-8", "replace")
        if kind == 4:
            return self.raw()
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.number(4))]
        return {self.pick((*ODD_TEXTS, "name", "type", "delay")): self.value(depth + 1) for _ in range(self.number(4))}


Check = Callable[[bytes], int]
Make = Callable[[random.Random], bytes]


def random_bytes(dice: random.Random) -> bytes:
    """An input for targets that read decisions off its bytes."""
    return dice.randbytes(dice.randint(1, 600))


def run(name: str, check: Check, make: Make = random_bytes) -> None:
    """Fuzz with what is installed.

    Args:
        name: of the target, and of its folder in the corpus.
        check: raises for what is a defect; returns how many inputs of its own it got past the refusals.
        make: makes one input from dice.
    """
    arguments = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    named = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if named:
        for path in named:
            print(f"{path}: {check(path.read_bytes())} accepted, nothing found")
    elif atheris is None or "--plain" in arguments:
        _run_plainly(name, check, make, arguments)
    else:
        _run_guided(name, check, make, arguments)


def corpus(name: str) -> list[Path]:
    """The inputs of a target that are kept: seeds, and whatever has once shown a defect."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def _run_guided(name: str, check: Check, make: Make, arguments: list[str]) -> None:
    options = [argument for argument in arguments if argument != "--keep"]
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        dice = random.Random(1)
        for index in range(100):
            Path(scratch, f"seed{index}").write_bytes(make(dice)[:MAX_INPUT_BYTES])
        folders = [str(kept), scratch] if "--keep" in arguments else [scratch, str(kept)]
        limits = [f"-max_len={MAX_INPUT_BYTES}", "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={name}-"]
        atheris.Setup([sys.argv[0], *limits, *options, *folders], lambda data: check(data) and None)
        atheris.Fuzz()


def _run_plainly(name: str, check: Check, make: Make, arguments: list[str]) -> None:
    """The loop without atheris: ends after the runs or the time asked for."""
    options = dict(argument.lstrip("-").split("=", 1) for argument in arguments if "=" in argument)
    seed, seconds = int(options.get("seed", 1)), float(options.get("max_total_time", "inf"))
    runs = int(options.get("runs", 10_000 if seconds == float("inf") else 10**12))
    for path in corpus(name):
        check(path.read_bytes())
    dice = random.Random(seed)
    end = time.monotonic() + seconds
    accepted = done = 0
    while done < runs and time.monotonic() < end:
        data = make(dice)
        try:
            accepted += check(data)
        except Exception:
            found = Path(f"{name}-seed{seed}-run{done}")
            found.write_bytes(data)
            print(f"{name}: seed {seed}, run {done}, kept in {found.absolute()}", file=sys.stderr)
            raise
        done += 1
    print(f"{name}: seed {seed}, {done} inputs, {accepted} accepted, nothing found")
