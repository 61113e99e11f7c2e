"""A run in its folder opened to predict: its model and what it needs, without the samples it was trained on.

A folder may come from anybody. Nothing in it is run: what is read are safetensors and JSON, and a method or a model in a
Python file is taken from the file that the caller names, never from the one that the folder names (`code.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import config, disk, models
from unskew.config import Settings
from unskew.core.trees import Weights
from unskew.data.availability import without_trace
from unskew.data.federation import Federation
from unskew.data.unseen import Unseen
from unskew.engine import resolve
from unskew.engine.callbacks.keep_best import BEST
from unskew.engine.disk import shapes, state
from unskew.engine.disk.code import Code, check_model, method_of
from unskew.engine.disk.folder import maker
from unskew.engine.disk.record import Record
from unskew.engine.disk.state import Checkpoint, State
from unskew.engine.disk.store import Disk
from unskew.engine.predictions import Trained
from unskew.engine.resolve import Run
from unskew.engine.server.loop import broadcast
from unskew.engine.server.used import check_used
from unskew.errors import StateError, UsageError
from unskew.revision import revision

SITES_FILE = "sites.json"
"""In the folder of a run over a network, whose clients' private state stays with them."""


@dataclass(frozen=True)
class Reopened:
    """run: with the run's own settings, and a federation without samples. record: its rows, in memory."""

    run: Run
    record: Record
    weights: Weights
    trained: Trained


def reopened(path: Path, code: Code, unfinished: bool = False, best: bool = False) -> Reopened:
    """The run in this folder as its last checkpoint holds it. unfinished: also if it has not come to its end. best: with
    the global model of its best round, which the setting keep_best keeps.

    Raises StateError: E117 for no run, E155 for one that has not come to its end, E156 for one whose model cannot be built
    from what is given, E201 for a damaged checkpoint, E204 for a damaged index of private state, E208 for damaged records; NothingUsed (E316) for one that its
    clients did not train.
    """
    checkpoint = _checkpoint(path)
    tree, facts = _best(path, checkpoint) if best else checkpoint
    if not unfinished and not (path / state.MODEL).is_file():
        rounds = facts["settings"].get("rounds", "?")
        text = f"{path} is at round {facts['t']} of {rounds} and has not come to its end; unskew resume {path} goes on"
        raise StateError("E155", f"{text}, and unfinished=True (--unfinished) takes its model as it is.")
    settings = _settings(path, facts)
    run = rebuilt(path, _federation(path, facts), facts["files"], settings, code)
    now = State(facts["t"], tree["w"], tree.get("slices", {}))
    check_weights(path, run, now.weights)
    record = Record.read(path, facts["records"])
    check_used(run, record)
    store = Disk(path / "private", facts)
    away = (path / SITES_FILE).exists()
    end = broadcast(run.method, now, now.t, settings.lr_in(now.t), run.fed)
    return Reopened(run, record, now.weights, Trained(run, end, None if away or best else store))


def _best(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """The tensors of the best round, with the facts of the run. Raises StateError (E155) where they were not kept."""
    if not (path / BEST).is_file():
        text = f"{path} has no {BEST}: only a run with keep_best=True (--keep-best) keeps the model of its best round"
        raise StateError("E155", f"{text}.")
    tree, facts = state.read(path / BEST)
    return tree, {**checkpoint[1], "t": facts["t"]}


def _checkpoint(path: Path) -> Checkpoint:
    try:
        return state.read(path / state.LATEST)
    except FileNotFoundError:
        raise disk.no_run(path, state.LATEST) from None
    except StateError as error:
        text = f"{path}: {error.text} Copy the folder again, or let unskew resume {path} go back to the one before it"
        raise StateError(error.code, f"{text}.") from error


def _settings(path: Path, facts: dict[str, Any]) -> Settings:
    """The settings that the checkpoint holds. Raises StateError (E156) for those of another version."""
    try:
        return config.build(facts["settings"])
    except UsageError as error:
        text = f"{path} was trained by unskew {maker(path) or '(unknown)'}, and this is {revision()}: {error.text}"
        raise StateError("E156", f"{text} Open it with the version that trained it.") from error


def rebuilt(path: Path, federation: Federation, files: Mapping[str, str], settings: Settings, code: Code) -> Run:
    """The run of this folder, put together on a federation, which need not have samples. files: digests of those it was trained with.

    Raises StateError: E156 for a model or a method that cannot be built from what is given, E112 for another file.
    """
    method, model = method_of(path, files, settings, code.method), code.model
    check_model(path, files, settings, model)
    here = settings.replace(device="cpu", precision="float32", workers=1, lanes="1")  # whatever machine trained it
    here = here.replace(normalise="none", set={}, metrics="none", availability=without_trace(settings.availability))
    if isinstance(model, str):
        here, model = here.replace(model=model), None
    module = None if model is None else models.unwrapped(model)
    return replace(resolve.run_on(federation, here, method, module), settings=settings)


def _federation(path: Path, facts: dict[str, Any]) -> Unseen:
    """Who took part, of federation.json, and what samples are, of the checkpoint or of the finished model."""
    inputs = facts.get("inputs")
    if inputs is None and (path / state.MODEL).is_file():
        inputs = state.read(path / state.MODEL)[1].get("inputs")
    if inputs is None:
        raise StateError("E156", f"nothing in {path} says how its inputs are scaled; unskew resume {path} writes it.")
    file = path / "federation.json"
    try:
        return Unseen.from_facts(inputs, shapes.facts(file, file.read_bytes()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StateError("E111", f"{file} cannot be read ({type(error).__name__}); copy the folder again.") from None


def check_weights(path: Path, run: Run, w: Weights) -> None:
    """Raises StateError (E156) where the model has not the weights of the checkpoint."""
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
