"""The findings of attacks on the runs of a method over its seeds, and the epsilon of its noise.

    reach = (value - floor) / (ceiling - floor)     floor: without the payload, ceiling: with the raw input

The reach puts scores of different attacks on one axis: 0 if a payload discloses nothing, 1 if it discloses as
much as the samples. The table of a comparison is available as text and as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from unskew.attacks import registry
from unskew.attacks.registry import EXTREMES, NOT_MEASURED, clear_disclosure
from unskew.core.privacy_account import epsilon_text
from unskew.report.analysis.number_formats import MISSING, with_unit
from unskew.report.analysis.runs import RunData, Traffic
from unskew.report.analysis.stats import Score, interval
from unskew.report.analysis.summary import MethodSummary
from unskew.scores import significant

AUDIT = "audit"
"""The attack that bounds epsilon. It has no reach, because a bound of 0.5 is not half of the samples."""
ScoreRecord = Mapping[str, Any]
"""A score in privacy.json; see `attacks.attack.Score`."""


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Leak:
    """The main score of an attack on a payload with the largest reach, as mean over n seeds.

    of: the sender of the payload, or the input, in the first seed. value, reach: with 95 % intervals, over
    samples for one seed, else over seeds; the reach is 0 if the attacker is better without the payload.
    command: that measured it, in the first seed.
    """

    attack: str
    payload: str
    of: str
    metric: str
    value: Interval
    floor: float
    reach: Interval
    n: int
    command: str


@dataclass(frozen=True)
class Leakage:
    """A method of a report.

    score: the ranking score. metric: its name. epsilon: the guarantee for its models against any reader, for
    the least protected seed; infinite without one. reading: the scope of that epsilon. clear: by payload that
    needs no attack, the data that it discloses. unmeasured: by payload, the attacks that fit it and were not
    made on every run; [] for a payload that no attack reads.
    """

    method: str
    score: Score
    epsilon: float
    reading: str
    leaks: tuple[Leak, ...]
    clear: dict[str, str]
    unmeasured: dict[str, list[str]]
    metric: str = "accuracy"

    @property
    def worst(self) -> Leak | None:
        """The leak with the largest reach, or None."""
        return max(self.leaks, key=lambda leak: leak.reach.mean, default=None)


def leakages(methods: Mapping[str, Sequence[RunData]], summaries: Sequence[MethodSummary]) -> list[Leakage]:
    """The leakage of each method without references. methods: runs by method. summaries: of these."""
    scores = {s.method: s.final for s in summaries}
    return [leakage_of(m, group, scores[m]) for m, group in methods.items() if not group[0].is_reference]


def leakage_of(method: str, group: Sequence[RunData], score: Score) -> Leakage:
    """The leakage of a method. group: its runs, one per seed."""
    sent = {t.share: t for run in group for t in run.traffic if t.way == "up"}
    payloads = sorted(sent, key=lambda share: (share != "w", share))
    clear = {share: words for share, t in sent.items() if (words := clear_disclosure(t.kind, t.samples))}
    epsilon, reading = max((_guarantee(run) for run in group), key=lambda pair: pair[0])
    leaks = [leak for share in payloads for leak in _leaks(group, share)]
    unknown = {p: missing_attacks(sent[p], group) for p in payloads if p not in clear}
    known = {leak.payload for leak in leaks}
    unknown = {p: names for p, names in unknown.items() if names or p not in known}
    return Leakage(method, score, epsilon, reading, tuple(leaks), clear, unknown, group[0].metric)


def missing_attacks(traffic: Traffic, group: Sequence[RunData]) -> list[str]:
    """The attacks that apply to a payload and lack a score of it in one of these runs, without the audit."""
    fitting = registry.attacks_on(traffic.share, group[0].federation.get("looked_up", ""))
    if traffic.sum_of:  # only the merged model can be attacked
        fitting = [name for name in fitting if name == "membership"]
    return [
        name
        for name in fitting
        if name != AUDIT
        and not all(_main(run.attacks.get(name, {}).get("scores", ()), traffic.share) for run in group)
    ]


def extremes(scores: Sequence[ScoreRecord], best: ScoreRecord) -> list[ScoreRecord]:
    """The scores of single samples and clients that are reported with this score."""
    return [
        s
        for s in scores
        if s is not best and s["of"] == best["of"] and s["metric"].startswith(EXTREMES)
        if s["payload"] == best["payload"] and s["value"] is not None
    ]


def strongest(scores: Sequence[ScoreRecord], share: str) -> ScoreRecord | None:
    """The main score of an attack on a payload with the largest reach, or None."""
    return max(_main(scores, share), key=reach, default=None)


def _main(scores: Sequence[ScoreRecord], share: str) -> list[ScoreRecord]:
    return [s for s in scores if s["payload"] == share and s["main"] and s["value"] is not None]


def reach(score: ScoreRecord, name: str = "value") -> float:
    """The reach of a score's value, `low` or `high`; NaN if it is unknown.

    It is 0 if floor and ceiling are equal. Without a finite ceiling it is the distance from the floor in the
    score's unit.
    """
    if score[name] is None:
        return math.nan
    if score["ceiling"] == score["floor"]:
        return 0.0
    way = (math.inf if score["ceiling"] is None else score["ceiling"]) - score["floor"]
    distance = score[name] - score["floor"]
    return float(distance / way if math.isfinite(way) else abs(distance))


def _leaks(group: Sequence[RunData], share: str) -> list[Leak]:
    """A leak for each attack with a score of this payload, over all such seeds; none for an audit."""
    leaks = []
    for name in dict.fromkeys(name for run in group for name in run.attacks if name != AUDIT):
        attacked = [run.attacks[name] for run in group if name in run.attacks]
        if scored := [finding for finding in attacked if _main(finding["scores"], share)]:
            furthest = _furthest([_main(finding["scores"], share) for finding in scored])
            leaks.append(_pooled(name, share, furthest, str(scored[0]["command"])))
    return leaks


def _furthest(by_seed: Sequence[Sequence[ScoreRecord]]) -> list[ScoreRecord]:
    """The scores with the largest mean reach, one per seed, of one subject and metric in all seeds.

    If seeds have no subject in common, the score with the largest reach of each seed.
    """
    named = [{(s["of"], s["metric"]): s for s in scores} for scores in by_seed]
    common = [
        [scores[what] for scores in named] for what in named[0] if all(what in scores for scores in named)
    ]
    apart = [max(scores, key=reach) for scores in by_seed]
    return max(common, key=lambda scores: float(np.mean([reach(s) for s in scores])), default=apart)


def _pooled(attack: str, share: str, scores: Sequence[ScoreRecord], command: str) -> Leak:
    first = scores[0]
    if len(scores) > 1:
        value, way = (
            Interval(*interval([float(s["value"]) for s in scores])),
            Interval(*interval([reach(s) for s in scores])),
        )
    else:
        value = Interval(*(_number(first[name]) for name in ("value", "low", "high")))
        way = Interval(reach(first), *sorted((reach(first, "low"), reach(first, "high"))))
    floor = float(np.mean([s["floor"] for s in scores]))
    bounded = Interval(*(float(np.clip(r, 0.0, 1.0)) for r in way))
    return Leak(
        attack, share, str(first["of"]), str(first["metric"]), value, floor, bounded, len(scores), command
    )


def _guarantee(run: RunData) -> tuple[float, str]:
    """(epsilon of the run's models, its scope); infinite if the weights have no proven guarantee."""
    if not any(t.share == "w" and t.guarantee == "dp" for t in run.traffic):
        return math.inf, ""
    readings = [account["epsilons"][0] for account in run.privacy.values() if account.get("epsilons")]
    first = readings[0] if readings else {"epsilon": None, "reading": ""}
    return (math.inf if first["epsilon"] is None else float(first["epsilon"])), str(first["reading"])


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


HEAD = ("method", "score", "epsilon", "payload", "attack", "found, 95 %", "without payload", "leakage")


def cells(row: Leakage) -> list[list[str]]:
    """A line for each attack on each payload, and for each payload that is in clear or was not attacked."""
    lines = [_leak_cells(leak) for leak in row.leaks]
    lines += [[_payload(share), "none needed", words, "", ""] for share, words in row.clear.items()]
    lines += [
        [_payload(share), " by ".join(filter(None, (NOT_MEASURED, ", ".join(names)))), "", "", ""]
        for share, names in row.unmeasured.items()
    ]
    return lines or [["nothing", "", "", "", ""]]


def plain(rows: Sequence[Leakage]) -> str:
    """The table as text; "" without a method."""
    if not rows:
        return ""
    lines = [list(HEAD)]
    for row in rows:
        first = [row.method, with_unit(row.score.mean, row.metric), epsilon_text(row.epsilon)]
        lines += [[*(first if i == 0 else ["", "", ""]), *line] for i, line in enumerate(cells(row))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    note = "leakage: from nothing learnt (0 %) to the raw samples (100 %); a better attack may find more"
    covers = [f"epsilon of {row.method}: {row.reading}" for row in rows if row.reading]
    return "\n".join([*text, note, *covers])


def as_json(row: Leakage) -> dict[str, Any]:
    """The fields of a method's row: an infinite epsilon and NaN become null."""
    return {
        "epsilon": _finite(row.epsilon),
        "covers": row.reading,
        "leaks": [_leak_as_json(leak) for leak in row.leaks],
        "in_clear": row.clear,
        "not_measured": row.unmeasured,
    }


def _leak_as_json(leak: Leak) -> dict[str, Any]:
    intervals = {name: getattr(leak, name)._asdict() for name in ("value", "reach")}
    plain = {name: _finite(value) for name, value in asdict(leak).items() if name not in intervals}
    return plain | {name: {end: _finite(v) for end, v in ends.items()} for name, ends in intervals.items()}


def _leak_cells(leak: Leak) -> list[str]:
    value, reach = leak.value, leak.reach
    score = (
        f"{leak.metric} {significant(value.mean, 3)} [{significant(value.low, 3)},"
        f" {significant(value.high, 3)}]"
    )
    share = f"{_whole(reach.mean)} % [{_whole(reach.low)}, {_whole(reach.high)}]"
    return [_payload(leak.payload), leak.attack, score, significant(leak.floor, 3), share]


def _payload(share: str) -> str:
    return "weights" if share == "w" else share


def _whole(share: float) -> str:
    return MISSING if math.isnan(share) else f"{100 * share:.0f}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
