"""Results of runs and comparisons, and models that predict: from a run, or from a site's folder."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.trees import Weights
from unskew.data import data_overview
from unskew.data.clients.federation import Federation, RemoteFederation
from unskew.errors import UsageError
from unskew.records import client_lists
from unskew.records.checkpoints import State, digest
from unskew.records.record import Record
from unskew.report.analysis import frames
from unskew.round.loop import Loop
from unskew.round.run import Run
from unskew.runs import predictions, score_coverage
from unskew.runs.export import write_export
from unskew.runs.predictions import TrainedRun
from unskew.runs.score_coverage import MISSING_REASON, SCOPES, UsedReplies, doubt, incomplete_coverage
from unskew.scores import kind, of_setting

if TYPE_CHECKING:
    from unskew.federation.site.site_model import SiteModel
    from unskew.report.analysis.leakage import Leakage
    from unskew.report.analysis.runs import RunData
    from unskew.report.analysis.summary import MethodSummary


class Predictor:
    """Predicts classes or numbers of samples. run: settings and model. trained: the weights in use."""

    run: Run
    trained: TrainedRun

    @property
    def federation(self) -> Federation:
        """The federation of the run; after loading it has no samples."""
        return self.run.federation

    def predict(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """Predict samples: classes [N], masks [N, H, W], classes of tokens [N, T], numbers [N], or several
        labels, bool [N, L].

        x: samples before any scaling, [N, *shape], an array or tensor of the training samples' type (uint8 if
        those were uint8). After training on a table also a DataFrame, with columns found by name. Samples
        with several inputs are a dictionary or tuple of arrays, or an archive from `numpy.load`.
        client: the name or number of a client, to use its own model, with the weights, statistics or label
        shares that the method keeps for it (FedBN, FedRDN, unskew). Default: the global model.
        Classes have the names of `federation.classes`, as integers where these are whole numbers; masks hold
        indices into it. Raises UsageError (E131) if the client's model is not available, and DataError (E403,
        E405) for unsuitable samples.
        """
        z = self._outputs(x, client)
        guess = self.run.task.predictions(z).numpy()
        return predictions.class_names(self.federation, guess)

    def predict_proba(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """Class probabilities, float32: [N, C], [N, C, H, W] for pixels, [N, T, C] for tokens; for several
        labels the probability of each, [N, L].

        Raises UsageError (E109) for a model that predicts a number.
        """
        if self.federation.target:
            raise UsageError("E109", "this model predicts a number, which has no probability; call predict.")
        z = self._outputs(x, client)
        if self.federation.several:
            return z.sigmoid().numpy()
        return z.softmax(-1 if self.federation.tokens else 1).numpy()

    def _outputs(self, x: Any, client: int | str | None) -> Tensor:
        """The model's outputs, such as logits. Arguments as for `predict`."""
        return self.trained.outputs(x, client)


@dataclass(repr=False, eq=False)
class SitePredictor(Predictor):
    """A site's model of a run over a network, from the site's folder: its own model if the method has one for
    each site, otherwise the global model. `own.kept`: the round of the site's private state.
    """

    run: Run
    model: nn.Module
    trained: TrainedRun
    path: Path
    own: SiteModel

    @property
    def t(self) -> int:
        """The round of the weights that the site received last."""
        return self.trained.end.t

    def _outputs(self, x: Any, client: int | str | None) -> Tensor:
        self._check_mine(client)
        return self.trained.outputs(x, self.own.client)

    def _check_mine(self, client: int | str | None) -> None:
        if client is not None and client != self.own.site:
            raise UsageError(
                "E131", f"{self.path} holds the model of {self.own.site} alone; leave the client out."
            )

    def export(self, folder: str | Path, client: int | str | None = None) -> list[Path]:
        """Write the model into a new folder, as `Result.export` does. client: only this site."""
        self._check_mine(client)
        return write_export(self.trained, Path(folder), self.own.client)

    def __repr__(self) -> str:
        if self.own.client is not None:
            model = f"{self.own.site}'s own model"
        else:
            model = f"the model that {self.own.site} was sent"
        kept = f", with what it kept after round {self.own.kept}" if self.own.kept else ""
        return f"<{model} after round {self.t} of {self.run.settings.rounds}{kept}, from {self.path}>"


