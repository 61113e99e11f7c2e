"""What the terms of the page mean, and how to repeat the runs: commands, settings, environment, events."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.formats import documents
from unskew.report.analysis.number_formats import plural
from unskew.report.analysis.runs import RunData, read_json
from unskew.report.sections import Context, Section, render, scopes

ORDER = 100
ORDER_FILE = "deploy.json"
"""The file in the folder of a run over a network with its order and federation."""
MOST_EVENTS = 200
MOST_COMMANDS = 20


def build(context: Context) -> Section:
    """Definitions, the command and settings that repeat the runs, and their events."""
    shared, differing = settings(context)
    events = [(r, e) for r in context.runs for e in r.events if e.get("code") != "round"]
    html = render(
        "reproducibility.html.j2",
        metric=context.metric,
        seeds=context.seeds,
        held_out=any(run.config.get("validation") for run in context.runs),
        of_all=scopes(context.first.federation)[0].meaning,
        command=command(context),
        methods=list(context.methods),
        differing=differing,
        settings="All settings that the runs share" if len(context.runs) > 1 else "All settings",
        config=documents.dump(shared),
        env=context.first.env,
        events=events[:MOST_EVENTS],
        more=len(events) - MOST_EVENTS,
    )
    return Section("How it was measured", "repeat", html, link="How it was measured")


def settings(context: Context) -> tuple[dict[str, Any], list[tuple[str, list[str]]]]:
    """(common settings, differing settings with the value of each method)."""
    runs = context.runs
    keys = list(dict.fromkeys(k for r in runs for k in r.config))
    shared = {
        k: runs[0].config.get(k) for k in keys if all(r.config.get(k) == runs[0].config.get(k) for r in runs)
    }
    differing = []
    for key in keys:
        values = [_values(group, key) for group in context.methods.values()]
        seeds_alike = key == "seed" and len(set(values)) == 1
        if key not in shared and key != "method" and not seeds_alike:
            differing.append((key, values))
    return shared, differing


def _values(group: Sequence[RunData], key: str) -> str:
    return ", ".join(dict.fromkeys(str(r.config.get(key)) for r in group))


def command(context: Context) -> str:
    """The commands that repeat the runs, one for each."""
    more = len(context.runs) - MOST_COMMANDS
    left_out = [f"# and so on, for {plural(more, 'further run')}"] if more > 0 else []
    return "\n".join([*map(_run_command, context.runs[:MOST_COMMANDS]), *left_out])


def _run_command(run: RunData) -> str:
    """Remarks on runs that no command repeats: over a network, or with samples from a program."""
    path = str(run.path / "config.yaml")
    federation = read_json(run.path / ORDER_FILE).get("federation")
    if str(run.config.get("data", "")).startswith("(") and not federation:
        return f"# {run.name} trained on samples that a program gave it: run that program again"
    on = f" --on {shlex.quote(Path(str(federation)).name)}" if federation else ""
    return f"unskew run {shlex.quote(path)}{on}"
