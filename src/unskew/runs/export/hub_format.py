"""The format hub: a folder for the Hugging Face Hub, from which unskew can restore the model.

README.md            facts for the pages of the hub, and the model card
config.json          the architecture, and the form of samples
model.safetensors    the weights

A folder may come from a stranger, so nothing in it is executed: only these three file names are read, the
network must be one of unskew's, and it is built only if the shapes of the weights fit.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from unskew import config, models
from unskew.core.method import Method
from unskew.core.trees import align
from unskew.data.clients.federation import RemoteFederation
from unskew.errors import DataError, StateError, UsageError, excerpt, suggestion
from unskew.formats import calls, documents, specs
from unskew.models import hf_folder
from unskew.records.checkpoints import LATEST, UNREADABLE, State
from unskew.records.record import Record
from unskew.round.clients import Broadcast
from unskew.runs import model_card, predictions, resolve
from unskew.runs.export.exported_model import ExportedModel
from unskew.runs.export.weights_format import FILE
from unskew.runs.predictions import TrainedRun
from unskew.tasks.task import Task
from unskew.version import revision

UNKNOWN = "unknown"
LICENSES = (
    UNKNOWN, "other", "apache-2.0", "mit", "openrail", "bigscience-openrail-m", "creativeml-openrail-m",
    "afl-3.0", "artistic-2.0", "bsl-1.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear",
    "c-uda", "cc", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-3.0",
    "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cdla-sharing-1.0",
    "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0",
    "eupl-1.1", "eupl-1.2", "agpl-3.0", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0",
    "isc", "lppl-1.3c", "ms-pl", "mpl-2.0", "odc-by", "odbl", "osl-3.0", "postgresql", "ofl-1.1", "ncsa",
    "unlicense", "zlib", "pddl",
)  # fmt: skip
"""The hub's names of licences: SPDX names in small letters, without -only and -or-later."""


def hub_license(license: str) -> str:
    """The hub's name of a licence, "unknown" for "". Raises UsageError (E109) for an unknown licence."""
    name = re.sub(r"-(only|or-later)$", "", license.strip().lower()) or UNKNOWN
    if name not in LICENSES:
        text = f"the hub knows no licence {excerpt(license)}.{suggestion(name, LICENSES)}"
        raise UsageError(
            "E109", f"{text} Write SPDX's name, such as apache-2.0, or 'other' and say in README.md which."
        )
    return name


def hub_card(trained: TrainedRun, record: Record, now: State, license: str) -> str:
    """The text of README.md. license: the hub's name of it."""
    run = trained.run
    front = documents.dump(_card_facts(trained, record, now, license))
    body = model_card.card_text(run, record, now).replace(
        "How to use it: `unskew.load(RUN)`, `unskew predict RUN INPUT`.",
        "How to use it, with unskew installed: download this folder, then `unskew.load(FOLDER).predict(x)` or"
        " `unskew predict FOLDER INPUT`.",
    )
    if license == UNKNOWN:
        body += (
            "\n## Licence\n\nWhoever exported this model has not said under which licence it may be used.\n"
        )
    return f"---\n{front}---\n\n{body}"


def _card_facts(trained: TrainedRun, record: Record, now: State, license: str) -> dict[str, Any]:
    """The metadata of README.md. Data sets are named only in the model-index, because the hub would link a
    name in `datasets` to any set with that name."""
    run, federation = trained.run, trained.run.federation
    task = _hub_task(run.task.name, len(federation.shape))
    held = "validation" if run.settings.validation else "test"
    data = {
        "name": federation.name,
        "type": re.sub(r"[^a-z0-9._-]+", "-", federation.name.lower()).strip("-") or "own",
    }
    metrics = [
        _metric(run.task.main_score, scope, metric, value)
        for scope, metric, value in model_card.last_scores(record, now.t)
        if metric != "std"  # a spread and not a score
    ]
    results = (
        [{"task": {"type": task}, "dataset": {**data, "split": held}, "metrics": metrics}] if metrics else []
    )
    name = f"{specs.without_folders(str(run.method))} on {federation.name}"
    return {
        "license": license,
        "library_name": "unskew",
        **({"pipeline_tag": task} if task != "other" else {}),
        "tags": ["federated-learning", "unskew"],
        "metrics": sorted({entry["type"] for entry in metrics}),
        **({"model-index": [{"name": name, "results": results}]} if results else {}),
    }


def _metric(main: str, scope: str, metric: str, value: float) -> dict[str, Any]:
    """One score. main: the score of which `mean` and `worst` are taken over clients."""
    over = metric in ("mean", "worst")
    name = f"{metric} {main}" if over else metric
    return {"type": main if over else metric, "name": f"{name}, {scope}", "value": float(value)}


