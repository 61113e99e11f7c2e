"""The stored result of a reproduction: one JSON document from which every page can be made again.

ours            mean and sample standard deviation over seeds of the score that the paper reports
vs best other   difference to the best other method of the row, with a two-sided paired t-test over seeds;
                p-values are Holm-corrected within the row

The finding of an attack that a row reports is stored in the folder of its run, in a file named after the
attack's settings, so that rows which report several scores of one attack share it and no attack runs twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from unskew.attacks.attack import finding_on
from unskew.comparison.progress import Cell
from unskew.errors import StateError, UsageError, suggestion
from unskew.experiments import verdicts
from unskew.experiments.experiment import Claim, Experiment, Leak, TableRow, Trend
from unskew.report.analysis import stats
from unskew.report.analysis.runs import RunData
from unskew.report.analysis.stats import Score
from unskew.report.analysis.summary import remarks_on
from unskew.runs.reopen import UserCode
from unskew.scores import MAIN, Kind, kind
from unskew.system import disk

Runs = Mapping[tuple[str, str], Sequence[RunData]]
"""The runs of a table by row and method, one per seed."""
SCORES = ("last", "best", "mean10", "stability")


class ScoreRecord(TypedDict):
    """Mean and sample standard deviation over n seeds; null if there is none."""

    mean: float | None
    std: float | None
    n: int


class BoundsRecord(TypedDict):
    """Reference values of an attack's score in the table's unit, as means over seeds; null if missing.

    low, high: the 95 % interval over samples. floor: the score without the payload. ceiling: the score with
    the raw input in place of the payload.
    """

    low: float | None
    high: float | None
    floor: float | None
    ceiling: float | None


class EntryRecord(TypedDict):
    """One method in one row; scores in the table's unit, null for those that are missing.

    paper: the published number. ours: our value of the score that the paper reports.
    last, best, mean10, stability: the score in the last round, in the best round, as the mean of the last ten
    rounds, and its standard deviation over the last quarter of the rounds, at most 50.
    megabytes: sent and received by all clients in one run.
    ahead: points ahead of the best other method over their common seeds; null without another method.
    p: the p-value of that difference; null without another method or with fewer than five seeds.
    gap: ours minus the paper's, in a whole run. bounds: reference values of an attack's score. lower: whether
    a lower score is better.
    """

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

    quantity, scope: what it reports, if not the same as the table.
    at: the round after which it is read, if not the last. main: the main score of its runs, if there are any.
    share: the share of the paper's rounds that its runs have, if it is not the table's scale.
    """

    note: str
    quantity: NotRequired[str]
    scope: NotRequired[str]
    at: NotRequired[int]
    main: NotRequired[str]
    share: NotRequired[float]


class TableResult(TypedDict):
    """Everything that is stored of a reproduction.

    page: the name of its files. made_by: the number of runs by version of unskew. hours: of training, in all
    runs. schedules: settings besides the rounds that a shortened run changed; missing in old results, whose
    schedules were not shortened. superseded: the reason, by method or row of which a correction has changed
    the numbers; claims on them have no verdict. terms: sentences on unusual terms of scoring; in old results
    also dropped. privacy: by row, method and Part. curves: by row, method and seed, the points [round, value
    in the table's unit]. base: the method that others are divided by, if there is one.
    """

    experiment: str
    title: str
    paper: str
    measure: str
    unit: str
    metric: str
    scope: str
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
    entries: list[EntryRecord]
    claims: list[ClaimRecord]
    open: list[str]
    dropped: NotRequired[list[str]]
    superseded: NotRequired[dict[str, str]]
    base: NotRequired[str]
    terms: NotRequired[list[str]]
    privacy: dict[str, dict[str, dict[str, Any]]]
    curves: dict[str, dict[str, list[list[list[float]]]]]


