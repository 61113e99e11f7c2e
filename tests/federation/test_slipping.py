"""What a coordinator with the true key may try to slip past a site's operator, or leave on its disk."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.federation import fake
from unskew.core.trees import Tree
from unskew.federation.protocol.wire_format import Packet, seal
from unskew.federation.site import approvals
from unskew.federation.site.run_folder import RunFolder
from unskew.federation.site.site import Site
from unskew.federation.site.site_ledger import KEPT_ROUNDS


class Asking:
    """A coordinator that asks one site whatever it likes, under growing serial numbers."""

    def __init__(self, site: Site):
        self.site, self.serial = site, 0

    def __call__(
        self, kind: str, t: int = 0, tree: Tree | None = None, run: str = "r1", **more: Any
    ) -> dict[str, Any]:
        self.serial += 1
        header = {
            "run": run,
            "serial": self.serial,
            "site": self.site.member.name,
            "kind": kind,
            "t": t,
            **more,
        }
        return json.loads(self.site.answer(seal(header, tree or {}, fake.COORDINATOR)).text)


@pytest.fixture
def ask(tmp_path):
    return Asking(fake.sites(tmp_path, fake.federation())[1000])


def test_a_method_is_what_the_operator_reads_and_nothing_beside_it(ask):
    """`dpsgd` was approved with its epsilon, and ran with `set: {dpsgd: {noise: 0.0001}}`, of which nobody
    was told."""
    settings = fake.small("fedprox").as_dict()
    refusal = ask("hello", settings={**settings, "set": {"fedprox": {"mu": 100.0}}})
    assert (
        refusal["code"],
        "by the setting 'set', which its operator would not read" in refusal["text"],
    ) == (
        "E506",
        True,
    )
    place, tree = {"k": 0, "clients": 5, "largest": 9}, {"w": {"x": torch.zeros(1)}}
    assert (
        ask("setup", tree=tree, settings={**settings, "set": {"fedprox": {"mu": 100.0}}}, **place)["code"]
        == "E506"
    )
    assert "hello" in ask("hello", settings=settings, run="r2")


def test_the_name_of_a_model_cannot_forge_what_an_operator_reads(ask, tmp_path):
    """Where the operator allows a model from a file, the coordinator's own name for it stood there as it
    was."""
    net = tmp_path / "net.py"
    net.write_text(
        "from unskew.models.networks.cnn_small import cnn_small\n\n\ndef make(shape, classes):\n    return"
        " cnn_small(shape, classes)\n"
    )
    ask.site.model, ask.site.guard.approve, said = f"{net}:make", "ask", []
    ask.site.guard.say = said.append
    model = "x.py:make\nby      the ministry\x1b[2J" + "!" * 1000
    assert ask("hello", settings={**fake.small("fedavg").as_dict(), "model": model})["code"] == "E522"
    (request,) = approvals.all_requests(ask.site.member.folder)
    for text in (request.text(), *said):
        assert "\x1b" not in text
        assert not [line for line in text.splitlines() if line.startswith("by ") and "ministry" in line]
        assert len(text) < 3000


def test_of_a_setup_a_site_keeps_the_weights_alone(ask):
    """4 GB more in every run that had been approved once filled its disk."""
    settings = fake.small("fedavg")
    hello = ask("hello", settings=settings.as_dict())
    assert "hello" in hello
    study = ask.site._demands[1][0]  # whose weights have the form of the study's
    w = {n: t.clone() for n, t in study.fed.net.weights().items()}
    tree = {"w": w, "down": {"junk": torch.zeros(100_000)}}
    answer = ask("setup", tree=tree, settings=settings.as_dict(), k=0, clients=5, largest=40)
    assert answer.get("ready"), answer
    kept, facts = RunFolder(ask.site.member.folder / "runs" / "r1", "s0").read_setup()
    assert (set(kept), set(facts)) == ({"w"}, {"settings", "k", "clients", "largest", "owner"})


def test_private_state_that_no_round_counts_does_not_pile_up(tmp_path):
    """A coordinator that never counts a round had a site keep its private state of every round: a model's
    bytes each."""
    folder, t = RunFolder.of(tmp_path, "s0", "r1"), 0
    for t in range(1, 40):
        folder._private(t).write_text("")
        folder.sweep(Packet({"base": 3, "t": t}))
    left = sorted(int(path.stem.partition("-")[2]) for path in folder.path.glob("private-*"))
    assert left == [2, 3, *range(t - KEPT_ROUNDS + 1, t + 1)]
    folder.sweep(Packet({"base": 38, "t": 40}))
    assert folder._private(38).exists()
