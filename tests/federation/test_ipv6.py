"""Real processes on ::1: a whole federation over IPv6, from which a site is interrupted in the middle of a
round."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")


from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import running, simulated
from tests.federation.test_addresses import has_ipv6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1"),
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lung"), host="[::1]") as federation:
        yield federation


def test_three_sites_end_with_the_simulators_weights_over_ipv6(federation):
    federation.start_run("six", "--min-sites", "3", deadline="120s")
    result = json.loads(federation.end("run"))
    assert result["sha256"] == simulated(2, clients=3)
    assert f"[::1]:{federation.home.port}" in federation.log("serve")
