"""Sentences that describe a reproduction on all its pages: the meaning of its numbers, and their origin.

Every function works on the stored result alone, so that a page can be made again from its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unskew.core.account import epsilon_text
from unskew.experiments.result import ClaimRecord, EntryRecord, ScoreRecord, TableResult
from unskew.experiments.verdicts import ENOUGH_SEEDS, share_of_rounds
from unskew.report.analysis.numbers import MISSING, p_value, plural
from unskew.report.analysis.stats import FEWEST_PAIRS
from unskew.scores import kind, significant

MEASURE = {
    "best": "in the best round",
    "last": "in the last round",
    "mean10": "averaged over those of the last ten rounds that were evaluated",
}
SCOPE_WORDS = {
    "global": "of the global model on all test samples",
    "global@client": "of the global model on each client's own test samples",
    "personal@client": "of each client's own model on its own test samples",
}
"""The model and the samples of each scope."""
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


def has_paper_numbers(result: TableResult) -> bool:
    """Whether the paper has a number for any entry."""
    return any(entry["paper"] is not None for entry in result["entries"])


def score_origins(result: TableResult) -> tuple[bool, bool]:
    """(whether some entries are scores of an attack, whether some are scores of training)."""
    kinds = {bool(entry.get("bounds")) for entry in result["entries"]}
    return True in kinds, False in kinds or not kinds


def bounds(entry: EntryRecord, unit: str) -> tuple[str, str, str]:
    """(95 % interval, score without the payload, score with the raw input) of an attack; else empty texts."""
    values = entry.get("bounds")
    if not values:
        return "", "", ""
    low, high, floor, ceiling = (_value(values[name], unit) for name in ("low", "high", "floor", "ceiling"))
    return f"{low} to {high}", floor, ceiling


def quantity(result: TableResult, row: str = "") -> str:
    """The quantity of a row or of the table, such as `Dice` or `accuracy, mean over clients`."""
    metric = (row and result["rows"][row].get("quantity")) or result["metric"]
    if metric not in OVER_CLIENTS:
        return kind(metric).title.replace("_", " ")
    mains = {r.get("main", "") for name, r in result["rows"].items() if name == row or not row} - {""}
    score = kind(mains.pop()).title if len(mains) == 1 else "score"
    return f"{score}, {OVER_CLIENTS[metric]}"


def note(result: TableResult) -> str:
    """Sentences on the columns of the table."""
    most = max((entry["ours"]["n"] for entry in result["entries"]), default=0)
    spread = f"mean ± sample standard deviation over {most} seeds" if most > 1 else "one seed"
    reported = ", as the paper reports" if result["paper"] else ""
    gap = " gap: ours minus the paper's." if has_paper_numbers(result) and result["scale"] == 1 else ""
    tested = ""
    if most >= FEWEST_PAIRS:
        tested = ", with a paired t-test over seeds, Holm-corrected"
    elif most:
        verb = "is" if most == 1 else "are"
        tested = f"; {plural(most, 'seed')} {verb} too few for a test, which needs {FEWEST_PAIRS}"
    lead = "points" if result["unit"] == "percent" else "how much"
    best = "largest" if result["scope"] in ("measure", "attack") else "best"
    lines = [
        f"ours: {_reported(result)}{reported}; {spread}.{gap}",
        f"vs best other: {lead} ahead of the {best} other method of the row{tested}.",
    ]
    if score_origins(result)[0]:
        lines.append(ATTACKS)
    if result["scope"] == "measure":
        lines.append("docs/measures.md explains measures; whether larger is better depends on the measure.")
    if result["scale"] != 1:
        lines += _scaled(result)
    lines += [*result.get("dropped", []), *result.get("terms", [])]
    return "\n".join(lines)


def _reported(result: TableResult) -> str:
    """What the rows report, each score with its rows if there are several, and in which round."""
    rows: dict[str, dict[str, None]] = {}
    for entry in result["entries"]:
        what = _score_of_row(result, entry["row"], bool(entry.get("bounds")))
        rows.setdefault(what, {})[entry["row"]] = None
    if len(rows) < 2:
        scores = next(iter(rows), "score")
    else:
        scores = "; ".join(
            f"{what} (in {', '.join(f'`{n}`' for n in names)})" for what, names in rows.items()
        )
    if not score_origins(result)[1]:
        return scores
    run, last = dict.fromkeys(entry["row"] for entry in result["entries"]), last_round(result)
    at = {row: result["rows"][row].get("at", last) for row in run}
    early = [f"of `{row}` up to round {t}" for row, t in at.items() if t < last]
    return f"{scores}, {MEASURE[result['measure']]}" + (f" ({', '.join(early)})" if early else "")


def _score_of_row(result: TableResult, row: str, attacked: bool) -> str:
    """Such as `accuracy, in %, of the global model on all test samples`."""
    record, percent = result["rows"][row], ", in %" if result["unit"] == "percent" else ""
    if attacked:
        return f"what the attack found after the last round: {quantity(result, row)}{percent}"
    scope = record.get("scope") or result["scope"]
    if scope not in SCOPE_WORDS:
        measure = record.get("quantity") or result["metric"]
        return f"the measure `{measure.partition('/')[0]}`{percent}"  # the row names the element of a matrix
    name, _, over = quantity(result, row).partition(", ")
    of_model = f"{name}{percent}{',' if percent else ''} {SCOPE_WORDS[scope]}"
    return f"{of_model}, {over}" if over else of_model


def _scaled(result: TableResult) -> list[str]:
    """Sentences on the rounds and schedules of a shortened run."""
    target = ""
    if has_paper_numbers(result):
        target = "; the paper's numbers, in brackets, are of whole runs and no target"
    lines = [f"SCALED: {result['scale']:g} of the {source(result)}'s rounds{target}."]
    if "schedules" not in result:
        lines.append("Schedules were not shortened with the rounds.")
    elif result["schedules"]:
        lines.append(f"Schedules end where the whole run's end: {', '.join(result['schedules'])}.")
    return lines


def source(result: TableResult) -> str:
    """`paper`, or `table` for a user's table."""
    return "paper" if result["paper"] else "table"


