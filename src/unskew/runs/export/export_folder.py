"""The folder of an exported model: the model, model.json, the model card, and code that loads it.

model.safetensors | model.pt2 | model.onnx    model.json    model.md    load.py

model.json has everything that a program needs to use the model without unskew. Samples of a folder of images
are in [0, 1] already, so their `divided_by` is 1.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from unskew import models
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError, excerpt, suggestion
from unskew.formats.specs import without_folders
from unskew.models.blocks import outputs
from unskew.models.hf_folder import folder_in
from unskew.records.checkpoints import State
from unskew.records.record import Record
from unskew.round.precision import torch_defaults
from unskew.runs import model_card, predictions
from unskew.runs.export import exported_model
from unskew.runs.export.exported_model import ExportedModel, export_model
from unskew.runs.export.file_formats import FORMATS, FileFormat
from unskew.runs.predictions import TrainedRun
from unskew.system import disk
from unskew.version import revision

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
    if target := federation.target:
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


Format: TypeAlias = Literal["safetensors", "torch-export", "onnx"]
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
    format, E161 if `out` exists or cannot be made, E133 without the packages of ONNX.
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
    x: torch.Tensor,
    trained: TrainedRun,
    client: int | str | None,
) -> None:
    """Raises UsageError (E160) if the outputs of the export differ from those of the run's model."""
    ours, theirs = trained.outputs(x, client), form.answer(content, whole, x)
    difference = float((ours - theirs).abs().max())
    if not difference <= LOGIT_TOLERANCE * max(1.0, float(ours.abs().max())):
        text = f"the exported model answers otherwise than the run's: logits differ by up to {difference:.3g}"
        raise UsageError("E160", f"{text}. Nothing was written; try another --format.")
