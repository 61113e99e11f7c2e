"""Runs and comparisons, read back from their folders.

What is kept of a folder is what reports need: series over rounds, each client's last value, bytes by share. The raw
rows are dropped as they are read, so a comparison of millions of rows fits in memory.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unskew.errors import StateError

Row = dict[str, Any]
Series = tuple[np.ndarray, np.ndarray]
"""(rounds, values), by rising round."""
RUN_OF_COMPARISON = re.compile(r"(.+)--s(\d+)")
NONE: Series = (np.array([], dtype=int), np.array([], dtype=float))


@dataclass(frozen=True)
class Traffic:
    """What went one way under one name: bytes of all clients per round, and the most one client moved in a round."""

    way: str
    share: str
    reads: str
    guarantee: str
    rounds: np.ndarray
    bytes: np.ndarray
    most: int
    shape: str = ""

    @property
    def total(self) -> int:
        return int(self.bytes.sum())


@dataclass(frozen=True)
class RunData:
    """One run as its folder tells it."""

    path: Path
    config: dict[str, Any]
    federation: dict[str, Any]
    env: dict[str, Any]
    metrics: dict[tuple[str, str], Series] = field(repr=False)
    clients: dict[tuple[str, str], dict[int, float]] = field(repr=False)
    traffic: tuple[Traffic, ...] = field(repr=False)
    events: list[Row] = field(repr=False)
    label: str = ""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def method(self) -> str:
        """What reports call it; runs of one method and different seeds have the same."""
        return self.label or str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was evaluated or sent anything."""
        ends = [int(t[-1]) for t, _ in self.metrics.values()] + [int(s.rounds[-1]) for s in self.traffic]
        return max(ends, default=0)

    @property
    def planned(self) -> int:
        return int(self.config.get("rounds", self.rounds))

    @property
    def finished(self) -> bool:
        return self.rounds >= self.planned

    @property
    def metric(self) -> str:
        """The task's main score: that of masks if every pixel has a label."""
        return "dice" if self.federation.get("unit") == "pixels" else "accuracy"

    def series(self, scope: str, metric: str) -> Series:
        """(rounds, values) of a metric of all clients together; empty if it was never written."""
        return self.metrics.get((scope, metric), NONE)

    def per_client(self, scope: str = "global@client", metric: str = "") -> dict[int, float]:
        """Each client's value in the last round that has them; of the main score unless told."""
        return self.clients.get((scope, metric or self.metric), {})

    def bytes_by_round(self, way: str | None = None, share: str | None = None) -> Series:
        """(rounds, bytes of all clients so far), both ways and all shares unless one is named."""
        wanted = [s for s in self.traffic if way in (None, s.way) and share in (None, s.share)]
        if not wanted:
            return NONE
        rounds = np.unique(np.concatenate([s.rounds for s in wanted]))
        total = np.zeros(len(rounds))
        for s in wanted:
            total[np.searchsorted(rounds, s.rounds)] += s.bytes
        return rounds, np.cumsum(total)

    @cached_property
    def bytes_up(self) -> Series:
        return self.bytes_by_round("up")

    @cached_property
    def bytes_down(self) -> Series:
        return self.bytes_by_round("down")

    @cached_property
    def attendance(self) -> list[tuple[int, list[int], list[int]]]:
        """(round, clients asked, clients whose reply counted)."""
        return [(e["t"], e["asked"], e["answered"]) for e in self.events if e.get("code") == "round"]

    @property
    def histograms(self) -> dict[str, Any]:
        """As measured, or from a `histograms.json`: {"buffer": [C], "local": [[C]...], "mixed": [[C]...]}."""
        return self.measures.get("histograms") or _json(self.path / "histograms.json")

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """By part, what its release amounts to as differential privacy (`Account.as_json`); {} where nothing is noisy."""
        return _json(self.path / "privacy.json")

    @cached_property
    def measures(self) -> dict[str, Any]:
        """Matrices and pictures by measure, as the last round left them; {} where nothing was measured."""
        return _json(self.path / "measures.json")


def read_run(path: str | Path, label: str = "") -> RunData:
    """Raises StateError: E117 if the folder is no run, E111 if a file in it cannot be read, its last line apart."""
    path = Path(path)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise StateError("E117", f"{path} is no run: it has no {name}. Runs are folders like runs/flea-0001.")
    metrics, clients = _metrics(_rows(path / "metrics.jsonl"))
    return RunData(
        path,
        _yaml(path / "config.yaml"),
        _json(path / "federation.json"),
        _json(path / "env.json"),
        metrics,
        clients,
        _traffic(_rows(path / "ledger.jsonl")),
        _rows(path / "events.jsonl"),
        label,
    )


