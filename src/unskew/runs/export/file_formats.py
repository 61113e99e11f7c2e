"""The formats of the file with an exported model.

safetensors     the weights alone, by their names in the module
torch-export    a graph for PyTorch, which needs neither unskew nor the source of the model
onnx            a graph for ONNX Runtime and other readers of ONNX
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.export import Dim, ExportedProgram

from unskew.core.part import overrides
from unskew.errors import MissingPackage, UsageError, excerpt
from unskew.round.run import Run
from unskew.runs.export.exported_model import ExportedModel

LARGEST_ONNX = 2_000_000_000
"""The most bytes of weights: an ONNX file has at most 2 GiB."""


@dataclass(frozen=True)
class FileFormat:
    """A format. file: the file's name. write: its content from the model and samples to trace it with; raises
    UsageError (E160) for a model that the format does not hold. answer: the output of a file's content for
    samples, with which an export is tried."""

    file: str
    write: Callable[[ExportedModel, Tensor, Run], bytes]
    answer: Callable[[bytes, ExportedModel, Tensor], Any]


def write_weights(whole: ExportedModel, _x: Tensor, run: Run) -> bytes:
    """The content of a safetensors file. Raises UsageError (E160) if the weights are not the whole model."""
    changing = [p for p in run.method.parts if overrides(p, "model")]
    does = "answers in place of the model's head" if whole.answers else "changes the model's layers"
    for part in (*whole.answers, *changing):
        text = f"'{part.name}' {does}, which weights alone do not say"
        raise UsageError("E160", f"{text}; try --format torch-export.")
    tensors = {name: t.detach().contiguous().clone() for name, t in whole.model.state_dict().items()}
    return save(tensors, {"written_by": "unskew export"})


def weights_answer(content: bytes, whole: ExportedModel, x: Tensor) -> Any:
    """The logits of a module with the weights of the file for samples."""
    whole.model.load_state_dict(load(content))
    return whole.model(whole.inputs.apply(x) if whole.inputs else x)


def write_program(whole: ExportedModel, x: Tensor, _run: Run) -> bytes:
    """The content of a torch.export file."""
    buffer = io.BytesIO()
    torch.export.save(_program_of(whole, x), buffer)
    return buffer.getvalue()


def _program_of(whole: ExportedModel, x: Tensor) -> ExportedProgram:
    """The model's graph for any number of samples."""
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(whole, (x,), dynamic_shapes={"x": {0: Dim("N")}}, strict=False)
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


def program_answer(content: bytes, _whole: ExportedModel, x: Tensor) -> Any:
    """The output of the file's program for samples."""
    return torch.export.load(io.BytesIO(content)).module()(x)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


def write_onnx(whole: ExportedModel, x: Tensor, _run: Run) -> bytes:
    """The content of the file.

    Raises UsageError: E133 if the extra is not installed, E160 for a model that torch cannot export or that
    is too large.
    """
    package("onnx"), package("onnxscript"), package("onnxruntime")
    size = sum(t.numel() * t.element_size() for t in whole.model.state_dict().values())
    if size > LARGEST_ONNX:
        text = f"the model has {size:,} bytes, and one ONNX file holds at most {LARGEST_ONNX:,}"
        raise UsageError("E160", f"{text}; --format safetensors or torch-export has no such limit.")
    program = _program_of(whole, x)
    try:
        with _quiet():
            converted = torch.onnx.export(
                program, (x,), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False
            )
    except Exception as error:  # torch raises many kinds, for operations that ONNX does not have
        text = f"torch cannot turn this model into ONNX ({type(error).__name__}: {excerpt(str(error), 200)})"
        raise UsageError("E160", f"{text}; use --format torch-export.") from error
    assert converted is not None  # with dynamo=True there is a program
    return converted.model_proto.SerializeToString()


def onnx_answer(content: bytes, _whole: ExportedModel, x: Tensor) -> Any:
    """The output of ONNX Runtime for samples, with the graph of the file."""
    runtime = package("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.as_tensor(session.run(None, {"x": x.numpy()})[0])


def package(name: str) -> Any:
    """The module of this name. Raises UsageError (E133) if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        instead = "--format safetensors and torch-export need nothing more"
        raise MissingPackage("the format onnx", name, "export", instead) from error


FORMATS = {
    "safetensors": FileFormat("model.safetensors", write_weights, weights_answer),
    "torch-export": FileFormat("model.pt2", write_program, program_answer),
    "onnx": FileFormat("model.onnx", write_onnx, onnx_answer),
}
