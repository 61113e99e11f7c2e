"""The folder of an exported model: the model, model.json, the model card, and code that loads it.

model.safetensors    the weights alone, by their names in the module (the format safetensors)
model.pt2            a graph for PyTorch, which needs neither unskew nor the model's source (torch-export)
model.json, model.md, load.py

model.json has everything that a program needs to use the model without unskew. Samples of a folder of images
are in [0, 1] already, so their `divided_by` is 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.export import Dim, ExportedProgram

from unskew import models
from unskew.core.part import overrides
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError, excerpt, suggestion
from unskew.formats.specs import without_folders
from unskew.models.blocks import outputs
from unskew.models.hf_folder import folder_in
from unskew.records.checkpoints import State
from unskew.records.record import Record
from unskew.round.precision import torch_defaults
from unskew.round.run import Run
from unskew.runs import model_card, predictions
from unskew.runs.export import exported_model
from unskew.runs.export.exported_model import ExportedModel, export_model
from unskew.runs.predictions import TrainedRun
from unskew.system import disk
from unskew.version import revision


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


FORMATS = {
    "safetensors": FileFormat("model.safetensors", write_weights, weights_answer),
    "torch-export": FileFormat("model.pt2", write_program, program_answer),
}


SCALED_OUTSIDE = "by whoever calls the model: (x / divided_by - mean) / std"
LOGITS = "logits; their softmax over axis 1 are the probabilities of the classes, in this order"
TOKENS = (
    "logits; their softmax over axis 2 are the probabilities of the classes at every token, in this order"
)
SEVERAL = (
    "logits; the logistic function of each is the probability that the sample has this label, in this order"
)


def model_facts(trained: TrainedRun, whole: ExportedModel, kind: str, dtype: str) -> dict[str, Any]:
    """The content of model.json. kind: the format. dtype: of the model's input."""
    run = trained.run
    federation, settings, inputs = run.federation, run.settings, predictions.input_facts(run.federation)
    scaled_here = kind == "safetensors"
    pixels = list(run.task.pixels(federation.shape))
    shape = ["N", *outputs(federation.shape, federation.n_classes, tuple(pixels))]
    name = without_folders(settings.model)
    return {
        "format": kind,
        "method": without_folders(str(run.method)),
        "data": federation.name,
        "task": run.task.name,
        "round": trained.end.t,
        "client": whole.client or None,
        "inputs": _input_facts(whole, federation, dtype, SCALED_OUTSIDE if scaled_here else "by the model"),
        "outputs": {"name": "logits", "shape": shape, "meaning": _meaning(federation)},
        **({"target": inputs["target"]} if federation.target else {"classes": list(federation.classes)}),
        "model": name,
        **(
            {"made_by": _build_call(settings.model, federation.shape, federation.n_classes, pixels)}
            if scaled_here
            else {}
        ),
        "versions": {"unskew": revision(), "torch": torch.__version__},
    }


def _input_facts(whole: ExportedModel, federation: Federation, dtype: str, scaled: str) -> dict[str, Any]:
    """The description of the model's input. `form` says how files became samples."""
    constants, form = whole.inputs, predictions.input_facts(federation).get("form", {})
    facts = {
        "name": "x",
        "dtype": dtype,
        "shape": ["N", *federation.shape],
        "divided_by": constants.divided_by if constants else 1,
        "mean": constants.mean.tolist() if constants else None,
        "std": constants.std.tolist() if constants else None,
        "scaled": scaled,
    }
    return {**facts, **({"form": form} if form else {})}


def _meaning(federation: Federation) -> str:
    """The meaning of the outputs."""
    if (target := federation.target) and federation.n_classes > 1:
        names = ", ".join(federation.classes)
        return f"one number for each of {names}: {target.scale!r} times these, plus {target.center!r}"
    if target:
        return f"one number, of which '{target.name}' is {target.scale!r} times, plus {target.center!r}"
    if federation.several:
        return SEVERAL
    return TOKENS if federation.tokens else LOGITS


