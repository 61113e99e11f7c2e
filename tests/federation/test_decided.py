"""Real processes on loopback: one site lets everything begin, one waits for its operator, and one's policy
says no."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import running, simulated

pytestmark = [pytest.mark.slow, pytest.mark.flower]


def test_a_run_of_those_who_agree(tmp_path):
    with running(tmp_path, sites="") as federation:
        federation.do("site", "policy", "--folder", "site-c", "--set", "methods=fedavg")
        for site, approve in (("a", "all"), ("b", "ask"), ("c", "all")):
            federation.start_site(site, approve=approve)
        federation.start("page", "site", "watch", "--folder", "site-b")
        federation.start_run("decided", "--min-sites", "2", "--set", "cap=1", deadline="60s")
        log = "runs/decided/server"
        federation.until(lambda: "waiting for approval at b" in federation.log(log), 120)
        assert "E520 c: the site's policy does not allow it: the study uses 'scaffold'" in federation.log(log)
        federation.until(lambda: "decide: unskew site approve" in federation.log("b"), 30)
        (number,) = set(re.findall(r"unskew site approve (r\w+) ", federation.log("b")))
        assert "scaffold/delta at most" in federation.log("b")
        assert "(waiting)" in shown(federation)
        federation.do("site", "approve", number, "--folder", "site-b")
        result = json.loads(federation.end("run"))
        assert result["sha256"] == simulated(2, clients=2)
        page = shown(federation)
        assert f"<td>{number}</td><td>scaffold+clip_median</td><td>done</td><td>2 of 2</td>" in page
        assert "<td>scaffold/delta</td><td>weights</td><td>2</td>" in page
        assert "global: accuracy" in page
        spent = json.loads((tmp_path / "site-b" / "spent.json").read_text())
        assert spent[number]["answers"] == {"setup": 1, "train": 2, "score": 1}
        assert not (tmp_path / "site-c" / "spent.json").exists()


def shown(federation) -> str:
    (address,) = re.findall(r"open  (\S+)", federation.log("page"))
    with urllib.request.urlopen(address, timeout=5) as answered:
        return answered.read().decode()
