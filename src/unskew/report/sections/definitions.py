"""The definitions of the report's terms: scopes, seeds, deviations, the test."""

from __future__ import annotations

from unskew.report.sections import Context, Section, render, scopes

ORDER = 110


def build(context: Context) -> Section:
    """The meaning of the scores and scopes on this page."""
    held_out = any(run.config.get("validation") for run in context.runs)
    html = render(
        "definitions.html.j2",
        metric=context.metric,
        seeds=context.seeds,
        held_out=held_out,
        of_all=scopes(context.first.federation)[0].meaning,
    )
    return Section("How it was measured", "method", html, link="How it was measured")
