"""The format safetensors: the weights alone, by their names in the module."""

from __future__ import annotations

from typing import Any

from safetensors.torch import save

from unskew.core.part import overrides
from unskew.errors import UsageError
from unskew.round.run import Run
from unskew.runs.export import example_inputs
from unskew.runs.export.example_inputs import ExportSamples
from unskew.runs.export.exported_model import ExportedModel

FILE = "model.safetensors"


def write(whole: ExportedModel, _x: ExportSamples, run: Run) -> bytes:
    """The content of the file.

    Raises UsageError (E160) if the weights are not the whole model: a Part replaces the head or adds layers.
    """
    for part in (a.part for a in whole.answers):
        raise _refused(f"'{part.name}' answers in place of the model's head")
    for part in run.method.parts:
        if overrides(part, "model"):
            raise _refused(f"'{part.name}' changes the model's layers")
    tensors = {name: t.detach().contiguous().clone() for name, t in whole.model.state_dict().items()}
    return save(tensors, {"written_by": "unskew export"})


def answer(content: bytes, whole: ExportedModel, x: ExportSamples) -> Any:
    """The logits of a module with the weights of the file for samples."""
    from safetensors.torch import load

    whole.model.load_state_dict(load(content))
    if not isinstance(x, dict):
        return whole.model(whole.inputs.apply(x) if whole.inputs else x)
    assert whole.layout is not None
    rows = example_inputs.pack_inputs(whole.layout, list(x.values()))
    return example_inputs.call_trained(
        whole.model, whole.layout, whole.inputs.apply(rows) if whole.inputs else rows
    )


def _refused(why: str) -> UsageError:
    return UsageError("E160", f"{why}, which weights alone do not say; try --format torch-export.")
