"""The npm client against a server with tokens and TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.certificates import Certificate
from tests.peers.npm import Outcomes
from tests.peers.packages import NEWEST
from tests.process import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    certificate = Certificate(tmp_path_factory.mktemp("certificate"))
    settings = {"AUTH_TOKENS": "right", **certificate.settings}
    with ServerProcess(tmp_path_factory.mktemp("guarded"), **settings) as server:
        yield Outcomes(server.start(), NEWEST, "access.ts", PEERS_CERTIFICATE=str(certificate.cert))
        server.assert_no_faults()


def test_a_token_lets_queue_worker_and_events_in(outcomes: Outcomes) -> None:
    assert outcomes["letsInWhoHasTheToken"] == {"result": "ada"}


def test_nobody_gets_in_without(outcomes: Outcomes) -> None:
    seen = outcomes["keepsOutWhoHasNone"]
    assert "Not authenticated" in seen["none"]
    assert "Not authenticated" in seen["events"]
    assert seen["wrong"] != "taken"
