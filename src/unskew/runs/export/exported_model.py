"""A run's model with all steps from a raw sample to the model's output, as one module.

Settings and Parts together scale each channel by a mean and a deviation. An exported model has these two rows
in place of their sources: FedRDN's table has the statistics of every site, but its global model needs only
their mean. Letters: N samples, C classes, channels or columns of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.core.client import Client, replace_fields
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Weights, tree_map
from unskew.data.clients.federation import RemoteFederation
from unskew.errors import UsageError
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.samples import load_samples
from unskew.round.trainer import Trainer
from unskew.runs import predictions
from unskew.runs.assemble import trainer_of
from unskew.runs.predictions import RemoteRows, TrainedRun

LINEAR_TOLERANCE = 1e-9
"""The largest relative deviation from a linear function in double precision."""


@dataclass(frozen=True)
class InputScaling:
    """Scales inputs to (x / divided_by - mean) / std by channel.

    divided_by: the largest number of the samples' type. mean, std: float64 [C].
    """

    divided_by: float
    mean: Tensor
    std: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """The float32 inputs of the model for raw samples [N, C, ...]."""
        row = (1, -1, *[1] * (x.dim() - 2))
        mean, std = (values.to(x.device, torch.float32).reshape(row) for values in (self.mean, self.std))
        return (x.to(torch.float32) / self.divided_by - mean) / std


def input_scaling(
    prepare: Callable[[Tensor], Tensor], shape: tuple[int, ...], divided_by: float
) -> InputScaling:
    """The constants of a function `prepare` of samples [1, *shape] in natural units.

    Raises UsageError (E160) for a function that does more than shift and scale each channel.
    """
    nothing, one = (torch.full((1, *shape), value, dtype=torch.float64) for value in (0.0, 1.0))
    shift, scale = prepare(nothing), prepare(one) - prepare(nothing)
    sample = torch.linspace(-3, 3, math.prod(shape), dtype=torch.float64).reshape(1, *shape)
    expected = scale * sample + shift
    straight = torch.allclose(prepare(sample), expected, rtol=LINEAR_TOLERANCE, atol=LINEAR_TOLERANCE)
    shift_CP, scale_CP = shift.reshape(shape[0], -1), scale.reshape(shape[0], -1)
    alike = bool((shift_CP == shift_CP[:, :1]).all() and (scale_CP == scale_CP[:, :1]).all())
    if not straight or not alike or not bool((scale_CP[:, 0] != 0).all()):
        text = (
            "this method does more to its inputs than to shift and scale each channel, which no export holds"
        )
        raise UsageError("E160", f"{text}; predict with unskew (unskew.load, unskew predict).")
    return InputScaling(divided_by, -shift_CP[:, 0] / scale_CP[:, 0], 1 / scale_CP[:, 0])


@dataclass(frozen=True)
class OutputPart:
    """A Part that changes logits, and the client object that it receives."""

    part: Part
    client: Client


class ExportedModel(nn.Module):
    """A module from raw samples [N, *shape] to logits [N, C, ...].

    Samples with several inputs are rows [N, D]; `SeveralInputs` takes each raw input.

    model: a plain module with the weights. weights: by the run's names. inputs: the scaling of samples, None
    if the model looks them up. answers: Parts that change the logits. client: the name of the client with
    this model, "" for the global one.
    """

    def __init__(
        self,
        net: Network,
        w: Weights,
        inputs: InputScaling | None,
        answers: tuple[OutputPart, ...] = (),
        client: str = "",
    ):
        super().__init__()
        self.model, self.weights = net.module_with(w), w
        self._net, self.inputs, self.answers, self.client = net, inputs, answers, client
        self.layout = net.layout

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs.apply(x) if self.inputs else x.to(torch.float32)
        z, h = self._net.run(_tensors_by_name(self.model), x)
        for answer in self.answers:
            z = answer.part.scores(z, h, replace_fields(answer.client, inputs=x))
        return z


def _tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module by each of its names."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def export_model(trained: TrainedRun, client: int | str | None = None) -> ExportedModel:
    """The model of a run on the CPU, in evaluation mode.

    client: name or number of the client with the model; default: the global model. Raises UsageError: E131 if
    the model is not here, E109 for an unknown client, E160 for a model that contains more than weights.
    """
    federation = trained.run.federation
    k = predictions.client_number(federation, client)
    name = federation.name_of(k) if k >= 0 else ""
    trainer = trainer_of(trained.run)
    try:
        private = trained.private(trainer, k)
        if isinstance(federation, RemoteFederation):
            trainer.samples = replace(trainer.samples, rows=RemoteRows())
        empty = load_samples(np.zeros((0, *federation.shape), np.float32), trainer.device)
        evaluation = Evaluation(trainer, empty, np.zeros(0, np.int64), [])
        with trainer.evaluating():
            w = _on_cpu(evaluation.weights_of(k, trained.end, private, own=k >= 0))
            _check_weights_only(w, trainer, name)
            start = replace(trained.end, weights=w, down=_on_cpu(trained.end.down))
            seen = _client_on_cpu(trainer, k, start, w, _on_cpu(private))
            answers = tuple(
                OutputPart(p, replace_fields(seen, down=start.down.get(p.name, {})))
                for p in trainer.hooks["scores"]
            )
            return ExportedModel(
                trainer.net, w, _scaling_of(trained, trainer, seen, start), answers, name
            ).eval()
    finally:
        trainer.close()


def _client_on_cpu(
    trainer: Trainer, k: int, start: Broadcast, w: Weights, private: Mapping[str, Any]
) -> Client:
    """Client k, or no client (-1), with its tensors on the CPU."""
    c = trainer.client(k, start, "", w, private)
    return replace_fields(c, counts=c.counts.cpu())


def _scaling_of(trained: TrainedRun, trainer: Trainer, seen: Client, start: Broadcast) -> InputScaling | None:
    """The scaling of samples by settings and Parts; None if the model looks up whole numbers."""
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

    return input_scaling(prepare, federation.shape, predictions.input_facts(federation)["divided_by"])


def _check_weights_only(w: Weights, trainer: Trainer, name: str) -> None:
    """Raises UsageError (E160) if the client's own model has more than weights, such as features of
    samples."""
    if others := sorted(w.keys() - trainer.net.initial.keys()):
        text = (
            f"the own model of {name} holds '{others[0]}', which is made of its training samples and is no"
            " weight"
        )
        raise UsageError("E160", f"{text}; it stays where the samples are: use Result.predict there.")


def _on_cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu(), dict(tree))
