"""What a user's own data were taken for: what was scaled, left out or looks odd."""

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
"""What a remark is about, in words."""


def build(context: Context) -> Section | None:
    """The remarks on the data of all runs, each once, by what they are about; None without any, as for named
    data sets."""
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
