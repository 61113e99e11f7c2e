"""The measures of the setting `measure`: numbers, their series over rounds, matrices and pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from markupsafe import Markup

from unskew.report.analysis.numbers import three_digits
from unskew.report.analysis.runs import EVALUATED, RunData
from unskew.report.analysis.stats import NAN, Score
from unskew.report.figures.curves import series
from unskew.report.figures.images import received_inputs, tsne
from unskew.report.figures.matrices import cross_site, exposure
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
PICTURES: tuple[tuple[str, str, Callable[..., Callable[..., str]]], ...] = (
    ("cross_site", "Local models at other sites, %", lambda m, run: partial(cross_site, m)),
    ("exposure", "Who has received something from whom", lambda m, run: partial(exposure, m, run.planned)),
    (
        "received",
        "Inputs that clients receive from others",
        lambda m, run: partial(received_inputs, m, _classes(run)),
    ),
    ("tsne", "Test features in the plane (t-SNE)", lambda m, run: partial(tsne, m)),
)
"""(measure, title, function from its entry in measures.json and the run to a picture)."""


def build(context: Context) -> Section | None:
    """A table of last values, a picture of each series, and each method's matrices; None without any."""
    metrics = _metrics(context)
    if not metrics:
        return None
    html = render(
        "measures.html.j2",
        methods=list(context.methods),
        values=[(title, [three_digits(s) for s in scores]) for _, title, scores in metrics],
        pictures=[*_series(context, metrics), *_pictures(context)],
    )
    seeds = ", mean ± standard deviation over seeds" if context.seeds > 1 else ""
    lead = (
        f"Values after the last round{seeds}. Separation is the Davies-Bouldin index, which is small if"
        " groups lie far apart. A larger value of a measure is not better by itself."
    )
    return Section("Measured", "measured", html, lead=lead, link="Measured")


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
        lines = [line for m in context.methods if (line := context.line(m, SCOPE, metric))]
        if picture := figure(partial(series, lines, title)):
            pictures.append((f"{title}, over rounds", picture))
    return pictures


def _pictures(context: Context) -> list[tuple[str, Markup]]:
    """(title, picture) of the entries in measures.json of each method's first seed."""
    pictures = []
    for method, group in context.methods.items():
        run = group[0]
        for measure, title, draw in PICTURES:
            if measure in run.measures and (picture := figure(draw(run.measures[measure], run))):
                pictures.append((f"{method}: {title}", picture))
    return pictures


def _classes(run: RunData) -> list[str]:
    return run.federation.get("classes", [])
