"""The stored result of a reproduction: one JSON document from which every page can be made again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from unskew.experiments import verdicts
from unskew.experiments.entries import Entry, Runs, series_of
from unskew.experiments.experiment import Claim, Experiment, TableRow, Trend
from unskew.report.analysis.summary import terms_of, terms_sentences
from unskew.runs.coverage import lost_replies


class ScoreRecord(TypedDict):
    """Mean and sample standard deviation over n seeds; null if there is none."""

    mean: float | None
    std: float | None
    n: int


class BoundsRecord(TypedDict):
    """Reference values of an attack's score; see entries.Bounds. null stands for NaN."""

    low: float | None
    high: float | None
    floor: float | None
    ceiling: float | None


class EntryRecord(TypedDict):
    """One method in one row; see entries.Entry. null stands for NaN."""

    row: str
    method: str
    paper: float | None
    ours: ScoreRecord
    last: ScoreRecord
    best: ScoreRecord
    mean10: ScoreRecord
    stability: ScoreRecord
    megabytes: float
    ahead: float | None
    p: float | None
    gap: float | None
    bounds: NotRequired[BoundsRecord | None]
    lower: NotRequired[bool]


class ClaimRecord(TypedDict):
    """A claim, the verdict in words, and the margins in points by row or step: ours and the paper's.

    claim: the entries of the claim in the table's file, without its text. intervals: the 95 % intervals of
    margins, where known. seeds: the fewest behind a margin. rounds: the least share of the paper's rounds.
    """

    text: str
    verdict: str
    margins: dict[str, float]
    paper: dict[str, float | None]
    claim: dict[str, Any]
    intervals: NotRequired[dict[str, list[float]]]
    seeds: NotRequired[int]
    rounds: NotRequired[float]


class RowRecord(TypedDict):
    """The description of a row in the table's file.

    x, panel: its place in a picture. quantity, scope: what it reports, if not the same as the table.
    at: the round after which it is read, if not the last. main: the main score of its runs, if there are any.
    attack: the name of its attack, if it has one. share: the share of the paper's rounds that its runs have,
    if it is not the table's scale.
    """

    note: str
    x: float | None
    panel: str
    quantity: NotRequired[str]
    scope: NotRequired[str]
    at: NotRequired[int]
    main: NotRequired[str]
    attack: NotRequired[str]
    share: NotRequired[float]


class LogRecord(TypedDict):
    """A published log. values: the score after each round."""

    source: str
    values: list[float]


class TableResult(TypedDict):
    """Everything that is stored of a reproduction.

    page: the name of its files. made_by: the number of runs by version of unskew. hours: of training, in all
    runs. schedules: settings besides the rounds that a shortened run changed; missing in old results, whose
    schedules were not shortened. logs: by row and method. dropped: a sentence for every row and method with
    dropped replies. superseded: the reason, by method or row of which a correction has changed the numbers;
    claims on them have no verdict. terms: sentences on unusual samples, clients or rounds of scoring.
    privacy: by row, method and Part. curves: by row, method and seed, the points [round, value in the
    table's unit].
    """

    experiment: str
    title: str
    paper: str
    measure: str
    unit: str
    metric: str
    scope: str
    axis: str
    finding: str
    page: str
    command: str
    seeds: int
    scale: float
    schedules: NotRequired[list[str]]
    seconds_now: float
    unskew: str
    made_by: dict[str, int]
    date: str
    machine: str
    hours: float
    rows: dict[str, RowRecord]
    logs: NotRequired[dict[str, dict[str, LogRecord]]]
    entries: list[EntryRecord]
    claims: list[ClaimRecord]
    open: list[str]
    dropped: NotRequired[list[str]]
    superseded: NotRequired[dict[str, str]]
    terms: NotRequired[list[str]]
    privacy: dict[str, dict[str, dict[str, Any]]]
    curves: dict[str, dict[str, list[list[list[float]]]]]


REQUIRED = {
    "page",
    "experiment",
    "title",
    "entries",
    "claims",
    "curves",
    "rows",
    "unit",
    "command",
    "unskew",
    "made_by",
}
"""The keys by which a JSON file is recognised as a result."""
DESCRIPTION = ("title", "paper", "measure", "unit", "metric", "scope", "axis", "finding")


