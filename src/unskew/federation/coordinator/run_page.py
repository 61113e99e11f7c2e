"""The page of a run in a browser: its sites, scores, what they have sent, and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unskew.errors import StateError
from unskew.federation.coordinator.orders import ENDING, LOG, ORDER_FILE
from unskew.federation.local_page import local_time, render
from unskew.records.client_lists import clients_in
from unskew.report.analysis.runs import RunData, read_records, read_run
from unskew.report.sections.disclosure import items
from unskew.report.sections.leakage import payloads
from unskew.scores import MAIN, kind
from unskew.system.disk import no_run

MOST_EVENTS, MOST_LINES = 100, 30
SHOWN = (*MAIN.values(), "mean", "worst")
"""Metrics of which scores are shown."""


def html(path: Path) -> str:
    """The page of a run, simulated or over a network, from its folder's current contents.

    Raises StateError (E117) if the folder is not a run's.
    """
    if not any((path / name).exists() for name in ("config.yaml", ORDER_FILE)):
        raise no_run(path, "config.yaml")
    ending, run, problem = _json(path / ENDING), None, ""
    try:
        run = read_run(path)
    except StateError as error:
        problem = "" if error.code == "E117" else str(error)  # E117: it has not begun
    events = run.events if run else []
    if not run and not problem:
        events = read_records(path / "events.jsonl")
    log = path / LOG
    return render(
        "run.html.j2",
        name=path.name,
        method=run.method if run else _json(path / ORDER_FILE).get("settings", {}).get("method", ""),
        ending=ending,
        problem=problem,
        state=_state(path, ending, run),
        t=run.rounds if run else 0,
        planned=run.planned if run else 0,
        sites=sites(path, run, events),
        scores=scores(run) if run else [],
        moved=list(zip([item for item in items(run) if item.way == "sends"], payloads(run))) if run else [],
        events=[e for e in reversed(events) if e["code"] != "round"][:MOST_EVENTS],
        log="\n".join(log.read_text(errors="replace").splitlines()[-MOST_LINES:]) if log.exists() else "",
    )


def sites(path: Path, run: RunData | None, events: list[Any]) -> list[dict[str, Any]]:
    """For each site of a run over a network: rounds in which it was asked and used, and its last score."""
    rows: list[dict[str, Any]] = [
        {"name": hello["site"], "train": hello["train"], "asked": 0, "answered": 0, "last": 0, "score": ""}
        for hello in _json(path / "sites.json").get("sites", [])
    ]
    for event in events if rows else ():
        if event["code"] == "round":
            for k in clients_in(event["asked"]):
                rows[k]["asked"] += 1
            for k in clients_in(event["answered"]):
                rows[k]["answered"], rows[k]["last"] = rows[k]["answered"] + 1, event["t"]
    for (scope, metric), by_client in run.clients.items() if run and rows else ():
        for k, value in by_client.items():
            if scope == "global@client" and metric in SHOWN:
                rows[k]["score"] = f"{metric} {kind(metric).written(value)}"
    return rows


def scores(run: RunData) -> list[dict[str, str]]:
    """The last and the best value of every score over all clients."""
    rows: list[dict[str, str]] = []
    for (scope, metric), (_, values) in sorted(run.metrics.items()):
        if metric in SHOWN and len(values):
            # `mean` and `worst` are those of the run's main score
            of = kind(run.metric if metric in ("mean", "worst") else metric)
            last, best = float(values[-1]), of.best(values.tolist())
            rows.append({"name": f"{scope} {metric}", "last": of.written(last), "best": of.written(best)})
    return rows


def _state(path: Path, ending: dict[str, Any], run: RunData | None) -> str:
    if ending:
        return str(ending.get("state", "ended"))
    if run and run.finished:
        return "done"
    written = max((file.stat().st_mtime for file in path.glob("*.jsonl")), default=path.stat().st_mtime)
    return f"not finished; something was last written {local_time(written)}"


def _json(path: Path) -> dict[str, Any]:
    """An object in a file; empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}
