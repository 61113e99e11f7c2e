"""pFedSim (Tan et al. 2023, arXiv 2305.15706): bodies are mixed by how similar the clients' heads are.

Rounds up to warm T are those of FedAvg. Then the global model is fixed, and each client has a model theta_k:
Client: trains what it receives, body and head, and sends it: theta_k
Server: sends client k its own head and the body  sum_j phi_kj theta_j
        phi_kj = s_kj / sum_i s_ki,   s_kj = -ln(1 - max(0, a_kj))
        a_kj: the mean over classes of the cosine of the rows of the heads' weights, at most 0.9999,
        which is also a_kk
        a client without a theta_k receives the global model
Test:   a client's own score is that of the model it trained last; other scores are those of the
        models that clients receive
Differs from the paper: nothing that we know of; its code compares only clients that trained in the same
round, and sets no bound below 1 to a_kj, so that equal heads give no finite number.
Defaults: that of FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from unskew.core import Client, Fed, Remembered, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Fraction
from unskew.merge.mean import weighted_mean
from unskew.methods.shared.weights import first_models, last_models

_ITSELF = 0.9999


@dataclass(frozen=True)
class PFedSim(Remembered):
    """Sends each client its own head and a mixture of the bodies of clients with similar heads."""

    warm: Annotated[Fraction, "share of the rounds that train one model for all before"] = 0.5
    name = "pfedsim"
    first_stage = "warm"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients form groups by their labels; heads reveal a client's labels, and so which bodies help it."
    )
    tasks = ("classification",)
    needs = "a row of the head for each class"
    merges = True
    weights_read = "each"
    keeps_at_server = ("theta", "has", "phi")
    hands_on = "mixtures of the bodies of single clients, the most similar ones foremost"

    def refuse(self, fed: Fed) -> str | None:
        if not any(fed.net.of_head(n) and n in fed.shared for n in fed.net.trainable):
            return "it compares clients' heads, which they do not send"
        return None

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K = fed.clients
        theta = {n: torch.zeros_like(t) for n, t in first_models(w, fed).items()}
        return {"theta": theta, "has": torch.zeros(K), "phi": torch.eye(K)}

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if ups.t <= self.warm * fed.rounds:
            return weighted_mean(w, ups), s
        theta, replied = last_models(s["theta"], ups), ups.clients.to(s["has"].device)
        has_K = s["has"].index_fill(0, replied, 1.0)
        head = [n for n in fed.shared if fed.net.of_head(n) and theta[n].dim() > 2]
        rows_KCD = torch.cat([theta[n].flatten(2) for n in head], 1)
        return dict(w), {"theta": theta, "has": has_K, "phi": similarity(rows_KCD, has_K)}

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        if not s["has"][k]:
            return w, {}
        phi_K = s["phi"][k]
        body = {
            n: torch.einsum("j,j...->...", phi_K.to(t), t)
            for n, t in s["theta"].items()
            if not fed.net.of_head(n)
        }
        return w | {n: t[k] for n, t in s["theta"].items()} | body, {}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c) if c.t > self.warm * c.fed.rounds else w


def similarity(rows_KCD: Tensor, has_K: Tensor) -> Tensor:
    """The mixing matrix phi, [K, K], with rows that sum to 1; only clients that have their own model
    count."""
    unit_KCD = torch.nn.functional.normalize(rows_KCD.double(), dim=2)
    a_KK = torch.einsum("kcd,jcd->kj", unit_KCD, unit_KCD) / rows_KCD.shape[1]
    a_KK = a_KK.clamp(0, _ITSELF).fill_diagonal_(_ITSELF) * has_K
    s_KK = -(1 - a_KK).log()
    return (s_KK / s_KK.sum(1, keepdim=True).clamp(min=1e-30)).to(has_K)
