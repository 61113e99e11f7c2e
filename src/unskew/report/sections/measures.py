"""The measures of the setting `measure`: numbers, their series over rounds, matrices and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from unskew.report.analysis.number_formats import three_digits
from unskew.report.analysis.runs import EVALUATED, RunData
from unskew.report.analysis.stats import NAN, Score
from unskew.report.figures.curves import curves
from unskew.report.figures.measures import confusion, cross_site, exposure, histograms, image_rows, tsne
from unskew.report.sections import Context, Section, figure, render

ORDER = 90
SCOPE = "measure"
TITLES = {
    "separation_train_local": "Separation of classes, training samples, local models",
    "separation_test_local": "Separation of classes, test samples, local models",
    "separation_train_global": "Separation of classes, training samples, global model",
    "separation_test_global": "Separation of classes, test samples, global model",
    "diversity": "Weight diversity",
    "correlation": "Distance correlation of inputs and shared features, R",
    "correlation_squared": "Distance correlation of inputs and shared features, R²",
    "exposure": "Exposed pairs of clients, share",
    "histogram_pool": "Class shares of the pool, distance from those of all clients",
    "histogram_local": "Class shares of a client’s own data, distance from those of all clients",
    "histogram_mixed": "Class shares of what training sees, distance from those of all clients",
    "received_likeness": "Received inputs whose nearest test row has their class, share",
    "received_likeness_of_real": "The same for the test rows themselves, share",
    "received_nearness": (
        "Received inputs, distance to the nearest training sample, relative to that of test rows"
    ),
    "cross_site": "Local models at other sites, mean score",
    "sites_local": "Separation of sites, test features, local models",
    "sites_global": "Separation of sites, test features, global model",
}
"""Metrics in the order of the table; others follow under their names."""
NOTE = (
    "Matrices and pictures are of each method's first seed. Of very many clients those with the most test"
    " samples are shown."
)


def build(context: Context) -> Section | None:
    """A table of last values, a picture of each series, and each method's matrices; None without any."""
    metrics, pictures = _metrics(context), _pictures(context)
    if not metrics and not pictures:
        return None
    html = render(
        "measures.html.j2",
        methods=list(context.methods),
        values=[(title, [three_digits(s) for s in scores]) for _, title, scores in metrics],
        pictures=[*_series(context, metrics), *pictures],
    )
    seeds = ", mean ± standard deviation over seeds" if context.seeds > 1 else ""
    lead = (
        f"Values after the last round{seeds}. Separation is the Davies-Bouldin index, which is small if"
        " groups lie far apart. A larger value of a measure is not better by itself."
    )
    return Section("Measured", "measured", html, lead=lead, note=NOTE, link="Measured")


def _metrics(context: Context) -> list[tuple[str, str, list[Score]]]:
    """(metric, title, last value of each method) of all measures but pairs of sites, which have a picture."""
    names = {
        metric for r in context.runs for scope, metric in r.metrics if scope == SCOPE and "/" not in metric
    }
    ordered = [*(m for m in TITLES if m in names), *sorted(names - TITLES.keys())]
    return [(m, TITLES.get(m, m.replace("_", " ").capitalize()), _last_values(context, m)) for m in ordered]


def _last_values(context: Context, metric: str) -> list[Score]:
    return [Score.of([_last_value(run, metric) for run in group]) for group in context.methods.values()]


def _last_value(run: RunData, metric: str) -> float:
    """The value of the last round with measures or scores; NaN if it is undefined there."""
    rounds, values = run.series(SCOPE, metric)
    last = max(
        (int(t[-1]) for (scope, _), (t, _) in run.metrics.items() if scope in (SCOPE, *EVALUATED)), default=0
    )
    return float(values[-1]) if len(rounds) and rounds[-1] == last else NAN


def _series(context: Context, metrics: list[tuple[str, str, list[Score]]]) -> list[tuple[str, Markup]]:
    """(title, picture) of each metric with values in more than one round."""
    pictures = []
    for metric, title, _ in metrics:
        drawn = [line for m in context.methods if (line := context.line(m, SCOPE, metric))]
        lines = [replace(line, share=False) for line in drawn]  # each measure has a unit of its own
        if any(len(line.x) > 1 for line in lines):
            pictures.append((f"{title}, over rounds", figure(curves(lines, "round", title))))
    return pictures


def _pictures(context: Context) -> list[tuple[str, Markup]]:
    """(title, picture) of the entries in measures.json of each method's first seed."""
    return [
        (f"{method}: {title}", figure(picture))
        for method, group in context.methods.items()
        for measure, entry in group[0].measures.items()
        for title, picture in _drawn(measure, entry, group[0])
        if picture
    ]


def _drawn(measure: str, entry: Mapping[str, Any], run: RunData) -> list[tuple[str, str]]:
    """(title, picture or "") of an entry in measures.json."""
    classes = run.federation.get("classes", [])
    match measure:
        case "cross_site":
            return [("Local models at other sites, %", cross_site(entry))]
        case "exposure":
            return [("Who has received something from whom", exposure(entry, run.planned))]
        case "received":
            names = [str(classes[c]) if c < len(classes) else str(c) for c in entry["classes"]]
            title = "Inputs that clients receive from others"
            return [(title, image_rows(entry, names, title))]
        case "tsne":
            return [("Test features in the plane (t-SNE)", tsne(entry))]
        case "histograms":
            title = "Class shares of the shared buffer, of clients’ own data, and of what they train on"
            return [(title, histograms(entry, classes))]
        case "confusion":
            tables = [("all test samples", entry["all"]), *zip(entry["names"], entry["sites"])]
            title = "Which class the global model takes for which, % of a class"
            return [(f"{title}, {where}", confusion(counts, classes, where)) for where, counts in tables]
    return []
