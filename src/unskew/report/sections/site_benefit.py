"""The benefit of federating for each site: the score of the best method for clients and of local training.

Letters: n test samples of a site; p, q its accuracy with the federated model and alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unskew.report.analysis.runs import RunData
from unskew.report.analysis.summary import SURE, best_at_clients
from unskew.report.sections import Context, Section, client_scores, render, run_with_same_clients
from unskew.round.run import LOCAL

ORDER = 34
MOST_SITES = 50
"""The most sites in a table."""
VERDICTS = ("yes", "no", "unclear")


@dataclass(frozen=True)
class Site:
    """A site with n test samples and its accuracies in [0, 1] with the federated and the local model."""

    name: str
    n: int
    federated: float
    alone: float

    @property
    def verdict(self) -> str:
        """Whether the gain is clear by the interval of Agresti and Caffo (2000).

        With one success and one failure added to each, |p - q| exceeds 1.96 sqrt((p(1-p) + q(1-q)) / (n+2)).
        """
        p, q = ((share * self.n + 1) / (self.n + 2) for share in (self.federated, self.alone))
        if abs(p - q) <= SURE * math.sqrt((p * (1 - p) + q * (1 - q)) / (self.n + 2)):
            return "unclear"
        return "yes" if p > q else "no"


def build(context: Context) -> Section | None:
    """A row per site; None without a run of `local` on these sites, or if the score is no accuracy."""
    best = best_at_clients(context.summaries)
    if best is None or context.metric != "accuracy":
        return None
    method = best[0]
    run, alone = (run_with_same_clients(context, context.methods[m]) for m in (method, LOCAL))
    sites = sites_of(run, alone) if run and alone else []
    if not 2 <= len(sites) <= MOST_SITES:
        return None
    rows = [
        (
            s.name,
            f"{s.n:,}",
            *(f"{100 * v:.1f}" for v in (s.alone, s.federated)),
            f"{100 * (s.federated - s.alone):+.1f}",
            s.verdict,
        )
        for s in sites
    ]
    count = {verdict: sum(s.verdict == verdict for s in sites) for verdict in VERDICTS}
    lead = (
        f"With {method}, the best of these methods at the clients, federating is clearly better than training"
        f" alone at {count['yes']} of {len(sites)} sites and clearly worse at {count['no']}; at"
        f" {count['unclear']} the test samples are too few to say."
    )
    seed = f" Seed {context.first.seed}." if context.seeds > 1 else ""
    note = (
        "Accuracy in % on the site's own test samples after the last round, with the model that the site"
        f" would use. Clear is a difference whose 95 % interval (Agresti and Caffo, 2000) leaves out 0.{seed}"
        " Among many sites one in twenty may be called clear by chance."
    )
    html = render("site_benefit.html.j2", method=method, rows=rows)
    return Section(
        "Is federating worth it for my site?", "worth", html, lead=lead, note=note, link="Worth it"
    )


def sites_of(run: RunData, alone: RunData) -> list[Site]:
    """The sites with test samples that have a score in both runs."""
    federated, by_itself = client_scores(run), client_scores(alone)
    names, sizes = run.federation.get("names", []), run.federation.get("sizes", {}).get("test", [])
    return [
        Site(name, n, federated[k], by_itself[k])
        for k, (name, n) in enumerate(zip(names, sizes))
        if n and k in federated and k in by_itself
    ]
