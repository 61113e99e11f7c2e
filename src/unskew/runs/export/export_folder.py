"""The folder of an exported model: the model, model.json, the model card, and code that loads it.

model.safetensors | model.pt2 | model.onnx    model.json    model.md    load.py
model.safetensors    config.json    README.md                                     for the format hub

model.json has everything that a program needs to use the model without unskew, and describes in words how
files became samples. Samples of a folder of images are in [0, 1] already, so their `divided_by` is 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from unskew import models
from unskew.data.clients.federation import Federation
from unskew.data.kinds.sounds import MELS, RANGE_DB, waveform_length
from unskew.data.kinds.sounds import SoundFormat as Sound
from unskew.errors import UsageError, excerpt, suggestion
from unskew.formats.specs import without_folders
from unskew.models.blocks import outputs
from unskew.models.hf_folder import folder_in
from unskew.records.checkpoints import State
from unskew.records.record import Record
from unskew.round.precision import torch_defaults
from unskew.runs import model_card, predictions
from unskew.runs.export import exported_model, hub_format
from unskew.runs.export.exported_model import ExportedModel, ExportSamples, export_model
from unskew.runs.export.file_formats import FORMATS, FileFormat
from unskew.runs.predictions import TrainedRun
from unskew.system import disk
from unskew.version import revision

FIT_WORDS = {
    "pad": "scaled until its longer side is {size} and put on the middle of a black square",
    "crop": "cut to the square in its middle and scaled to {size} x {size}",
    "squash": "scaled to {size} x {size}, whatever its sides",
}


def describe_files(form: Mapping[str, Any], name: str = "") -> str:
    """A description of how a file or a row of a table becomes a sample; "" for arrays.

    form: `Intake.form` of the training samples. name: of an input, if a sample has several.
    """
    if name in (files := form.get("files", {})):
        return describe_files(files[name])
    kind = form.get("kind", "arrays")
    if name and name != {"images": "image", "sounds": "sound"}.get(kind):
        kinds = dict(form.get("beside", ()))
        return _column_text(name, kinds[name]) if name in kinds else ""
    texts = {"images": _image_text, "sounds": _sound_text, "volumes": _volume_text, "table": _row_text}
    return texts[kind](form) if kind in texts else ""


def _image_text(form: Mapping[str, Any]) -> str:
    fitted = FIT_WORDS[form["fit"]].format(size=form["size"])
    scaled = f"8 bits divided by 255, more by {(1 << int(form['bits'])) - 1:,}, floats as they are"
    how = "in red, green and blue, greys as three equal ones, without alpha, and not turned as EXIF says"
    return (
        f"the first image of a file, {how}; {fitted} (bicubic, as Pillow's resize does); {scaled}; [3, H, W]"
    )


def _sound_text(form: Mapping[str, Any]) -> str:
    sound = Sound(int(form["rate"]), float(form["seconds"]), int(form["window"]))
    wave = f"the mean of the channels, from -1 to 1, at {sound.rate:,} Hz (scipy.signal.resample_poly)"
    cut = f"its first {waveform_length(sound):,} samples, shorter ones with zeros behind"
    power = (
        f"|STFT|^2 with a periodic Hann window of {sound.window}, as large a hop, centred, the ends mirrored"
        " (torch.stft)"
    )
    bands = (
        f"{MELS} triangles of height 1, equally far apart in 2595 log10(1 + f / 700) from 0 to"
        f" {sound.rate / 2:,g} Hz"
    )
    loud = (
        f"10 log10 of it, less what is {RANGE_DB:g} below the loudest value, and 0 where that is negative or"
        " all is silent"
    )
    return f"{wave}; {cut}; {power}; {bands}; {loud}; [1, bands, frames], low bands first"


def _volume_text(form: Mapping[str, Any]) -> str:
    cut = (
        f"turned to RAS and cut into {form['axis']} slices, rows from the front or the head, columns to the"
        " patient's right or the front"
    )
    scaled = (
        f"scaled in millimetres, each pixel the mean over its area, until the longer side is {form['size']}"
    )
    return (
        f"a volume's values as its header scales them; {cut}; {scaled}; the rest of the square is the"
        " volume's least value"
    )


def _row_text(form: Mapping[str, Any]) -> str:
    named = "; ".join(_column_text(column, words) for column, words in form["columns"])
    medians = "".join(f"; an empty cell of '{c}' is {m:g}" for c, m in form.get("missing", {}).items())
    words = "; an empty word is 'missing'" if "missing" in form else ""
    return f"a row of a table, in this order: {named}{medians}{words}"


def _column_text(column: str, words: Sequence[str]) -> str:
    if not words:
        return f"'{column}' as it is"
    if len(words) == 2:
        return f"'{column}', 0 for {words[0]!r} and 1 for {words[1]!r}"
    return (
        f"'{column}', a number for each of {', '.join(map(repr, words))}, which is 1 for the one that is"
        " there, else 0"
    )


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
        **_input_facts(whole, federation, dtype, SCALED_OUTSIDE if scaled_here else "by the model"),
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
    """The description of the model's input, or of several inputs and how they are passed."""
    constants, form = whole.inputs, predictions.input_facts(federation).get("form", {})

    def described(name: str) -> dict[str, str]:
        text = describe_files(form, name)
        return {"from_files": text} if text else {}

    if whole.layout:
        passed = "by name" if whole.layout.named else "one after another"
        inputs = exported_model.several_facts(whole.layout, constants)
        return {"passed": passed, "inputs": [{**f, **described(f["name"]), "scaled": scaled} for f in inputs]}
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
    return {"inputs": {**facts, **({"form": form, **described("")} if form else {})}}


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


