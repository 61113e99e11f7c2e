"""What a program calls: `run`, `compare`, `resume`, and what they return."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from unskew import config, many
from unskew.comparison import handover, plan, workers
from unskew.comparison.rehearsal import rehearse
from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import Weights
from unskew.data.federation import Federation
from unskew.data.intake import understood
from unskew.data.intake.take import GIVEN, settings_of
from unskew.disk import check_name
from unskew.engine import resolve
from unskew.engine.assemble import loop_of
from unskew.engine.disk.folder import Folder, fresh
from unskew.engine.disk.record import Record
from unskew.engine.disk.state import State, digest
from unskew.engine.resolve import Run
from unskew.engine.server.loop import Loop, Round, rounds
from unskew.engine.server.used import Replies, check_used
from unskew.errors import UsageError

if TYPE_CHECKING:
    from unskew.report.summary import MethodSummary

Say = Callable[[str], None]
SCOPES = ("global", "global@client", "personal@client")


def _silent(_: str) -> None:
    return None


@dataclass(repr=False)
class Result:
    """A finished run: its settings, record and weights; `path` is its folder, or None if it was kept in memory."""

    run: Run
    record: Record
    weights: Weights
    model: nn.Module
    path: Path | None = None

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @property
    def method(self) -> Method:
        return self.run.method

    @property
    def federation(self) -> Federation:
        return self.run.federation

    def __repr__(self) -> str:
        """One line: the method, its last score, and where the run is kept."""
        scores = self.scores() or self.scores("personal@client")
        last = f"{self.run.task.main_score} {scores['last']:.1%}" if scores else "not evaluated"
        kept = f", kept in {self.path}" if self.path else ""
        return f"<Result of {self.method}: {last} after {self.settings.rounds} rounds{kept}>"

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def scores(self, scope: str = "global", metric: str | None = None) -> dict[str, float]:
        """last, best and mean of the last ten rounds (of those evaluated), in [0, 1]; the untrained model does not count."""
        metric = metric or (self.run.task.main_score if scope == "global" else "mean")
        rounds_, series = self.record.series(scope, metric)
        trained = [(t, v) for t, v in zip(rounds_, series) if t > 0]
        if not trained:
            return {}
        values = [v for _, v in trained]
        tail = [v for t, v in trained if t > trained[-1][0] - 10]
        return {"last": values[-1], "best": max(values), "mean10": float(np.mean(tail))}

    def bytes(self, way: str = "up") -> int:
        """Bytes all clients sent ("up") or received ("down") in the whole run."""
        return sum(many.total_bytes(row) for row in self.record.rows["ledger"] if row["way"] == way)

    @property
    def replies(self) -> Replies:
        """How many replies came, how many were used, and why the others were dropped."""
        return Replies.of(self.record.rows["events"])

    @property
    def digest(self) -> str:
        """SHA-256 of the final weights."""
        return digest(self.weights)

    def table(self) -> str:
        """The three scopes: last, best and mean of the last ten rounds, in percent."""
        lines = [
            f"{self.method}  {self.settings.rounds} rounds, {self.federation.clients} clients, seed {self.settings.seed}"
        ]
        lines.append(f"{self.run.task.main_score:<18}{'last':>7}{'best':>7}{'mean of last 10':>17}")
        for scope in SCOPES:
            if scores := self.scores(scope):
                lines.append(f"{scope:<18}{scores['last']:>7.1%}{scores['best']:>7.1%}{scores['mean10']:>17.1%}")
        if self.replies.dropped:
            lines.append(f"{self.replies}; the others were dropped")
        lines.append(f"sent by clients {self.bytes('up') / 1e6:.1f} MB, received {self.bytes('down') / 1e6:.1f} MB")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """The metric rows as a pandas DataFrame. Raises UsageError (E115) where pandas is not installed."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]  (optional)
        except ImportError:
            raise UsageError(
                "E115", "to_frame() needs pandas; pip install pandas, or use result.record.rows['metrics']."
            ) from None
        return pandas.DataFrame(self.record.rows["metrics"])

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's page; needs a run with a folder."""
        from unskew.report import page

        if self.path is None:
            raise UsageError("E116", "this run was kept in memory; give run(..., name='my-run') to have a report.")
        return page.write_report([self.path], Path(path) if path else self.path / "report.html")


def settings_from(method: Method | Part | str, options: dict[str, Any]) -> Settings:
    return config.build({**options, "method": str(method)})