def read_comparison(path: str | Path) -> list[RunData]:
    """Runs that have begun, in the order of the comparison's methods, then of seeds. Raises StateError (E117)."""
    path = Path(path)
    if not (path / "compare.yaml").is_file():
        raise StateError("E117", f"{path} is no comparison: it has no compare.yaml.")
    methods = [str(m) for m in _yaml(path / "compare.yaml").get("methods", [])]
    known = {_slug(m): (i, m) for i, m in enumerate(methods)}
    found = []
    for at in sorted(path.glob("*--s*/metrics.jsonl")):
        folder = RUN_OF_COMPARISON.fullmatch(at.parent.name)
        if folder and at.stat().st_size:
            rank, label = known.get(_slug(folder[1]), (len(known), ""))
            run = read_run(at.parent, label)
            found.append((rank, run.method, run.seed, run))
    if not found:
        raise StateError("E117", f"no run of {path} has begun: there is no <method>--s<seed>/metrics.jsonl in it.")
    return [run for *_, run in sorted(found, key=lambda f: f[:3])]


def read_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Any mix of runs and comparisons; runs that only a setting tells apart are named by that setting."""
    runs: list[RunData] = []
    for path in map(Path, paths):
        runs += read_comparison(path) if (path / "compare.yaml").is_file() else [read_run(path)]
    return told_apart(runs)


def told_apart(runs: list[RunData]) -> list[RunData]:
    """Runs of one method and one seed are not repeats of each other: give each configuration a name of its own."""
    by_method: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    names: dict[int, str] = {}
    for method, group in by_method.items():
        kinds = [_kind(r) for r in group]
        differing = sorted({k for kind in kinds for k, v in kind.items() if any(v != o.get(k) for o in kinds)})
        pairs = [(r.seed, *(str(kind.get(k)) for k in differing)) for r, kind in zip(group, kinds)]
        for run, kind, pair in zip(group, kinds, pairs):
            if pairs.count(pair) > 1:
                names[id(run)] = f"{method} [{run.name}]"
            elif differing:
                names[id(run)] = f"{method} ({', '.join(f'{k} {kind.get(k)}' for k in differing)})"
    return [replace(r, label=names[id(r)]) if id(r) in names else r for r in runs]


def _kind(run: RunData) -> dict[str, Any]:
    """The settings that make it another experiment rather than another seed or machine."""
    return {k: v for k, v in run.config.items() if k not in ("method", "seed", "workers", "device", "lanes")}


def _metrics(rows: list[Row]) -> tuple[dict[tuple[str, str], Series], dict[tuple[str, str], dict[int, float]]]:
    """Series, and each client's value in the last round of its scope and metric. A round written twice counts once."""
    series: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    last: dict[tuple[str, str], int] = {}
    clients: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        key, t = (row["scope"], row["metric"]), row["t"]
        if row["client"] is None:
            series[key][t] = row["value"]
        elif t >= last.get(key, -1):
            if t > last.get(key, -1):
                last[key], clients[key] = t, {}
            clients[key][row["client"]] = row["value"]
    ordered = {k: sorted(v.items()) for k, v in series.items()}
    return {
        k: (np.array([t for t, _ in v], int), np.array([x for _, x in v], float)) for k, v in ordered.items()
    }, clients


def _traffic(rows: list[Row]) -> tuple[Traffic, ...]:
    sums: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    most: dict[tuple[str, str], int] = defaultdict(int)
    words: dict[tuple[str, str], tuple[str, str, str]] = {}
    for row in rows:
        key, each = (row["way"], row["share"]), row["bytes"]
        many = isinstance(each, list)
        sums[key][row["t"]] += sum(each) if many else each * len(row["clients"])
        most[key] = max(most[key], max(each, default=0) if many else each)
        shape = "×".join(map(str, row["shape"])) if row.get("shape") else words[key][2] if key in words else ""
        words[key] = (row.get("reads", ""), row.get("guarantee", ""), shape)
    found = []
    for (way, share), by_round in sums.items():
        reads, guarantee, shape = words[way, share]
        t = np.array(sorted(by_round), int)
        total = np.array([by_round[i] for i in t.tolist()], dtype=np.int64)
        found.append(Traffic(way, share, reads, guarantee, t, total, most[way, share], shape))
    return tuple(found)


def _slug(method: str) -> str:
    """As the engine names a cell's folder."""
    return re.sub(r"[^a-z0-9._-]+", "-", method.lower().replace("+", "_")).strip("-_.")[:48]


def _yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StateError("E111", f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(found, dict):
        raise StateError("E111", f"{path} must hold keys and values.")
    return found


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise StateError("E111", f"{path} is not JSON: {error}.") from None


def _rows(path: Path) -> list[Row]:
    """Rows of a JSON-lines file; a last line torn by a kill is left out."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    lines = [line for line in whole.split(b"\n") if line.strip()]
    try:
        return json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return [_row(path, i, line) for i, line in enumerate(lines, 1)]


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        return json.loads(line)
    except ValueError:
        raise StateError("E111", f"{path}, line {number}, is not JSON: {line[:60]!r}.") from None
