"""Which rows of a model's tables samples look up, seen as the model is run on them.

Letters: N samples, V rows of a table that stand for something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unskew.attacks.scene import Scene
from unskew.models.tokens import ids, tables

PIECE = 256
"""Samples in one pass."""


class Lookups:
    """Runs a scene's model and notes the rows; within `with`. names: weights of the tables that are looked at.

    counts: by table, bool, the rows that stand for something.
    """

    def __init__(self, scene: Scene, names: Mapping[str, Any]):
        self.scene, self.net = scene, scene.trainer.net
        self.layers = {n: layer for n, layer in tables(self.net.module).items() if n in names}
        self.rows = {n: layer.num_embeddings for n, layer in self.layers.items()}
        self.counts = {n: _no_padding(layer) for n, layer in self.layers.items()}
        self._seen: dict[str, Tensor] = {}

    def __enter__(self) -> Lookups:
        self._hooks = [
            layer.register_forward_hook(self._noting(n), with_kwargs=True) for n, layer in self.layers.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def present(self, x: Tensor, k: int = -1) -> dict[str, Tensor]:
        """bool [V] by table: the rows, without padding, that samples [N, *shape], as stored, look up at client k, or at
        nobody's."""
        self._seen = {n: torch.zeros(rows, dtype=torch.bool) for n, rows in self.rows.items()}
        with torch.no_grad(), self.scene.trainer.evaluating():
            for piece in x.split(PIECE):
                self.net.run(self.scene.final.weights, self.scene.seen(piece, k))
        return {n: seen[self.counts[n]] for n, seen in self._seen.items()}

    def counted(self, x: Tensor) -> dict[str, Tensor]:
        """[V] by table: how many of these samples look each row up."""
        by_sample = [self.present(sample) for sample in x.split(1)]
        return {n: torch.stack([seen[n] for seen in by_sample]).sum(0) for n in self.rows}

    def _noting(self, name: str) -> Any:
        def note(_layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            self._seen[name][ids(args, kwargs).detach().round().long().flatten().cpu()] = True

        return note


def _no_padding(layer: nn.Embedding | nn.EmbeddingBag) -> Tensor:
    """bool [rows]: all but the one that stands for nothing, which never has a gradient."""
    counts = torch.ones(layer.num_embeddings, dtype=torch.bool)
    if layer.padding_idx is not None:
        counts[layer.padding_idx] = False
    return counts