RULES = {
    "so far": "So far: fewer than {seeds} seeds, fewer rounds than the {source}'s, or an interval that leaves"
    " the claim open.",
    "unclear": "Unclear: the 95 % interval over attacked samples, or over late rounds of a short run, leaves"
    " open whether the claim holds.",
}
"""What a part of a verdict means."""
KINDS = ("reproduced", "agrees so far", "in part", "unclear", "disagrees so far", "not reproduced")
KINDS += ("no verdict",)


def rules(result: TableResult) -> str:
    """Sentences on verdicts that are not plain, and on what was superseded; "" if there are none."""
    words = " ".join(claim["verdict"] for claim in result["claims"])
    lines = [
        rule.format(seeds=ENOUGH_SEEDS, source=source(result))
        for part, rule in RULES.items()
        if part in words
    ]
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


def makers(result: TableResult) -> str:
    """A sentence with the runs by version of unskew; "" if all are of the page's version."""
    by = result["made_by"]
    if not by:
        return " Runs that were finished before may be older; which version made them was not recorded."
    if set(by) == {result["unskew"]}:
        return ""
    return " Runs by version: " + ", ".join(f"{n} by {version}" for version, n in by.items()) + "."


def rows(result: TableResult) -> str:
    """The names of the rows that were run."""
    return ", ".join(dict.fromkeys(entry["row"] for entry in result["entries"]))


def rounds(result: TableResult) -> str:
    """The rounds of the longest run: `100`, or `25 (0.25 of the paper's)`."""
    last = last_round(result)
    share = max((share_of_rounds(result, entry["row"]) for entry in result["entries"]), default=1)
    return f"{last}" if share == 1 else f"{last} ({share:.2g} of the {source(result)}'s)"


def last_round(result: TableResult) -> int:
    """The last round of the longest run; 0 without runs."""
    series = [s for methods in result["curves"].values() for runs in methods.values() for s in runs if s]
    return max((int(s[-1][0]) for s in series), default=0)


def titles(results: Sequence[TableResult]) -> list[str]:
    """The titles of results; equal titles are followed by the name of the page."""
    each = [result["title"] for result in results]
    return [t if each.count(t) == 1 else f"{t} ({result['page']})" for t, result in zip(each, results)]


def index_title(results: Sequence[TableResult]) -> tuple[str, str]:
    """(heading of the index page, contents of the pages it links to)."""
    if any(result["paper"] for result in results):
        return (
            "Published tables, run here",
            "the paper's numbers beside ours where there are any, and a verdict on every claim",
        )
    return "Tables, run here", "every number, and a verdict on every claim"


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
    both = (f"{mean:.1f}", f"{std:.1f}") if unit == "percent" else (significant(mean, 3), significant(std, 2))
    return " ± ".join(both) if score["n"] > 1 else both[0]


def with_sign(value: float | None, unit: str) -> str:
    """`+2.3`; empty for a missing value."""
    if value is None:
        return ""
    return f"{value:+.1f}" if unit == "percent" else significant(value, 2, signed=True)


def lead(entry: EntryRecord, unit: str) -> str:
    """`+2.3, p = .012`: the lead over the best other method; "" without one."""
    if entry["ahead"] is None:
        return ""
    # results of earlier versions may have a p-value of fewer seeds
    p = entry["p"] if entry["ours"]["n"] >= FEWEST_PAIRS else None
    return with_sign(entry["ahead"], unit) + ("" if p is None else f", {p_value(p)}")
