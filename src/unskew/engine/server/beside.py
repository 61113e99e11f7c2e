"""What a run's table says of the metrics that were asked for beside the main score, and of what they were computed."""

from __future__ import annotations

from unskew.engine.disk.record import Record
from unskew.scores import kind

SCOPES = ("global", "global@client", "personal@client")


def lines(record: Record, metrics: list[str]) -> list[str]:
    """A line a metric, with its last value in each scope; of clients the mean, and over how many it is.

    metrics: as `recorded` has them.
    """
    counts = _clients(record) if metrics else {}
    return [f"{kind(metric).title}: {', '.join(_scopes(record, metric, counts))}" for metric in metrics]


def recorded(record: Record) -> list[str]:
    """Every score over all clients that the record has in any scope."""
    return list(dict.fromkeys(metric for scope in SCOPES for metric in record.metrics(scope)))


def at_clients(record: Record) -> dict[str, int]:
    """By scope, how many clients have a score in the last round with scores."""
    counts: dict[str, int] = {}
    for (scope, _), n in _clients(record).items():
        counts[scope] = max(n, counts.get(scope, 0))
    return counts


def _scopes(record: Record, metric: str, counts: dict[tuple[str, str], int]) -> list[str]:
    texts: list[str] = []
    for scope in SCOPES:
        (rounds, values), n = record.series(scope, metric), counts.get((scope, metric), 0)
        value = (
            values[-1] if rounds and rounds[-1] == _evaluated(record) else None
        )  # an earlier round's is not its result
        of = max((count for (where, _), count in counts.items() if where == scope), default=0)
        if value is None and of:
            texts.append(f"{scope} undefined at every client")
        elif value is not None:
            over = f" (mean over {n:,} of {of:,} clients)" if of else ""
            texts.append(f"{scope} {kind(metric).written(value)}{over}")
    return texts


def _clients(record: Record) -> dict[tuple[str, str], int]:
    """By scope and metric, how many clients have a value in the last round with scores."""
    counts: dict[tuple[str, str], int] = {}
    last = _evaluated(record)
    for row in record.rows["metrics"]:
        if row["client"] is not None and row["t"] == last and row["scope"] in SCOPES:
            at = row["scope"], row["metric"]
            counts[at] = counts.get(at, 0) + 1
    return counts


def _evaluated(record: Record) -> int:
    """The last round with scores of test rows; 0 without any."""
    rounds = [record.series(scope, metric)[0] for scope in SCOPES for metric in record.metrics(scope)]
    return max((each[-1] for each in rounds), default=0)
