"""The sections of a report, one file each, and what they have in common.

A section's module has ORDER, its place on the page (any number that no other section has), and
`build(context)`, which returns a Section, or None if the runs have nothing to show in it. Every module in
this folder is a section; its template, if it needs one, lies in this folder, too.

Sections share the runs and what is computed from them once (Context), the scopes in which scores are taken
(one model on one test set, or models at clients on the clients' own test rows), and templates and pictures as
markup.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup

from unskew.report.analysis.numbers import capitalise, noun
from unskew.report.analysis.runs import RunData, by_method, label_runs
from unskew.report.analysis.summary import MethodSummary, summary_table, target_of
from unskew.report.figures.svg import NARROW, WIDE, Line, colours, mean_line
from unskew.scores import KINDS, kind


@dataclass(frozen=True)
class Scope:
    """key: as in metrics.jsonl. metric: what the score's series over rounds is called there; "" for the
    score's own name."""

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
    """As federation.json says they were scored: without a common test set the global model's score is pooled
    over clients."""
    pooled = federation.get("test") == 0 and any(federation.get("sizes", {}).get("test", ()))
    first = (
        replace(GLOBAL, meaning="The global model on all clients' own test rows together")
        if pooled
        else GLOBAL
    )
    return first, *AT_CLIENTS


@dataclass(frozen=True)
class Section:
    """anchor: the section's id in the page. html: its tables and pictures. lead: sentences under the title,
    which answer the reader's question. note: sentences in small print at the end. link: the section's name in
    the page's navigation, where a section without one is not listed. Plain strings are escaped by the page;
    only Markup is not."""

    title: str
    anchor: str
    html: Markup
    lead: str = ""
    note: str = ""
    link: str = ""


@dataclass(frozen=True)
class Context:
    """The runs of a report.

    name: what the report is about, from the folders' names. methods: each method's runs, one per seed.
    summaries: the
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


def run_with_same_clients(context: Context, group: Sequence[RunData]) -> RunData | None:
    """The run of this method whose clients are those of the report's first run."""
    first = context.first
    return next((run for run in group if run.seed == first.seed and not _differ(run, first)), None)


def client_scores(run: RunData) -> dict[int, float]:
    """By client, the score of the model that it would use."""
    return run.per_client("personal@client") or run.per_client("global@client")


def _differ(run: RunData, other: RunData) -> bool:
    """Whether the clients are others; centralised training keeps the clients' test samples."""
    return run.federation.get("sizes", {}).get("test") != other.federation.get("sizes", {}).get("test")


def render(template: str, **values: Any) -> Markup:
    """A template of the report, or one beside its section, with these values.

    Everything is escaped but Markup; a value that the template reads and is not given raises
    jinja2.UndefinedError.
    """
    loader = ChoiceLoader([PackageLoader("unskew.report"), FileSystemLoader(list(__path__))])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["begun"] = capitalise
    return Markup(environment.get_template(template).render(**values))


def both_widths(draw: Callable[..., str]) -> Markup:
    """The desktop and the mobile version of one picture; the style sheet shows one of them.

    draw: takes the keyword `width` and returns SVG text in which it has escaped every string from outside.
    """
    return Markup(draw(width=WIDE) + draw(width=NARROW))


def figure(draw: Callable[..., str]) -> Markup:
    """Both versions of a picture as a figure; empty if there is nothing to draw."""
    picture = both_widths(draw)
    return Markup("<figure>{}</figure>").format(picture) if picture else Markup()


def section_modules() -> list[ModuleType]:
    """The modules of all sections, in the order of the page."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return sorted(
        (importlib.import_module(f"{__name__}.{name}") for name in names), key=lambda module: module.ORDER
    )


def build(context: Context) -> list[Section]:
    """What the page of these runs shows, in order."""
    built = (module.build(context) for module in section_modules())
    return [section for section in built if section is not None]