@dataclass(repr=False, eq=False)
class Result(Predictor):
    """A finished run with its settings, record, weights and model. path: its folder; None for a run in
    memory.

    `model` is in evaluation mode and expects scaled samples; `predict` takes samples before scaling.
    """

    run: Run
    record: Record
    weights: Weights
    model: nn.Module
    trained: TrainedRun
    path: Path | None = None

    @property
    def t(self) -> int:
        """The last round that was trained."""
        return self.trained.end.t

    @property
    def settings(self) -> Settings:
        """The run's settings."""
        return self.run.settings

    @property
    def method(self) -> Method:
        """The run's method."""
        return self.run.method

    @property
    def metrics(self) -> list[str]:
        """The names of the additional scores that were requested and recorded."""
        return of_setting(
            self.settings.metrics, self.run.task.name, score_coverage.recorded_metrics(self.record)
        )

    def __repr__(self) -> str:
        """One line: the method, its last score, and where the run is kept."""
        scores = self.scores() or self.scores("personal@client")
        main = self.run.task.main_score
        last = f"{main} {kind(main).written(scores['last'])}" if scores else "not evaluated"
        kept = f", kept in {self.path}" if self.path else ""
        return f"<Result of {self.method}: {last} after {self.t} rounds{kept}>"

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def scores(self, scope: str = "global", metric: str | None = None) -> dict[str, float]:
        """The scores `last`, `best` and `mean10`, the mean over evaluated rounds among the last ten. Shares
        lie in [0, 1]. The untrained model does not count.

        {} for a scope that this run does not have. Raises UsageError (E109) for an unknown scope or metric.
        """
        frames.check_word(scope, list(dict.fromkeys((*SCOPES, *self.record.scopes))), "scope")
        metric = metric or (self.run.task.main_score if scope == "global" else "mean")
        if known := self.record.metrics(scope):
            frames.check_word(metric, known, f"metric of {scope}")
        rounds_, series = self.record.series(scope, metric)
        trained = [(t, v) for t, v in zip(rounds_, series) if t > 0]
        if not trained:
            return {}
        values = [v for _, v in trained]
        tail = [v for t, v in trained if t > trained[-1][0] - 10]
        which = kind(self.run.task.main_score if metric in ("mean", "worst") else metric)
        return {"last": values[-1], "best": which.best(values), "mean10": float(np.mean(tail))}

    def bytes(self, way: str = "up") -> int:
        """The bytes that all clients sent ("up") or received ("down") in the whole run. Raises UsageError
        (E109) for another word."""
        frames.check_word(way, ("up", "down"), "way")
        return sum(
            client_lists.total_bytes(row, self.federation.clients)
            for row in self.record.rows["ledger"]
            if row["way"] == way
        )

    def clients(self) -> list[dict[str, Any]]:
        """A row for each client: number, name, numbers of training and test samples, and last score or None.

        The score is the main one of `personal@client`, or of `global@client` if the run has no personal
        models.
        """
        federation, main = self.federation, self.run.task.main_score
        last: dict[str, dict[int, float]] = {}
        for row in self.record.rows["metrics"]:
            if row["client"] is not None and row["metric"] == main:
                last.setdefault(row["scope"], {})[row["client"]] = row["value"]
        scores = last.get("personal@client") or last.get("global@client") or {}
        name, train, test = federation.name_of, federation.sizes, federation.test_sizes
        return [
            {"client": k, "name": name(k), "train": int(train[k]), "test": int(test[k]), main: scores.get(k)}
            for k in range(federation.clients)
        ]

    def export(self, folder: str | Path, client: int | str | None = None) -> list[Path]:
        """Write the model as a graph for PyTorch into a new folder, for use without unskew, and return the
        new files.

        client: as for `predict`. Raises UsageError: E131 if the client's model is not available, E160 if no
        graph holds the model, E161 for an existing folder.
        """
        return write_export(self.trained, Path(folder), client)

    @property
    def understood(self) -> str:
        """The overview of the samples that `run(say=print)` prints before training: values, classes, remarks.
        A loaded run has no samples, so it has only the remarks."""
        if isinstance(self.federation, RemoteFederation):
            return "\n".join(f"{topic:<9}{text}" for topic, text in self.federation.notes)
        return data_overview.table(self.federation)

    @property
    def replies(self) -> UsedReplies:
        """The numbers of replies that arrived and that were used, and why others were dropped."""
        return UsedReplies.of(self.record.rows["events"], self.federation.clients)

    @property
    def digest(self) -> str:
        """SHA-256 of the final weights."""
        return digest(self.weights)

    def table(self) -> str:
        """A text table with last, best and mean of the last ten rounds for the three scopes, shares in
        percent, and warnings about doubtful scores."""
        from unskew.report.analysis.number_formats import size

        lines = [
            f"{self.method}  {self.t} rounds, {self.federation.clients} clients, seed {self.settings.seed}"
        ]
        main = kind(self.run.task.main_score)
        width = 7 if main.share else 11
        lines.append(
            f"{self.run.task.main_score:<18}{'last':>{width}}{'best':>{width}}{'mean of last 10':>17}"
        )
        for scope in SCOPES:
            if scores := self.scores(scope):
                last, best, mean = (main.written(scores[name]) for name in ("last", "best", "mean10"))
                lines.append(f"{scope:<18}{last:>{width}}{best:>{width}}{mean:>17}")
        lines += score_coverage.metric_lines(self.record, self.metrics)
        lines += [*self._terms(), *self._scored()]
        if self.replies.dropped:
            lines.append(f"{self.replies}; the others were dropped")
        lines.append(f"sent by clients {size(self.bytes('up'))}, received {size(self.bytes('down'))}")
        if text := doubt(self.run, self.replies):
            lines.append(f"Warning: {text}")
        lines += [
            f"{event['code']} {event['text']}"
            for event in self.record.rows["events"]
            if _is_about_whole_run(event)
        ]
        return "\n".join(lines)

    def _terms(self) -> list[str]:
        """Lines about scores on held-out training samples and about a run that ended early."""
        held_out, rounds_ = self.settings.validation, self.settings.rounds
        lines = (
            [f"scored on {held_out:.0%} of the training samples, held out, not on the test set"]
            if held_out
            else []
        )
        why = [
            str(event["text"])
            for event in self.record.rows["events"]
            if event.get("last") == self.t < rounds_
        ]
        return [*lines, *(f"ended after {self.t} of {rounds_} rounds: {text}" for text in why)]

    def _scored(self) -> list[str]:
        """A line with the number of scored clients, unless all clients with test samples were scored."""
        scored = incomplete_coverage(
            score_coverage.clients_with_scores(self.record), int((self.federation.test_sizes > 0).sum())
        )
        if not scored:
            return []
        what = "personal@client is" if scored.own else "scores are"
        return [f"{what} of {scored.there:,} of {scored.of:,} clients with test samples: {MISSING_REASON}"]

    def to_frame(self, kind: str = "metrics") -> Any:
        """Return a pandas DataFrame of one kind: "metrics" or "events" (the record's rows), "clients" (the
        rows of `clients`), or "ledger" (a row for every payload, with its clients and their total bytes).

        Raises UsageError: E109 for another kind, E133 without pandas.
        """
        rows, K = self.record.rows, self.federation.clients
        kinds = {
            "metrics": lambda: rows["metrics"],
            "clients": self.clients,
            "ledger": lambda: frames.payload_rows(rows["ledger"], K),
            "events": lambda: rows["events"],
        }
        return frames.frame(kind, kinds, "result.record.rows holds the rows")

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's HTML report and return its path. Raises UsageError (E109) for a run in memory."""
        from unskew.report import page

        if self.path is None:
            raise UsageError(
                "E109", "this run was kept in memory; give run(..., name='my-run') to have a report."
            )
        return page.write_report([self.path], Path(path) if path else self.path / "report.html")


