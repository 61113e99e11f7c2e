"""The functions for programs and notebooks: `run`, `compare`, `resume` and `load`.

In a notebook they show a progress bar. `load` reads a run and its model from the run's folder.
"""

from __future__ import annotations

import html
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from unskew import config, models, scores
from unskew.comparison import plan, training
from unskew.comparison.plan import AnyMethod, dry_run
from unskew.comparison.progress import Cell
from unskew.comparison.tuning import cells_of, planned_runs, trials_of, tuning_of
from unskew.config import CompareOptions, RunOptions
from unskew.core.method import Method, stage_remarks
from unskew.core.part import Part
from unskew.data import data_overview
from unskew.data.python_objects import settings_of
from unskew.data.samples.reading_notes import Note
from unskew.errors import UsageError
from unskew.models import ModelFunction
from unskew.records.checkpoints import State
from unskew.results import Comparison, Result, SitePredictor, result_of
from unskew.round import run as round_run
from unskew.round.callback import Callback, CallbackList
from unskew.round.loop import Loop, RoundSummary, remaining_rounds
from unskew.round.precision import torch_defaults
from unskew.round.run import Run
from unskew.runs import object_digests, resolve
from unskew.runs.assemble import loop_of
from unskew.runs.callbacks import EarlyStopping, callbacks_of, check_callbacks
from unskew.runs.disclosure import account_entries, remark_lines
from unskew.runs.reopen import UserCode, open_run
from unskew.runs.resolve import Objects
from unskew.runs.run_folder import RunFolder, free_path
from unskew.runs.score_coverage import check_used
from unskew.system import python_files
from unskew.system.disk import AT_SITE, check_name
from unskew.system.python_files import GIVEN_OBJECT, one_line
from unskew.system.unexpected_errors import explain
from unskew.tasks import own_loss
from unskew.tasks.metrics import MetricsSetting, as_text
from unskew.tasks.own_loss import LossFunction

if TYPE_CHECKING:
    from unskew.experiments.pages import KeptTable

BAR_PAUSE_S = 0.25
"""The least time between two updates, because a notebook queues them."""


class ProgressBar:
    """A progress bar with a line of text below a notebook's running cell. total: the number of steps."""

    def __init__(self, total: int):
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython else None
        self._display = ipython.display.display if ipython and getattr(shell, "kernel", None) else None
        self._total, self._last = total, 0.0
        self._handle: Any = None

    def show(self, done: int, text: str) -> None:
        """Show that `done` steps are finished, at most every BAR_PAUSE_S seconds; the last step always."""
        now = time.monotonic()
        if self._display is None or (done < self._total and now < self._last + BAR_PAUSE_S):
            return
        self._last = now
        bar = f'<progress value="{done}" max="{self._total}"></progress> {html.escape(text)}'
        bundle = {"text/html": bar, "text/plain": text}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def _warn(notes: Iterable[Note]) -> None:
    """Show the notes that are warnings in Python's way, as coming from the caller of `run` or `compare`."""
    for topic, text in notes:
        if topic == "warning":
            warnings.warn(text, stacklevel=5)


