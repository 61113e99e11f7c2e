"""Real processes on loopback: three sites train adapters of a language model to the simulator's bits, and
only adapters leave.

It needs transformers and peft beside Flower: `make test-hf`.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: make test-hf")
pytest.importorskip("cryptography", reason="the extra [flower] is not installed: make test-hf")
pytest.importorskip("transformers", reason="the extra [hf] is not installed: make test-hf")
pytest.importorskip("peft", reason="the extra [hf] is not installed: make test-hf")

import unskew
from tests.federation.loopback import Loopback
from unskew import models
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index

pytestmark = [pytest.mark.slow, pytest.mark.flower]
SITES = "abcde"
"""a, b and c take part; d builds adapters of another rank, and e was started without a model."""
T, WORDS, SIZES = 10, 60, (33, 17, 25)
ADAPTED = "lora_rank=2, lora_dropout=0.1, padding=0"
STUDY = {
    "method": "fedavg", "rounds": 2, "epochs": 1, "batch": 8, "lr": 0.01, "optimiser": "adamw", "seed": 0,
    "model": f"\"hf(path='published', {ADAPTED})\"",
}  # fmt: skip


@functools.cache
def sequences() -> Federation:
    """Sequences of token ids whose words tell the class, some of them padded, dealt to three clients."""
    y = np.arange(sum(SIZES)) % 3
    x = (np.random.default_rng(1).integers(1, 20, (len(y), T)) + 20 * y[:, None]).astype(np.float32)
    x[::2, 7:] = 0
    rows = [np.arange(a, b) for a, b in itertools.pairwise(np.cumsum([0, *SIZES]))]
    test = [rows[k][:9] for k in range(len(rows))]
    return Federation("words", x, y, x, y, ("a", "b", "c"), Index.of(rows), Index.of(test), "iid")


def publish(folder: Path, seed: int) -> None:
    """A tiny random BERT, as save_pretrained writes it. Its table of words is most of it."""
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            vocab_size=3000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=16, pad_token_id=0,
        )  # fmt: skip
        transformers.BertModel(config).save_pretrained(folder)


class Words(Loopback):
    """Sites with sequences of token ids and a folder with the model, each its own, started as their operators
    would."""

    def __init__(self, root: Path, sites: Sequence[str] = SITES):
        super().__init__(root, sites)
        publish(root / "published", seed=1)
        for site in "abd":
            (root / f"of-{site}").symlink_to(root / "published")
        publish(root / "of-c", seed=2)
        (root / "study.yaml").write_text("\n".join(f"{n}: {v}" for n, v in STUDY.items()))

    def _write_data(self, site: str, k: int) -> None:
        dealt = sequences()
        train, test = (rows[k % len(SIZES)] for rows in (dealt.train, dealt.test))
        arrays = {"x_train": dealt.x[train], "y_train": dealt.y[train]}
        arrays |= {"x_test": dealt.x_test[test], "y_test": dealt.y_test[test]}
        np.savez(self.root / f"{site}.npz", **arrays, classes=np.array(dealt.classes))

    def start_site(self, site: str, folder: str = "", approve: str = "all") -> None:
        adapted = ADAPTED.replace("rank=2", "rank=3") if site == "d" else ADAPTED
        model = ["--model", f"hf(path='of-{site}', {adapted})"] * (site != "e")
        places = ["--data", f"{site}.npz", "--folder", f"site-{site}"]
        self.start(site, "site", "run", *places, *model, "--approve", approve)

    def ended_run(self) -> str:
        """The last line of a run, whose processes take long to load what they need."""
        self.until(lambda: self.running["run"].poll() is not None, 400)
        return self.end("run")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Words(tmp_path_factory.mktemp("words"))
    try:
        federation.up(SITES)
        yield federation
    finally:
        federation.stop()


@pytest.fixture(scope="module")
def result(federation) -> dict:
    """Of a run of the three sites whose models fit."""
    federation.start_run("tuned", "--without", "d", "--without", "e", deadline="120s")
    return json.loads(federation.ended_run())


@functools.cache
def simulated(published: Path) -> unskew.Result:
    """The same in one process. Over a network updates are clipped unless that is refused, so they are here,
    too."""
    study = {**STUDY, "method": "fedavg+clip_median", "model": f"hf(path={str(published)!r}, {ADAPTED})"}
    return unskew.run(**study, data=sequences(), lanes="1", clients=len(SIZES))


@pytest.fixture(scope="module")
def sizes(federation) -> tuple[int, int]:
    """(bytes of what trains, bytes of what is frozen)."""
    module = models.build(f"hf(path={str(federation.root / 'published')!r}, {ADAPTED})", (T,), 3)
    learns = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert all(".lora_" in n or n.startswith("head.") for n in learns)
    return 4 * sum(p.numel() for p in learns.values()), 4 * sum(
        p.numel() for p in module.parameters() if not p.requires_grad
    )


def test_three_sites_end_with_the_simulators_weights(federation, result):
    """Masks of dropout in the model and in its adapters included. Site c's folder holds other weights of the
    same shapes: sites train from what the coordinator published, whatever lies in their own folders."""
    alone = simulated(federation.root / "published")
    assert result["sha256"] == alone.digest
    assert alone.scores()["last"] > 0.4, "adapters have learnt nothing: one in three by chance"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_adapters_leave_by_both_ledgers(federation, result, sizes):
    learnt, frozen = sizes
    assert frozen > 10 * learnt
    seen = {
        (row["way"], row["share"], row["bytes"]) for row in rows(federation.root / "runs/tuned/ledger.jsonl")
    }
    scored = {("down", "w (to be scored)", learnt), ("up", "score/global", 4)}
    assert seen == {("up", "w", learnt), ("down", "w", learnt), *scored}
    for site in "abc":
        (own,) = (federation.root / f"site-{site}").glob("runs/*/ledger.jsonl")
        left = [row for row in rows(own) if not row["share"].startswith("score/") and row["share"] != "said"]
        assert all(
            row["bytes"] < 100 for row in rows(own) if row["share"] == "said"
        )  # losses, and of how many samples
        assert [(row["t"], row["share"], row["bytes"]) for row in left] == [
            (1, "weights", learnt),
            (2, "weights", learnt),
        ]
