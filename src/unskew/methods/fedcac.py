"""FedCAC (Wu et al., ICCV 2023, arXiv 2309.11103): clients share critical weights with similar clients.

Server: for every tensor of weights, with w_k0 that client k received and w_k that it returned:
        M_k marks the share tau of numbers with the largest |(w_k - w_k0) w_k|
        O_kj = 1 - |M_k - M_j|_1 / (2 |M_k|_1)
        bound = mean O + t / beta (max O - mean O)    over pairs k != j, in round t
        v_k = mean of w_j over j = k and all j with O_kj >= bound
        w = sum_k n_k / n w_k;   client k receives  M_k v_k + (1 - M_k) w
Test:   clients are scored by the models they receive
After beta rounds a client collaborates only with itself and with clients as similar to it as the most similar
pair. With a beta beyond the end of the run, about half of all clients still collaborate at the end, and their
critical weights are hardly personal.
Differs from the paper: the server computes M_k from the weights it has, so that nothing more is sent than
with FedAvg; in the paper clients compute and send M_k. Only clients that replied in the round count; others
keep their M_k and v_k. Public code weighs collaborators equally, as ours does. Fling, the code of the paper,
sends the first v_k after round 1 with t = 1, as ours does; PFLlib raises the bound a round later.
Defaults: those of Fling for CIFAR-10, with a beta of 100 in 300 rounds; for CIFAR-100 it has tau = 0.4 and
beta = 170.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch

from unskew.core import Fed, Part, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import NonNegative, PositiveFraction
from unskew.merge.mean import weighted_mean

_NOTHING = 1e-10
"""Numbers up to this size count as 0."""


@dataclass(frozen=True)
class FedCAC(Part):
    """Sends each client the common mean, except for its critical weights, which are averaged over clients
    with similar critical weights."""

    tau: Annotated[PositiveFraction, "share of every tensor's numbers that are critical"] = 0.5
    beta: Annotated[
        NonNegative, "rounds after which only the most similar clients collaborate; 0: a third of the run's"
    ] = 0.0
    name = "fedcac"
    family = "personalised"
    against = ("labels",)
    use_when = "Clients differ in labels, and you do not know which part of the model should be personal."
    merges = True
    weights_read = "each"
    keeps_at_server = ("M", "v")
    hands_on = "mixtures of the models of single clients, those that resemble it most"

    def has_schedule(self) -> bool:
        return not self.beta

    def paced(self, whole: int, rounds: int) -> Self:
        return replace(self, beta=self.beta * rounds / whole)

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K = fed.clients
        return {
            "M": {n: torch.zeros(K, *w[n].shape, dtype=torch.bool) for n in fed.shared},
            "v": {n: torch.stack([w[n]] * K) for n in fed.shared},
        }

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        sent = [self.dispatch(w, s, k, fed)[0] for k in ups.clients.tolist()]
        w_K = {n: ups.stack(n) for n in fed.shared}
        M_K = {n: self.critical(t - torch.stack([w_0[n] for w_0 in sent]), t) for n, t in w_K.items()}
        with_KK = self.collaborators(
            torch.cat([m.reshape(len(m), -1) for m in M_K.values()], 1), ups.t / (self.beta or fed.rounds / 3)
        )
        mean_KK = (with_KK / with_KK.sum(1, keepdim=True)).to(torch.float32)
        v_K = {n: torch.einsum("kj,j...->k...", mean_KK.to(t), t) for n, t in w_K.items()}
        at = {n: ups.clients.to(t.device) for n, t in w_K.items()}
        return weighted_mean(w, ups), {
            "M": {n: s["M"][n].index_copy(0, at[n], M_K[n].to(s["M"][n].device)) for n in w_K},
            "v": {n: s["v"][n].index_copy(0, at[n], v_K[n].to(s["v"][n])) for n in w_K},
        }

    def critical(self, moved: Tensor, w: Tensor) -> Tensor:
        """Marks the critical numbers of one tensor for every client; bool [K, ...]."""
        c_KN = (moved * w).abs().reshape(len(w), -1)
        most = int(self.tau * c_KN.shape[1])
        bound_K = c_KN.topk(most, 1).values[:, -1] if most else torch.full_like(c_KN[:, 0], torch.inf)
        least_K = torch.where(c_KN > _NOTHING, c_KN, torch.inf).amin(1)
        bound_K = torch.where(bound_K > _NOTHING, bound_K, least_K)
        return (c_KN >= bound_K[:, None]).view_as(w)

    def collaborators(self, M_KN: Tensor, strict: float) -> Tensor:
        """Marks the clients j that enter v_k, 1 or 0, [K, K]. strict: t / beta."""
        m_KN, K = M_KN.double(), len(M_KN)
        size_K, both_KK = m_KN.sum(1), m_KN @ m_KN.T
        distance_KK = size_K[:, None] + size_K[None, :] - 2 * both_KK
        O_KK = 1 - distance_KK / (2 * size_K).clamp(min=1)[:, None]
        others_KK = ~torch.eye(K, dtype=torch.bool, device=O_KK.device)
        if K == 1:
            return torch.ones_like(O_KK)
        among = O_KK[others_KK]
        bound = among.mean() + strict * (among.max() - among.mean())
        return ((bound <= O_KK) | ~others_KK).double()

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: torch.where(m[k], s["v"][n][k], w[n]) for n, m in s["M"].items()}, {}