@python_files.restricted
@torch_defaults()
def run(
    method: Method | Part | str = "fedavg",
    data: Any = "digits",
    *,
    model: nn.Module | ModelFunction | str | Path = "auto",
    metrics: MetricsSetting = "none",
    loss: str | LossFunction = "auto",
    label: str = "",
    site: str = "",
    target: str = "",
    group: Any = "",
    weight: str = "",
    name: str | None = None,
    folder: str | Path = "runs",
    say: Say = _silent,
    shown: Callable[[State, RoundSummary], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **options: Unpack[RunOptions],
) -> Result:
    """Train one method on one federation, in this process, and return the result.

    method: a text (`"flea+scaffold"`, `"my_method.py"`), a Method or a single Part.
    data: the name or path of a data set, (x, y), a Dataset of any library, a DataFrame, a list of the
    clients' data sets, or a Federation; see `unskew.data.take`.
    model: a name, `file.py:function`, any nn.Module, or a function of a sample's shape and the number of
    classes that returns one. A module begins with the weights it has, a function's with those of the seed.
    metrics: additional scores, as names or functions; see docs/metrics.md.
    loss: the setting of that name, or a function (outputs, targets) -> the loss of each sample, [B].
    label, site: columns of a table. With `site` each of its values is a client, unless there is a skew.
    target: the number to predict instead of classes (a column of a table, or a name for y), or several
    numbers or labels, "a,b,c".
    group: samples that belong together, such as those of a patient, and that no split separates: a column of
    a table, a pattern of file names, an array [N], or "none"; see `unskew.data.take`.
    weight: the column of weights of samples in the loss of training.
    name: keep the run in `folder/name`, with checkpoints. Without a name the run stays in memory.
    say: a function that receives messages, such as the overview of the data before training.
    shown: a function that is called after every round.
    callbacks: objects that follow the run and may end it; see docs/callbacks.md.
    progress: show a progress bar in a notebook.
    options: fields of Settings.

    Raises UsageError for settings that cannot work, DataError for unsuitable data, and NothingUsed for a run
    in which too few replies were used.
    """
    method = os.fspath(method) if isinstance(method, os.PathLike) else method
    object_digests.check_method(method)
    named, objects = _without_objects(model, metrics, loss)
    data, stands_for = settings_of(data, label, site, target=target, group=group, weight=weight)
    settings = config.build({**stands_for, **options, **named, "method": str(method)})
    path = None if name is None else Path(folder).expanduser() / check_name(name)
    objects = objects._replace(data=data, method=None if isinstance(method, str) else method)
    resolved = resolve.resolve(settings, *objects)
    if resolved.federation.intake:
        say(data_overview.table(resolved.federation))
        for text in data_overview.partition_warnings(resolved.federation):
            warnings.warn(text, stacklevel=4)
        _warn(resolved.federation.intake.notes)
    resolved = _with_callbacks(resolved, check_callbacks(callbacks))
    view = _RunView(shown, progress, say)
    if path is not None:
        loop, state = RunFolder(path, resolved).go(say, view.round, view.ready)
        return result_of(loop, state, path)
    return _run_in_memory(resolved, view)


def _without_objects(
    model: nn.Module | ModelFunction | str | Path, metrics: MetricsSetting, loss: str | LossFunction
) -> tuple[dict[str, str], Objects]:
    """(the settings model, metrics and loss; the objects among these arguments). Raises UsageError (E123,
    E126) for what is neither a text nor such an object."""
    if model is None:
        raise UsageError("E123", "model is None; leave it out, and one that fits the data is built.")
    scored, functions = as_text(metrics)
    minimised, loss_function = own_loss.as_text(loss)
    settings, functions = {"metrics": scored, "loss": minimised}, functions | loss_function
    if isinstance(model, str | os.PathLike):
        return settings | {"model": os.fspath(model)}, Objects(metrics=functions)
    return settings | {"model": GIVEN_OBJECT}, Objects(model=models.model_object(model), metrics=functions)


def _with_callbacks(run: Run, callbacks: Sequence[Callback]) -> Run:
    """The run with its callbacks. As for the setting `patience`, remark E128 is added for a callback that may
    end the run before the second stage of its method."""
    patience = min((c.patience for c in callbacks if isinstance(c, EarlyStopping)), default=0)
    earlier = run.settings.patience and run.settings.patience <= patience
    more = () if earlier or not patience else stage_remarks(run.method, run.settings.rounds, patience)
    return replace(run, callbacks=tuple(callbacks), remarks=tuple(dict.fromkeys((*run.remarks, *more))))


class _RunView:
    """Shows a run: calls the caller's functions, and draws a progress bar in a notebook."""

    def __init__(self, shown: Callable[[State, RoundSummary], None] | None, progress: bool, say: Say):
        self._shown, self._progress, self._say = shown, progress, say
        self._loop: Loop | None = None
        self._bar: ProgressBar | None = None

    def ready(self, loop: Loop) -> None:
        """Called before the first round of training."""
        self._loop, self._bar = loop, ProgressBar(loop.run.settings.rounds) if self._progress else None
        for remark in remark_lines(loop):
            self._say(remark)

    def round(self, state: State, summary: RoundSummary) -> None:
        """Called after every round."""
        if self._bar and self._loop:
            main = self._loop.run.task.main_score
            score = self._loop.record.latest("global", main)
            now = f"round {summary.t} of {self._loop.run.settings.rounds}"
            self._bar.show(
                summary.t, f"{now}, global {main} {scores.kind(main).written(score[1])}" if score else now
            )
        if self._shown:
            self._shown(state, summary)


def _run_in_memory(run: Run, view: _RunView) -> Result:
    loop = loop_of(run)
    try:
        loop.callbacks = CallbackList((*callbacks_of(run.settings, None), *run.callbacks), run, loop.record)
        loop.record.privacy = account_entries(loop)
        view.ready(loop)
        loop.callbacks.begun(0, loop.last)
        state = loop.begin()
        loop.evaluate(state, None)
        for after in remaining_rounds(loop, state, view.round):
            state = after
        check_used(run, loop.record)
        loop.callbacks.ended("done")
    except BaseException as error:
        loop.callbacks.ended(one_line(error))
        raise
    finally:
        loop.trainer.close()
    return result_of(loop, state)


@python_files.restricted
@torch_defaults()
def resume(
    path: str | Path,
    say: Say = _silent,
    shown: Callable[[State, RoundSummary], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    *,
    rounds: int | None = None,
    method: str | Path = "",
    model: str | Path = "",
    metrics: str = "",
    loss: str = "",
) -> Result:
    """Continue the run in a folder, with the same bits as without the interruption.

    rounds: the number of rounds, if the run, which may have ended, is to have more than it had; the bits are
    those of a run that had them from the start. A run with data or a model from Python is continued by `run`,
    with its `name` and more rounds.
    say, shown, callbacks, progress: as for `run`. method, model, metrics, loss: if the run's settings
    name Python files, the same texts again, because a file is only imported if the caller names it.

    Raises StateError for a run that cannot continue (E112: not to more rounds, because of a schedule over all
    of them, a privacy budget, or an end by a callback), UsageError (E506) for a Python file without the
    caller's name.
    """
    view, folder = _RunView(shown, progress, say), RunFolder.open(Path(path).expanduser(), rounds)
    folder.run = _with_callbacks(folder.run, check_callbacks(callbacks))
    loop, state = folder.go(say, view.round, view.ready)
    return result_of(loop, state, Path(path).expanduser())


@python_files.restricted
@torch_defaults()
def compare(
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod],
    data: Any = "digits",
    *,
    model: nn.Module | ModelFunction | str | Path = "auto",
    metrics: MetricsSetting = "none",
    loss: str | LossFunction = "auto",
    label: str = "",
    site: str = "",
    target: str = "",
    group: Any = "",
    weight: str = "",
    seeds: int | Sequence[int] = 3,
    name: str | None = None,
    folder: str | Path = "runs",
    references: bool = True,
    privacy: bool = False,
    tune: int | None = None,
    processes: int = 0,
    watch: Callable[[list[Cell]], None] | None = None,
    progress: bool = True,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Train every method with every seed on the same partitions and absences, one process per core.

    Runs with objects that no text names (a module or function as model, Parts of your own, functions as loss
    or metrics, a Federation) train in this process, one after another, each on all cores.

    methods: a list of methods, each as for `run`, or a dictionary of them by the labels of their rows.
    data, label, site, target, group, weight: as for `run`. Data other than a text or a Federation are written
    to `data.npz` in the comparison's folder, from which the processes read them.
    model, metrics, loss: as for `run`. A module begins every run with the weights it has.
    seeds: the number of seeds (0, 1, ...), or a list of them.
    references: add the rows local-only and centralised.
    privacy: attack every run after training; the result's `leakages` and report then compare scores with
    leakage and epsilon.
    tune: the number of settings to try first for every method, at least 2, on held-out training samples; see
    docs/guides/tune.md.
    processes: the number of runs at a time; 0 for one on each core, or one on a GPU.
    watch: a function that is called a few times a second with the state of all runs.
    progress: show a progress bar in a notebook.
    options: fields of Settings.

    A comparison that is called again with its name trains what is missing. Raises UnskewError before any
    training for methods or settings that cannot work, such as StateError (E112) for other objects than those
    with which it began.
    """
    if not methods:
        raise UsageError("E109", "a comparison needs at least one method; got none.")
    for taken, instead in (("seed", "seeds"), ("method", "methods")):
        if taken in options:
            example = f"{instead}=[{options[taken]!r}]"
            raise UsageError("E109", f"compare takes {instead}, such as {example}, and no {taken}.")
    named = plan.named_methods(methods) + plan.named_methods([*round_run.REFERENCES] if references else [])
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    folder = Path(folder).expanduser()
    parent = folder / check_name(name) if name is not None else free_path(folder, "compare")
    texts, common = _without_objects(model, metrics, loss)
    roles = {"label": label, "site": site, "target": target, "group": group, "weight": weight}
    stands_for, federation = plan.data_as_settings(data, parent, **roles)
    objects, given = plan.objects_of(named, common._replace(data=federation))
    if privacy and not (federation is None and common.model is None and isinstance(loss, str)):
        text = f"attacks open a run from its folder, which has not {given[0]} that was given as an object"
        raise UsageError("E109", f"{text}; name it (a path, or file.py:name), or leave privacy out.")
    asked = plan.Plan(
        tuple(method.label for method in named), chosen, {**stands_for, **options, **texts}, processes,
        privacy=privacy, tune=trials_of(tune), given=given,
        texts={method.label: method.text for method in named if method.text != method.label},
    )  # fmt: skip
    notes = dict[Note, None]()
    planned = planned_runs(parent, asked, tuning_of(parent, asked, objects), objects)
    dry_run(planned, lambda f: notes.update(dict.fromkeys(f.intake.notes if f.intake else ())))
    _warn(notes)
    plan.write_plan(parent, asked)
    look = _ComparisonView(watch, progress)
    cells = cells_of(parent, asked, look, _silent, objects)
    training.train_all(cells, processes, look)
    if privacy:
        training.attack_all(cells, lambda _: None)
    return Comparison(parent)


class _ComparisonView:
    """Shows a comparison: calls the caller's function, and draws a progress bar for each set of runs in a
    notebook."""

    def __init__(self, watch: Callable[[list[Cell]], None] | None, progress: bool):
        self._watch, self._progress = watch, progress
        self._bar: ProgressBar | None = None
        self._paths: list[Path] = []

    def __call__(self, cells: list[Cell]) -> None:
        paths = [cell.path for cell in cells]
        if self._progress and paths != self._paths:
            self._bar = ProgressBar(sum(cell.settings.rounds for cell in cells))
            self._paths = paths
        if self._bar:
            ended = sum(cell.done for cell in cells)
            self._bar.show(sum(cell.t for cell in cells), f"{ended} of {len(cells)} runs have ended")
        if self._watch:
            self._watch(cells)


@python_files.restricted
@torch_defaults()
def load(
    path: str | Path,
    *,
    model: nn.Module | ModelFunction | str | Path | None = None,
    method: Method | Part | str | Path | None = None,
    unfinished: bool = False,
    best: bool = False,
    data: Any = None,
    classes: Sequence[str] = (),
) -> Result | SitePredictor | Comparison | KeptTable:
    """Load a finished run from its folder, ready to predict; the training samples are not needed.

    Returns a Result for the folder of a run, a Comparison for that of a comparison, a SitePredictor for the
    folder of a run at a site (SITE/runs/NUMBER), and a KeptTable for the JSON file of `unskew reproduce`.
    Everything is computed on the CPU; `result.model` can be moved.

    model, method: the model or method of a run that has one in Python, as in training: a module, a function
    that returns one, or a Part, or a text that names a file. Code is never loaded from the folder.
    unfinished: also load a run that has not reached its last round.
    best: load the global model of the best round, for a run with `keep_best`.
    data, classes: for the folder of a run at a site, the site's data as in the run. Some methods derive a
    site's model from its samples (FedBABU's fine-tuning, IFCA, kNN-Per).

    Raises UsageError (E109) for arguments that do not go with the folder; DataError (E401) for a file that is
    no table; StateError: E112 for a file that has changed, E117 for no run, E155 for an unfinished run, E156
    for a model or method that cannot be built, E201 for damaged files; NothingUsed (E316) for a run
    in which too few replies were used.
    """
    method = os.fspath(method) if isinstance(method, os.PathLike) else method
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    path = Path(path).expanduser()
    code = UserCode(method, model)
    if classes and data is None:
        raise UsageError("E109", "classes name those of the site's data; give data, too.")
    compared, kept = (path / "compare.yaml").is_file(), path.is_file()
    chosen = model is not None or method is not None or unfinished or best or data is not None
    if chosen and (compared or kept):
        what = "a table" if kept else "a comparison, of which each run is a folder"
        text = "leave out model, method, unfinished, best and data"
        raise UsageError("E109", f"{path} holds {what}; {text}.")
    if compared:
        return Comparison(path)
    if kept:
        from unskew.experiments.pages import load_table

        return load_table(path)
    if (path / AT_SITE).is_file():
        if unfinished or best:
            text = "holds the weights that came last; leave out unfinished and best."
            raise UsageError("E109", f"{path} {text}")
        try:  # these imports need the packages of a site
            from unskew.federation import site_data
            from unskew.federation.site import site_model
        except ModuleNotFoundError as error:
            raise explain(error) from error
        theirs = None if data is None else site_data.load_or_take(data, classes)
        own = site_model.open_site_model(path, code, theirs)
        run, end = own.trained.run, own.trained.end
        return SitePredictor(run, run.fed.net.module_with(end.weights), own.trained, path, own)
    if data is not None:
        text = "is no run at a site (SITE/runs/NUMBER), whose data could be given; leave out data."
        raise UsageError("E109", f"{path} {text}")
    opened = open_run(path, code, unfinished, best)
    module = opened.run.fed.net.module_with(opened.weights)
    return Result(opened.run, opened.record, opened.weights, module, opened.trained, path)
