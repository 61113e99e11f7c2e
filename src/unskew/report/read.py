"""Reads run folders and comparison folders.

Only what reports need is kept: series over rounds, each client's last value, bytes per share. The records themselves
are dropped as they are read, so that a comparison of millions of lines fits in memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unskew import disk
from unskew.engine.disk import record, shapes
from unskew.engine.server.used import Replies
from unskew.errors import StateError
from unskew.report.files import read_facts, read_json, read_records, read_yaml
from unskew.report.labels import distinct
from unskew.report.records import scores_of, traffic_of
from unskew.report.runs import RunData, clients_of

RUN_OF_COMPARISON = re.compile(r"(.+)--s(\d+)")
"""The folder of a method and seed in a comparison."""


def read_run(path: str | Path, label: str = "") -> RunData:
    """One run. label: what reports call it instead of its method.

    A run that its clients did not train has no scores: those of its weights would pass for the method's.
    Raises StateError: E117 if the folder is not a run, E111 if a file in it is damaged (an incomplete last line of a
    .jsonl file is not damage). Files that can be read and are not as the run wrote them are its `altered`.
    """
    path = Path(path)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise disk.no_run(path, name)
    series, clients = scores_of(read_records(path / "metrics.jsonl"))
    events, federation = read_records(path / "events.jsonl"), read_facts(path / "federation.json")
    K = clients_of(federation)
    if not Replies.of(events, K).enough:
        series, clients = {key: values for key, values in series.items() if key[0] == "train"}, {}
    return RunData(
        path=path,
        config=shapes.settings(path / "config.yaml", read_yaml(path / "config.yaml")),
        federation=federation,
        env=read_json(path / "env.json"),
        metrics=series,
        clients=clients,
        traffic=traffic_of(read_records(path / "ledger.jsonl"), K),
        events=events,
        label=label,
        altered=record.altered(path),
    )


def read_comparison(path: str | Path) -> list[RunData]:
    """The runs of a comparison that have begun, in the order of its methods, then of seeds. Raises StateError (E117) if
    the folder is not a comparison or none of its runs has begun."""
    path = Path(path)
    if not (path / "compare.yaml").is_file():
        raise StateError("E117", f"{path} is not a comparison: it has no compare.yaml.")
    methods = [str(m) for m in read_yaml(path / "compare.yaml").get("methods", [])]
    places = {disk.slug(method): (place, method) for place, method in enumerate(methods)}
    ordered = []
    for metrics in sorted(path.glob("*--s*/metrics.jsonl")):
        name = RUN_OF_COMPARISON.fullmatch(metrics.parent.name)
        if name and metrics.stat().st_size:
            place, label = places.get(name[1], (len(places), ""))
            run = read_run(metrics.parent, label)
            ordered.append((place, run.method, run.seed, run))
    if not ordered:
        raise StateError("E117", f"no run of {path} has begun: it holds no <method>--s<seed>/metrics.jsonl.")
    return [run for *_, run in sorted(ordered, key=lambda entry: entry[:3])]


def asked_target(paths: Sequence[str | Path]) -> float | None:
    """The target that was asked for when these comparisons were made; None where none was, or not the same one for all."""
    plans = [Path(path) / "compare.yaml" for path in paths]
    asked = [read_yaml(plan).get("target") if plan.is_file() else None for plan in plans]
    same = all(target == asked[0] for target in asked)
    return float(asked[0]) if same and isinstance(asked[0], int | float) else None


def read_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """The runs of any mix of run and comparison folders; runs that differ only in a setting are labelled with it."""
    runs: list[RunData] = []
    for path in map(Path, paths):
        runs += read_comparison(path) if (path / "compare.yaml").is_file() else [read_run(path)]
    return distinct(runs)