def _hub_task(task: str, axes: int) -> str:
    """The hub's name of a task. axes: the number of axes of a sample."""
    if task in ("classification", "multilabel"):
        return {1: "tabular-classification", 3: "image-classification"}.get(axes, "other")
    if task == "regression" and axes == 1:
        return "tabular-regression"
    return {"segmentation": "image-segmentation", "tokens": "token-classification"}.get(task, "other")


CONFIG, CARD, KIND, VERSION = "config.json", "README.md", "unskew", 1
LONGEST, LARGEST = 1 << 22, 1 << 24
"""The most bytes of config.json, and the most numbers of a sample."""
DTYPES = {torch.float32: "F32", torch.int64: "I64"}
"""The names of our networks' types in safetensors."""
UNITS = ("samples", "pixels", "tokens")
"""The things that can have a label each."""
LONGEST_TEXT = 200
"""The most characters of an architecture's text."""


def hub_config(trained: TrainedRun, whole: ExportedModel, content: bytes) -> dict[str, Any]:
    """The content of config.json. content: of model.safetensors.

    Raises UsageError (E160) for a model that is code or a file of the user's own, and for a client's own
    model.
    """
    run, federation = trained.run, trained.run.federation
    pixels = tuple(run.task.pixels(federation.shape))
    text = run.settings.model
    if text == "auto":
        text = models.default_for(federation.shape, pixels)
    if whole.client:
        raise _refused(f"it would hold what {whole.client} alone has", "leave --client out")
    if text.partition("(")[0].strip() not in models.names() or hf_folder.is_folder_model(text):
        what = (
            "a folder of Hugging Face"
            if hf_folder.is_folder_model(text)
            else "code of your own, which is not handed on"
        )
        raise _refused(f"its model is {what}", "--format torch-export holds the graph")
    unit = "tokens" if federation.tokens else "pixels" if federation.masks else "samples"
    return {
        "model_type": KIND,
        "version": VERSION,
        "architecture": text,
        "task": run.task.name,
        "unit": unit,
        "inputs": predictions.input_facts(federation),
        "weights": {"file": FILE, "sha256": hashlib.sha256(content).hexdigest()},
        "made_with": revision(),
    }


def check_opened(path: Path, x: Any, trained: TrainedRun) -> None:
    """Raises UsageError (E160) where the folder, opened, answers with other bits than the run's model. x:
    samples."""
    ours, theirs = trained.outputs(x), open_hub(path).outputs(x)
    if not torch.equal(ours, theirs):
        why = f"'{trained.run.method}' changes inputs or answers, or adds layers, which {CONFIG} does not say"
        raise _refused(why, "--format torch-export holds them")


def is_hub(path: Path) -> bool:
    """Whether a folder is one for the hub, and no run's."""
    return (path / CONFIG).is_file() and (path / FILE).is_file() and not (path / LATEST).exists()


def open_hub(path: Path) -> TrainedRun:
    """What predicts, from a folder of this format.

    Raises StateError: E111 for a config.json that is none of ours, E156 for weights that do not fit it, E201
    for damaged weights.
    """
    try:
        with open(path / CONFIG, "rb") as file:
            raw = file.read(LONGEST + 1)
        if len(raw) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        facts = json.loads(raw)
        _check_config(facts)
        federation = _federation(facts)
        _check_agrees(facts, federation)
        content = (path / FILE).read_bytes()
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        UsageError,
        DataError,
    ) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        text = f"{path / CONFIG} describes no model that unskew exported ({excerpt(why, 200)})"
        raise StateError("E111", f"{text}; download the folder again, or ask whoever made it.") from None
    if hashlib.sha256(content).hexdigest() != facts["weights"]["sha256"]:
        raise StateError("E201", f"{path / FILE} fails the SHA-256 of {CONFIG}; download the folder again.")
    return _trained_run(path, facts, federation)


def _check_config(facts: Any) -> None:
    """Raises ValueError, KeyError, TypeError or UsageError for facts outside this format."""
    if facts["model_type"] != KIND or facts["version"] != VERSION:
        raise ValueError(f"model_type {KIND} in version {VERSION} is read here")
    text, inputs = facts["architecture"], facts["inputs"]
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise ValueError("its architecture is no short text")
    call = calls.parse(text, "model", "E104")
    if call.file or call.name not in models.names() or hf_folder.is_folder_model(text) or call.name == "auto":
        raise ValueError(f"its architecture {excerpt(text)} is not one that comes with unskew")
    models.check_text(text)
    if facts["unit"] not in UNITS:
        raise ValueError(f"its unit is {excerpt(facts['unit'])}")
    shape = inputs["shape"]
    if not shape or not all(type(n) is int and n > 0 for n in shape) or not 0 < math.prod(shape) <= LARGEST:
        raise ValueError(f"samples of shape {excerpt(shape)}")
    dtype = inputs["dtype"]
    if not isinstance(dtype, str) or not dtype.isalnum() or np.dtype(dtype).kind not in "uifb":
        raise ValueError(f"samples of type {excerpt(dtype)}")
    scale = (inputs["mean"], inputs["std"])
    if scale != (None, None) and not all(_is_row(values, shape[0]) for values in scale):
        raise ValueError("its mean and std are not one finite number for each channel")
    if scale[1] and min(scale[1]) <= 0:
        raise ValueError("its std is not above 0")
    if target := inputs.get("target"):
        if not isinstance(target["name"], str) or not isinstance(target["given"], bool):
            raise ValueError("its target has no name")
        if not _is_row([target["center"], target["scale"]], 2) or target["scale"] <= 0:
            raise ValueError("its target's center and scale are not finite numbers, the scale above 0")


