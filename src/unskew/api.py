"""What a program calls: `run`, `compare`, `resume`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unskew import config, models, own, scores
from unskew.cluster import place
from unskew.cluster.place import HERE
from unskew.comparison import handover, leakage, plan, training
from unskew.comparison.rehearsal import rehearse
from unskew.comparison.spread import spread
from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.core.method import Method, on_stages
from unskew.core.part import Part
from unskew.data.intake import understood
from unskew.data.intake.take import GIVEN, settings_of
from unskew.disk import check_name
from unskew.engine import given, resolve
from unskew.engine.assemble import loop_of
from unskew.engine.callbacks.audience import Audience
from unskew.engine.callbacks.callback import Callback
from unskew.engine.callbacks.chosen import chosen
from unskew.engine.callbacks.early_stopping import EarlyStopping
from unskew.engine.callbacks.given import checked
from unskew.engine.disk.folder import Folder, fresh
from unskew.engine.disk.state import State
from unskew.engine.leaves import remarks
from unskew.engine.resolve import Run
from unskew.engine.server.loop import Loop, rounds
from unskew.engine.server.summary import Round
from unskew.engine.server.used import check_used
from unskew.errors import UsageError
from unskew.notebook import Bar
from unskew.own import in_one_line
from unskew.results import Comparison, Result, result_of
from unskew.tasks.metrics import Asked, as_text
from unskew.tuning.tuned import cells_of, trials_of, tuning_of

Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def settings_from(method: Method | Part | str, options: dict[str, Any]) -> Settings:
    return config.build({**options, "method": str(method)})


@torch.inference_mode(False)
@torch.enable_grad()
def run(
    method: Method | Part | str = "fedavg",
    data: Any = "digits",
    *,
    model: nn.Module | str | Path = "auto",
    metrics: Asked = "none",
    label: str = "",
    site: str = "",
    target: str = "",
    name: str | None = None,
    folder: str | Path = "runs",
    say: Say = _silent,
    shown: Callable[[State, Round], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    on: str = HERE,
    **options: Any,
) -> Result:
    """Train one method on one federation, in this process or on a cluster.

    method: a string (`"flea+scaffold"`, `"my_method.py"`), a Method or a single Part. data: a set's name or path, (x, y),
    a Dataset of any library, a DataFrame, the sets of several clients, or a Federation that is already dealt out; see
    `unskew.data.take`. label, site: columns of a table; with `site`, each of its values is a client unless a skew is given.
    target: instead of classes, the number to predict, a column of a table or what y is called; or several labels, "a,b,c".
    model: a name, `file.py:function`, or any nn.Module. metrics: scores beside the main one, by name, or functions of your
    own; see docs/metrics.md. name: keep the run in `folder/name`, with checkpoints; without it the run stays in memory.
    say: receives what was understood of the data and should be known of the run, before anything trains, and other messages.
    shown: is called after every round. callbacks: are told how the run goes, and may end it; see docs/callbacks.md. progress:
    show a bar in a notebook. on: "here", or a Ray cluster, as `--on` takes it. Other options: the fields of Settings.
    Raises UsageError for settings that cannot work, DataError for unfit data, NothingUsed for a run that nobody trained.
    """
    method = os.fspath(method) if isinstance(method, os.PathLike) else method
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    given.check_method(method)
    if model is None:
        raise UsageError("E123", "model is None; leave it out, and one that fits the data is built.")
    module = None if isinstance(model, str) else models.unwrapped(model)
    data, stands_for = settings_of(data, label, site, target)
    scored, functions = as_text(metrics)
    settings = settings_from(method, {**stands_for, **options, "model": GIVEN if module else model, "metrics": scored})
    path = None if name is None else Path(folder) / check_name(name)
    resolved = resolve.resolve(settings, data, None if isinstance(method, str) else method, module, functions)
    if resolved.federation.intake:
        say(understood.table(resolved.federation))
    resolved = _heard_by(_placed(resolved, on), checked(callbacks))
    view = _View(shown, progress, say)
    if path is not None:
        loop, state = Folder(path, resolved).go(say, view.round, view.ready)
        return result_of(loop, state, path)
    return _run_in_memory(resolved, view)


def _placed(run: Run, on: str) -> Run:
    """The run, to be trained where `--on` would train it. Raises UsageError (E170) for a text that names no place."""
    cluster = place.parse(on)
    return spread(run, cluster) if cluster else run


def _heard_by(run: Run, callbacks: Sequence[Callback]) -> Run:
    """The run with its callbacks. One that may end it before a second stage of its method is remarked on as the setting
    `patience` is (E139)."""
    patience = min((c.patience for c in callbacks if isinstance(c, EarlyStopping)), default=0)
    earlier = run.settings.patience and run.settings.patience <= patience
    more = () if earlier or not patience else on_stages(run.method, run.settings.rounds, patience)
    return replace(run, callbacks=tuple(callbacks), remarks=tuple(dict.fromkeys((*run.remarks, *more))))


class _View:
    """What is shown of a run: the caller's own functions, and a bar in a notebook."""

    def __init__(self, shown: Callable[[State, Round], None] | None, progress: bool, say: Say):
        self._shown, self._progress, self._say = shown, progress, say
        self._loop: Loop | None = None
        self._bar: Bar | None = None

    def ready(self, loop: Loop) -> None:
        """Nothing has been trained yet."""
        self._loop, self._bar = loop, Bar(loop.run.settings.rounds) if self._progress else None
        for remark in remarks(loop):
            self._say(remark)

    def round(self, state: State, summary: Round) -> None:
        """A round is over."""
        if self._bar and self._loop:
            main = self._loop.run.task.main_score
            score = self._loop.record.latest("global", main)
            now = f"round {summary.t} of {self._loop.run.settings.rounds}"
            self._bar.show(summary.t, f"{now}, global {main} {scores.kind(main).written(score[1])}" if score else now)
        if self._shown:
            self._shown(state, summary)


