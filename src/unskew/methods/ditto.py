"""Ditto (Li, Hu, Beirami & Smith, ICML 2021, arXiv 2012.04221, algorithm 1): personal models near the global.

Client: w descends the loss as in FedAvg and is sent
        v_k descends  CE(v_k; x, y) + (lam/2) ||v_k - w_t||^2  and stays with the client
Test:   a client's own score is that of v_k; all others are the global model's, which Ditto does not
        change
Differs from the paper: v_k and w take their steps at the same time, on the same batches and with the same
optimiser, as in its code; the paper gives v_k its own number of steps and step size. Clients are weighted by
size; its code samples them with probabilities by size and weighs them equally. v_k trains on inputs as they
enter the model, without the changes of other Parts to logits, loss or gradients.
Defaults: lam is that of the authors' commands for Fashion-MNIST and Vehicle.
"""

from dataclasses import dataclass
from typing import Annotated

from unskew.core import Batch, Client, Out, OwnModel, Tensor, Weights
from unskew.formats.setting_ranges import NonNegative


@dataclass(frozen=True)
class Ditto(OwnModel):
    """Trains a personal model of each client, which is pulled towards the global model."""

    lam: Annotated[NonNegative, "pull of a client's own model towards the received one; 0: none"] = 1.0
    name = "ditto"
    family = "personalised"
    against = ("labels",)
    use_when = (
        "Each client wants a personal model and the global model must not get worse; costs a second model."
    )
    neutral = {"lam": 1.0}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor:
        v = self.own(w)
        own = out.own.mean(c.fed.task.loss(c.run_training(v, out.own.x), out.own.y))
        return own + self.lam / 2 * sum((v[n] - c.start[n].detach()).pow(2).sum() for n in c.net.trainable)
