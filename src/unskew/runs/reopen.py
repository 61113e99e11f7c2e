"""A run in its folder opened to predict: its model and what it needs, without the samples that it was trained
on.

A folder may come from anybody. Nothing in it is run: what is read are safetensors and JSON, and a method or a
model in a Python file is taken from the file that the caller names, never from the one that the folder names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from unskew import config, models
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import Weights, size_in_bytes
from unskew.data.clients.availability import without_trace
from unskew.data.clients.federation import Federation, RemoteFederation
from unskew.errors import StateError, UsageError, excerpt
from unskew.models import ModelFunction, hf_folder
from unskew.records import checkpoints, schema
from unskew.records.checkpoints import Checkpoint, State
from unskew.records.private_state import DiskStore
from unskew.records.record import Record
from unskew.round.loop import broadcast
from unskew.round.run import Run
from unskew.runs import resolve
from unskew.runs.callbacks import BEST_FILE
from unskew.runs.predictions import TrainedRun
from unskew.runs.run_folder import recorded_revision
from unskew.runs.score_coverage import check_used
from unskew.system import disk, python_files
from unskew.system.python_files import GIVEN_OBJECT
from unskew.tasks.task import task_of
from unskew.version import revision


@dataclass(frozen=True)
class UserCode:
    """The caller's code in place of files that a run's settings name, which are not trusted.

    method: text, Method or Part. model: a module, a function that returns one, or the text FILE.py:FUNCTION.
    loss: such a text.
    """

    method: Method | Part | str | None = None
    model: nn.Module | ModelFunction | str | None = None
    loss: str | None = None

    @staticmethod
    def of(settings: Settings) -> UserCode:
        """The files that these settings name, for a caller who trusts them."""
        named = (text if ".py" in text else None for text in (settings.method, settings.model, settings.loss))
        return UserCode(*named)


OWN_CODE = {
    "method": "method=... (--method)",
    "model": "model=... (--model FILE.py:FUNCTION)",
    "loss": "--loss FILE.py:FUNCTION",
}
"""By setting that may name code, how to name the caller's own."""


def recorded_method(
    path: Path,
    files: Mapping[str, str],
    settings: Settings,
    code: UserCode,
    names: Sequence[str] = ("method", "model"),
) -> Method:
    """The method of the run in this folder, after a check of the caller's code for the settings `names`.
    files: digests of the files with which the run was trained.

    Raises StateError: E156 that lists all settings that name code, which is not taken from the folder, and
    for which nothing is given, and for a method that cannot be read; E112 for a file with another digest.
    """
    given = {name: getattr(code, name) for name in names}
    texts = {name: str(getattr(settings, name)) for name in names if given[name] is None}
    # anywhere, so that no parser finds a file
    missing = {name: text for name, text in texts.items() if ".py" in text or GIVEN_OBJECT in text}
    faults, method = list[str](), None
    if "method" not in missing and code.method is None:
        try:
            method = resolve.method_of(settings)
        except UsageError as error:
            text = f"the method of {path} cannot be read: {error.text} If a program gave its Parts, give them"
            faults.append(f"{text} again: method=...")
    if missing:
        was = f"was code ({', '.join(missing.values())}), which is not taken from the folder"
        yours = ", ".join(OWN_CODE[name] for name in missing)
        faults.append(f"the {' and the '.join(missing)} of {path} {was}; name yours: {yours}")
    if faults:
        raise StateError("E156", f"{'; '.join(faults)}.")
    for text in given.values():
        if isinstance(text, str):
            _check_file(path, files, text)
    if method is not None:
        return method
    if isinstance(code.method, str):
        return resolve.parts_of(code.method, settings.set if code.method == settings.method else None)
    return resolve.method_of(settings, code.method)


def _check_file(path: Path, files: Mapping[str, str], text: str) -> None:
    """Raises StateError (E112) for a file or folder with another content than those of the run's training."""
    then = set(files.values())
    for file, digest in {**python_files.digests_with_imports(text), **hf_folder.digests(text)}.items():
        if then and digest not in then:
            raise StateError("E112", f"{file} is not the file with which {path} was trained; name that one.")


SIZE_MARGIN = 1 << 26
"""Bytes by which a model may exceed the weights that a folder holds of it."""
SITES_FILE = "sites.json"
"""A file in the folder of a run over a network, whose clients' private state stays at the sites."""


@dataclass(frozen=True)
class OpenRun:
    """A run that is read from its folder. run: with its settings, and a federation without samples. record:
    its rows, in memory."""

    run: Run
    record: Record
    weights: Weights
    trained: TrainedRun


