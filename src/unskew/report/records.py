"""Sums up the records of metrics.jsonl and ledger.jsonl."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from unskew import many
from unskew.report.files import Record
from unskew.report.runs import Series, Traffic

Key = tuple[str, str]
"""(scope, metric) of a score, (way, share) of traffic."""


def scores_of(records: Sequence[Record]) -> tuple[dict[Key, Series], dict[Key, dict[int, float]]]:
    """By (scope, metric): the series over all clients, and each client's value in the last round that has them.

    A round that was written twice, as happens when a run is resumed, counts once, with the later value. A client whose value
    is no number has none.
    """
    series: dict[Key, dict[int, float]] = defaultdict(dict)
    last_round: dict[Key, int] = {}
    clients: dict[Key, dict[int, float]] = {}
    for record in records:
        key, t = (record["scope"], record["metric"]), record["t"]
        if record["client"] is None:
            series[key][t] = record["value"]
        elif t >= last_round.get(key, -1):
            if t > last_round.get(key, -1):
                last_round[key], clients[key] = t, {}
            if not math.isnan(record["value"]):
                clients[key][record["client"]] = record["value"]
    return {key: _series(values) for key, values in series.items()}, clients


def _series(values: dict[int, float]) -> Series:
    rounds = sorted(values)
    return np.array(rounds, int), np.array([values[t] for t in rounds], float)


def traffic_of(records: Sequence[Record], clients: int = many.MOST) -> tuple[Traffic, ...]:
    """What moved, by direction and share, in the order of first appearance. clients: of the run."""
    by_share: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        by_share[record["way"], record["share"]].append(record)
    return tuple(_traffic(way, share, group, clients) for (way, share), group in by_share.items())


def _traffic(way: str, share: str, records: Sequence[Record], clients: int) -> Traffic:
    by_round: dict[int, int] = defaultdict(int)
    for record in records:
        by_round[record["t"]] += many.total_bytes(record, clients)
    rounds = sorted(by_round)
    shapes = [record["shape"] for record in records if record.get("shape")]
    return Traffic(
        way=way,
        share=share,
        reads=records[-1].get("reads", ""),
        guarantee=records[-1].get("guarantee", ""),
        kind=records[-1].get("kind", ""),
        samples=records[-1].get("samples", ""),
        rounds=np.array(rounds, int),
        bytes=np.array([by_round[t] for t in rounds], dtype=np.int64),
        most=max(many.most_bytes(record) for record in records),
        shape="×".join(map(str, shapes[-1])) if shapes else "",
        encoded=records[-1].get("encoded", ""),
        hands_on=records[-1].get("hands_on", ""),
        sum_of=min((record["sum_of"] for record in records if "sum_of" in record), default=0),
    )
