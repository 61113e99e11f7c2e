"""The format onnx: a graph for ONNX Runtime and other readers of ONNX."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from unskew.errors import MissingPackage, UsageError, excerpt
from unskew.round.run import Run
from unskew.runs.export.example_inputs import ExportSamples
from unskew.runs.export.exported_model import ExportedModel
from unskew.runs.export.program_format import arguments, program_of, quiet

FILE = "model.onnx"
LARGEST = 2_000_000_000
"""The most bytes of weights: an ONNX file has at most 2 GiB."""


def write(whole: ExportedModel, x: ExportSamples, _run: Run) -> bytes:
    """The content of the file.

    Raises UsageError: E133 if the extra is not installed, E160 for a model that torch cannot export or that
    is too large.
    """
    package("onnx"), package("onnxscript"), package("onnxruntime")
    size = sum(t.numel() * t.element_size() for t in whole.model.state_dict().values())
    if size > LARGEST:
        text = f"the model has {size:,} bytes, and one ONNX file holds at most {LARGEST:,}"
        raise UsageError("E160", f"{text}; --format safetensors or torch-export has no such limit.")
    program = program_of(whole, x)
    args, kwargs = arguments(whole, x)
    try:
        with quiet():
            converted = torch.onnx.export(
                program, args, kwargs=kwargs or None, dynamo=True, input_names=list(_graph_inputs(x)),
                output_names=["logits"], verbose=False,
            )  # fmt: skip
    except Exception as error:  # torch raises many kinds, for operations that ONNX does not have
        text = f"torch cannot turn this model into ONNX ({type(error).__name__}: {excerpt(str(error), 200)})"
        raise UsageError("E160", f"{text}; use --format torch-export.") from error
    assert converted is not None  # with dynamo=True there is a program
    return converted.model_proto.SerializeToString()


def answer(content: bytes, _whole: ExportedModel, x: ExportSamples) -> Any:
    """The output of ONNX Runtime for samples, with the graph of the file."""
    runtime = package("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.as_tensor(
        session.run(None, {name: values.numpy() for name, values in _graph_inputs(x).items()})[0]
    )


def _graph_inputs(x: ExportSamples) -> dict[str, torch.Tensor]:
    """The inputs of the graph by name."""
    return x if isinstance(x, dict) else {"x": x}


def package(name: str) -> Any:
    """The module of this name. Raises UsageError (E133) if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        instead = "--format safetensors and torch-export need nothing more"
        raise MissingPackage("the format onnx", name, "export", instead) from error