@dataclass(repr=False)
class Comparison:
    """The finished runs of several methods and seeds, in one folder."""

    path: Path

    def __repr__(self) -> str:
        return f"<Comparison in {self.path}>"

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"

    def rows(self) -> list[MethodSummary]:
        """A summary of each method over its seeds, as in the table."""
        from unskew.report.analysis import runs, summary

        return summary.summary_table(runs.read_comparison(self.path), runs.requested_target([self.path]))

    def tuned(self) -> dict[str, dict[str, Any]]:
        """The best settings of each method from `compare(tune=...)`, such as `{"flea": {"lr": 0.02,
        "flea.a": 1.5}}`; {} without tuning."""
        from unskew.comparison.tuning import best_settings

        return best_settings(self.path)

    def leakages(self) -> list[Leakage]:
        """The leakage of each method that attacks measured (`compare(..., privacy=True)`), its payloads
        without an attack, and its epsilon."""
        from unskew.report.analysis import leakage, runs, summary

        finished = runs.read_comparison(self.path)
        return leakage.leakages(runs.by_method(finished), summary.summary_table(finished))

    def table(self) -> str:
        """A text table with mean and standard deviation over seeds, and paired tests against the best method
        with Holm's correction."""
        from unskew.report.analysis import results_table

        return results_table.plain(self.rows())

    def to_frame(self, kind: str = "methods") -> Any:
        """Return a pandas DataFrame of one kind: "methods" (the final table, a row for each method, with
        columns such as last.mean and last.std), "clients" (the last score of each client of every run; of the
        first 2,000), or "metrics", "events" or "ledger" (the rows of every run). Rows of runs have their
        method and seed.

        Raises UsageError: E109 for another kind, E133 without pandas.
        """
        from unskew.report.analysis import results_table, runs

        rows_of: dict[str, Callable[[RunData], frames.Rows]] = {
            "clients": lambda run: run.client_rows(),
            "metrics": lambda run: runs.read_records(run.path / "metrics.jsonl"),
            "events": lambda run: runs.read_records(run.path / "events.jsonl"),
            "ledger": lambda run: frames.payload_rows(runs.read_records(run.path / "ledger.jsonl"), run.K),
        }

        def of_runs(kind: str) -> frames.Rows:
            finished = runs.read_comparison(self.path)
            return [{"method": r.method, "seed": r.seed, **row} for r in finished for row in rows_of[kind](r)]

        kinds = {k: partial(of_runs, k) for k in rows_of}
        kinds = {"methods": lambda: results_table.as_json(self.rows()), **kinds}
        return frames.frame(kind, kinds, "comparison.rows() returns the rows of the table")

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report's page, by default to `report.html` in the folder. Returns its path."""
        from unskew.report import page

        return page.write_report(self.path, Path(path) if path else self.path / "report.html")


def _is_about_whole_run(event: Mapping[str, Any]) -> bool:
    """Whether an event is a remark from before round 1 that is still of interest: other lines tell how far a
    budget reached."""
    return event["t"] == 0 and "text" in event and "last" not in event


def result_of(loop: Loop, state: State, path: Path | None = None) -> Result:
    """The result of a loop that has ended. path: the run's folder, if it has one."""
    model = loop.run.fed.net.module_with(state.weights)
    trained = TrainedRun(loop.run, loop.down(state, state.t), loop.store)
    return Result(loop.run, loop.record, state.weights, model, trained, path)
