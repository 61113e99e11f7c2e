"""The default, `unskew`, beside each paper's method, paired by seed: the tables of docs/results/default.md.

python tools/default.py            write them below the page's last heading
python tools/default.py --check    exit with code 1 if the page does not hold what would be written

Every number is read from what is kept: the pages of `unskew reproduce` (docs/results/*.json) and the runs of
`tools/evidence.py` (src/unskew/diagnosis/*.csv). Nothing is trained.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from unskew.diagnosis.advice import Goal, Scores, plans, scores_in
from unskew.formats.markdown import table
from unskew.report.analysis.stats import holm, interval, last_best_mean10, paired_p

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PAGE, HEADING = RESULTS / "default.md", "## Tables\n\n"
DEFAULT = "unskew"
RIVALS = ("flea(lambda2=0)", "rebafl", "fedrdn", "feddyn", "fedavgm(beta=0.95)", "fedavg")
"""What the default is compared with in small settings."""


@dataclass(frozen=True)
class Ground:
    """A setting in which a paper published its method. pages: (page, row) where its runs are kept, all of one
    setting.

    rivals: the methods to compare with, by the names that they have there.
    """

    about: str
    pages: tuple[tuple[str, str], ...]
    rivals: tuple[str, ...]


GROUNDS = (
    Ground(
        "movement, two classes a client (FLea)",
        (("flea-table1-har-seeds", "uci_har-qua2-100"), ("default-har", "har-qua2")),
        ("FLea, no decorrelation", "FLea", "FedLC", "FedAvg"),
    ),
    Ground(
        "movement, Dirichlet 0.1 (FLea)",
        (("flea-table1-har-seeds", "uci_har-dir0.1-100"), ("default-har", "har-dir0.1")),
        ("FLea, no decorrelation", "FLea", "FedLC", "FedAvg"),
    ),
    Ground(
        "sounds, three classes a client (FLea)",
        (("flea-table1-sounds-seeds", "urbansound8k-qua3-100"), ("default-sounds", "sounds-qua3")),
        ("FLea, no decorrelation", "FLea, public code's loss", "FLea", "FedAvg"),
    ),
    Ground(
        "clothing, two classes, p = 0.2 (ReBaFL)",
        (("default-clothes", "clothes-p0.2"), ("rebafl-table1-seeds", "fashion_mnist-p0.2")),
        ("ReBaFL", "FedDyn", "FedAvg"),
    ),
    Ground(
        "office objects, four domains (FedRDN)",
        (("fedrdn-table1-small", "office_caltech10-small"), ("default-office", "office")),
        ("FedRDN", "Scaffold+FedRDN", "FedAvg"),
    ),
    Ground(
        "clothing, Dirichlet 0.5 (FedDPMS)",
        (("feddpms-table1-small", "fashion_mnist-small"), ("default-dpms", "clothes-dir0.5")),
        ("FedDPMS", "FedDPMS, less noise", "FedAvg"),
    ),
)


def main() -> int:
    was = PAGE.read_text()
    now = was.partition(HEADING)[0] + HEADING + tables() + "\n"
    if was != now and "--check" not in sys.argv:
        PAGE.write_text(now)
    if was != now:
        print(("stale: " if "--check" in sys.argv else "wrote ") + PAGE.name)
    return int(was != now and "--check" in sys.argv)


def tables() -> str:
    """All tables as Markdown, each below its heading."""
    parts = ["### On the papers' own ground", grounds()]
    titles: dict[Goal, str] = {"one": "one model for all", "sites": "at the sites"}
    for goal, title in titles.items():
        parts += [f"### In small settings, {title}", small("runs.csv", "settings.yaml", goal)]
        parts += [f"### Held out, {title}", small("confirmed.csv", "confirmation.yaml", goal)]
    return "\n\n".join(parts)


def grounds() -> str:
    """A row for each ground and rival: points ahead in the mean of the last ten rounds, and by the best
    round."""
    lines: list[list[str]] = []
    ps: list[float] = []
    for ground in GROUNDS:
        ours = [score(curve) for curve in curves(ground, DEFAULT)]
        for rival in ground.rivals:
            theirs = [score(curve) for curve in curves(ground, rival)]
            by_best, by_mean = ([a[i] - b[i] for a, b in zip(ours, theirs)] for i in (1, 2))
            if not by_mean:
                continue
            n = len(by_mean)
            ps.append(paired_p([s[2] for s in ours[:n]], [s[2] for s in theirs[:n]]))
            means = (f"{np.mean([s[2] for s in scores[:n]]):.1f}" for scores in (ours, theirs))
            best = f"{np.mean(by_best):+.1f}"
            lines.append([ground.about, rival, str(n), *means, ahead(by_mean), best, won(by_mean)])
    head = [
        "ground",
        "beside",
        "seeds",
        "`unskew`",
        "the other",
        "points ahead [95 %]",
        "by the best round",
        "ahead in",
        "p",
    ]
    return table(head, [[*line, chance(p)] for line, p in zip(lines, holm(ps))])


def curves(ground: Ground, method: str) -> list[list[list[float]]]:
    """The curves of a method's seeds from 0 on, from whichever of the ground's pages has the most."""
    kept = [page(name).get("curves", {}).get(row, {}).get(method, []) for name, row in ground.pages]
    return max(kept, key=len)


@cache
def page(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def score(curve: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(last, best, mean of the last ten) of one seed's curve."""
    rounds, values = np.array(curve).T
    return last_best_mean10(rounds, values)


def small(file: str, settings: str, goal: Goal) -> str:
    """A row for each setting, and one over all of them, in which a setting's mean over seeds counts once."""
    scored = {name: scores for name, scores in scores_in(file).items() if name in plans(settings)}
    rivals = [r for r in RIVALS if any(gains(scores, r, goal) for scores in scored.values())]
    lines = []
    for name, scores in scored.items():
        by = [gains(scores, rival, goal) for rival in rivals]
        lines.append([name, seeds([len(g) for g in by if g]), *(ahead(g) if g else "–" for g in by)])
    if len(scored) > 2:
        means = [
            [float(np.mean(g)) for scores in scored.values() if (g := gains(scores, r, goal))] for r in rivals
        ]
        ps = holm([paired_p(m, [0.0] * len(m)) for m in means])
        lines.append(["all, each counted once", "", *map(ahead, means)])
        lines.append(["ahead in", "", *map(won, means)])
        lines.append(["p", "", *map(chance, ps)])
    return table(["setting", "seeds", *(f"`{r}`" for r in rivals)], lines)


def gains(scores: dict[str, Scores], rival: str, goal: Goal) -> list[float]:
    """Points by which the default is ahead of another method, seed by seed; empty where one of them did not
    run."""
    if rival not in scores:
        return []
    ours, theirs = scores[DEFAULT].of(goal), scores[rival].of(goal)
    return [100 * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def seeds(counts: Sequence[int]) -> str:
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def ahead(differences: Sequence[float]) -> str:
    """The mean difference in points and, with two or more, its interval."""
    mean, low, high = interval(differences)
    return f"{mean:+.1f}" if math.isnan(low) else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def won(differences: Sequence[float]) -> str:
    return f"{sum(d > 0 for d in differences)} of {len(differences)}"


def chance(p: float) -> str:
    """A p-value as text; a dash where there are too few pairs for one."""
    return "–" if math.isnan(p) else "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


if __name__ == "__main__":
    sys.exit(main())
