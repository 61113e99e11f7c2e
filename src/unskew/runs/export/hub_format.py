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
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError
from safetensors import safe_open
from typing_extensions import TypedDict

from unskew import config, models
from unskew.core.method import Method
from unskew.core.trees import align
from unskew.data.clients.federation import RemoteFederation
from unskew.errors import StateError, UnskewError, UsageError, excerpt
from unskew.formats import calls, documents, specs
from unskew.models import hf_folder
from unskew.records.checkpoints import LATEST, UNREADABLE, State
from unskew.records.record import Record
from unskew.round.clients import Broadcast
from unskew.runs import model_card, predictions, resolve
from unskew.runs.export.exported_model import ExportedModel
from unskew.runs.export.file_formats import WEIGHTS
from unskew.runs.predictions import TrainedRun
from unskew.tasks.task import Task
from unskew.version import revision

UNKNOWN = "unknown"


def hub_license(license: str) -> str:
    """The hub's name of a licence, SPDX's in small letters without -only and -or-later; "unknown" for "".
    Raises UsageError (E109) for a text that is no name."""
    name = re.sub(r"-(only|or-later)$", "", license.strip().lower()) or UNKNOWN
    if not re.fullmatch(r"[a-z0-9.-]+", name):
        text = f"{excerpt(license)} names no licence"
        raise UsageError("E109", f"{text}; write SPDX's name, such as apache-2.0, or 'other'.")
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
    """The metadata of README.md."""
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


CONFIG, CARD, FILE = "config.json", "README.md", WEIGHTS.file
LONGEST, LARGEST = 1 << 22, 1 << 24
"""The most bytes of config.json, and the most numbers of a sample."""
DTYPES = {torch.float32: "F32", torch.int64: "I64"}
"""The names of our networks' types in safetensors."""
_MOST = float(torch.finfo(torch.float32).max)
_FORM = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
Finite = Annotated[float, Field(ge=-_MOST, le=_MOST)]
Positive = Annotated[float, Field(gt=0, le=_MOST)]


class _Target(TypedDict):
    """The target of a regression and its scale."""

    __pydantic_config__ = _FORM  # type: ignore[misc]
    name: str
    given: bool
    center: Finite
    scale: Positive


class _Inputs(TypedDict):
    """The samples that the model takes, and the constants that standardise them."""

    __pydantic_config__ = _FORM  # type: ignore[misc]
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    classes: list[str]
    dtype: Annotated[str, Field(pattern=r"^(u?int|float|bool)\d*$")]
    mean: list[Finite] | None
    std: list[Positive] | None
    target: NotRequired[_Target]


class _Weights(TypedDict):
    """The file with the weights and its digest."""

    __pydantic_config__ = _FORM  # type: ignore[misc]
    file: Literal["model.safetensors"]
    sha256: str


class _Config(TypedDict):
    """What config.json has to hold; `_check_agrees` compares the rest with what `hub_config` would write."""

    __pydantic_config__ = _FORM  # type: ignore[misc]
    model_type: Literal["unskew"]
    version: Literal[1]
    architecture: Annotated[str, Field(max_length=200)]
    task: str
    unit: Literal["samples", "pixels", "tokens"]
    inputs: _Inputs
    weights: _Weights


_CONFIG = TypeAdapter(_Config)


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
        "model_type": "unskew",
        "version": 1,
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
        facts = _checked_config(facts)
        federation = _federation(facts)
        _check_agrees(facts, federation)
        content = (path / FILE).read_bytes()
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError, UnskewError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        text = f"{path / CONFIG} describes no model that unskew exported ({excerpt(why, 200)})"
        raise StateError("E111", f"{text}; download the folder again, or ask whoever made it.") from None
    if hashlib.sha256(content).hexdigest() != facts["weights"]["sha256"]:
        raise StateError("E201", f"{path / FILE} fails the SHA-256 of {CONFIG}; download the folder again.")
    return _trained_run(path, facts, federation)


def _checked_config(facts: Any) -> dict[str, Any]:
    """The facts with numbers as floats. Raises ValueError or UsageError for facts outside this format."""
    try:
        facts = _CONFIG.validate_python(facts)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    text, inputs = facts["architecture"], facts["inputs"]
    call = calls.parse(text, "model", "E104")
    if call.file or call.name not in models.names() or hf_folder.is_folder_model(text) or call.name == "auto":
        raise ValueError(f"its architecture {excerpt(text)} is not one that comes with unskew")
    models.check_text(text)
    if math.prod(inputs["shape"]) > LARGEST:
        raise ValueError(f"samples of shape {excerpt(inputs['shape'])}")
    lengths = {len(inputs[row] or ()) for row in ("mean", "std")}
    if lengths not in ({0}, {inputs["shape"][0]}):
        raise ValueError("its mean and std are not one number for each channel")
    return facts


def _check_agrees(facts: dict[str, Any], federation: RemoteFederation) -> None:
    """Raises ValueError, KeyError or TypeError if config.json differs from what `hub_config` would write."""
    if predictions.input_facts(federation) != facts["inputs"]:
        raise ValueError("what it says of its inputs does not agree with itself")
    if (task := _task_of(federation).name) != facts["task"]:
        raise ValueError(f"its task is {excerpt(facts['task'])}, and its inputs are those of {task}")


def _task_of(federation: RemoteFederation) -> Task:
    return resolve.task_of(federation.y, "auto", federation.target, federation.shape)


def _federation(facts: dict[str, Any]) -> RemoteFederation:
    """A federation without samples, with the shape and classes of config.json."""
    inputs = facts["inputs"]
    summary = {
        "name": "unknown",
        "classes": inputs["classes"],
        "clients": 1,
        "names": ["nobody"],
        "skew": "unknown",
        "sizes": {"train": [1], "test": [0]},
        "labels": [],
        "unit": facts["unit"],
        "task": facts["task"],
    }
    return RemoteFederation.from_facts(inputs, summary)


def _trained_run(path: Path, facts: dict[str, Any], federation: RemoteFederation) -> TrainedRun:
    """The network with the weights of the file."""
    here = {"clients": 1, "device": "cpu", "workers": 1, "lanes": "1", "normalise": "none"}
    settings = config.build({"model": facts["architecture"], **here})
    try:
        with safe_open(str(path / FILE), "pt") as file:
            slices = {n: file.get_slice(n) for n in file.keys()}
            forms = {n: f"{each.get_shape()} {each.get_dtype()}" for n, each in slices.items()}
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


def _refused(why: str, instead: str) -> UsageError:
    return UsageError("E160", f"this model cannot be exported for the hub: {why}; {instead}.")
