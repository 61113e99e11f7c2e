"""model.json: what somebody needs to use an exported model without unskew, for programs to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unskew import models
from unskew.data.federation import Federation
from unskew.engine import predictions
from unskew.engine.export import several
from unskew.engine.export.described import from_files
from unskew.engine.export.whole import Whole
from unskew.engine.predictions import Trained
from unskew.models.blocks import outputs
from unskew.models.folder import named_in
from unskew.revision import revision
from unskew.specs import without_folders

SCALED_OUTSIDE = "by whoever calls the model: (x / divided_by - mean) / std"
LOGITS = "logits; their softmax over axis 1 are the probabilities of the classes, in this order"
TOKENS = "logits; their softmax over axis 2 are the probabilities of the classes at every token, in this order"
SEVERAL = "logits; the logistic function of each is the probability that the sample has this label, in this order"


def facts_of(trained: Trained, whole: Whole, kind: str, dtype: str) -> dict[str, Any]:
    """The facts. kind: the format; dtype: of the numbers that the model takes."""
    run = trained.run
    federation, settings, inputs = run.federation, run.settings, predictions.facts(run.federation)
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
        **_inputs(whole, federation, dtype, SCALED_OUTSIDE if scaled_here else "by the model"),
        "outputs": {"name": "logits", "shape": shape, "meaning": _meaning(federation)},
        **({"target": inputs["target"]} if federation.target else {"classes": list(federation.classes)}),
        "model": name,
        **(
            {"made_by": _made_by(settings.model, federation.shape, federation.n_classes, pixels)} if scaled_here else {}
        ),
        "versions": {"unskew": revision(), "torch": torch.__version__},
    }


def _inputs(whole: Whole, federation: Federation, dtype: str, scaled: str) -> dict[str, Any]:
    """What the model takes: one array, or of samples with several inputs a list of them and how they are passed."""
    constants, form = whole.inputs, predictions.facts(federation).get("form")
    if whole.layout:
        passed = "by name" if whole.layout.named else "one after another"
        ways = [
            {**f, **_files(form or {}, f["name"]), "scaled": scaled} for f in several.facts(whole.layout, constants)
        ]
        return {"passed": passed, "inputs": ways}
    mean, std = (constants.mean.tolist(), constants.std.tolist()) if constants else (None, None)
    facts = {
        "name": "x",
        "dtype": dtype,
        "shape": ["N", *federation.shape],
        "divided_by": constants.divided_by if constants else 1,
        "mean": mean,
        "std": std,
        "scaled": scaled,
    }
    return {"inputs": {**facts, **({"form": form, **_files(form)} if form else {})}}


def _files(form: Mapping[str, Any], name: str = "") -> dict[str, str]:
    """How files became samples, or an input of this name, where they did."""
    text = from_files(form, name)
    return {"from_files": text} if text else {}


def _meaning(federation: Federation) -> str:
    """What the outputs stand for."""
    if target := federation.target:
        return f"one number, of which '{target.name}' is {target.scale!r} times, plus {target.center!r}"
    return SEVERAL if federation.several else TOKENS if federation.tokens else LOGITS


def _made_by(model: str, shape: tuple[int, ...], classes: int, pixels: list[int]) -> str:
    """How a module of the same layers is made in Python."""
    text = models.default_for(shape, tuple(pixels)) if model == "auto" else model
    if text.partition("(")[0] not in models.names():
        return "your own code, with which the run was trained"
    if folder := named_in(text):
        return f"the folder {Path(folder).name} with a model of Hugging Face, with which the run was trained"
    more = f", {tuple(pixels)}" if pixels else ""
    return f"unskew.models.build({text!r}, {shape}, {classes}{more})"
