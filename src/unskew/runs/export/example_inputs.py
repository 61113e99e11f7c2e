"""The inputs of an exported model, and example samples; several inputs are passed by name or by position.

Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from unskew.core.module_inputs import split_inputs
from unskew.formats.input_layout import Input, Layout
from unskew.runs.export.exported_model import ExportedModel, InputScaling

INPUT_TYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
IMAGE_TYPES = {255: torch.uint8, 65_535: torch.uint16}
"""The type of images of whole numbers, by their divisor."""


class SeveralInputs(nn.Module):
    """Wraps a module of rows [N, D] as a module with an argument [N, ...] for each raw input.

    names: of the arguments, from the layout, or `input_1`, `input_2` ... by position.
    """

    def __init__(self, rows: nn.Module, layout: Layout):
        super().__init__()
        self.rows, self.names = rows, input_names(layout)
        kind = Parameter.KEYWORD_ONLY if layout.named else Parameter.POSITIONAL_OR_KEYWORD

        def forward(*args: Tensor, **kwargs: Tensor) -> Any:
            values = (*args, *(kwargs[name] for name in self.names[len(args) :]))
            return rows(pack_inputs(layout, values))

        forward.__signature__ = Signature([Parameter(n, kind) for n in self.names])  # type: ignore[attr-defined]
        self.forward = forward  # torch reads the inputs of a graph from its signature


def input_names(layout: Layout) -> list[str]:
    """The names of a graph's inputs, in the order of a row."""
    return [each.name if layout.named else f"input_{each.name}" for each in layout.inputs]


def pack_inputs(layout: Layout, inputs: Sequence[Tensor]) -> Tensor:
    """Rows [N, D] in natural units from raw inputs [N, ...] in the layout's order."""
    return torch.cat([_flat_input(each, values) for each, values in zip(layout.inputs, inputs)], 1)


def _flat_input(each: Input, values: Tensor) -> Tensor:
    flat = values.flatten(1) if each.shape else values[:, None]
    return flat.to(torch.float32) / each.divided_by if each.divided_by > 1 else flat.to(torch.float32)


def input_type(each: Input) -> torch.dtype:
    """The type of a raw input."""
    return IMAGE_TYPES[each.divided_by] if each.divided_by > 1 else INPUT_TYPES[each.kind]


def example_of_several(
    layout: Layout, entries: int, scale: InputScaling | None, count: int
) -> dict[str, Tensor]:
    """Deterministic raw inputs [count, ...] by name.

    entries: whole numbers are below it. scale: of rows, which sets the range of floats.
    """
    even = (torch.arange(count * layout.width) * 0.6180339887498949 % 1).reshape(count, layout.width)
    wide = even * 4 - 2 if scale is None else (even * 4 - 2) * scale.std + scale.mean
    values = {}
    for name, (each, start, end) in zip(input_names(layout), layout.places):
        part = even[:, start:end].reshape(count, *each.shape)
        if each.divided_by > 1:
            values[name] = (part * each.divided_by).round().to(input_type(each))
        elif each.kind == "float32":
            values[name] = wide[:, start:end].reshape(count, *each.shape).float()
        else:
            values[name] = (part * entries).long() if each.kind == "int64" else part > 0.3
    return values


def user_inputs(layout: Layout, values: Mapping[str, Tensor]) -> Any:
    """The dictionary or tuple that predictions take, from inputs by the names of a graph."""
    return dict(values) if layout.named else tuple(values.values())


def call_with(module: Any, layout: Layout, values: Mapping[str, Tensor]) -> Any:
    """The output of a module with an argument for each input. values: by the names of a graph."""
    return module(**values) if layout.named else module(*values.values())


def call_trained(module: nn.Module, layout: Layout, rows: Tensor) -> Any:
    """The output of the trained module for scaled rows [N, D]."""
    return call_with(module, layout, split_inputs(layout, rows))


def several_facts(layout: Layout, scale: InputScaling | None) -> list[dict[str, Any]]:
    """The description of each input in model.json."""
    facts = []
    for name, (each, start, end) in zip(input_names(layout), layout.places):
        mean = std = None
        if each.kind == "float32":
            if scale:
                mean, std = scale.mean[start:end], scale.std[start:end]
            else:
                mean, std = torch.zeros(each.size), torch.ones(each.size)
            mean, std = _per_channel(each, mean), _per_channel(each, std)
        dtype = str(input_type(each)).removeprefix("torch.")
        shape = {"dtype": dtype, "shape": ["N", *each.shape], "divided_by": each.divided_by}
        facts.append({"name": name, **shape, "mean": mean, "std": std})
    return facts


def _per_channel(each: Input, values: Tensor) -> list[float]:
    """The common number of each channel, which is the first axis of a sample."""
    return values.reshape(each.shape[0] if each.shape else 1, -1)[:, 0].tolist()


ExportSamples: TypeAlias = Tensor | dict[str, Tensor]
"""Samples [N, ...], or several inputs by the names of a graph."""

TRIED_SAMPLES = 3
"""The number of samples that check an export; not 2, the number with which a graph is traced."""
WHOLE_TYPES = {"uint8": torch.uint8, "uint16": torch.uint16}


def sample_type(dtype: str, whole: ExportedModel) -> str:
    """The type of an exported model's input. dtype: of the training samples.

    Bytes and 16-bit numbers keep their type if they are divided; whole numbers for a lookup are int64.
    """
    if whole.inputs is None:
        return "int64"
    return dtype if dtype in WHOLE_TYPES and whole.inputs.divided_by > 1 else "float32"


def example_samples(whole: ExportedModel, shape: tuple[int, ...], dtype: str, count: int) -> ExportSamples:
    """Deterministic samples [count, *shape] of this type, spread over the range of the training samples."""
    entries = min(
        (m.num_embeddings for m in whole.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)),
        default=2,
    )
    if whole.layout:
        return example_of_several(whole.layout, entries, whole.inputs, count)
    even = (torch.arange(count * math.prod(shape)) * 0.6180339887498949 % 1).reshape(count, *shape)
    if whole.inputs is None:
        return (even * entries).long()
    if dtype in WHOLE_TYPES:
        return (even * whole.inputs.divided_by).round().to(WHOLE_TYPES[dtype])
    row = (1, -1, *[1] * (len(shape) - 1))
    mean, std = (v.reshape(row) for v in (whole.inputs.mean, whole.inputs.std))
    return ((even * 4 - 2) * std + mean).float()