def _check_agrees(facts: dict[str, Any], federation: RemoteFederation) -> None:
    """Raises ValueError, KeyError or TypeError if config.json differs from what `hub_config` would write."""
    if predictions.input_facts(federation) != facts["inputs"]:
        raise ValueError("what it says of its inputs does not agree with itself")
    if (task := _task_of(federation).name) != facts["task"]:
        raise ValueError(f"its task is {excerpt(facts['task'])}, and its inputs are those of {task}")
    if facts["weights"]["file"] != FILE or not isinstance(facts["weights"]["sha256"], str):
        raise ValueError(f"its weights are not {FILE} with its SHA-256")


def _task_of(federation: RemoteFederation) -> Task:
    return resolve.task_of(federation.y, "auto", federation.target, federation.shape)


def _is_row(values: Any, channels: int) -> bool:
    """Whether `values` are this many numbers, finite in the precision of the model."""
    if not isinstance(values, list) or len(values) != channels or any(type(v) is not float for v in values):
        return False
    return all(abs(v) <= torch.finfo(torch.float32).max for v in values)


def _federation(facts: dict[str, Any]) -> RemoteFederation:
    """A federation without samples, with the shape and classes of config.json."""
    inputs = facts["inputs"]
    nobody = {
        "name": "unknown",
        "classes": inputs["classes"],
        "clients": 1,
        "names": ["nobody"],
        "skew": "unknown",
    }
    counted = {
        "sizes": {"train": [1], "test": [0]},
        "labels": [],
        "unit": facts["unit"],
        "task": facts["task"],
    }
    return RemoteFederation.from_facts(inputs, {**nobody, **counted})


def _trained_run(path: Path, facts: dict[str, Any], federation: RemoteFederation) -> TrainedRun:
    """The network with the weights of the file. Raises StateError: E156 if they do not fit, E201 if they
    cannot be read."""
    settings = config.build(
        {
            "model": facts["architecture"],
            "clients": 1,
            "device": "cpu",
            "workers": 1,
            "lanes": "1",
            "normalise": "none",
        }
    )
    try:
        with safe_open(str(path / FILE), "pt") as file:
            forms = {n: _tensor_form(file.get_slice(n)) for n in file.keys()}
            _check_fits(path, settings, federation, forms)
            w = {n: align(file.get_tensor(n)) for n in file.keys()}
    except UNREADABLE as error:
        raise StateError("E201", f"{path / FILE} cannot be read ({type(error).__name__}).") from error
    run = resolve.run_on(federation, settings, Method())
    named = run.fed.net.weights()
    return TrainedRun(
        run, Broadcast(0, settings.lr, {n: w[n].to(t.dtype) for n, t in named.items()}, {}), None
    )


def _check_fits(
    path: Path, settings: config.Settings, federation: RemoteFederation, forms: dict[str, str]
) -> None:
    """Raises StateError (E156) unless the file has the tensors of the network, which is built without
    memory."""
    task = _task_of(federation)
    with torch.device("meta"):
        net = models.build(
            settings.model, federation.shape, federation.n_classes, tuple(task.pixels(federation.shape))
        )
    expected = {n: f"{list(t.shape)} {DTYPES.get(t.dtype, t.dtype)}" for n, t in net.state_dict().items()}
    for name in (*expected, *forms):
        if expected.get(name) != forms.get(name):
            what, has = (s.get(name, "missing") for s in (expected, forms))
            text = (
                f"{path / FILE} does not fit its {CONFIG}: {excerpt(name)} is {what}, and {has} in the file"
            )
            raise StateError("E156", f"{text}; download the folder again.")


def _tensor_form(part: Any) -> str:
    """Shape and type of a tensor in a file, without reading the tensor."""
    return f"{part.get_shape()} {part.get_dtype()}"


def _refused(why: str, instead: str) -> UsageError:
    return UsageError("E160", f"this model cannot be exported for the hub: {why}; {instead}.")
