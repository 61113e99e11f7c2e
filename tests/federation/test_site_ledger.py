"""What leaves a site is in its ledgers, and what the coordinator dropped is in the coordinator's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.federation import fake, test_policy  # skips where cryptography is missing
from unskew.cli.site import state_text
from unskew.core.trees import size_in_bytes
from unskew.errors import UsageError
from unskew.federation.protocol.wire_format import Limits, Packet, seal, unseal
from unskew.federation.site import site_ledger
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import (
    HEADER_SHARE,
    KEPT_ROUNDS,
    LEDGER_FILE,
    MOST_ORDERS,
    MOST_STATEMENTS,
    NOT_WRITTEN_TEXT,
    SAID_FILE,
    RunLedger,
    SiteLedger,
)
from unskew.federation.tickets import Coordinator

ALL = Limits(1 << 30, 10_000)
OF_EVERY_ANSWER = {"run", "serial", "kind", "t", "re", "site", "sha256", "axes"}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def opened(site: str, answer) -> Packet:
    return unseal(answer, fake.KEYS[site].public, ALL)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("scaffold", {"metrics": "macro_f1,brier"}),
        ("flea(fused=True)", {}),
        ("ccvr", {}),
        ("dpsgd(noise_multiplier=5.0, clip=1.0)", {"model": "mlp"}),
    ],
)
def test_whatever_leaves_a_site_is_in_its_ledgers(tmp_path, method, changes):
    """The loss of each round, the numbers of samples and all that a site said of its data and of errors were
    in none."""
    sites, answers = fake.sites(tmp_path / "sites", fake.federation()), []
    (tmp_path / "sites/s4/policy.yaml").unlink()  # this site refuses

    def overhear(site, asked, honest):
        answers.append((site, opened(site, honest)))
        return honest

    _, _, text = fake.run(
        tmp_path / "run", fake.Direct(sites, overhear), fake.small(method, rounds=2, **changes)
    )
    assert any(line.startswith("E521 s4") for line in text)
    for k in range(5):
        folder = tmp_path / f"sites/s{k}"
        mine = [packet for site, packet in answers if site == f"s{k}"]
        ledger = [row for path in folder.glob(f"runs/*/{LEDGER_FILE}") for row in rows(path)]
        assert sum(size_in_bytes(packet.tree) for packet in mine) == sum(
            r["bytes"] for r in ledger if r["share"] != HEADER_SHARE
        )
        on_record = [row["said"] for row in ledger if row["share"] == HEADER_SHARE]
        before = [row["said"] for row in rows(folder / SAID_FILE)]
        words = [{n: v for n, v in packet.header.items() if n not in OF_EVERY_ANSWER} for packet in mine]
        assert [one for one in words if one not in before] == on_record
        assert all(one in words for one in before)
        assert bool(on_record) is (k < 4)


def test_what_is_said_is_written_down_once_for_all_runs_and_first(tmp_path, monkeypatch):
    def note(*what):
        return site_ledger.note_statement(tmp_path, *what)

    for run in ("r1", "r2", "r1"):
        assert note(run, "hello", {"hello": {"train": 33}})
        assert note(run, "hello", {"code": "E522", "text": f"waits: unskew site approve {run}"})
    assert note("r3", "setup", {"hello": {"train": 33}})
    assert [(row["run"], row["asked"]) for row in rows(tmp_path / SAID_FILE)] == [
        ("r1", "hello"), ("r1", "hello"), ("r3", "setup"),
    ]  # fmt: skip
    monkeypatch.setattr(site_ledger, "MOST_STATEMENTS", 3)
    assert note("r9", "hello", {"hello": {"train": 33}})
    assert not note("r9", "hello", {"hello": {"train": 34}})
    assert len(rows(tmp_path / SAID_FILE)) == 3
    assert MOST_STATEMENTS == 10_000


@pytest.mark.parametrize("spoil", ["damaged", "a folder"])
def test_what_cannot_be_written_down_is_not_said(tmp_path, spoil):
    site = fake.sites(tmp_path / "sites", fake.federation())[998]
    path = site.member.folder / SAID_FILE
    path.write_text("{}\n") if spoil == "damaged" else path.mkdir()
    asked = {"run": "r1", "serial": 1, "site": "s2", "kind": "hello", "t": 0}
    request = seal({**asked, "settings": fake.small("fedavg").as_dict()}, {}, fake.COORDINATOR)
    answer = opened("s2", site.answer(request)).header
    assert (answer["code"], answer["text"]) == ("E520", NOT_WRITTEN_TEXT)
    assert "33" not in json.dumps(answer)


def wild(h, tree):
    return h, {**tree, "w": {n: t * 1e6 if t.is_floating_point() else t for n, t in tree["w"].items()}}


def misnamed(h, tree):
    return h, {**tree, "x": {"secret name": torch.zeros(7)}}


def without_a_loss(h, tree):
    return {**h, "loss": 1e13}, tree


@pytest.mark.parametrize(
    ("change", "code", "more"),
    [(wild, "E318", {}), (misnamed, "E303", {"?": 28}), (without_a_loss, "E301", {})],
)
def test_a_reply_that_is_dropped_before_the_gate_is_in_the_coordinators_ledger(tmp_path, change, code, more):
    sites = fake.sites(tmp_path / "sites", fake.federation())

    def meddle(site, asked, honest):
        header = json.loads(honest.text)
        if site != "s2" or header["kind"] != "train" or header["t"] != 2:
            return honest
        packet = opened(site, honest)
        facts, tree = change(
            {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}, packet.tree
        )
        return seal(facts, tree, fake.KEYS[site])

    _, _, text = fake.run(tmp_path / "run", fake.Direct(sites, meddle), fake.small("scaffold", rounds=3))
    assert any(line.startswith(f"{code} s2 round 2") for line in text)
    ledger = rows(tmp_path / "run/ledger.jsonl")
    lost = [row for row in ledger if row.get("dropped")]
    of_first = {
        row["share"]: row
        for row in ledger
        if row["way"] == "up" and row["t"] == 1 and not row["share"].startswith("score")
    }
    sizes = {share: row["bytes"] for share, row in of_first.items()} | more
    assert {row["share"]: row["bytes"] for row in lost} == sizes
    assert {(row["t"], row["way"], *row["clients"]) for row in lost} == {(2, "up", 2)}
    for row in lost:
        assert row["share"] == "?" or [row["kind"], row["samples"]] == [
            of_first[row["share"]][n] for n in ("kind", "samples")
        ]
    assert all(row["kind"] == "inputs" for row in lost if row["share"] == "?")
    of_round = [row["clients"] for row in ledger if (row["t"], row["way"], row["share"]) == (2, "up", "w")]
    assert of_round == [[2], [0, 1, 3, 4]] or of_round == [[0, 1, 3, 4], [2]]


def begun(folder, **epsilons: float) -> SiteLedger:
    """A site at which runs with these figures have begun."""
    (folder / "runs").mkdir()
    for number, epsilon in epsilons.items():
        (folder / "runs" / number).mkdir()
        kinds = {"weights": "weights", "p/s": "sums"}
        SiteLedger.read(folder).begin(number, RunLedger("study", "fedavg", 9, 1.0, epsilon, kinds=kinds))
    return SiteLedger.read(folder)


def test_epsilons_of_all_runs_add_up_and_what_is_infinite_stays_so(tmp_path):
    spent = begun(tmp_path, r1=1.5, r2=2.0, r3=0.0)
    assert spent.epsilon == 3.5
    spent.begin("r4", RunLedger("study", "fedavg", 9, 1.0, math.inf))
    assert SiteLedger.read(tmp_path).runs["r4"].epsilon == math.inf
    assert SiteLedger.read(tmp_path).epsilon == math.inf


def test_a_share_of_a_round_is_sent_for_few_orders_and_old_rounds_are_forgotten():
    run = RunLedger("study", "fedavg", 9, 1.0)
    for order in ("a", "b", "c", "a", "c"):
        run.order(1, ["w"], order)
    with pytest.raises(
        UsageError, match=f"E520 .*'w' of round 1 was sent for {MOST_ORDERS} different orders already"
    ):
        run.order(1, ["w"], "d")
    run.order(1, ["p/s"], "d")
    run.t = 1 + KEPT_ROUNDS
    run.order(run.t, ["w"], "a")
    assert set(run.orders) == {str(run.t)}


def test_the_state_of_a_site_is_shown_with_what_waits_what_has_left_and_what_was_refused(
    tmp_path, monkeypatch
):
    site = fake.sites(tmp_path / "sites", fake.federation())[998]
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["s2"])
    joined = SiteFolder(site.member.folder, home.ticket("s2"))
    train = test_policy.begun(site, rounds=3)
    train(1)
    train(2)
    assert test_policy.answer(site, "score", 2, {"w": test_policy.weights(site)}, lr=0.05)["n"] == 12
    test_policy.allow(site, epsilon=4.0, methods=("fedavg",))
    test_policy.hello(site, "scaffold")
    site.guard.approve = "ask"
    test_policy.hello(site, "fedavg+clip_median", run="r2")
    text = state_text(joined)
    for line in (
        "epsilon 0 of 4",
        "r1  fedavg  running, round 2 of 3",
        "  weights (weights)  2 times, ",
        "  last score, global: accuracy 0.",
        "r1  E520 the site's policy does not allow it: the study uses 'scaffold'",
        f"unskew site approve r2 --folder {site.member.folder}",
    ):
        assert line in text
    monkeypatch.setattr("unskew.cli.site.MOST_WAITING", 1)
    for k in range(3):
        test_policy.hello(site, "fedavg+median", run=f"r3{k}", epochs=k + 1)
    few = state_text(joined)
    assert few.count("waits for a decision") == 1
    assert "3 older questions wait, too" in few
    assert "approve r32 " in few
