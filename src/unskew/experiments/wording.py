"""Sentences that describe a reproduction on all its pages: the meaning of its numbers, and their origin.

Every function works on the stored result alone, so that a page can be made again from its file.
"""

from __future__ import annotations

from collections import Counter

from unskew.core.privacy_account import epsilon_text
from unskew.experiments.result import ClaimRecord, EntryRecord, ScoreRecord, TableResult
from unskew.experiments.verdicts import ENOUGH_SEEDS, share_of_rounds
from unskew.report.analysis.number_formats import MISSING, p_value, plural
from unskew.report.analysis.stats import FEWEST_PAIRS
from unskew.scores import kind, significant

MEASURE = {
    "best": "in the best round",
    "last": "in the last round",
    "mean10": "averaged over those of the last ten rounds that were evaluated",
}
EPSILON = "Epsilon for the client and class that the release protects least, over all seeds."
ATTACKS = (
    "95 %: interval of an attack's score over the attacked samples. Without payload: what the attacker"
    " reaches who has not seen it; raw input: who has seen the samples themselves. docs/privacy.md explains"
    " the attacks; a better one may find more."
)
OVER_CLIENTS = {"mean": "mean over clients", "worst": "worst client", "std": "deviation over clients"}
"""Names of the statistics over clients of a run's main score."""
Reading = tuple[str, str, str, list[tuple[str, str]]]
"""(row, method, release, [(epsilon, what it means)])."""


def bounds(entry: EntryRecord, unit: str) -> tuple[str, str, str]:
    """(95 % interval, score without the payload, score with the raw input) of an attack; else empty texts."""
    values = entry.get("bounds")
    if not values:
        return "", "", ""
    low, high, floor, ceiling = (_value(values[name], unit) for name in ("low", "high", "floor", "ceiling"))
    return f"{low} to {high}", floor, ceiling


def note(result: TableResult) -> str:
    """Sentences on the columns of the table."""
    most = max((entry["ours"]["n"] for entry in result["entries"]), default=0)
    spread = f"mean ± sample standard deviation over {most} seeds" if most > 1 else "one seed"
    published = any(entry["paper"] is not None for entry in result["entries"])
    gap = " gap: ours minus the paper's." if published and result["scale"] == 1 else ""
    tested = ", with a paired t-test over seeds, Holm-corrected"
    if most < FEWEST_PAIRS:
        tested = f"; {plural(most, 'seed')} cannot be tested, which needs {FEWEST_PAIRS}"
    lead = "points" if result["unit"] == "percent" else "how much"
    lines = [
        f"ours: {_reported(result)}; {spread}.{gap}",
        f"vs best other: {lead} ahead of the best other method of the row{tested}.",
    ]
    if any(entry.get("bounds") for entry in result["entries"]):
        lines.append(ATTACKS)
    if result["scope"] == "measure":
        lines.append("docs/measures.md explains measures; whether larger is better depends on the measure.")
    if result["scale"] != 1:
        target = "; the paper's numbers, in brackets, are of whole runs and no target" if published else ""
        lines.append(f"SCALED: {result['scale']:g} of the rounds{target}.")
        if "schedules" not in result:
            lines.append("Schedules were not shortened with the rounds.")
        elif result["schedules"]:
            lines.append(f"Schedules end where the whole run's end: {', '.join(result['schedules'])}.")
    return "\n".join([*lines, *result.get("dropped", []), *result.get("terms", [])])


def _reported(result: TableResult) -> str:
    """What the rows report and in which round, each with its rows if there are several."""
    percent, last = " in %" if result["unit"] == "percent" else "", last_round(result)
    if base := result.get("base"):
        percent = f"{percent} of {base}'s" if percent else f" as a multiple of {base}'s"
    rows: dict[str, dict[str, None]] = {}
    for entry in result["entries"]:
        record = result["rows"][entry["row"]]
        what = f"{_quantity(result, entry['row'])}{percent}"
        if entry.get("bounds"):
            what += " that the attack found after the last round"
        else:
            at = record.get("at") or last
            early = f", up to round {at}" if at < last else ""
            what += f" ({record.get('scope') or result['scope']}), {MEASURE[result['measure']]}{early}"
        rows.setdefault(what, {})[entry["row"]] = None
    if len(rows) < 2:
        return next(iter(rows), "score")
    return "; ".join(f"{what} (in {', '.join(f'`{n}`' for n in names)})" for what, names in rows.items())


def _quantity(result: TableResult, row: str) -> str:
    """The quantity of a row, such as `Dice` or `accuracy, mean over clients`."""
    record = result["rows"][row]
    metric = record.get("quantity") or result["metric"]
    if metric in OVER_CLIENTS:
        main = record.get("main", "")
        return f"{kind(main).title if main else 'score'}, {OVER_CLIENTS[metric]}"
    return kind(metric.partition("/")[0]).title.replace("_", " ")  # the row names the element of a matrix