def result_of(
    experiment: Experiment,
    entries: Sequence[Entry],
    runs: Runs,
    facts: Mapping[str, Any],
) -> TableResult:
    """The document to store; NaN becomes null. facts: further entries with the keys of TableResult."""
    document = {
        "experiment": experiment.name,
        **{name: getattr(experiment, name) for name in DESCRIPTION},
        **facts,
        "rows": {
            row.name: _row(row, runs, facts["scale"], experiment.share_of_rounds(row))
            for row in experiment.rows
        },
        "entries": [
            {**asdict(entry), "gap": entry.gap if facts["scale"] == 1 else math.nan} for entry in entries
        ],
        "claims": [],
        "open": list(experiment.open),
        "dropped": _dropped(runs),
        "terms": terms_sentences(
            {f"{row}, {method}": terms_of(group) for (row, method), group in runs.items() if group}
        ),
        "privacy": _privacy(runs),
        "curves": _curves(experiment, runs),
    }
    if logs := _logs(experiment, runs):
        document["logs"] = logs
    result = cast(TableResult, _plain(document))
    return judged(result, experiment.claims)


def judged(result: TableResult, claims: Sequence[Claim | Trend] = ()) -> TableResult:
    """The result with its claims judged by its own numbers. claims: default: those that it has."""
    claims = claims or [verdicts.claim_of(record) for record in result["claims"]]
    return {**result, "claims": _plain(verdicts.judge(result, claims))}


def _row(row: TableRow, runs: Runs, scale: float = 1.0, share: float = 1.0) -> RowRecord:
    record = RowRecord(note=row.note, x=row.x, panel=row.panel)
    if share != 1:
        record["share"] = scale * share
    if main := next(
        (run.metric for (name, _), group in runs.items() if name == row.name for run in group), ""
    ):
        record["main"] = main
    if row.attack:
        record["quantity"], record["attack"] = row.attack.metric, row.attack.name
    elif row.metric:
        record["quantity"] = row.metric
    if row.scope:
        record["scope"] = row.scope
    if row.at:
        record["at"] = row.at
    return record


def _logs(experiment: Experiment, runs: Runs) -> dict[str, dict[str, LogRecord]]:
    """The published logs of the rows and methods that were run."""
    logs: dict[str, dict[str, LogRecord]] = {}
    for row, method in runs:
        if log := experiment.row(row).logs.get(method):
            logs.setdefault(row, {})[method] = LogRecord(source=log.source, values=list(log.values))
    return logs


def _dropped(runs: Runs) -> list[str]:
    sentences = []
    for (row, method), group in runs.items():
        received, used = (sum(getattr(run.replies, name) for run in group) for name in ("received", "used"))
        untrained = sum(not run.replies.enough for run in group)
        sentences.append(lost_replies(f"{row}, {method}", received, used, untrained, len(group)))
    return [sentence for sentence in sentences if sentence]


def _privacy(runs: Runs) -> dict[str, dict[str, dict[str, Any]]]:
    """The privacy account by row, method and Part, of the seed with the largest epsilon."""
    accounts: dict[str, dict[str, dict[str, Any]]] = {}
    counted: set[Path] = set()  # rows that share runs are listed once
    for (row, method), group in runs.items():
        group = [run for run in group if run.path not in counted]
        counted |= {run.path for run in group}
        for part in dict.fromkeys(part for run in group for part in run.privacy):
            worst = max((run.privacy[part] for run in group if part in run.privacy), key=_largest_epsilon)
            account = {name: worst[name] for name in ("release", "epsilons")}
            accounts.setdefault(row, {}).setdefault(method, {})[part] = account
    return accounts


def _largest_epsilon(account: Mapping[str, Any]) -> tuple[int, float]:
    """(the number of readings without a finite epsilon, the largest finite epsilon)."""
    known = [e["epsilon"] for e in account["epsilons"] if e["epsilon"] is not None]
    return len(account["epsilons"]) - len(known), max(known, default=0.0)


def _curves(experiment: Experiment, runs: Runs) -> dict[str, dict[str, list[list[list[float]]]]]:
    curves: dict[str, dict[str, list[list[list[float]]]]] = {}
    for (row, method), group in runs.items():
        series = [series_of(run, experiment, experiment.row(row)) for run in group]
        points = [[[int(t), float(f"{value:.4g}")] for t, value in zip(*one)] for one in series]
        curves.setdefault(row, {})[method] = points
    return curves


def _plain(value: Any) -> Any:
    """The value with floats rounded to six digits, and None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
