"""A Part that sends each client something of its own: over a network as in the simulator, counted, and only
with leave."""

from __future__ import annotations

import pytest

import unskew
from tests.federation import fake
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.federation.site.policy import Policy
from unskew.federation.site.study_review import check_settings
from unskew.methods import registry
from unskew.methods.fedamp import FedAMP
from unskew.records.checkpoints import digest

pytestmark = pytest.mark.usefixtures("few_attempts")


def test_each_site_is_sent_its_own_with_the_simulators_bits_scores_and_bytes(tmp_path):
    """FedDyn keeps something at sites that trained; sites are scored by what they were sent whether they did
    or not."""
    method = "fedamp+feddyn+fedproto"
    settings = fake.small(method, availability="sample:0.6")
    loop, state, _ = fake.run(
        tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", fake.federation())), settings
    )
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run(method, fake.federation(), **left)
    assert digest(state.weights) == alone.digest
    for scope in ("global", "global@client", "personal@client"):
        metric = "accuracy" if scope == "global" else "mean"
        assert loop.record.series(scope, metric) == alone.record.series(scope, metric)
    rows = {
        name: [r for r in record.rows["ledger"] if r["way"] == "down" and "scored" not in r["share"]]
        for name, record in (("network", loop.record), ("simulator", alone.record))
    }
    assert rows["network"] == rows["simulator"]
    assert {r["share"]: r.get("hands_on", "") for r in rows["network"]} == {
        "w": "mixtures of the models of single clients, the most similar ones foremost",
        "fedproto": "",
    }


def test_a_site_takes_part_only_where_its_operator_allows_it_to_be_handed_on():
    method = registry.parse("fedamp")
    with pytest.raises(
        UsageError, match=r"E520 .*send other sites mixtures of the models of single .*\(handing_on\)"
    ):
        check_settings(Policy(), method, 16, 3, False)
    check_settings(Policy(handing_on="allowed"), method, 16, 3, False)
    check_settings(Policy(), registry.parse("ditto"), 16, 3, False)
    silent = type(
        "Silent", (FedAMP,), {"hands_on": ""}
    )()  # a Part of somebody's own may not say what it hands on
    with pytest.raises(UsageError, match="send other sites what it makes for each of them"):
        check_settings(Policy(), Method(silent), 16, 3, False)
    (line,) = Policy().changes(Policy(handing_on="allowed"))
    assert line.endswith("WIDER: other sites may be sent what is this site's now")
    assert "WIDER" not in Policy(handing_on="allowed").changes(Policy())[0]


def test_a_site_is_not_blamed_for_what_it_was_sent(tmp_path, monkeypatch):
    """All class scores of one site's model are higher by a thousand, which changes nothing of its
    training."""

    def dispatch(self, w, s, k, fed):
        bias = [n for n in w if n.endswith("bias")][-1]
        return {**w, bias: w[bias] + 1000.0 * (k == 2)}, s

    monkeypatch.setattr(FedAMP, "dispatch", dispatch)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small("fedamp", rounds=1))
    told = [row["text"] for row in loop.record.rows["events"] if row["code"] == "E318"]
    assert not told
