"""The verdicts on a table's claims, from its stored result alone.

A claim holds in a row if it holds for the means over seeds; a claim along rows holds at a step from one row
to the next. What a verdict says depends on what stands behind the margin:

reproduced, not reproduced              three seeds or more, all rounds of the paper, and a 95 % interval of
                                        the margin that excludes the least margin that meets the claim
agrees so far, disagrees so far         otherwise
unclear                                 the interval over attacked samples contains that least margin, or the
                                        means of late rounds of a short run disagree
no verdict                              the result lists a method of the claim, or its rows, as superseded

The interval is Student's over the seeds' margins; of scores of attacks it is over the attacked samples. For
differences of independent estimates it follows Zou and Donner (Statistics in Medicine 2008): the squared
distances to the ends of the scores' intervals add up.

Windows fit the run: the deviation is over the last quarter of the rounds, at most 50. The mean of the last
ten rounds counts in a run of fewer than 50 only where the last fifth of the rounds has the same sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from unskew.experiments.experiment import Claim, Terms, Trend, margins
from unskew.report.analysis import stats

if TYPE_CHECKING:
    from unskew.experiments.result import ClaimRecord, EntryRecord, TableResult

ENOUGH_SEEDS = 3
LATE = 5
"""The last ten rounds are a late window of a run with LATE times as many rounds."""
Entries = Mapping[tuple[str, str], "EntryRecord"]


def claim_of(record: ClaimRecord) -> Claim | Trend:
    """The claim of a stored record."""
    entries = dict(record["claim"], text=record["text"])
    for name in ("than", "rows"):
        if name in entries:
            entries[name] = tuple(entries[name])
    for name in ("less", "along"):
        if name in entries:
            entries[name] = tuple(map(tuple, entries[name]))
    return Trend(**entries) if "falls" in entries else Claim(**entries)


def stability(rounds: np.ndarray, values: np.ndarray) -> float:
    """Sample standard deviation over the last quarter of the rounds, at most 50; NaN for fewer than two
    values."""
    quarter = int(rounds[-1]) // 4 if len(rounds) else 0
    return stats.stability(rounds, values, min(stats.STABILITY_ROUNDS, quarter))


def score(rounds: np.ndarray, values: np.ndarray, measure: str, lower: bool) -> float:
    """A score of one seed; NaN without values. measure: last, best, mean10, stability, or late (the mean of
    the last fifth of the rounds). lower: whether the best value is the smallest."""
    if not len(values):
        return math.nan
    if measure == "stability":
        return stability(rounds, values)
    if measure == "best":
        known = values[~np.isnan(values)]
        return float((known.min() if lower else known.max()) if len(known) else math.nan)
    over = {"last": 1, "mean10": stats.LAST_ROUNDS, "late": max(1, rounds[-1] // LATE)}[measure]
    return float(values[rounds > rounds[-1] - over].mean())


def _of_seed(points: Sequence[Sequence[float]], measure: str, lower: bool) -> float:
    """The score of a stored curve, [[round, value]]."""
    rounds, values = np.array(points, dtype=float).reshape(-1, 2).T
    return score(rounds, values, measure, lower)


def judge(result: TableResult, claims: Sequence[Claim | Trend]) -> list[ClaimRecord]:
    """A record with a verdict for every claim. Rows without all of a claim's methods do not count for it."""
    return [_record(result, claim) for claim in claims]


def _record(result: TableResult, claim: Claim | Trend) -> ClaimRecord:
    entries = {(entry["row"], entry["method"]): entry for entry in result["entries"]}
    measure = claim.measure or result["measure"]
    reported = measure == result["measure"]
    ours = _scores(result, claim, {key: _mean(entry, claim) for key, entry in entries.items()})
    papers = {key: entry["paper"] if reported else None for key, entry in entries.items()}
    of_paper = margins(claim, _scores(result, claim, papers))
    by_place, terms = margins(claim, ours), claim.terms(ours)
    void = _superseded(result, claim, terms)
    kept = {place: points for place, points in by_place.items() if place not in void}
    record: ClaimRecord = {
        "text": claim.text,
        "verdict": "no verdict" if by_place else "not run",
        "margins": kept,
        "paper": {place: of_paper.get(place) for place in kept},
        "claim": {name: value for name, value in asdict(claim).items() if value and name != "text"},
    }
    if not kept:
        return record
    intervals = {
        place: _interval(result, claim, terms[place], points, entries) for place, points in kept.items()
    }
    behind = [term for place in kept for term in terms[place]]
    record["intervals"] = {place: list(ends) for place, ends in intervals.items() if ends}
    record["seeds"] = min(entries[row, method]["ours"]["n"] for _, row, method in behind)
    record["rounds"] = min(share_of_rounds(result, row) for _, row, _ in behind)
    firm = record["seeds"] >= ENOUGH_SEEDS and record["rounds"] >= 1
    late = _late_margins(result, claim, entries) if measure == "mean10" else {}
    outcomes = []
    for place, points in kept.items():
        ends = intervals[place]
        holds = _meets(claim, points)
        outside = ends is not None and not ends[0] <= claim.by <= ends[1]
        attacked = any(entries[row, method].get("bounds") for _, row, method in terms[place])
        if (attacked and ends and not outside) or (late and _meets(claim, late.get(place, points)) != holds):
            outcomes.append("unclear")
        else:
            outcomes.append((holds, firm and outside))
    record["verdict"] = _word(outcomes, claim.places)
    return record