def run(
    method: Method | Part | str = "fedavg",
    data: Any = "digits",
    *,
    model: nn.Module | str | Path = "auto",
    label: str = "",
    site: str = "",
    name: str | None = None,
    folder: str | Path = "runs",
    say: Say = _silent,
    shown: Callable[[State, Round], None] | None = None,
    **options: Any,
) -> Result:
    """Train one method on one federation in this process.

    method: a string (`"flea+scaffold"`, `"my_method.py"`), a Method or a single Part. data: a set's name or path, (x, y),
    a Dataset of any library, a DataFrame, the sets of several clients, or a Federation that is already dealt out; see
    `unskew.data.take`. label, site: columns of a table; with `site`, each of its values is a client unless a skew is given.
    model: a name, `file.py:function`, or any nn.Module. name: keep the run in `folder/name`, with checkpoints; without it
    the run stays in memory. say: receives what was understood of the data, before anything trains, and other messages.
    Other options: the fields of Settings.
    Raises UsageError for settings that cannot work, DataError for data that nobody can train on, NothingUsed for a run
    of whose replies all or nearly all were dropped.
    """
    method = os.fspath(method) if isinstance(method, os.PathLike) else method
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    data, stands_for = settings_of(data, label, site)
    given = {**stands_for, **options, "model": model if isinstance(model, str) else GIVEN}
    settings = settings_from(method, given)
    path = None if name is None else Path(folder) / check_name(name)
    resolved = resolve.resolve(
        settings,
        data,
        None if isinstance(method, str) else method,
        None if isinstance(model, str) else model,
    )
    if resolved.federation.intake:
        say(understood.table(resolved.federation))
    if path is not None:
        loop, state = Folder(path, resolved).go(say, shown or (lambda *_: None))
        return result_of(loop, state, path)
    return _run_in_memory(resolved, shown or (lambda *_: None))


def _run_in_memory(run: Run, shown: Callable[[State, Round], None]) -> Result:
    loop = loop_of(run)
    try:
        state = loop.begin()
        loop.evaluate(state, None)
        for after in rounds(loop, state, shown):
            state = after
        check_used(run, loop.record.rows["events"])
    finally:
        loop.trainer.close()
    return result_of(loop, state)


def resume(path: str | Path, say: Say = _silent, shown: Callable[[State, Round], None] | None = None) -> Result:
    """Continue a run in its folder to the bits it would have had. Raises StateError where it cannot."""
    loop, state = Folder.open(Path(path)).go(say, shown or (lambda *_: None))
    return result_of(loop, state, Path(path))


@dataclass(repr=False)
class Comparison:
    """Finished runs of several methods and seeds, in one folder."""

    path: Path

    def __repr__(self) -> str:
        return f"<Comparison in {self.path}>"

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def rows(self) -> list[MethodSummary]:
        from unskew.report import read, summary

        return summary.summary_table(read.read_comparison(self.path))

    def table(self) -> str:
        """Mean and standard deviation over seeds, paired tests against the best with Holm's correction."""
        from unskew.report import tables

        return tables.plain(self.rows())

    def report(self, path: str | Path | None = None) -> Path:
        from unskew.report import page

        return page.write_report(self.path, Path(path) if path else self.path / "report.html")


def compare(
    methods: Sequence[Method | Part | str],
    data: Any = "digits",
    *,
    model: str | Path = "auto",
    label: str = "",
    site: str = "",
    seeds: int | Sequence[int] = 3,
    name: str | None = None,
    folder: str | Path = "runs",
    references: bool = True,
    processes: int = 0,
    watch: Callable[[list[Cell]], None] | None = None,
    **options: Any,
) -> Comparison:
    """Train every method with every seed on the same partitions and the same absences, one process a core.

    methods, data, label, site: as for `run`; data that are no text are written to `data.npz` in the comparison's folder,
    from which the processes read them. model: a name or `file.py:function`. seeds: how many (0, 1, ...), or which.
    references: add the rows local-only and centralised. watch: called a few times a second with the state of all cells.
    Other options: the fields of Settings.
    Raises UnskewError for a method or a setting with which nothing could be trained, before anything is.
    """
    named = [*handover.methods_as_text(methods), *(resolve.REFERENCES if references else ())]
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    parent = Path(folder) / check_name(name) if name else fresh(Path(folder), "compare")
    model = handover.model_as_text(model)
    options = {"model": model, **handover.data_as_text(data, parent, label, site), **options}
    cells = plan.plan_cells(parent, named, chosen, options)
    rehearse(cells)
    plan.describe(parent, plan.Plan(tuple(named), tuple(chosen), options, processes))
    workers.train_all(cells, processes or resolve.cores(), watch or (lambda _: None))
    return Comparison(parent)


def result_of(loop: Loop, state: State, path: Path | None = None) -> Result:
    """The result of a loop that has come to its end. path: the run's folder, if it has one."""
    return Result(loop.run, loop.record, state.weights, loop.run.fed.net.module_with(state.weights), path)
