"""The calibration of the global model, over all clients and at each client (`measure: calibration`)."""

from __future__ import annotations

from functools import partial

from unskew.report.analysis.numbers import MISSING
from unskew.report.figures.bars import reliability
from unskew.report.sections import Context, Section, figure, render

ORDER = 92
MEASURE = "calibration"


def build(context: Context) -> Section | None:
    """A reliability diagram of each method's first seed, and its error at each client; None without any."""
    measured = {
        m: group[0].measures[MEASURE] for m, group in context.methods.items() if MEASURE in group[0].measures
    }
    if not measured:
        return None
    pictures = [(m, figure(partial(reliability, held, context.colours[m]))) for m, held in measured.items()]
    named = list(dict.fromkeys(site["name"] for held in measured.values() for site in held["sites"]))
    errors = {m: {site["name"]: site for site in held["sites"]} for m, held in measured.items()}
    rows = [(name, [_shown(by_name.get(name)) for by_name in errors.values()]) for name in named]
    html = render("calibration.html.j2", methods=list(measured), pictures=pictures, rows=rows)
    lead = (
        "Each bar is the share of predictions that are right among those of one confidence; on the line a"
        " model is right as often as it is sure. Bars below it mean that the model is too sure. Where there"
        " is no bar, no prediction is so sure."
    )
    note = (
        "The expected calibration error is the mean distance from the line, weighted by samples (15 bins, Guo"
        " et al., 2017), of the global model after the last round, in %. On few samples it is above zero by"
        " chance alone."
    )
    return Section(
        "Calibration",
        MEASURE,
        html,
        lead=lead,
        note=note + _left_out(context, len(named)),
        link="Calibration",
    )


def _left_out(context: Context, shown: int) -> str:
    """A sentence, after a space, on how many clients with test samples have no row; "" if all have one."""
    tested = sum(1 for n in context.first.federation.get("sizes", {}).get("test", ()) if n)
    return f" Of {tested:,} clients with test samples {shown} are shown." if shown < tested else ""


def _shown(site: dict[str, float] | None) -> str:
    return MISSING if site is None or site["ece"] is None else f"{100 * site['ece']:.1f} (n = {site['n']:,})"
