"""Runs and comparisons, read back from their folders."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unskew.errors import StateError

Row = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    """One run as its folder tells it."""

    path: Path
    config: dict[str, Any]
    federation: dict[str, Any]
    env: dict[str, Any]
    metrics: list[Row] = field(repr=False)
    ledger: list[Row] = field(repr=False)
    events: list[Row] = field(repr=False)
    label: str = ""

    @property
    def method(self) -> str:
        return self.label or self.config["method"]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def _series(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for r in self.metrics:
            if r["client"] is None:
                found[r["scope"], r["metric"]].append((r["t"], r["value"]))
        return found

    def series(self, scope: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(rounds, values) of a metric of all clients together."""
        pairs = self._series.get((scope, metric), [])
        return np.array([t for t, _ in pairs], dtype=int), np.array([v for _, v in pairs], dtype=float)

    def per_client(self, scope: str = "global@client", metric: str = "accuracy") -> dict[int, float]:
        """Each client's value in the last round that has them."""
        rows = [r for r in self.metrics if r["client"] is not None and r["scope"] == scope and r["metric"] == metric]
        last = max((r["t"] for r in rows), default=0)
        return {r["client"]: r["value"] for r in rows if r["t"] == last}

    def bytes_of(self, row: Row) -> int:
        each = row["bytes"]
        return sum(each) if isinstance(each, list) else each * len(row["clients"])

    def bytes_by_round(self, way: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(rounds, bytes sent so far), both ways unless one is named."""
        total: dict[int, int] = defaultdict(int)
        for row in self.ledger:
            if way is None or row["way"] == way:
                total[row["t"]] += self.bytes_of(row)
        rounds = np.array(sorted(total), dtype=int)
        return rounds, np.cumsum([total[t] for t in rounds.tolist()])

    def shares(self) -> list[Row]:
        """Per way and share: total bytes, the most one client sent in a round, who reads it, its guarantee."""
        found: dict[tuple[str, str], Row] = {}
        for row in self.ledger:
            entry = found.setdefault(
                (row["way"], row["share"]),
                {"way": row["way"], "share": row["share"], "total": 0, "most": 0, "reads": row["reads"], "guarantee": row["guarantee"]},
            )
            entry["total"] += self.bytes_of(row)
            entry["most"] = max(entry["most"], max(row["bytes"]) if isinstance(row["bytes"], list) else row["bytes"])
        return list(found.values())

    def attendance(self) -> list[tuple[int, int, int]]:
        """(round, asked, answered)."""
        return [(e["t"], len(e["asked"]), len(e["answered"])) for e in self.events if e["code"] == "round"]


def read_run(path: str | Path, label: str = "") -> RunData:
    """Raises StateError (E117) if the folder is no run."""
    path = Path(path)
    if not (path / "config.yaml").exists() or not (path / "metrics.jsonl").exists():
        raise StateError("E117", f"{path} is no run: it has no config.yaml and metrics.jsonl.")
    parts = [_json(path / name) for name in ("federation.json", "env.json")]
    lines = [list(_lines(path / f"{name}.jsonl")) for name in ("metrics", "ledger", "events")]
    return RunData(path, yaml.safe_load((path / "config.yaml").read_text()), *parts, *lines, label)


def read_comparison(path: str | Path) -> list[RunData]:
    """All begun runs of a comparison, in the order of its methods."""
    path = Path(path)
    if not (path / "compare.yaml").exists():
        raise StateError("E117", f"{path} is no comparison: it has no compare.yaml.")
    order = yaml.safe_load((path / "compare.yaml").read_text())["methods"]
    runs = [read_run(p.parent) for p in sorted(path.glob("*--s*/metrics.jsonl"))]
    rank = {m: i for i, m in enumerate(order)}
    return sorted(runs, key=lambda r: (rank.get(r.method, len(rank)), r.method, r.seed))


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _lines(path: Path) -> Iterable[Row]:
    """Rows of a JSON-lines file; a last line torn by a kill is left out."""
    if path.exists():
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        yield from (json.loads(line) for line in whole.splitlines())
