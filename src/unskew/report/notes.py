"""What is said below the table of methods: what its numbers are, and what makes them doubtful."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.engine.resolve import REFERENCES
from unskew.engine.server.used import lost
from unskew.report.numbers import begun, plural
from unskew.report.stats import FEWEST_PAIRS, SHORT_RUN
from unskew.report.summary import MethodSummary
from unskew.report.terms import sentences
from unskew.scores import kind

Summaries = Sequence[MethodSummary]


def note(summaries: Summaries) -> str:
    """What the table's numbers are: sentences, one a line."""
    n = max((s.n for s in summaries), default=0)
    metric = summaries[0].metric if summaries else "accuracy"
    by_last = any(s.by_last for s in summaries)
    over = (
        f"mean ± sample standard deviation over {_seeds(summaries)}" if n > 1 else "one seed, so no standard deviation"
    )
    rounds = "mean-10, clients and personal are means over the evaluated rounds among the last 10."
    if by_last:
        rounds = f"With fewer than {SHORT_RUN} rounds all scores but best are those of the last round."
    lines = [
        f"{_measured(metric)}, {over}. {rounds}",
        "clients (global@client): the global model on each client's own test samples. "
        "personal (personal@client): each client's own model on the same samples.",
    ]
    if sum(not s.reference for s in summaries) > 1:
        ranks = "the last round" if by_last else "the mean of the last 10 rounds"
        if n < FEWEST_PAIRS:
            what = "points" if kind(metric).share else "how much better (+) or worse (-)"
            text = f"{what} by {ranks}, and in how many seeds the best was ahead; a p-value needs {FEWEST_PAIRS} seeds."
        else:
            text = f"paired t-test over seeds on {ranks}, corrected by Holm. With few seeds it detects only large differences."
        lines.append(f"vs best: {text}")
    lines += sentences({s.method: s.terms for s in summaries})
    lines += [*_unscored(summaries), *_unpaired(summaries), *dropped(summaries)]
    if any(s.reference for s in summaries):
        lines.append(f"{' and '.join(REFERENCES)} are references: they do not compete.")
    return "\n".join(lines)


def _seeds(summaries: Summaries) -> str:
    """`3 seeds`, or each method's own number where they have not the same."""
    counts = {s.method: s.n for s in summaries}
    if len(set(counts.values())) == 1:
        return f"{summaries[0].n} seeds"
    return f"different numbers of seeds: {', '.join(f'{method} {n}' for method, n in counts.items())}"


def _unpaired(summaries: Summaries) -> list[str]:
    """A sentence for every method that the test pairs with the best in fewer seeds than its means are over."""
    best = next((s.method for s in summaries if s.leads), "")
    return [
        f"{s.method} and {best} are paired in {s.gap.seeds} of {plural(s.n, 'seed')}."
        for s in summaries
        if s.gap is not None and s.gap.seeds < s.n
    ]


def _unscored(summaries: Summaries) -> list[str]:
    """A sentence for every method that has no score in some of its seeds, so that its means leave these out."""
    return [
        f"{s.method} has a final score in {s.final.n} of {s.n} seeds, and its means are over these."
        for s in summaries
        if 0 < s.final.n < s.n
    ]


def _measured(metric: str) -> str:
    """What the scores are: `Accuracy in %`, `RMSE in the target's unit, lower is better`."""
    which = kind(metric)
    if which.share:
        return f"{begun(which.title)} in %"
    return f"{begun(which.title)} in the target's unit" + (", lower is better" if which.lower else "")


def dropped(summaries: Summaries) -> list[str]:
    """A sentence for every method of which replies were dropped, so that it was trained on less than it seems."""
    sentences = (lost(s.method, s.received, s.used, s.untrained, s.n) for s in summaries)
    return [sentence for sentence in sentences if sentence]


def doubtful(summaries: Summaries) -> list[str]:
    """A sentence for every method of which so many replies were dropped that its scores say little."""
    return [s.doubt for s in summaries if s.doubt]