def open_run(path: Path, code: UserCode, unfinished: bool = False, best: bool = False) -> OpenRun:
    """The run in this folder at its last checkpoint. unfinished: also accept an unfinished run. best: with
    the global model of its best round, which the setting keep_best keeps.

    Raises StateError: E117 without a run, E155 for an unfinished run, E156 if the model cannot be built from
    `code`, E201 for a damaged checkpoint, index of private state or record; NothingUsed (E316) for a run in
    which no reply was used.
    """
    checkpoint = _checkpoint(path)
    tree, facts = _best(path, checkpoint) if best else checkpoint
    if not unfinished and not (path / checkpoints.MODEL).is_file():
        rounds = facts["settings"].get("rounds", "?")
        text = (
            f"{path} is at round {facts['t']} of {rounds} and has not come to its end; unskew resume {path}"
            " goes on"
        )
        raise StateError("E155", f"{text}, and unfinished=True (--unfinished) takes its model as it is.")
    settings = _settings(path, facts)
    now = State(facts["t"], tree["w"], tree.get("slices", {}))
    run = rebuild(path, _federation(path, facts), facts["files"], settings, code, now.weights)
    record = Record.read(path, facts["records"])
    check_used(run, record)
    store = DiskStore(path / "private", facts)
    away = (path / SITES_FILE).exists()
    end = broadcast(run.method, now, now.t, settings.lr_in(now.t), run.fed)
    return OpenRun(run, record, now.weights, TrainedRun(run, end, None if away or best else store))


def _best(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """The tensors of the best round with the facts of the run."""
    if not (path / BEST_FILE).is_file():
        text = f"{path} has no {BEST_FILE}: only a run with keep_best=True (--set keep_best=true) keeps the"
        text = f"{text} model of its best round"
        raise StateError("E155", f"{text}.")
    tree, facts = checkpoints.read(path / BEST_FILE)
    return tree, {**checkpoint[1], "t": facts["t"]}


def _checkpoint(path: Path) -> Checkpoint:
    try:
        return checkpoints.read(path / checkpoints.LATEST)
    except FileNotFoundError:
        raise disk.no_run(path, checkpoints.LATEST) from None
    except StateError as error:
        text = (
            f"{path}: {error.text} Copy the folder again, or let unskew resume {path} go back one checkpoint"
        )
        raise StateError(error.code, f"{text}.") from error


def _settings(path: Path, facts: dict[str, Any]) -> Settings:
    """The settings in the checkpoint. Raises StateError (E156) for those of an incompatible version."""
    try:
        return config.build(facts["settings"])
    except UsageError as error:
        text = (
            f"{path} was trained by unskew {recorded_revision(path) or '(unknown)'}, and this is {revision()}"
        )
        text = f"{text}: {error.text} Open it with the version that trained it."
        raise StateError("E156", text) from error


def rebuild(
    path: Path,
    federation: Federation,
    files: Mapping[str, str],
    settings: Settings,
    code: UserCode,
    weights: Weights,
) -> Run:
    """The run of this folder on a federation, which need not have samples.

    files: digests of the files with which it was trained. weights: those that its folder holds.
    Raises StateError: E156 if the model or method cannot be built from `code`, or has other weights, E112 for
    a file with another digest.
    """
    method, model = recorded_method(path, files, settings, code), code.model
    here = settings.replace(device="cpu", precision="float32", workers=1, lanes="1")
    here = here.replace(
        normalise="none",
        set={},
        metrics="none",
        loss="auto",
        availability=without_trace(settings.availability),
    )
    if isinstance(model, str):
        here, model = here.replace(model=model), None
    module = None if model is None else models.model_object(model)
    if module is None and not hf_folder.is_on_disk(here.model):
        _check_size(path, federation, here, weights)

    def admit(size: int) -> None:
        _refuse_larger(f"method of {path}", str(method), size, weights)

    run = replace(resolve.run_on(federation, here, method, module, admit=admit), settings=settings)
    _check_weights(path, run, weights)
    return run


def _check_size(path: Path, federation: Federation, settings: Settings, w: Weights) -> None:
    """Raises StateError (E156), before the model is built, if its settings describe a far larger one than the
    folder's weights are of."""
    shape = federation.shape
    pixels = task_of(federation.y, settings.loss, federation.target, shape).pixels(shape)
    size = models.weight_bytes(settings.model, shape, federation.n_classes, pixels, federation.layout)
    _refuse_larger(f"model of {path}", settings.model, size, w)


def _refuse_larger(what: str, text: str, size: int, w: Weights) -> None:
    """Raises StateError (E156) for far more bytes of weights than the folder holds."""
    if size > (held := size_in_bytes(w)) + SIZE_MARGIN:
        text = f"{excerpt(text)} has {size:,} bytes of weights, and the checkpoint {held:,}"
        raise StateError("E156", f"the {what} is not that of its settings: {text}.")


def _federation(path: Path, facts: dict[str, Any]) -> RemoteFederation:
    """The clients, from federation.json, and the form of samples, from the checkpoint."""
    file = path / "federation.json"
    try:
        return RemoteFederation.from_facts(facts["inputs"], schema.parse_federation(file, file.read_bytes()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            "E111", f"{file} cannot be read ({type(error).__name__}); copy the folder again."
        ) from None


def _check_weights(path: Path, run: Run, w: Weights) -> None:
    """Raises StateError (E156) if the model's weights do not match those of the checkpoint."""
    expected = {n: tuple(t.shape) for n, t in run.fed.net.weights().items()}
    kept = {n: tuple(t.shape) for n, t in w.items()}
    if expected == kept:
        return
    name = next(n for n in (*expected, *kept) if expected.get(n) != kept.get(n))
    what, has = (list(shapes[name]) if name in shapes else "missing" for shapes in (expected, kept))
    text = f"the model built here is not that of {path}: '{name}' is {what}, and {has} in the checkpoint"
    raise StateError(
        "E156", f"{text}. Give the model and method it was trained with, or the version that env.json names."
    )
