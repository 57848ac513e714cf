"""Certificates for tests, made when they are needed by the openssl command: nothing secret lies in the repository."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from bunqueue_trio.config import Config

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


class Certificate:
    """A self-signed certificate of ``localhost`` and 127.0.0.1, and files that go wrong with it."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.other_key, self.locked_key = folder / "other.pem", folder / "locked.pem"
        names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        _openssl("req", "-x509", "-nodes", "-days", "2", *EC, *names, "-keyout", self.key, "-out", self.cert)
        _openssl("genpkey", "-algorithm", "EC", *EC[2:], "-out", self.other_key)
        _openssl("pkey", "-in", self.key, "-aes128", "-passout", "pass:secret", "-out", self.locked_key)

    @property
    def config(self) -> Config:
        """A server's settings with it."""
        return Config(tls_cert_file=str(self.cert), tls_key_file=str(self.key))

    @property
    def settings(self) -> dict[str, str]:
        """The same as environment variables."""
        return {"TLS_CERT_FILE": str(self.cert), "TLS_KEY_FILE": str(self.key)}

    def client_context(self) -> ssl.SSLContext:
        """A client's context that trusts it, and nothing else."""
        return ssl.create_default_context(cafile=str(self.cert))


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