def _run_in_memory(run: Run, view: _View) -> Result:
    loop = loop_of(run)
    try:
        loop.audience = Audience((*chosen(run.settings, None), *run.callbacks), run, loop.record)
        view.ready(loop)
        loop.audience.begun(0, loop.last)
        state = loop.begin()
        loop.evaluate(state, None)
        for after in rounds(loop, state, view.round):
            state = after
        check_used(run, loop.record)
        loop.audience.ended("done")
    except BaseException as error:
        loop.audience.ended(in_one_line(error))
        raise
    finally:
        loop.trainer.close()
    return result_of(loop, state)


@torch.inference_mode(False)
@torch.enable_grad()
def resume(
    path: str | Path,
    say: Say = _silent,
    shown: Callable[[State, Round], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    *,
    on: str = HERE,
    method: str | Path = "",
    model: str | Path = "",
    metrics: str = "",
) -> Result:
    """Continue a run in its folder to the bits it would have had. say, shown, callbacks, progress, on: as for `run`.

    method, model, metrics: of a run with Python files, these as its settings name them; a folder alone has none imported.
    Raises StateError where it cannot, UsageError (E506) for a file that is not named.
    """
    with own.restrict(str(method), str(model), *metrics.split(",")):
        view, folder = _View(shown, progress, say), Folder.open(Path(path))
    folder.run = _heard_by(_placed(folder.run, on), checked(callbacks))
    loop, state = folder.go(say, view.round, view.ready)
    return result_of(loop, state, Path(path))


def compare(
    methods: Sequence[Method | Part | str],
    data: Any = "digits",
    *,
    model: str | Path = "auto",
    label: str = "",
    site: str = "",
    target: str = "",
    seeds: int | Sequence[int] = 3,
    name: str | None = None,
    folder: str | Path = "runs",
    references: bool = True,
    privacy: bool = False,
    tune: int | None = None,
    processes: int = 0,
    on: str = HERE,
    watch: Callable[[list[Cell]], None] | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Train every method with every seed on the same partitions and the same absences, one process a core.

    methods, data, label, site, target: as for `run`; data that are no text are written to `data.npz` in the comparison's
    folder, from which the processes read them. model: a name or `file.py:function`. seeds: how many (0, 1, ...), or which.
    references: add the rows local-only and centralised. privacy: then attack every run; the result's `leakages` and its
    report set scores against what was found and against epsilon. tune: first try so many settings of every method, at least
    2, on held-out training samples; see docs/guides/tune.md. on: "here", or a Ray cluster as `--on` takes it.
    watch: called a few times a second with the state of all cells.
    progress: show a bar where this runs in a notebook.
    Other options: the fields of Settings.
    Raises UnskewError for a method or a setting with which nothing could be trained, before anything is.
    """
    place.parse(on)
    _check_lists(methods, options)
    named = [*handover.methods_as_text(methods), *(resolve.REFERENCES if references else ())]
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    parent = Path(folder) / check_name(name) if name is not None else fresh(Path(folder), "compare")
    model = handover.model_as_text(model)
    options = {"model": model, **handover.data_as_text(data, parent, label, site, target), **options}
    asked = plan.Plan(tuple(named), tuple(chosen), options, processes, privacy=privacy, on=on, tune=trials_of(tune))
    tuning = tuning_of(parent, asked)
    rehearse(tuning.rehearsed() if tuning else plan.plan_cells(parent, named, chosen, options))
    plan.describe(parent, asked)
    look = _Looking(watch, progress)
    cells = cells_of(parent, asked, look, _silent)
    training.train_all(cells, processes, look, on)
    if privacy:
        leakage.attack_all(cells, lambda _: None)
    return Comparison(parent)


def _check_lists(methods: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raises UsageError (E109) for a comparison without methods, and for what names one where it takes several."""
    if not methods:
        raise UsageError("E109", "a comparison needs at least one method; got none.")
    for taken, instead in (("seed", "seeds"), ("method", "methods")):
        if taken in options:
            raise UsageError(
                "E109", f"compare takes {instead}, such as {instead}=[{options[taken]!r}], and no {taken}."
            )


class _Looking:
    """What is called with the state of all cells: the caller's own function, and a bar in a notebook for each set of runs."""

    def __init__(self, watch: Callable[[list[Cell]], None] | None, progress: bool):
        self._watch, self._progress = watch, progress
        self._bar: Bar | None = None
        self._paths: list[Path] = []

    def __call__(self, cells: list[Cell]) -> None:
        if self._progress and [cell.path for cell in cells] != self._paths:
            self._bar, self._paths = Bar(sum(cell.settings.rounds for cell in cells)), [cell.path for cell in cells]
        if self._bar:
            ended = sum(cell.done for cell in cells)
            self._bar.show(sum(cell.t for cell in cells), f"{ended} of {len(cells)} runs have ended")
        if self._watch:
            self._watch(cells)
