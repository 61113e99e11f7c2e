"""Each client's score in the runs whose clients are those of a report's first run: the same names, the same test samples."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.report.context import Context
from unskew.report.runs import RunData


def same_clients(context: Context, group: Sequence[RunData]) -> RunData | None:
    """The run of this method whose clients are those of the report's first run."""
    first = context.first
    return next((run for run in group if run.seed == first.seed and not _differs(run, first)), None)


def own_scores(run: RunData) -> dict[int, float]:
    """By client, the score of the model that it would use."""
    return run.per_client("personal@client") or run.per_client("global@client")


def _differs(run: RunData, other: RunData) -> bool:
    """Whether the clients are others; centralised training keeps the clients' test samples."""
    return run.federation.get("sizes", {}).get("test") != other.federation.get("sizes", {}).get("test")