Format: TypeAlias = Literal["safetensors", "torch-export", "onnx", "hub"]
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
    license: str = "",
) -> list[Path]:
    """Write a run's model into the new folder `out`; returns its files.

    client: name or number of the client with the model; default: the global model. license: its SPDX name,
    for the format hub. Raises UsageError: E109 for an unknown format, client or licence, E131 if the model is
    not here, E160 if it cannot be exported in this format, E161 if `out` exists or cannot be made, E133
    without the packages of ONNX.
    """
    if kind not in FORMATS:
        raise UsageError(
            "E109",
            f"there is no format {excerpt(kind)}; there is"
            f" {', '.join(FORMATS)}.{suggestion(str(kind), FORMATS)}",
        )
    if license and kind != "hub":
        raise UsageError(
            "E109", "license (--license) is written into the card of the format hub alone; leave it out."
        )
    out = out.expanduser()
    _check_name(out)
    hub_name = hub_format.hub_license(license)
    form, whole = FORMATS[kind], export_model(trained, client)
    shape = trained.run.federation.shape
    dtype = exported_model.sample_type(predictions.input_facts(trained.run.federation)["dtype"], whole)
    content: bytes = form.write(whole, exported_model.example_samples(whole, shape, dtype, 2), trained.run)
    x = exported_model.example_samples(whole, shape, dtype, exported_model.TRIED_SAMPLES)
    _check_answers(content, form, whole, x, trained, client)
    files: dict[str, bytes | str] = {form.file: content}
    now = State(trained.end.t, whole.weights, {})
    if kind == "hub":
        files[hub_format.CONFIG] = json.dumps(hub_format.hub_config(trained, whole, content), indent=2) + "\n"
        files[hub_format.CARD] = hub_format.hub_card(trained, record, now, hub_name)
    else:
        facts = {"file": form.file, "sha256": hashlib.sha256(content).hexdigest()}
        facts |= model_facts(trained, whole, kind, dtype)
        files["model.json"] = json.dumps(facts, indent=2) + "\n"
        files[model_card.FILE] = model_card.card_text(trained.run, record, now)
        files["load.py"] = (SNIPPETS / f"{kind}{'-several' if whole.layout else ''}.txt").read_text()
    try:
        with disk.new_folder(out) as folder:
            for name, text in files.items():
                disk.replace(folder / name, text)
            if kind == "hub":
                hub_format.check_opened(folder, x, trained)
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
    x: ExportSamples,
    trained: TrainedRun,
    client: int | str | None,
) -> None:
    """Raises UsageError (E160) if the outputs of the export differ from those of the run's model."""
    samples = tuple(x.values()) if isinstance(x, dict) and whole.layout and not whole.layout.named else x
    ours, theirs = trained.outputs(samples, client), form.answer(content, whole, x)
    difference = float((ours - theirs).abs().max())
    if not difference <= LOGIT_TOLERANCE * max(1.0, float(ours.abs().max())):
        text = f"the exported model answers otherwise than the run's: logits differ by up to {difference:.3g}"
        raise UsageError("E160", f"{text}. Nothing was written; try another --format.")
