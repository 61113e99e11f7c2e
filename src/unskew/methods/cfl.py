"""CFL (Sattler, Müller & Samek, TNNLS 2021, arXiv 1910.01991): clusters split where clients disagree.

Client: trains the model th_c of its cluster c and sends it;   d_k: its latest change
Server: after round `first`, a cluster of three clients or more is split if
            |mean d_k| < still   and   max |d_k| > moving
        into the two parts between which the largest a_ij = cos(d_i, d_j) is smallest,
        unless   sqrt((1 - that a_ij) / 2) <= gap
        th_c <- th_c + mean d_k over the clients of c that replied, weighted as the merge weighs
        them
Test:   clients are scored by their cluster's model, which they receive
Clients that have never taken part join the first part of a split cluster. The global model is the mean of all
replies and is not trained.
Differs from the paper: it splits when training has come to rest; ours tests in every round, as its code does.
That code joins clients by complete linkage (`linkage=complete`), weighs them equally and has no `gap`. Absent
clients count with their latest change. |.| is over the shared weights; statistics of normalisation take their
cluster's mean.
Defaults: still, moving and first are those of the authors' notebook.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
import torch
from annotated_types import Ge, Le
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Fraction, NonNegative
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import first_models


@dataclass(frozen=True)
class CFL(Part):
    """Splits clients into clusters, each with its own model, where their changes point in different
    directions."""

    still: Annotated[NonNegative, "length of a cluster's mean change below which it is at rest"] = 0.4
    moving: Annotated[NonNegative, "length of a client's change above which it still moves"] = 1.6
    first: Annotated[int, Ge(0), Le(1_000_000), "rounds before clusters may be split"] = 20
    gap: Annotated[Fraction, "how far apart two parts must point; 0: any two"] = 0.0
    linkage: Annotated[
        Literal["single", "complete"],
        "what is least between two parts: their closest clients' likeness, or as in the public code their"
        " farthest ones'",
    ] = "single"
    name = "cfl"
    family = "clusters"
    against = ("labels", "features")
    use_when = (
        "Clients form a few groups that want different answers to the same input; the number of groups is"
        " unknown."
    )
    merges = True
    weights_read = "each"
    keeps_at_server = ("th", "d", "of", "has")
    hands_on = "means of the models of clusters of clients, which may be small"
    first_stage = "first"

    def paced(self, whole: int, rounds: int) -> Self:
        return replace(self, first=round(self.first * rounds / whole))

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K = fed.clients
        th = first_models(w, fed)
        d = {n: torch.zeros_like(th[n]) for n in fed.shared}
        return {"th": th, "d": d, "of": torch.zeros(K), "has": torch.zeros(K)}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: th[int(s["of"][k])] for n, th in s["th"].items()}, {}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        replied, origin = ups.clients.tolist(), s["of"][ups.clients.to(s["of"].device)].long().tolist()
        th, d = dict(s["th"]), dict(s["d"])
        for n in d:
            at, began = ups.clients.to(d[n].device), th[n][torch.tensor(origin, device=th[n].device)]
            d[n] = d[n].index_copy(0, at, (ups.stack(n).to(began) - began))
        has, of = s["has"].clone(), s["of"].clone()
        has[replied] = 1.0
        if ups.t > self.first:
            of = self.split(torch.cat([d[n].flatten(1) for n in fed.shared], 1).double().cpu(), of, has)
        p_K = torch.tensor(ups.shares_of_weight())
        for n in th:
            if n not in ups.replies[0].weights:
                continue
            sent_K, th[n] = ups.stack(n).to(th[n]), th[n][self.parents(s["of"], of).to(th[n].device)].clone()
            for c in sorted({int(of[k]) for k in replied}):
                rows = [i for i, k in enumerate(replied) if of[k] == c]
                th[n][c] = torch.einsum("k,k...->...", (p_K[rows] / p_K[rows].sum()).to(sent_K), sent_K[rows])
        return weighted_mean(w, ups), {"th": th, "d": d, "of": of, "has": has}

    def split(self, d_KN: Tensor, of: Tensor, has: Tensor) -> Tensor:
        """Each client's cluster after this round, [K]; a part that leaves a cluster gets the next free
        number."""
        of = of.clone()
        for c in sorted(set(of.tolist())):
            members = [k for k in torch.nonzero((of == c) & (has > 0)).flatten().tolist() if d_KN[k].any()]
            if len(members) < 3:
                continue
            d_MN = d_KN[members]
            if d_MN.mean(0).norm() < self.still and d_MN.norm(dim=1).max() > self.moving:
                of[[members[i] for i in self.leavers(d_MN)]] = of.max() + 1
        return of

    def leavers(self, d_MN: Tensor) -> list[int]:
        """Members of a cluster that leave it; none if the two parts point in similar directions."""
        unit_MN = d_MN / d_MN.norm(dim=1, keepdim=True)
        a_MM = (unit_MN @ unit_MN.T).clamp(-1, 1).numpy()
        tree = hierarchy.linkage(squareform(1 - a_MM, checks=False), self.linkage)
        second = hierarchy.cut_tree(tree, 2).flatten() == 1
        largest = float(a_MM[np.ix_(~second, second)].max())
        return np.flatnonzero(second).tolist() if ((1 - largest) / 2) ** 0.5 > self.gap else []

    @staticmethod
    def parents(before: Tensor, now: Tensor) -> Tensor:
        """The previous number of each cluster's model, [K]."""
        rows = torch.arange(len(now))
        for c in set(now.long().tolist()):
            rows[c] = before[now == c][0].long()
        return rows
