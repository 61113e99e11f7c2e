"""The format torch-export: a graph for PyTorch, which needs neither unskew nor the source of the model."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from unskew.errors import UsageError
from unskew.round.run import Run
from unskew.runs.export import example_inputs
from unskew.runs.export.example_inputs import ExportSamples
from unskew.runs.export.exported_model import ExportedModel

FILE = "model.pt2"


def write(whole: ExportedModel, x: ExportSamples, _run: Run) -> bytes:
    """The content of the file. Raises UsageError (E160) for a model that torch cannot export."""
    buffer = io.BytesIO()
    torch.export.save(program_of(whole, x), buffer)
    return buffer.getvalue()


def arguments(whole: ExportedModel, x: ExportSamples) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional arguments, keyword arguments) of a call of the graph."""
    if isinstance(x, dict):
        return ((), x) if whole.layout and whole.layout.named else (tuple(x.values()), {})
    return (x,), {}


def program_of(whole: ExportedModel, x: ExportSamples) -> ExportedProgram:
    """The model's graph for any number of samples. Raises UsageError (E160) if torch cannot trace it.

    Paths of source files on this machine, which torch records with every operation, are removed.
    """
    module = example_inputs.SeveralInputs(whole, whole.layout) if whole.layout else whole
    args, kwargs = arguments(whole, x)
    any_number = {name: {0: Dim("N")} for name in (x if isinstance(x, dict) else ["x"])}
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=any_number, strict=False)
    except Exception as error:  # torch raises many kinds, for models that it cannot trace
        reason = str(error).partition("\n")[0]
        text = (
            f"torch.export cannot follow this model for any number of samples ({type(error).__name__}:"
            f" {reason[:200]})"
        )
        raise UsageError("E160", f"{text}; --format safetensors needs no graph.") from error
    for weight in program.parameters():
        weight.requires_grad_(False)  # outputs are then plain tensors without a gradient graph
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def answer(content: bytes, whole: ExportedModel, x: ExportSamples) -> Any:
    """The output of the file's program for samples."""
    args, kwargs = arguments(whole, x)
    return torch.export.load(io.BytesIO(content)).module()(*args, **kwargs)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of torch about graphs; failures raise errors instead."""
    level, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