def _word(outcomes: Sequence[str | tuple[bool, bool]], places: str) -> str:
    """The verdict on several places. outcomes: "unclear", or (whether the claim holds, whether that is
    firm)."""
    clear = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    held, firm = sum(holds for holds, _ in clear), all(firm for _, firm in clear)
    unclear = len(outcomes) - len(clear)
    if not clear:
        return "unclear"
    if held == len(outcomes):
        return "reproduced" if firm else "agrees so far"
    if not held and not unclear:
        return "not reproduced" if firm else "disagrees so far"
    share = f"{'reproduced' if firm else 'agrees so far'} in {held} of {len(outcomes)} {places}"
    return f"{share}, unclear in {unclear}" if unclear else share


def _meets(claim: Claim | Trend, points: float) -> bool:
    """Whether a margin meets the claim; a tie is no lead."""
    return points >= claim.by if claim.by else points > 0


def _scores(
    result: TableResult, claim: Claim | Trend, values: Mapping[tuple[str, str], float | None]
) -> dict[str, dict[str, float]]:
    """Values by row and method, with the sign with which they enter the margin; NaN for None."""
    lower = {(e["row"], e["method"]) for e in result["entries"] if _has_other_sign(claim, e)}
    scores: dict[str, dict[str, float]] = {row: {} for row in result["rows"]}
    for key, value in values.items():
        number = math.nan if value is None else value
        scores[key[0]][key[1]] = -number if key in lower else number
    return scores


def _mean(entry: EntryRecord, claim: Claim | Trend) -> float | None:
    return entry[claim.measure or "ours"]["mean"]  # type: ignore[literal-required]


def _has_other_sign(claim: Claim | Trend, entry: EntryRecord) -> bool:
    """Whether the score enters the margin with the opposite sign, because lower is better."""
    return isinstance(claim, Claim) and claim.measure != "stability" and bool(entry.get("lower"))


def _superseded(result: TableResult, claim: Claim | Trend, terms: Mapping[str, Terms]) -> set[str]:
    """The places that rest on a superseded method or row."""
    names = result.get("superseded", {}).keys()
    if names & set(claim.methods):
        return set(terms)
    return {place for place, each in terms.items() if names & {row for _, row, _ in each}}


def share_of_rounds(result: TableResult, row: str) -> float:
    """The share of the paper's rounds that the runs of a row have."""
    return result["rows"][row].get("share", result["scale"])


def _interval(
    result: TableResult, claim: Claim | Trend, terms: Terms, margin: float, entries: Entries
) -> tuple[float, float] | None:
    """The 95 % interval of a margin; None if there is none.

    Samples of an attack count for the score that the table reports only.
    """
    measure = claim.measure or result["measure"]
    if any(entries[row, method].get("bounds") for _, row, method in terms):
        return _attack_interval(claim, terms, margin, entries) if measure == result["measure"] else None
    columns = []
    for sign, row, method in terms:
        entry = entries[row, method]
        sign = -sign if _has_other_sign(claim, entry) else sign
        points = result["curves"].get(row, {}).get(method, [])
        columns.append([sign * _of_seed(seed, measure, bool(entry.get("lower"))) for seed in points])
    if len({len(column) for column in columns}) != 1 or len(columns[0]) < 2:
        return None
    each = np.sum(columns, axis=0)
    _, low, high = stats.interval(each.tolist())
    half = (high - low) / 2
    return None if math.isnan(half) else (margin - half, margin + half)


def _late_margins(result: TableResult, claim: Claim | Trend, entries: Entries) -> dict[str, float]:
    """The margins of the means of the last fifth of the rounds; empty for attacks and runs that are long
    enough."""
    values: dict[tuple[str, str], float | None] = {}
    for (row, method), entry in entries.items():
        seeds = result["curves"].get(row, {}).get(method, [])
        if entry.get("bounds") or any(seed and seed[-1][0] >= LATE * stats.LAST_ROUNDS for seed in seeds):
            return {}
        values[row, method] = float(np.mean([_of_seed(seed, "late", False) for seed in seeds] or [math.nan]))
    return margins(claim, _scores(result, claim, values))


def _attack_interval(
    claim: Claim | Trend, terms: Terms, margin: float, entries: Entries
) -> tuple[float, float] | None:
    below, above = 0.0, 0.0
    for sign, row, method in terms:
        entry = entries[row, method]
        less, more = _distances(entry)
        if _has_other_sign(claim, entry) == (sign > 0):  # a subtracted score swaps its distances
            less, more = more, less
        below, above = math.hypot(below, less), math.hypot(above, more)
    return (margin - below, margin + above) if below or above else None


def _distances(entry: EntryRecord) -> tuple[float, float]:
    """The distances from a score to the ends of its 95 % interval; (0, 0) without an interval."""
    bounds, mean = entry.get("bounds"), entry["ours"]["mean"]
    if not bounds or mean is None or bounds["low"] is None or bounds["high"] is None:
        return 0.0, 0.0
    return max(0.0, mean - bounds["low"]), max(0.0, bounds["high"] - mean)
