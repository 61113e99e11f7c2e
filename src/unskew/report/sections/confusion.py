"""Confusion matrices of the global model, over all clients and at each client (`measure: confusion`)."""

from __future__ import annotations

from functools import partial

from unskew.report.figures.matrices import confusion
from unskew.report.sections import Context, Section, figure, render

ORDER = 94
MEASURE = "confusion"


def build(context: Context) -> Section | None:
    """A matrix of all test samples and one of each client, for each method's first seed; None without any."""
    runs = [(m, group[0]) for m, group in context.methods.items() if MEASURE in group[0].measures]
    if not runs:
        return None
    pictures = []
    for method, run in runs:
        held, classes = run.measures[MEASURE], run.federation.get("classes", [])
        tables = [("all test samples", held["all"]), *zip(held["names"], held["sites"])]
        pictures += [
            (f"{method}: {where}", figure(partial(confusion, t, classes, where))) for where, t in tables
        ]
    html = render("confusion.html.j2", pictures=[(title, picture) for title, picture in pictures if picture])
    note = (
        "Shares of a class's samples in %, after the last round, as the global model answers at the client."
        " At most twelve clients are shown, those with the most test samples."
    )
    return Section("Which class is taken for which", MEASURE, html, note=note, link="Confusion")
