"""unskew (this package's default): balanced softmax, FedDyn and FedRDN, and a prior for each client's test.

Client: CE(z + log s_k, y),    s_k = (1 - eps) p_k + eps a / C
        p_k: the client's label shares (ReBaFL's relaxed prior)
        a: the share of clients with samples that answered the last round, 1 in the first
        and FedDyn's terms and merge, with alpha; gradients have a norm of at most `clip`
Inputs: FedRDN: every time an image is drawn, it is normalised with the statistics of a random
        client
Test:   the global model is used unchanged; a client's own score is that of
        z + log q_k,    q_kc = (n_kc + prior / C) / (n_k + prior)
Only images are normalised: samples of shape [channels, H, W], or the images among several inputs.
                            Samples with masks have no label shares; for them only FedDyn and FedRDN
                            apply. A head without a bias, or one that two layers share, has no prior
                            for each client.
FedDyn's server adds up the changes of all rounds, and local steps alone wear the sum down, by about a share
of lr S alpha in a round of S steps. Where that is small, the server takes long steps with hardly any
damping, and weights can grow until local training diverges, as with 20 colour images a client. `clip` ends
that; FedDyn's official code has it, too.
Differs from the paper: it has none; the pieces are those of their own pages, with FedRDN's variant "paper".
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Share, Tensor, Tree, Trip, Ups, Weights
from unskew.formats.setting_ranges import Fraction, Positive
from unskew.methods.bsm import conflicts_of_prior
from unskew.methods.clip_gradients import ClipGradients
from unskew.methods.feddyn import FedDyn
from unskew.methods.fedrdn import FedRDN
from unskew.methods.shared import sample_images
from unskew.methods.shared.declarations import before_training

_INPUTS = FedRDN()
_TWICE = "it has the same correction in it"


@dataclass(frozen=True)
class Unskew(FedDyn):
    """Corrects for label skew, drift and feature skew with settings that need no tuning; adds class counts at
    test time."""

    alpha: Annotated[
        float,
        Ge(1e-12),
        Le(1_000_000),
        "strength of FedDyn's regulariser; large values diverge with many local steps",
    ] = 0.1
    eps: Annotated[
        Fraction,
        "smoothing of the label shares in training, less where clients are absent; "
        "1 is plain cross-entropy, 0 the balanced softmax",
    ] = 0.3
    prior: Annotated[
        float,
        Ge(1e-6),
        Le(1_000_000),
        "samples, spread evenly over the classes, that a client's own label shares begin with",
    ] = 1.0
    statistics: Annotated[
        bool, "normalise images with the statistics of clients drawn at random (FedRDN)"
    ] = True
    clip: Annotated[Positive, "the largest norm of a gradient, over all weights together"] = 10.0
    name = "unskew"
    plain_loss = True
    family = "classifier"
    against = ("labels", "features")
    use_when = (
        "First choice: one default for label skew, feature skew, few samples and absent clients, without"
        " tuning."
    )
    personal = True
    clashes = {**conflicts_of_prior(name), **dict.fromkeys(("fedrs", "feddyn", "fedrdn", "norm"), _TWICE)}

    @property
    def by_input(self) -> Literal["", "images"]:  # type: ignore[override]
        """Scales images among several inputs, which a simulation standardises otherwise."""
        return "images" if self.statistics else ""

    def _normalises(self, fed: Fed) -> bool:
        looked_up = (
            fed.net.embeds and not fed.net.layout
        )  # among several inputs only what is no image is looked up
        return self.statistics and bool(sample_images.image_shapes(fed)) and not looked_up

    @property
    def trips(self) -> tuple[Trip, ...]:
        if not self.statistics:
            return ()
        return before_training(self.measure, self.collect, self.measured)

    def measured(self, fed: Fed) -> dict[str, Share]:
        return _INPUTS.statistics(fed) if self._normalises(fed) else {}

    def measure(self, w: Weights, c: Client) -> Tree:
        return _INPUTS.measure(w, c) if self._normalises(c.fed) else {}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        return w, (s | _INPUTS.collect(w, s, ups, fed)[1] if self._normalises(fed) else s)

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        of_inputs = _INPUTS.server_init(w, fed) if self._normalises(fed) else {}
        return super().server_init(w, fed) | of_inputs | {"answered": torch.tensor(1.0)}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return _INPUTS.noise(fed, down) if self._normalises(fed) else {}

    def batch(self, b: Batch, c: Client) -> Batch:
        return _INPUTS.batch(b, c) if self._normalises(c.fed) else b

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        return _INPUTS.evaluate_with(x, c) if self._normalises(c.fed) else x

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        if c.fed.task.name != "classification":
            return z
        # The answers of all clients balance each other; those of few do not, and then each loss has to make
        # up for more.
        # The shares need not sum to 1: a factor common to all classes changes no cross-entropy.
        return z + ((1 - self.eps) * c.counts / c.n + self.eps * c.down["answered"] / c.fed.classes).log()

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return ClipGradients(self.clip).grad(g, w, c)

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        merged, of_feddyn = super().merge(w, s, ups, fed)
        answered = torch.tensor(len(ups) / np.count_nonzero(fed.sizes), dtype=torch.float32)
        return merged, s | of_feddyn | {"answered": answered}

    def personalise(self, w: Weights, c: Client) -> Weights:
        bias = f"{c.net.head}.bias"
        if c.fed.task.name != "classification" or bias not in w:
            return w
        share_C = (c.counts + self.prior / c.fed.classes) / (c.n + self.prior)
        return w | {bias: w[bias] + share_C.log()}
