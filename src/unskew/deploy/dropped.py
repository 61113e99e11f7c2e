"""The rows of a run's ledger for what sites sent and no merge has seen: it has left them all the same.

The gate's ledger knows the replies that it was handed. Those that were dropped before, because they are no replies, out of
proportion, of too many samples or in a round with too few, are written down here; `events.jsonl` says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from unskew.core import gate
from unskew.core.trees import Tree, leaves
from unskew.core.values import Share
from unskew.deploy.spent import share_of
from unskew.engine.disk.record import Record
from unskew.privacy.secure import SUM

UNKNOWN = "?"
"""The share of tensors that nobody has declared, whose names are the site's."""
Sizes = dict[str, int]
"""Bytes by the name of a share."""


@dataclass
class Dropped:
    """record: the run's. spec: what replies to training are declared to hold."""

    record: Record
    spec: gate.Spec
    came: dict[int, Tree] = field(default_factory=dict[int, Tree])
    """By client, what has come in this exchange."""

    def receive(self, trees: Mapping[int, Tree]) -> None:
        """What clients have sent, before anything is taken from it or refused."""
        self.came = {k: dict(tree) for k, tree in trees.items()}

    def note(
        self,
        t: int,
        used: Collection[int],
        shares: Mapping[str, Mapping[str, Share]] | None = None,
        early: Collection[int] | None = None,
    ) -> None:
        """Write down what came of clients that are not among `used`.

        shares: by Part, where they are not the training's. early: the clients whose answers to early trips are used, where
        there are such answers.
        """
        declared = {**self.spec.shares, **(shares or {})}
        rows = [
            {"t": t, "way": "up", "share": share, "clients": [k], "bytes": size,
             "reads": "sum" if share == SUM else "each", "guarantee": "none",
             **_disclosed(share, declared), "dropped": True}
            for k, tree in self.came.items()
            for share, size in _by_declared(_sizes(_lost(tree, k in used, early is None or k in early)), declared).items()
        ]  # fmt: skip
        self.came = {}
        self.record.add("ledger", rows)


def _lost(tree: Tree, used: bool, early: bool) -> Tree:
    """What of a reply is not used. early: whether its answers to early trips would be."""
    return tree if not used else {} if early else {"early": tree.get("early", {})}


def _sizes(tree: Tree) -> Sizes:
    """Bytes of each share of a reply; scores apart, which have rows of their own."""
    sizes: Sizes = {}
    for path, tensor in leaves(tree):
        if isinstance(tensor, Tensor) and path.split("/")[0] != "score":
            share = SUM if path.startswith(f"{SUM}/") else share_of(path)
            sizes[share] = sizes.get(share, 0) + tensor.numel() * tensor.element_size()
    return sizes


def _by_declared(sizes: Sizes, declared: Mapping[str, Mapping[str, Share]]) -> Sizes:
    """With the ledger's name for weights, and one name for all that nobody has declared."""
    known = {f"{part}/{leaf.split('/')[0]}" for part, shares in declared.items() for leaf in shares}
    named: Sizes = {}
    for share, size in sizes.items():
        name = "w" if share == "weights" else share if share in known or share == SUM else UNKNOWN
        named[name] = named.get(name, 0) + size
    return named


def _disclosed(name: str, declared: Mapping[str, Mapping[str, Share]]) -> dict[str, Any]:
    """What the ledger says of a share: what it discloses, and of how many samples. Of what nobody declared, the most."""
    part, _, leaf = name.partition("/")
    share = next((s for path, s in declared.get(part, {}).items() if path.split("/")[0] == leaf), Share(()))
    if name in ("w", SUM):
        share = Share((), kind="weights", samples="client")
    return {"kind": share.discloses, "samples": share.samples}
