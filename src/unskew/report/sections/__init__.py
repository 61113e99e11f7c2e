"""The sections of a report, one file each, and their common parts.

Every module in this folder is a section. It has ORDER, its unique place on the page, and `build(context)`,
which returns a Section, or None if the runs have nothing to show. Its template is in this folder as well.

Sections share the runs and numbers computed from them (Context), the scopes of scores (a model on one test
set, or models at clients on the clients' own test rows), and functions for templates and pictures.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup

from unskew.report.analysis.number_formats import capitalise, noun
from unskew.report.analysis.runs import RunData, by_method, label_runs
from unskew.report.analysis.summary import MethodSummary, summary_table, target_of
from unskew.report.figures.svg import Line, colours, mean_line
from unskew.scores import KINDS, kind


@dataclass(frozen=True)
class Scope:
    """A scope of scores. key: its name in metrics.jsonl. metric: the name of its series there, or "" for the
    name of the score."""

    key: str
    metric: str
    title: str
    meaning: str


GLOBAL = Scope("global", "", "Global", "The global model on the global test set")
AT_CLIENTS = (
    Scope("global@client", "mean", "Global at clients", "The global model on each client's own test rows"),
    Scope(
        "personal@client",
        "mean",
        "Personal",
        "Each client's own model, with the weights that it keeps to itself, on its own test rows",
    ),
)


def scopes(federation: Mapping[str, Any]) -> tuple[Scope, ...]:
    """The scopes of a run; without a common test set the global model is scored on all clients' test rows."""
    pooled = federation.get("test") == 0 and any(federation.get("sizes", {}).get("test", ()))
    first = (
        replace(GLOBAL, meaning="The global model on all clients' own test rows together")
        if pooled
        else GLOBAL
    )
    return first, *AT_CLIENTS


@dataclass(frozen=True)
class Section:
    """A section of the page.

    anchor: its id. html: tables and pictures. lead: sentences under the title. note: sentences in small print
    at the end. link: its name in the navigation, "" to leave it out. The page escapes plain strings, but not
    Markup.
    """

    title: str
    anchor: str
    html: Markup
    lead: str = ""
    note: str = ""
    link: str = ""


@dataclass(frozen=True)
class Context:
    """The runs of a report.

    name: of the report, from the folders' names. methods: each method's runs, one per seed. summaries: the
    rows of the final table. target: the score of "bytes until the target", NaN if no method competes.
    target_given: whether the user chose it. colours: the CSS classes of each method.
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
        """The first competing run, or the first run if none competes."""
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
        """The methods without references."""
        return {m: group for m, group in self.methods.items() if not group[0].is_reference}

    def line(self, method: str, scope: str, metric: str = "") -> Line | None:
        """The mean curve of a method over seeds, or None. metric: default: the main score."""
        group = self.methods[method]
        series = [r.series(scope, metric or r.metric) for r in group]
        line = mean_line(method, self.colours[method], series, dashed=group[0].is_reference)
        return line and replace(line, share=kind(metric if metric in KINDS else self.metric).share)


def context_of(runs: Sequence[RunData], name: str, target: float | None = None) -> Context:
    """The context of at least one run. target: default: 95 % of the best method's final score."""
    runs = label_runs(runs)
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


def render(template: str, **values: Any) -> Markup:
    """A template of the report or of a section with these values, escaped unless they are Markup.

    Raises jinja2.UndefinedError for a missing value.
    """
    loader = ChoiceLoader([PackageLoader("unskew.report"), FileSystemLoader(list(__path__))])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["begun"] = capitalise
    return Markup(environment.get_template(template).render(**values))


def figure(picture: str) -> Markup:
    """A picture, SVG text with escaped strings, as a figure; empty for ""."""
    return Markup(f"<figure>{picture}</figure>") if picture else Markup()


def section_modules() -> list[ModuleType]:
    """The modules of all sections, in the order of the page."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return sorted(
        (importlib.import_module(f"{__name__}.{name}") for name in names), key=lambda module: module.ORDER
    )


def build(context: Context) -> list[Section]:
    """The sections of the page of these runs, in order."""
    built = (module.build(context) for module in section_modules())
    return [section for section in built if section is not None]
