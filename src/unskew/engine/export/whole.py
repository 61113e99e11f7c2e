"""A run's model with everything between a sample as it was given and the model's answer, as one module.

Letters: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.core.client import Client, changed
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Weights, tree_map
from unskew.data.unseen import Unseen
from unskew.engine import predictions
from unskew.engine.assemble import trainer_of
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.export.constants import Constants, constants_of
from unskew.engine.inputs import inputs_of
from unskew.engine.predictions import NotHere, Trained
from unskew.engine.server.scores import Evaluation
from unskew.errors import UsageError


@dataclass(frozen=True)
class Answer:
    """A Part that turns logits into others, and the client as it sees it."""

    part: Part
    client: Client


class Whole(nn.Module):
    """Samples [N, *shape], as they were given for training, in; what predictions are read from, [N, C, ...], out.

    Of samples with several inputs it takes rows [N, D]; `several.Several` takes them as they were given.

    model: an ordinary module with the weights. weights: the same by the run's names. inputs: how samples are scaled, None where the model looks them up.
    answers: Parts that change the logits. client: whose own model this is, "" for the global one.
    """

    def __init__(
        self, net: Network, w: Weights, inputs: Constants | None, answers: tuple[Answer, ...] = (), client: str = ""
    ):
        super().__init__()
        self.model, self.weights = net.module_with(w), w
        self._net, self.inputs, self.answers, self.client = net, inputs, answers, client
        self.layout = net.layout

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs.apply(x) if self.inputs else x.to(torch.float32)
        z, h = self._net.run(_named(self.model), x)
        for answer in self.answers:
            z = answer.part.scores(z, h, changed(answer.client, inputs=x))
        return z


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module by each of its names."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def whole_of(trained: Trained, client: int | str | None = None) -> Whole:
    """The model that answers, on the CPU and in evaluation mode.

    client: by name or number, whose own model this is; default: the global one.
    Raises UsageError: E131 where no such model is here, E109 for an unknown client, E160 for a model that cannot leave.
    """
    federation = trained.run.federation
    k = predictions.number_of(federation, client)
    name = federation.name_of(k) if k >= 0 else ""
    trainer = trainer_of(trained.run)
    try:
        private = trained.private(trainer, k)
        if isinstance(federation, Unseen):
            trainer.samples = replace(trainer.samples, rows=NotHere())
        nothing = inputs_of(np.zeros((0, *federation.shape), np.float32), trainer.device)
        evaluation = Evaluation(trainer, nothing, np.zeros(0, np.int64), [])
        with trainer.evaluating():
            w = _on_cpu(evaluation.weights_of(k, trained.end, private, own=k >= 0))
            _check_nothing_beside(w, trainer, name)
            start = replace(trained.end, weights=w, down=_on_cpu(trained.end.down))
            seen = _seen(trainer, k, start, w, _on_cpu(private))
            answers = tuple(Answer(p, changed(seen, down=start.down.get(p.name, {}))) for p in trainer.hooks["scores"])
            return Whole(trainer.net, w, _inputs(trained, trainer, seen, start), answers, name).eval()
    finally:
        trainer.close()


def _seen(trainer: Trainer, k: int, start: Start, w: Weights, private: Mapping[str, Any]) -> Client:
    """Client k, or nobody (-1), with its tensors on the CPU."""
    c = trainer.client(k, start, "", w, private)
    return changed(c, counts=c.counts.cpu())


def _inputs(trained: Trained, trainer: Trainer, seen: Client, start: Start) -> Constants | None:
    """How samples are scaled by settings and by Parts; None where the model looks up whole numbers."""
    federation = trained.run.federation
    layout = trainer.net.layout
    if trainer.net.embeds and not layout:
        return None

    def prepare(x: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in federation.applied or ((0.0,), (1.0,)))
        if layout and federation.applied:
            mean, std = mean[layout.channel_of], std[layout.channel_of]
        row = (1, -1, *[1] * (x.dim() - 2))
        return trainer.prepared((x - mean.reshape(row)) / std.reshape(row), seen, start)

    return constants_of(prepare, federation.shape, predictions.facts(federation)["divided_by"])


def _check_nothing_beside(w: Weights, trainer: Trainer, name: str) -> None:
    """Raises UsageError (E160) where the client's own model holds more than weights, such as features of its samples."""
    if beside := sorted(w.keys() - trainer.net.initial.keys()):
        text = f"the own model of {name} holds '{beside[0]}', which is made of its training samples and is no weight"
        raise UsageError("E160", f"{text}; it stays where the samples are: use Result.predict there.")


def _on_cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu(), dict(tree))
