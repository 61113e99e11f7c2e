"""The tuning of a comparison's methods: the numbers of trials, the search spaces and the results."""

from __future__ import annotations

from typing import Any

from unskew.report.analysis.runs import TUNED, read_json
from unskew.report.sections import Context, Section, render
from unskew.scores import kind

ORDER = 56
NOTE = (
    "The scores of trials are those of held-out training samples and of another seed than the runs', so they"
    " are not those of the table above."
)


def build(context: Context) -> Section | None:
    """The section; None for runs that are no comparison, or without tuning."""
    parents = {run.path.parent for run in context.runs}
    facts = read_json(next(iter(parents)) / TUNED) if len(parents) == 1 else {}
    methods = {m: entry for m, entry in facts.get("methods", {}).items() if m in context.methods}
    if not methods:
        return None
    each = [_described(method, entry) for method, entry in methods.items()]
    html = render("tuning.html.j2", methods=each)
    return Section("How the methods were tuned", "tuning", html, lead=_lead(facts), note=NOTE, link="Tuning")


def _lead(facts: dict[str, Any]) -> str:
    return (
        f"Every method was given {facts['trials']} trials of {facts['rounds']} rounds with seed"
        f" {facts['seed']}, scored on {facts['validation']:.0%} of the training samples, which were held out;"
        " no trial saw a test sample. The first is the settings as they were given; Optuna's tree-structured"
        " Parzen estimator chose the others. All seeds above were run with the best settings."
    )


def _described(method: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The values of a method for the template."""
    best = next(i for i, trial in enumerate(entry["trials"]) if trial["point"] == entry["best"])
    return {
        "name": method,
        "space": [(name, _range(axis), f"{entry['best'][name]:g}") for name, axis in entry["space"].items()],
        "left_out": list(entry["left_out"].items()),
        "trials": [_trial(trial, entry, i == best) for i, trial in enumerate(entry["trials"])],
        "scored": "clients' own models" if entry["own"] else "the global model",
    }


def _range(axis: dict[str, Any]) -> str:
    return f"{axis['low']:g} to {axis['high']:g}"


def _trial(trial: dict[str, Any], entry: dict[str, Any], is_best: bool) -> dict[str, Any]:
    diverged = trial["score"] is None
    fate = ("taken, as no trial has a score" if diverged else "best") if is_best else ""
    return {
        "values": [f"{trial['point'][name]:g}" for name in entry["space"]],
        "score": "diverged" if diverged else kind(entry["metric"]).written(trial["score"]),
        "fate": fate,
    }