REQUIRED = {"page", "experiment", "title", "entries", "claims", "curves", "rows", "unit", "command"}
REQUIRED |= {"unskew", "made_by"}
"""The keys by which a JSON file is recognised as a result."""
DESCRIPTION = ("title", "paper", "measure", "unit", "metric", "scope", "finding")


def result_of(experiment: Experiment, runs: Runs, facts: Mapping[str, Any]) -> TableResult:
    """The document to store; NaN becomes null. facts: further entries with the keys of TableResult."""
    document = {
        "experiment": experiment.name,
        **{name: getattr(experiment, name) for name in DESCRIPTION},
        **({"base": experiment.base} if experiment.base else {}),
        **facts,
        "rows": {row.name: _row(experiment, row, runs, facts["scale"]) for row in experiment.rows},
        "entries": entries_of(experiment, runs, facts["scale"]),
        "claims": [],
        "open": list(experiment.open),
        "terms": list(
            dict.fromkeys(
                text
                for (row, method), group in runs.items()
                if group
                for text in remarks_on(f"{row}, {method}", group)
            )
        ),
        "privacy": _privacy(runs),
        "curves": _curves(experiment, runs),
    }
    return with_verdicts(cast(TableResult, _plain(document)), experiment.claims)


def with_verdicts(result: TableResult, claims: Sequence[Claim | Trend] = ()) -> TableResult:
    """The result with its claims judged by its own numbers. claims: default: those that it has."""
    claims = claims or [verdicts.claim_of(record) for record in result["claims"]]
    return {**result, "claims": _plain(verdicts.judge(result, claims))}


def entries_of(experiment: Experiment, runs: Runs, scale: float = 1.0) -> list[dict[str, Any]]:
    """One entry for each row and method that was run, in the experiment's order; NaN stands for null."""
    entries: list[dict[str, Any]] = []
    for row in experiment.rows:
        groups = {method: runs.get((row.name, method), ()) for method in experiment.methods}
        scored = {method: group for method, group in groups.items() if group and _attack_fits(row, group)}
        entries += _entries_of_row(experiment, row, scored, scale)
    return entries


def _entries_of_row(
    experiment: Experiment, row: TableRow, runs: Mapping[str, Sequence[RunData]], scale: float
) -> list[dict[str, Any]]:
    bases = {run.seed: run for run in runs.get(experiment.base, ())}
    by_seed = {
        method: {run.seed: scores_of(run, experiment, row, bases.get(run.seed)) for run in group}
        for method, group in runs.items()
    }
    reported = {
        m: {seed: s[experiment.measure] for seed, s in scores.items()} for m, scores in by_seed.items()
    }
    main = next(iter(runs.values()))[0].metric if runs else "accuracy"
    which = kind("attack" if row.attack else quantity_of(experiment, row, main))
    leads = {method: _lead(method, reported, which) for method in runs}
    corrected = dict(zip(runs, stats.holm([leads[method][1] for method in runs])))
    entries = []
    for method, group in runs.items():
        scores = {name: Score.of([seed[name] for seed in by_seed[method].values()]) for name in SCORES}
        ours, paper = scores[experiment.measure], row.published.get(method, math.nan)
        entries.append(
            {
                "row": row.name,
                "method": method,
                "paper": paper,
                "ours": asdict(ours),
                **{name: asdict(score) for name, score in scores.items()},
                "megabytes": sum(map(_megabytes, group)) / len(group),
                "ahead": leads[method][0],
                "p": corrected[method],
                "bounds": _bounds(experiment, row, group),
                "lower": which.lower,
                "gap": ours.mean - paper if scale == 1 else math.nan,
            }
        )
    return entries


def _lead(method: str, scores: Mapping[str, Mapping[int, float]], which: Kind) -> tuple[float, float]:
    """(points ahead of the best other method over common seeds, uncorrected p); NaN without another method.

    scores: by method and seed. which: the kind of the score.
    """
    means = {other: Score.of(list(values.values())).mean for other, values in scores.items()}
    others = [other for other in means if other != method and not math.isnan(means[other])]
    if not others:
        return math.nan, math.nan
    best = max(others, key=lambda other: which.ahead(means[other], 0.0))
    ours, theirs = stats.common_seeds(scores[method], scores[best])
    if not len(ours):
        return math.nan, math.nan
    return which.ahead(float(ours.mean()), float(theirs.mean())), stats.paired_p(
        ours.tolist(), theirs.tolist()
    )