RULES = {
    "so far": f"So far: fewer than {ENOUGH_SEEDS} seeds, fewer rounds than a whole run's, or an interval that"
    " leaves the claim open.",
    "unclear": "Unclear: the 95 % interval over attacked samples, or over late rounds of a short run, leaves"
    " open whether the claim holds.",
}
"""What a part of a verdict means."""
KINDS = ("reproduced", "agrees so far", "in part", "unclear", "disagrees so far", "not reproduced")
KINDS += ("no verdict",)


def rules(result: TableResult) -> str:
    """Sentences on verdicts that are not plain, and on what was superseded; "" if there are none."""
    words = " ".join(claim["verdict"] for claim in result["claims"])
    lines = [rule for part, rule in RULES.items() if part in words]
    lines += [f"Superseded, {name}: {reason}" for name, reason in result.get("superseded", {}).items()]
    return "\n".join(lines)


def verdict(claim: ClaimRecord) -> str:
    """`agrees so far: 1 seed, 0.25 of the rounds`; the bare word without a margin."""
    if "seeds" not in claim or "rounds" not in claim:
        return claim["verdict"]
    share = f"{claim['rounds']:g} of the rounds" if claim["rounds"] < 1 else "all rounds"
    return f"{claim['verdict']}: {plural(claim['seeds'], 'seed')}, {share}"


def summary(result: TableResult) -> str:
    """The number of claims by verdict, such as `reproduced: 1; agrees so far: 2`."""
    words = (claim["verdict"] for claim in result["claims"])
    counts = Counter("in part" if " in " in word else word for word in words)
    texts = [f"{word}: {counts[word]}" for word in KINDS if counts[word]]
    return "; ".join(texts) or "no claim tested"


def notes(result: TableResult) -> list[str]:
    """The notes on the rows that were run."""
    rows = {entry["row"] for entry in result["entries"]}
    return [
        f"`{name}`: {row['note']}." for name, row in result["rows"].items() if row["note"] and name in rows
    ]


def privacy(result: TableResult) -> list[Reading]:
    """The privacy accounts of noisy releases, the published epsilon first."""
    return [
        (
            row,
            method,
            account["release"],
            [(epsilon_text(e["epsilon"]), e["reading"]) for e in account["epsilons"]],
        )
        for row, methods in result.get("privacy", {}).items()
        for method, parts in methods.items()
        for account in parts.values()
    ]


def versions_text(result: TableResult) -> str:
    """A sentence with the runs by version of unskew; "" if all are of the page's version."""
    if set(result["made_by"]) <= {result["unskew"]}:
        return ""
    return f" Runs by version: {', '.join(f'{n} by {version}' for version, n in result['made_by'].items())}."


def rounds(result: TableResult) -> str:
    """The rounds of the longest run: `100`, or `25 (0.25 of a whole run)`."""
    share = max((share_of_rounds(result, entry["row"]) for entry in result["entries"]), default=1)
    return f"{last_round(result)}" + ("" if share == 1 else f" ({share:.2g} of a whole run)")


def last_round(result: TableResult) -> int:
    """The last round of the longest run; 0 without runs."""
    series = [s for methods in result["curves"].values() for runs in methods.values() for s in runs if s]
    return max((int(s[-1][0]) for s in series), default=0)


def margins(claim: ClaimRecord, unit: str) -> str:
    """`p0.1 +2.3 (0.4 to 4.2) [+1.2], p0.2 -0.4`: our margin by row or step, its 95 % interval in brackets,
    the paper's in square ones; why there is none."""
    texts = []
    for place, margin in claim["margins"].items():
        paper, ends = claim["paper"].get(place), claim.get("intervals", {}).get(place)
        texts.append(
            f"{place} {with_sign(margin, unit)}"
            + (f" ({with_sign(ends[0], unit)} to {with_sign(ends[1], unit)})" if ends else "")
            + ("" if paper is None else f" [{with_sign(paper, unit)}]")
        )
    return ", ".join(texts) or ("superseded" if claim["verdict"] == "no verdict" else "not run")


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    return f"{value:.1f}" if unit == "percent" else significant(value, 3)


def points(score: ScoreRecord, unit: str) -> str:
    """`61.4 ± 0.8`, or `61.4` for one seed."""
    mean, std = score["mean"], score["std"]
    if not score["n"] or mean is None or std is None:
        return MISSING
    deviation = f"{std:.1f}" if unit == "percent" else significant(std, 2)
    return _value(mean, unit) + (f" ± {deviation}" if score["n"] > 1 else "")


def with_sign(value: float | None, unit: str) -> str:
    """`+2.3`; empty for a missing value."""
    if value is None:
        return ""
    return f"{value:+.1f}" if unit == "percent" else significant(value, 2, signed=True)


def lead(entry: EntryRecord, unit: str) -> str:
    """`+2.3, p = .012`: the lead over the best other method; "" without one."""
    p = entry["p"]
    return with_sign(entry["ahead"], unit) + ("" if p is None else f", {p_value(p)}")
