"""The tuning of a comparison's methods: the numbers of trials, the search spaces and the best settings."""

from __future__ import annotations

from unskew.report.analysis.runs import TUNED, read_json
from unskew.report.sections import Context, Section, render

ORDER = 56
NOTE = (
    "Trials are scored on held-out training samples and with another seed than the runs', so their scores are"
    " not those of the table above; tuning.json has each of them."
)


def build(context: Context) -> Section | None:
    """The section; None for runs that are no comparison, or without tuning."""
    parents = {run.path.parent for run in context.runs}
    facts = read_json(next(iter(parents)) / TUNED) if len(parents) == 1 else {}
    methods = {m: entry for m, entry in facts.get("methods", {}).items() if m in context.methods}
    if not methods:
        return None
    rows = [
        (
            method,
            [
                (name, f"{axis['low']:g} to {axis['high']:g}", f"{entry['best'][name]:g}")
                for name, axis in entry["space"].items()
            ],
            "clients' own models" if entry["own"] else "the global model",
            "; ".join(f"{name}, because {why}" for name, why in entry["left_out"].items()),
        )
        for method, entry in methods.items()
    ]
    lead = (
        f"Every method was given {facts['trials']} trials of {facts['rounds']} rounds with seed"
        f" {facts['seed']}, scored on {facts['validation']:.0%} of the training samples, which were held out;"
        " no trial saw a test sample. The first is the settings as they were given; Optuna's tree-structured"
        " Parzen estimator chose the others. All seeds above were run with the best settings."
    )
    html = render("tuning.html.j2", methods=rows)
    return Section("How the methods were tuned", "tuning", html, lead=lead, note=NOTE, link="Tuning")
