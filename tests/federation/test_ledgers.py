"""What is on the wire is in a ledger: every tensor and every word of a site's answers, and what the
coordinator dropped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from unskew.core.trees import size_in_bytes
from unskew.federation.protocol.wire_format import Limits, Packet, seal, unseal
from unskew.federation.site import site_ledger
from unskew.federation.site.site_ledger import (
    HEADER_SHARE,
    LEDGER_FILE,
    MOST_STATEMENTS,
    NOT_WRITTEN_TEXT,
    SAID_FILE,
    DisclosureLog,
)

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


def test_a_word_that_is_long_is_in_the_ledger_with_its_length(tmp_path):
    from unskew.federation.site.site_ledger import AnsweredRequest, RunLedger, SiteLedger

    (tmp_path / "runs/r1").mkdir(parents=True)
    SiteLedger.read(tmp_path).begin("r1", RunLedger("study", "fedavg", 9, 1.0))
    spent = SiteLedger.read(tmp_path)
    spent.add(
        "r1",
        AnsweredRequest("share", 1, "x"),
        {},
        {"seed": "ab", "dealt": {"s1": "c" * 500}, "context": "d" * 300},
    )
    (row,) = rows(tmp_path / "runs/r1" / LEDGER_FILE)
    assert row["said"] == {"seed": "ab", "dealt": "510 bytes", "context": "302 bytes"}
    assert (row["share"], row["bytes"]) == (
        HEADER_SHARE,
        510 + 302 + len('{"seed": "ab", "dealt": , "context": }'),
    )
    assert SiteLedger.read(tmp_path).runs["r1"].answers == {"share": 1}


def test_what_is_said_is_written_down_once_for_all_runs_and_first(tmp_path, monkeypatch):
    book = DisclosureLog(tmp_path)
    for run in ("r1", "r2", "r1"):
        assert book.note(run, "hello", {"hello": {"train": 33}})
        assert book.note(run, "hello", {"code": "E522", "text": f"waits: unskew site approve {run}"})
    assert book.note("r3", "setup", {"hello": {"train": 33}})
    assert [(row["run"], row["asked"]) for row in rows(tmp_path / SAID_FILE)] == [
        ("r1", "hello"), ("r1", "hello"), ("r3", "setup"),
    ]  # fmt: skip
    monkeypatch.setattr(site_ledger, "MOST_STATEMENTS", 3)
    for again in (book, DisclosureLog(tmp_path)):  # a process that begins reads what was said
        assert again.note("r9", "hello", {"hello": {"train": 33}})
        assert not again.note("r9", "hello", {"hello": {"train": 34}})
    assert len(rows(tmp_path / SAID_FILE)) == 3
    assert MOST_STATEMENTS == 10_000


def test_a_piece_of_a_line_that_a_crash_left_silences_no_site(tmp_path):
    """The next line was added to the piece: a damaged one, after which the site could say nothing ever
    again."""
    assert DisclosureLog(tmp_path).note("r1", "hello", {"hello": {"train": 33}})
    with open(tmp_path / SAID_FILE, "a") as file:
        file.write('{"at": 1.0, "ru')
    again = DisclosureLog(tmp_path)
    assert again.note("r2", "hello", {"hello": {"train": 34}})
    assert again.note("r3", "hello", {"hello": {"train": 35}})
    assert DisclosureLog(tmp_path).note("r4", "hello", {"hello": {"train": 36}})
    assert [row["run"] for row in rows(tmp_path / SAID_FILE)] == ["r1", "r2", "r3", "r4"]


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


def boasting(h, tree):
    return {**h, "n": 5000.0}, tree


def without_a_loss(h, tree):
    return {**h, "loss": 1e13}, tree


@pytest.mark.parametrize(
    ("change", "code", "more"),
    [(wild, "E318", {}), (misnamed, "E303", {"?": 28}), (boasting, "E305", {}), (without_a_loss, "E301", {})],
)
def test_a_reply_that_is_dropped_before_the_gate_is_in_the_coordinators_ledger(tmp_path, change, code, more):
    """It left its site all the same, and the ledger and the report of the run did not know of it."""
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

    bounds = {"s2": 100}
    _, _, text = fake.run(
        tmp_path / "run", fake.Direct(sites, meddle), fake.small("scaffold", rounds=3), bounds=bounds
    )
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


def test_a_round_with_too_few_replies_is_in_the_ledger_and_a_share_of_a_trip(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())

    def meddle(site, asked, honest):
        header = json.loads(honest.text)
        return None if header["kind"] == "train" and header["t"] == 2 and site != "s2" else honest

    fake.run(tmp_path / "run", fake.Direct(sites, meddle), fake.small("fedavg", rounds=3), min_sites=2)
    ledger = rows(tmp_path / "run/ledger.jsonl")
    assert [(r["share"], r["clients"]) for r in ledger if r.get("dropped")] == [("w", [2])]
    left = Counter(
        r["asked"]
        for r in rows(next((tmp_path / "sites/s2").glob(f"runs/*/{LEDGER_FILE}")))
        if r["share"] == "weights"
    )
    assert left == {"train": 3}


def test_scores_that_are_dropped_are_in_the_ledger_too(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())

    def meddle(site, asked, honest):
        packet = opened(site, honest)
        if site != "s2" or packet.header["kind"] != "train":
            return honest
        facts = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
        return seal(
            facts,
            {**({} if facts["t"] == 2 else packet.tree), "score": {"whose": torch.zeros(1)}},
            fake.KEYS[site],
        )

    settings = fake.small("fedavg", rounds=3, eval_every=2)
    fake.run(tmp_path / "run", fake.Direct(sites, meddle), settings)
    lost = [row for row in rows(tmp_path / "run/ledger.jsonl") if row.get("dropped")]
    assert [(row["t"], row["share"], row["clients"], row["bytes"]) for row in lost] == [
        (0, "score", [2], 4), (2, "score", [2], 4), (2, "score", [2], 4),
    ]  # fmt: skip