def _build_call(model: str, shape: tuple[int, ...], classes: int, pixels: list[int]) -> str:
    """The Python call that builds a module with these layers."""
    text = models.default_for(shape, tuple(pixels)) if model == "auto" else model
    if text.partition("(")[0] not in models.names():
        return "your own code, with which the run was trained"
    if folder := folder_in(text):
        return f"the folder {Path(folder).name} with a model of Hugging Face, with which the run was trained"
    more = f", {tuple(pixels)}" if pixels else ""
    return f"unskew.models.build({text!r}, {shape}, {classes}{more})"


Format: TypeAlias = Literal["safetensors", "torch-export"]
SNIPPETS = Path(__file__).parent / "snippets"
LOGIT_TOLERANCE = 1e-4
"""The largest difference of logits relative to the largest logit; graphs sum in another order."""


@torch_defaults()
def write_export(
    trained: TrainedRun,
    record: Record,
    out: Path,
    kind: Format = "safetensors",
    client: int | str | None = None,
) -> list[Path]:
    """Write a run's model into the new folder `out`; returns its files.

    client: name or number of the client with the model; default: the global model. Raises UsageError: E109
    for an unknown format or client, E131 if the model is not here, E160 if it cannot be exported in this
    format, E161 if `out` exists or cannot be made.
    """
    if kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(
            "E109", f"there is no format {excerpt(kind)}; there is {known}.{suggestion(str(kind), FORMATS)}"
        )
    out = out.expanduser()
    _check_name(out)
    form, whole = FORMATS[kind], export_model(trained, client)
    shape = trained.run.federation.shape
    dtype = exported_model.sample_type(predictions.input_facts(trained.run.federation)["dtype"], whole)
    content: bytes = form.write(whole, exported_model.example_samples(whole, shape, dtype, 2), trained.run)
    x = exported_model.example_samples(whole, shape, dtype, exported_model.TRIED_SAMPLES)
    _check_answers(content, form, whole, x, trained, client)
    facts = {"file": form.file, "sha256": hashlib.sha256(content).hexdigest()}
    facts |= model_facts(trained, whole, kind, dtype)
    now = State(trained.end.t, whole.weights, {})
    files: dict[str, bytes | str] = {
        form.file: content,
        "model.json": json.dumps(facts, indent=2) + "\n",
        model_card.FILE: model_card.card_text(trained.run, record, now),
        "load.py": (SNIPPETS / f"{kind}.txt").read_text(),
    }
    try:
        with disk.new_folder(out) as folder:
            for name, text in files.items():
                disk.replace(folder / name, text)
    except OSError as error:
        raise UsageError(
            "E161", f"{out} cannot be written: {error.strerror or error}. Choose another."
        ) from error
    return [out / name for name in files]


def _check_name(out: Path) -> None:
    """Raises UsageError (E161) for an existing folder, and for the name of a file."""
    if out.suffix in {Path(form.file).suffix for form in FORMATS.values()}:
        text = (
            f"an export is a folder with the model, what explains it and how to load it, and {out} is a"
            " file's name"
        )
        raise UsageError("E161", f"{text}; leave {out.suffix} out and say --format.")
    if out.exists():
        raise UsageError("E161", f"{out} exists, and nothing is overwritten; name a new folder.")


@torch.no_grad()
def _check_answers(
    content: bytes,
    form: FileFormat,
    whole: ExportedModel,
    x: Tensor,
    trained: TrainedRun,
    client: int | str | None,
) -> None:
    """Raises UsageError (E160) if the outputs of the export differ from those of the run's model."""
    ours, theirs = trained.outputs(x, client), form.answer(content, whole, x)
    difference = float((ours - theirs).abs().max())
    if not difference <= LOGIT_TOLERANCE * max(1.0, float(ours.abs().max())):
        text = f"the exported model answers otherwise than the run's: logits differ by up to {difference:.3g}"
        raise UsageError("E160", f"{text}. Nothing was written; try another --format.")
