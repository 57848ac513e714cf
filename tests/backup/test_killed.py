"""Killed at any step, with a real S3 server: what is listed can be restored, and what was said to be safe is.

Each run is a process of its own that kills itself before its n-th step, for all n. Steps are the calls of the store and
the stages in between. Source: K49, BD-2, R199; D-142, D-145, D-150 to D-153.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bunqueue_trio.backup.naming import newest_first
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.record import BackupLock
from bunqueue_trio.backup.replaying import restore_to
from bunqueue_trio.backup.restoring import restore
from bunqueue_trio.backup.s3 import S3Store
from bunqueue_trio.clock import SystemClock
from tests.backup.fakes import names_beside, rows
from tests.process import ROOT
from tests.s3 import Bucket

pytestmark = pytest.mark.slow
MAX_STEPS = 60

COMMON = """
import os, sys
from pathlib import Path
from bunqueue_trio.backup import making, shipping, scratch
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.s3 import S3Store, _Client
from bunqueue_trio.clock import SystemClock
from tests.backup.fakes import make_database
from tests.process import ROOT
from tests.s3 import Bucket
bucket = Bucket(sys.argv[1], sys.argv[2])
folder = Path(sys.argv[3])
clock = SystemClock()
left = 0

def deadly(owner, name):
    function = getattr(owner, name)
    def step(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    setattr(owner, name, step)

def for_each_step(run, *steps):
    global left
    for owner, name in steps:
        deadly(owner, name)
    for number in range(int(sys.argv[4])):
        here = folder / str(number)
        here.mkdir()
        child = os.fork()
        if not child:
            left = number
            run(here, f"{number}/")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            print(number)
            return
"""
BACK_UP = f"""{COMMON}
def run(here, prefix):
    database = make_database(here / "jobs.db")
    waiting = Patience(clock, retry_pauses_s=())
    settings = bucket.settings(database, prefix=prefix, retention=1)
    making.part_bytes = lambda size_bytes: 5 << 20
    for _ in range(2):
        making.Maker(settings, S3Store(settings, waiting), waiting, clock, version="1").make()

for_each_step(run, (_Client, "_url_open"), (making, "check_database"), (making.Maker, "_copy"))
"""
SHIP = f"""{COMMON}
from bunqueue_trio.backup.chain import Chain
from tests.backup import log_rig
from tests.backup.log_rig import LogRig
from bunqueue_trio.clock import ManualClock

def run(here, prefix):
    log_rig.PREFIX = prefix
    log_rig.settings = lambda path, **changes: bucket.settings(path, prefix=prefix, **changes)
    waiting = Patience(clock, retry_pauses_s=())
    rig = LogRig(here / "jobs.db", S3Store(bucket.settings("x"), waiting), ManualClock())
    rig.back_up(start=True)
    for number in range(2):
        rig.add(f"row-{{number}}")
        rig.ship()
        (here / "safe").write_text(str(number + 1))
        if number == 0:
            rig.back_up(retention=1)
            shipping.clean_log(rig.store, prefix, waiting, current="generation-1", retention=1)

for_each_step(run, (_Client, "_url_open"), (Chain, "seal"), (Chain, "uploaded"), (making, "check_database"))
"""


def run_killed(script: str, bucket: Bucket, folder: Path) -> int:
    """How many runs there were; the last one lived."""
    arguments = [script, bucket.endpoint, bucket.name, str(folder), str(MAX_STEPS)]
    run = subprocess.run([sys.executable, "-c", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip(), "even the last run was killed"
    return int(run.stdout) + 1


def reach(bucket: Bucket) -> tuple[S3Store, Patience]:
    """Our client of the bucket."""
    waiting = Patience(SystemClock(), retry_pauses_s=())
    return S3Store(bucket.settings("x"), waiting), waiting


def test_whatever_a_killed_backup_has_left_in_the_list_can_be_restored(bucket: Bucket, tmp_path: Path):
    (killed := tmp_path / "killed").mkdir()

    runs = run_killed(BACK_UP, bucket, killed)

    assert runs > 20
    store, waiting = reach(bucket)
    counts = []
    for number in range(runs):
        database = killed / str(number) / "jobs.db"
        listed = newest_first(f"{number}/", store.list(f"{number}/"))
        counts.append(len(listed))
        for item in listed:
            restore(store, item.key, str(tmp_path / "fresh.db"), waiting, SystemClock())
            assert rows(tmp_path / "fresh.db") == 3
        if database.exists():
            BackupLock.acquire(str(database)).__exit__()  # a lock ends with the process
            assert all(name in ("", "-wal", "-shm") or ".tmp" in name for name in names_beside(database))
    assert counts[0] == 0
    assert counts == [0] * counts.count(0) + [n for n in counts if n]  # once there is one, there is always one
    assert counts[-1] == 1
    assert max(counts) == 2


def test_what_a_killed_server_has_shipped_is_safe(bucket: Bucket, tmp_path: Path):
    (killed := tmp_path / "killed").mkdir()

    runs = run_killed(SHIP, bucket, killed)

    assert runs > 20
    store, waiting = reach(bucket)
    safe: list[int] = []
    for number in range(runs):
        known = killed / str(number) / "safe"
        safe.append(int(known.read_text()) if known.exists() else 0)
        if not newest_base(store, number):
            assert safe[-1] == 0
            continue
        target = tmp_path / "fresh.db"
        restore_to(store, f"{number}/", None, str(target), waiting, SystemClock())
        assert safe[-1] <= rows(target) <= safe[-1] + 1
    assert safe == sorted(safe)
    assert safe[-1] == 2


def newest_base(store: S3Store, number: int) -> list[Any]:
    """Bases of what the run has uploaded."""
    return [item for item in store.list(f"{number}/log/") if item.key.endswith(".base.json")]
