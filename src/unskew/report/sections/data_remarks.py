"""Remarks of the reader of a user's own data: scaling, samples left out, and oddities."""

from __future__ import annotations

from unskew.report.sections import Context, Section, render

ORDER = 55
TITLES = {
    "scaled": "scaled",
    "labels": "labels",
    "sites": "sites",
    "left out": "left out",
    "note": "to check",
}
"""The subjects of remarks in words."""


def build(context: Context) -> Section | None:
    """The remarks on the data of all runs, each once, by subject; None without any."""
    remarks = dict.fromkeys(
        (topic, text) for run in context.runs for topic, text in run.federation.get("understood", [])
    )
    if not remarks:
        return None
    topics = dict.fromkeys([*TITLES, *(topic for topic, _ in remarks)])
    rows = [
        (TITLES.get(topic, topic), [text for about, text in remarks if about == topic]) for topic in topics
    ]
    html = render("data_remarks.html.j2", rows=[row for row in rows if row[1]])
    lead = "What was changed, left out or looks odd in the data that were given, before anything was trained."
    return Section("Data as understood", "understood", html, lead=lead, link="Data")
