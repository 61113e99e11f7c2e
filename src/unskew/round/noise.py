"""The random numbers of the Parts' `noise`, drawn for each client from its own key.

Letters: B batch, G lanes, S steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unskew.core.random_keys import key
from unskew.core.shares import Noise
from unskew.round.chunks import PAD_TO, Step, Work
from unskew.round.clients import Broadcast, Clients
from unskew.round.samples import on_device

PAD_STEPS = 16
"""On a GPU, the steps in a table are padded to a multiple of this."""


def draw(noise: Noise, steps: int, batch: int, *purpose: object) -> Tensor:
    """The numbers of a purpose: [S, B, *shape] if the noise is per sample, else [S, *shape]."""
    generator = key(*purpose)
    shape = (steps, batch, *noise.shape) if noise.per_sample else (steps, *noise.shape)
    if noise.law == "normal":
        return torch.randn(shape, generator=generator)
    if noise.law == "uniform":
        return torch.rand(shape, generator=generator)
    if noise.law == "integers":
        return torch.randint(int(noise.args[0]), shape, generator=generator)
    if noise.law == "beta":
        from scipy.special import betaincinv  # slow to import

        uniform = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
        return torch.from_numpy(betaincinv(*noise.args, uniform).astype(np.float32))
    return _cycle(int(noise.args[0]), shape, generator)


def _cycle(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """0..high-1 in shuffled order, repeated, so that all are used equally often."""
    steps, batch = shape[:2]
    if high < batch:
        return torch.randint(high, shape, generator=generator)
    decks = -(-steps * batch // high)
    order = torch.cat([torch.randperm(high, generator=generator) for _ in range(decks)])
    return order[: steps * batch].reshape(steps, batch)


class NoiseTables:
    """All noise of a chunk's clients in a round, drawn before their first step. A client's numbers do not
    depend on other clients.

    streams: by client, the seed of its numbers. widths: by client, its largest number of samples in a step,
    if that differs from the batch.
    """

    def __init__(
        self,
        clients: Clients,
        start: Broadcast,
        work: Sequence[Work],
        streams: Mapping[int, object],
        widths: Mapping[int, int],
    ):
        self.device = clients.device
        fed, recipe = clients.facts, clients.training.recipe_in(start.t)
        most = max(w.steps(recipe.epochs) for w in work)
        if self.device.type == "cuda":  # fewer shapes, so that more rounds have the same
            most = -(-most // PAD_STEPS) * PAD_STEPS
        widest = -(-max(widths.values(), default=recipe.batch) // PAD_TO) * PAD_TO if widths else recipe.batch
        self.laws: dict[str, dict[str, Noise]] = {
            p.name: p.noise(fed, start.down.get(p.name, {})) for p in clients.hooks["noise"]
        }

        self.names = [w.client for w in work]

        def table(part: str, name: str, law: Noise) -> Tensor:
            """The table [G, S, ...]; clients with fewer steps are padded with their first numbers."""
            lanes = []
            for w in work:
                own, width = w.steps(recipe.epochs), max(1, widths.get(w.client, recipe.batch))
                drawn = draw(law, own, width, streams[w.client], start.t, w.client, part, name)
                if law.per_sample and width < widest:
                    drawn = torch.cat([drawn, drawn[:, :1].expand(own, widest - width, *drawn.shape[2:])], 1)
                lanes.append(torch.cat([drawn, drawn[:1].expand(most - own, *drawn.shape[1:])]))
            return on_device(torch.stack(lanes), self.device)

        self.tables = {
            part: {name: table(part, name, law) for name, law in laws.items()}
            for part, laws in self.laws.items()
        }

    def over(self, tables: dict[str, dict[str, Tensor]]) -> NoiseTables:
        """The same laws over other tables of the same shapes."""
        other = copy.copy(self)
        other.tables = tables
        return other

    def at(self, step: Step, local: Tensor) -> dict[str, dict[str, Tensor]]:
        """The numbers of a step by Part and name: [G, B, *shape] or [G, *shape]. local: [G], the step number
        of each lane."""
        lane = torch.arange(step.width, device=self.device)

        def now(law: Noise, table: Tensor) -> Tensor:
            values = table[lane, local]
            return values[:, : step.size] if law.per_sample else values

        return {
            part: {name: now(self.laws[part][name], table) for name, table in tables.items()}
            for part, tables in self.tables.items()
        }
