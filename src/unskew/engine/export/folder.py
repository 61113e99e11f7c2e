"""The folder of an exported model: the model, model.json, the model card, and a few lines that load it.

model.safetensors | model.pt2 | model.onnx    model.json    model.md    load.py
model.safetensors    config.json    README.md                                     of the format hub
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias

import torch

from unskew import disk
from unskew.engine import card, predictions
from unskew.engine.disk.record import Record
from unskew.engine.disk.state import State
from unskew.engine.export import facts, graph, hub, hub_card, program, samples, several, weights
from unskew.engine.export.whole import Whole, whole_of
from unskew.engine.predictions import Trained
from unskew.errors import UsageError, excerpt, suggestion

Format: TypeAlias = Literal["safetensors", "torch-export", "onnx", "hub"]
FORMATS: Mapping[str, ModuleType] = {"safetensors": weights, "torch-export": program, "onnx": graph, "hub": weights}
SNIPPETS = Path(__file__).parent / "snippets"
CLOSE = 1e-4
"""How far logits of the exported model may be from ours, relative to the largest: graphs add up in another order."""


def write_export(
    trained: Trained,
    record: Record,
    out: Path,
    kind: Format = "safetensors",
    client: int | str | None = None,
    license: str = "",
) -> list[Path]:
    """Write a run's model into the new folder `out`; returns its files.

    client: by name or number, whose own model is written; default: the global one. license: SPDX's name, of the format hub.
    Raises UsageError: E109 for an unknown format, client or licence, E131 where that model is not here, E160 for one that cannot be
    written so, E161 where `out` exists or cannot be made, E162 without what ONNX needs.
    """
    if kind not in FORMATS:
        raise UsageError(
            "E109",
            f"there is no format {excerpt(kind)}; there is {', '.join(FORMATS)}.{suggestion(str(kind), FORMATS)}",
        )
    if license and kind != "hub":
        raise UsageError("E109", "license (--license) is written into the card of the format hub alone; leave it out.")
    _check_name(out)
    licensed = hub_card.checked(license)
    form, whole = FORMATS[kind], whole_of(trained, client)
    shape = trained.run.federation.shape
    dtype = samples.type_of(predictions.facts(trained.run.federation)["dtype"], whole)
    content: bytes = form.write(whole, samples.drawn(whole, shape, dtype, 2), trained.run)
    x = samples.drawn(whole, shape, dtype, samples.TRIED)
    _check_same(content, form, whole, x, trained, client)
    files: dict[str, bytes | str] = {form.FILE: content}
    now = State(trained.end.t, whole.weights, {})
    if kind == "hub":
        files[hub.CONFIG] = json.dumps(hub.settings_of(trained, whole, content), indent=2) + "\n"
        files[hub.CARD] = hub_card.text_of(trained, record, now, licensed)
    else:
        explained = {"file": form.FILE, "sha256": hashlib.sha256(content).hexdigest()}
        explained |= facts.facts_of(trained, whole, kind, dtype)
        files["model.json"] = json.dumps(explained, indent=2) + "\n"
        files[card.FILE] = card.card(trained.run, record, now)
        files["load.py"] = (SNIPPETS / f"{kind}{'-several' if whole.layout else ''}.txt").read_text()
    try:
        with disk.new_folder(out) as folder:
            for name, text in files.items():
                disk.replace(folder / name, text)
            if kind == "hub":
                hub.check_same(folder, x, trained)
    except OSError as error:
        raise UsageError("E161", f"{out} cannot be written: {error.strerror or error}. Choose another.") from error
    return [out / name for name in files]


def _check_name(out: Path) -> None:
    """Raises UsageError (E161) for a folder that exists, and for the name of a file."""
    if out.suffix in {Path(form.FILE).suffix for form in FORMATS.values()}:
        text = f"an export is a folder with the model, what explains it and how to load it, and {out} is a file's name"
        raise UsageError("E161", f"{text}; leave {out.suffix} out and say --format.")
    if out.exists():
        raise UsageError("E161", f"{out} exists, and nothing is overwritten; name a new folder.")


@torch.no_grad()
def _check_same(
    content: bytes, form: ModuleType, whole: Whole, x: samples.Samples, trained: Trained, client: int | str | None
) -> None:
    """Raises UsageError (E160) where what was exported answers otherwise than the run's model."""
    given = several.as_given(whole.layout, x) if whole.layout and isinstance(x, dict) else x
    ours, theirs = trained.outputs(given, client), form.answer(content, whole, x)
    apart = float((ours - theirs).abs().max())
    if not apart <= CLOSE * max(1.0, float(ours.abs().max())):
        text = f"the exported model answers otherwise than the run's: logits differ by up to {apart:.3g}"
        raise UsageError("E160", f"{text}. Nothing was written; try another --format.")
