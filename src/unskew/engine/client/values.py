"""What local training starts from: the clients' samples, how they train, and what a round sends them.

Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from unskew.core.trees import Tree, Weights, all_aligned
from unskew.data.index import Index
from unskew.engine.client.course import Course
from unskew.engine.client.schedule import Recipe
from unskew.engine.precision import FLOAT32


@dataclass(frozen=True)
class Samples:
    """The training samples of all clients.

    x: inputs, [N, *shape].
    y: the task's targets: class distributions [N, C], or [N, C, H, W] where samples have masks.
    rows: for each client, which rows of x and y are its own.
    counts_KC: for each client, its number of samples (of pixels, where samples have masks) per class.
    """

    x: Tensor
    y: Tensor
    rows: Index | Sequence[np.ndarray]
    counts_KC: np.ndarray


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains: how its epochs are cut into steps, and its optimiser without the learning rate.

    optimiser: "sgd", "adam", "adamw" or "sign". momentum: of SGD, in [0, 1). weight_decay: the L2 coefficient. precision:
    "float32", "tf32" or "bf16", see `precision.py`. first_epochs: the epochs of round 1, 0 where they are as many as in the others.
    course: of the learning rate over a client's steps of a round.
    """

    recipe: Recipe
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    precision: str = FLOAT32
    first_epochs: int = 0
    course: Course = Course()

    def recipe_in(self, t: int) -> Recipe:
        """How the epochs of round t are cut into steps."""
        return replace(self.recipe, epochs=self.first_epochs) if t == 1 and self.first_epochs else self.recipe


@dataclass(frozen=True)
class Start:
    """What a round sends to its clients.

    t: the round, from 1 (0 before the first). lr: its learning rate. weights: the global weights.
    down: the slice that each Part broadcasts, by the Part's name.
    own: where a Part dispatches, the weights and slices that a client is sent in place of these, by its number.
    """

    t: int
    lr: float
    weights: Weights
    down: dict[str, Tree]
    own: Callable[[int], tuple[Weights, dict[str, Tree]]] | None = None

    def to(self, k: int) -> Start:
        """What client k is sent, at addresses where a message would bring it; k = -1 stands for nobody, who sees what all
        have in common."""
        if self.own is None or k < 0:
            return self
        weights, down = self.own(k)
        weights = all_aligned(weights) if isinstance(weights, dict) else weights  # else on a disk, read when needed
        return Start(self.t, self.lr, weights, {part: all_aligned(tree) for part, tree in down.items()})

    def reading(self, part: str, leaves: Collection[str] | None) -> Start:
        """The same with these leaves of the Part's slice alone; None: all of them."""
        if leaves is None:
            return self

        def only(down: dict[str, Tree]) -> dict[str, Tree]:
            return {**down, part: {leaf: v for leaf, v in down.get(part, {}).items() if leaf in leaves}}

        def own(k: int) -> tuple[Weights, dict[str, Tree]]:
            weights, down = self.own(k) if self.own else (self.weights, self.down)
            return weights, only(down)

        return replace(self, down=only(self.down), own=own if self.own else None)

    def received(self, k: int) -> Weights:
        """The weights that client k is sent."""
        return self.to(k).weights
