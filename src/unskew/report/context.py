"""What the sections of one report share: the runs, and what is computed from them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unskew.report.figures.lines import Line, mean_line
from unskew.report.figures.svg import colours
from unskew.report.labels import distinct
from unskew.report.numbers import noun
from unskew.report.runs import RunData, by_method
from unskew.report.summary import MethodSummary, summary_table, target_of
from unskew.scores import KINDS, kind


@dataclass(frozen=True)
class Context:
    """The runs of a report.

    name: what the report is about, from the folders' names. methods: each method's runs, one per seed. summaries: the
    final table, a row per method. target: the score of "bytes until the target", NaN if no method competes;
    target_given: whether the user chose it. colours: the colour class of each method.
    """

    name: str
    runs: Sequence[RunData]
    methods: Mapping[str, Sequence[RunData]]
    summaries: Sequence[MethodSummary]
    target: float
    target_given: bool
    colours: Mapping[str, str]

    @property
    def first(self) -> RunData:
        """The first run that competes; the first of all if none does."""
        return next((r for r in self.runs if not r.is_reference), self.runs[0])

    @property
    def metric(self) -> str:
        """The main score, such as "accuracy"."""
        return self.first.metric

    @property
    def score(self) -> str:
        """The main score's name inside a sentence."""
        return noun(self.metric)

    @property
    def seeds(self) -> int:
        """The number of different seeds."""
        return len({r.seed for r in self.runs})

    @property
    def competing(self) -> dict[str, Sequence[RunData]]:
        """The methods that are no references."""
        return {m: group for m, group in self.methods.items() if not group[0].is_reference}

    def line(self, method: str, scope: str, metric: str = "") -> Line | None:
        """A method's mean curve over seeds, by default of the main score; None if it has none."""
        group = self.methods[method]
        series = [r.series(scope, metric or r.metric) for r in group]
        line = mean_line(method, self.colours[method], series, dashed=group[0].is_reference)
        return line and replace(line, share=kind(metric if metric in KINDS else self.metric).share)


def context_of(runs: Sequence[RunData], name: str, target: float | None = None) -> Context:
    """The context of at least one run. target: default: 95 % of the best method's final score."""
    runs = distinct(runs)
    methods = by_method(runs)
    chosen = target_of(runs) if target is None else target
    references = [m for m, group in methods.items() if group[0].is_reference]
    return Context(
        name=name,
        runs=runs,
        methods=methods,
        summaries=summary_table(runs, chosen),
        target=chosen,
        target_given=target is not None,
        colours=colours(list(methods), references),
    )
