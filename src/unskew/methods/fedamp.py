"""FedAMP (Huang et al., AAAI 2021, arXiv 2007.03797): clients with similar models help each other most.

Server: v_k is the model that client k sent last
        sends client k  u_k = sum_j xi_kj v_j  instead of a global model
        xi_kj = others / (K - 1) e^(-|v_k - v_j|^2 / sigma) for j != k
        xi_kk = 1 - sum_j xi_kj
Client: descends  CE + (lam/2) ||w - u_k||^2  from v_k, and sends the result
        a client without samples, for which u_k is the minimum, sends u_k back
Test:   a client's own score is that of v_k; other scores are those of the models that clients
        receive
`others` and `lam` replace the paper's alpha_k and lambda: others = alpha_k (K - 1) / sigma, of which values
above 1 could make xi_kk negative, and lam = lambda / alpha_k.
Differs from the paper: local steps of SGD replace the exact minimum. Absent clients count with the model they
sent last, and before that with the initial one; a new client begins from u_k. PFLlib mixes only the models of
the last round, and adds to the loss the distance instead of its square, as a constant, so that it has no
effect. Statistics of normalisation are mixed by xi, too.
Defaults: sigma and lam are those of PFLlib; its weight of others, K - 1, could make xi_kk negative.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le

from unskew.core import Batch, Client, Fed, Out, Remembered, Tensor, Tree, Ups, Weights
from unskew.formats.setting_ranges import Fraction, NonNegative
from unskew.methods.shared.weights import first_models, last_models, row, with_idle_clients


@dataclass(frozen=True)
class FedAMP(Remembered):
    """Sends each client a mixture of all models in which similar models weigh most."""

    others: Annotated[Fraction, "weight of all others together where their models equal a client's own"] = 0.5
    sigma: Annotated[
        float, Gt(0), Le(1e9), "squared distance of models at which another counts 1/e of that"
    ] = 1.0
    lam: Annotated[NonNegative, "pull of a client's model towards its mixture; 0: none"] = 1.0
    name = "fedamp"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Clients form unknown groups; each finds the others that resemble it. Few clients, small models."
    )
    weights_read = "each"
    keeps_at_server = ("v", "u")
    hands_on = "mixtures of the models of single clients, the most similar ones foremost"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        v = first_models(w, fed)
        return {"v": v, "u": {n: t.clone() for n, t in v.items()}}

    def starts(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        return self.lam / 2 * sum((w[n] - c.start[n].detach()).pow(2).sum() for n in c.fed.shared)  # type: ignore[return-value]

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        v = with_idle_clients(last_models(s["v"], ups), lambda k: row(s["u"], k), fed)
        xi_KK = self.likeness(torch.cat([v[n].reshape(len(v[n]), -1) for n in fed.shared], 1))
        return {"v": v, "u": {n: torch.einsum("kj,j...->k...", xi_KK.to(t), t) for n, t in v.items()}}

    def likeness(self, v_KN: Tensor) -> Tensor:
        """The mixing matrix xi, [K, K]: the weight of client j's model for client k; each row sums to 1."""
        K = len(v_KN)
        apart_KK = torch.stack([(v_KN - v_N).double().pow(2).sum(1) for v_N in v_KN])
        xi_KK = self.others / max(K - 1, 1) * (-apart_KK / self.sigma).exp()
        xi_KK = xi_KK.fill_diagonal_(0)
        return xi_KK + torch.diag(1 - xi_KK.sum(1))

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        return w | {n: u[k] for n, u in s["u"].items()}, {}