def series_of(
    run: RunData, experiment: Experiment, row: TableRow, base: RunData | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values in the table's unit) of the quantity that a row reports, or its multiples of `base`'s.

    Both are empty if a scaled-down run ends before the round at which the row is read. The score of an attack
    counts as the value of the last round. Raises UsageError (E109) for the main score of another task, and
    for percent of a score that is no share.
    """
    if base is not None:
        (rounds, values), (of_base, divisors) = (series_of(r, experiment, row) for r in (run, base))
        common, ours, theirs = np.intersect1d(rounds, of_base, return_indices=True)
        return common, values[ours] / divisors[theirs] * (100 if experiment.unit == "percent" else 1)
    factor = 100 if experiment.unit == "percent" else 1
    if row.attack:
        value = _attack_value(run, row, "value")
        points = [] if math.isnan(value) else [value]
        return np.full(len(points), run.rounds), np.array(points) * factor
    metric = quantity_of(experiment, row, run.metric)
    where = f"'{experiment.name}', row {row.name}"
    if metric in MAIN.values() and metric != run.metric:
        raise UsageError(
            "E109", f"{where} reports {metric}, and these runs have {run.metric}; say metric: {run.metric}."
        )
    if not (kind(metric).share or experiment.base) and experiment.unit == "percent":
        raise UsageError(
            "E109", f"{where}: {metric} is a number in a unit of its own, not a share; say unit: number."
        )
    if metric == "bytes":
        rounds, values = run.bytes_by_round()
    else:
        rounds, values = stats.trained_rounds(
            run, row.scope or experiment.scope, row.metric or experiment.metric
        )
    reached = len(rounds) > 0 and rounds[-1] >= row.at
    counted = (rounds <= (row.at or math.inf)) & reached
    return rounds[counted], values[counted] * factor


def scores_of(
    run: RunData, experiment: Experiment, row: TableRow, base: RunData | None = None
) -> dict[str, float]:
    """The last, best, mean10 and stability of one run in a row, in the table's unit; of multiples of `base`'s
    scores if there is one."""
    series = series_of(run, experiment, row, base)
    lower = kind(quantity_of(experiment, row, run.metric)).lower
    return {name: verdicts.score(*series, name, lower) for name in SCORES}


def quantity_of(experiment: Experiment, row: TableRow, main: str) -> str:
    """The name of the score that a row reports; `mean` and `worst` over clients are of the `main` score."""
    metric = row.metric or experiment.metric
    return main if metric in ("mean", "worst") else metric


def _attack_fits(row: TableRow, group: Sequence[RunData]) -> bool:
    """Whether the row's attack, if any, fits these runs."""
    return not row.attack or all(_fits(run.path, row.attack) for run in group)


def _attack_value(run: RunData, row: TableRow, name: str) -> float:
    """A field of the attack's score on a run; NaN if there is none."""
    assert row.attack
    value = (_attack_score(run.path, row.attack) or {}).get(name)
    return math.nan if value is None else float(value)


def _bounds(experiment: Experiment, row: TableRow, group: Sequence[RunData]) -> dict[str, float] | None:
    if not row.attack:
        return None
    factor = 100 if experiment.unit == "percent" else 1
    return {
        name: factor * float(np.mean([_attack_value(run, row, name) for run in group]))
        for name in ("low", "high", "floor", "ceiling")
    }


def _megabytes(run: RunData) -> float:
    """Sent and received by all clients."""
    sums = (run.bytes_by_round(way)[1] for way in ("up", "down"))
    return sum(float(series[-1]) for series in sums if len(series)) / 1e6


def _row(experiment: Experiment, row: TableRow, runs: Runs, scale: float) -> RowRecord:
    record = RowRecord(note=row.note)
    if (share := experiment.share_of_rounds(row)) != 1:
        record["share"] = scale * share
    for (name, _), group in runs.items():
        if name == row.name and group:
            record["main"] = group[0].metric
            break
    if row.attack:
        record["quantity"] = row.attack.metric
    elif row.metric:
        record["quantity"] = row.metric
    if row.scope:
        record["scope"] = row.scope
    if row.at:
        record["at"] = row.at
    return record


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
        bases = {run.seed: run for run in runs.get((row, experiment.base), ())}
        series = [series_of(run, experiment, experiment.row(row), bases.get(run.seed)) for run in group]
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


FOLDER = "leaks"
REFUSED = "refused"
"""The key in a finding's file under which the reason is stored why the attack does not fit the run."""
Finding = Mapping[str, Any]
Say = Callable[[str], None]


def make_findings(runs: Sequence[tuple[TableRow, Cell]], say: Say) -> None:
    """Run every attack that a row reports and that has no stored finding yet; store refusals as well.

    Raises UsageError (E126) if a row reports a score that none of its attacks has.
    """
    known: dict[str, set[str]] = {}
    reported = {row.name: row for row, _ in runs}
    for row, cell in runs:
        if row.attack:
            finding = read_finding(cell.path, row.attack) or _run_attack(cell, row.attack, say)
            names = {f"{s['of']}; {s['metric']}" for s in finding.get("scores", [])}
            known.setdefault(row.name, set()).update(names)
    for name, scores in known.items():
        leak = reported[name].attack
        assert leak
        wanted, listed = f"{leak.of}; {leak.metric}", sorted(scores)
        if scores and wanted not in scores:
            text = f"row {name}: '{leak.name}' has no score of '{wanted}'.{suggestion(wanted, listed)}"
            raise UsageError("E126", f"{text} It has: {', '.join(listed)}.")


def missing_findings(runs: Iterable[tuple[TableRow, Cell]]) -> int:
    """The number of reported attacks without a stored finding; an attack shared by rows counts once."""
    files = {_file(cell.path, row.attack) for row, cell in runs if row.attack}
    return sum(not file.exists() for file in files)


def read_finding(path: Path, leak: Leak) -> Finding | None:
    """The stored finding of the attack on the run in `path`, or None if the attack has not run.

    The finding is {REFUSED: reason} if the attack does not fit the run. Raises StateError (E111) for a
    damaged file.
    """
    file = _file(path, leak)
    try:
        return json.loads(file.read_bytes()) if file.exists() else None
    except ValueError as error:
        raise StateError(
            "E111", f"{file} is not JSON ({error}); remove it, and run the table again."
        ) from None


def _attack_score(path: Path, leak: Leak) -> dict[str, Any] | None:
    """The score that a row reports for this run, with the fields of `attacks.scores.Score`, or None."""
    scores = (read_finding(path, leak) or {}).get("scores", [])
    return next((s for s in scores if (s["of"], s["metric"]) == (leak.of, leak.metric)), None)


def _fits(path: Path, leak: Leak) -> bool:
    """Whether the attack fits the run in this folder."""
    return REFUSED not in (read_finding(path, leak) or {})


def _run_attack(cell: Cell, leak: Leak, say: Say) -> Finding:
    try:
        finding: Finding = {
            **finding_on(cell.path, UserCode.of(cell.settings), leak.name, leak.settings, say),
            "pictures": {},
        }
    except UsageError as refusal:
        if refusal.code != "E151":
            raise
        finding = {REFUSED: refusal.text}
    file = _file(cell.path, leak)
    disk.folder_below(file.parent)
    disk.replace(file, json.dumps(finding, indent=1, allow_nan=False))
    return finding


def _file(path: Path, leak: Leak) -> Path:
    return path / FOLDER / f"{leak.fingerprint}.json"
