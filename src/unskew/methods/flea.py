"""FLea (Xia et al., KDD 2024, arXiv 2312.02327): clients share activations and train on mixtures with them.

At the cut, the batch x has activations f. With a batch (fF, yF) from the buffer of last round's clients and
beta ~ Beta(a, a) for each sample,
    f~ = beta f + (1 - beta) fF,   y~ = beta y + (1 - beta) yF
    L = CE(z(f~), y~) + lambda1 KL(p(f~) || p_t(f~)) + lambda2 dcor(x, f)^2      (Eq. 3-5, 8)
    z: logits from the cut on;   p: their softmax
    p_t: the softmax of the received model, in evaluation mode and without gradient
    dcor: distance correlation of the batch's inputs and activations, which training lowers
Above the cut only the mixture passes in training mode, so only it updates running statistics there. After the
merge the round's clients send (f, y) of a fixed tenth of their samples, at least one, under the new model;
with `fused` they send them with their update, under the model that the round began with. If a sample has
several inputs, dcor(x, f)^2 is the mean over the inputs x; two different words or codes that a model looks up
have distance 1, regardless of their numbers. With an empty buffer (round 1) there is no mixture, and the
other two terms do not change.
Differs from the paper: Eq. 5 prints nu(x, f) where Eq. 8 has nu(x, x) nu(f, f), nu being distance covariance;
Eq. 8 is meant. A client with fewer than ten samples still shares one.
`variant="official"` takes the steps of the public code:
    L = CE(z(f)) + CE(z(f~), y~) + lambda1 KL(p_t(fF) || p(fF)) + lambda2 dcor(x, f)
All passes but p_t are in training mode: layers up to the cut update their running statistics by the batch
twice, those after it by the batch, the mixture and the buffer's activations in turn. lambda2 falls by `fall`
in each round down to 1, which it reaches in round 21. In round 1 (an empty buffer):
    L = CE(z(f)) + 0.5 lambda1 KL(p_t(x) || p(x)) + lambda2 dcor(x, f)
The tenth is drawn with replacement, and may be empty. Other properties of the code are settings of a run:
`optimiser=sign`, `lr_min` and `lr_rounds`, and `first_epochs`, three times `epochs`; the experiment
flea-official-har has them. Unlike the code it takes ceil(n / B) steps in an epoch (code: floor(n / B) + 1),
draws the buffer's rows with replacement if there are fewer than in a batch (code: cuts the batch to their
number), adds no 1e-7 under the roots of dcor, and drops out the same units in all passes of a step.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from unskew.core import (
    Batch,
    Client,
    Fed,
    Noise,
    Out,
    Part,
    Share,
    Tensor,
    Tree,
    Trip,
    Ups,
    Weights,
    each_input,
)
from unskew.formats.setting_ranges import Fraction, NonNegative
from unskew.methods.shared.declarations import row_labels


@dataclass(frozen=True)
class FLea(Part):
    """Shares activations of some samples and trains on mixtures with other clients' activations."""

    alpha: Annotated[
        Fraction, "share of a client's samples for which activations are sent, at least one sample; 0: none"
    ] = 0.1
    lambda1: Annotated[NonNegative, "weight of the distillation from the received model"] = 1.0
    lambda2: Annotated[NonNegative, "weight of the distance correlation between inputs and activations"] = 3.0
    a: Annotated[
        float, Ge(0.01), Le(10_000), "parameter of Beta(a, a), from which mixing weights are drawn"
    ] = 2.0
    cut: Annotated[
        str,
        'block whose output is shared ("cut": the one the model names, or the first where several inputs'
        " meet)",
    ] = "cut"
    variant: Annotated[Literal["paper", "official"], "the paper's loss, or the public code's"] = "paper"
    fall: Annotated[NonNegative, "with variant=official: what lambda2 loses a round, down to 1"] = 0.1
    fused: Annotated[
        bool,
        "send activations of the model the round began with, together with the update: one exchange a round,"
        " not two",
    ] = False
    name = "flea"
    read_by_row = ("features", "labels")
    family = "data"
    equal_samples = True
    against = ("labels", "scarcity")
    use_when = (
        "Clients hold few samples of few classes, and may share obfuscated activations of a tenth of them."
    )
    untuned = {
        "alpha": "it decides how much leaves a client",
        "lambda2": "it hides inputs in the activations that leave a client",
        "fall": "it belongs to lambda2",
    }
    tasks = ("classification",)
    needs = "labels that mix as shares of classes"

    def refuse(self, fed: Fed) -> str | None:
        if by := fed.net.stops_at(fed.net.check_cut(self.cut)):
            return f"it mixes samples at '{fed.net.check_cut(self.cut)}', and {by}"
        if self.variant == "official" and fed.net.norms and not fed.net.skips_to_cuts:
            return (
                "with variant=official the layers after the cut train on their own; the model must be an"
                " nn.Sequential"
            )
        return None

    def paced(self, whole: int, rounds: int) -> Self:
        return (
            replace(self, fall=self.fall * (whole - 1) / (rounds - 1)) if self.variant == "official" else self
        )

    @property
    def taps(self) -> tuple[str, ...]:
        return (self.cut,)

    @property
    def trips(self) -> tuple[Trip, ...]:
        if not self.alpha:
            return ()
        after_merge = Trip(
            lambda t, T: 0 < t < T, self.extract, self.collect, self.trip_shares, early=self.fused, reads=()
        )
        return (after_merge,)

    def trip_shares(self, fed: Fed) -> dict[str, Share]:
        rows = max(1, int(self.alpha * int(fed.sizes.max())))
        shape, what = (None, *fed.net.shape_at(self.cut)), "activations at the cut"
        kind = fed.kind_at(self.cut, "features")
        guarantee = "none" if kind == "inputs" else "empirical"
        return {
            "features": Share(shape, rows=rows, guarantee=guarantee, reads="each", what=what, kind=kind),
            "labels": row_labels(fed, rows, "their labels, in clear"),
        }

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        empty = torch.zeros(0, *fed.net.shape_at(self.cut))
        return {"features": empty, "labels": torch.zeros(0, dtype=torch.int64)}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        if not len(down["labels"]):
            return {}
        return {"row": Noise("cycle", (len(down["labels"]),)), "beta": Noise("beta", (self.a, self.a))}

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        if cut != c.cut(self.cut) or not len(c.down["labels"]) or self.variant == "official":
            return h, b
        return self._mixture(h, b, c)

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        cut = c.cut(self.cut)
        if self.variant == "official":
            return self._official(w, out, b, c, cut)
        teacher_BC = c.run(c.start, out.after[cut], since=cut).detach()
        distil = self.lambda1 * b.mean(kl(out.raw, teacher_BC)) if self.lambda1 else 0.0
        return distil + (self.lambda2 * self._dependence(b, out.before[cut], c) if self.lambda2 else 0.0)

    def _mixture(self, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        """Activations and labels, mixed with this step's rows of the buffer."""
        y_BC = F.one_hot(c.down["labels"][c.noise["row"]], c.fed.classes).to(b.y.dtype)
        return mix(h, b, c.down["features"][c.noise["row"]], y_BC, c.noise["beta"])

    def _dependence(self, b: Batch, h: Tensor, c: Client) -> Tensor:
        """The batch's dcor(x, f)^2; with several inputs the mean over them, so that large inputs do not
        dominate."""
        by_input = [
            squared_distance_correlation(x, h, b.weight, kinds) for x, kinds in each_input(c.net, b.x)
        ]
        return torch.stack(by_input).mean()

    def _official(self, w: Weights, out: Out, b: Batch, c: Client, cut: str) -> Tensor:
        """The terms that the public code adds to the cross-entropy of the batch, which is the step's own
        pass."""
        h = out.before[cut]
        if c.net.norms:  # the public code computes f in another pass; only running statistics notice
            with torch.no_grad():
                c.run_training(w, b.x, until=cut)
        lambda2 = max(1.0, self.lambda2 - self.fall * (c.t - 1))
        dependence = lambda2 * self._dependence(b, h, c).clamp(min=1e-12).sqrt()
        if not len(c.down["labels"]):
            teacher_BC = c.run(c.start, b.x).detach()
            return dependence + 0.5 * self.lambda1 * b.mean(kl(teacher_BC, out.raw))
        mixed_h, mixed_batch = self._mixture(h, b, c)
        on_mixture = b.mean(c.fed.task.loss(c.run_training(w, mixed_h, since=cut), mixed_batch.y))
        fF = c.down["features"][c.noise["row"]]
        local_BC, teacher_BC = c.run_training(w, fF, since=cut), c.run(c.start, fF, since=cut).detach()
        return on_mixture + dependence + self.lambda1 * b.mean(kl(teacher_BC, local_BC))

    def extract(self, w: Weights, c: Client) -> Tree:
        count = int(self.alpha * int(c.n))
        replace = self.variant == "official"
        b = c.sample(count if replace else max(1, count), "flea", replace=replace)
        return {"features": c.run(w, b.x, until=c.cut(self.cut)), "labels": b.y.argmax(1)}

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """Concatenates the received activations; the old buffer is dropped even if none arrive."""
        if not len(ups):
            return w, self.server_init(w, fed)
        return w, {"features": torch.cat(tuple(ups["features"])), "labels": torch.cat(tuple(ups["labels"]))}


def mix(h: Tensor, b: Batch, fF: Tensor, yF_BC: Tensor, beta_B: Tensor) -> tuple[Tensor, Batch]:
    """Mixes activations h and fF, both [B, ...], and their labels, with one weight for each sample."""
    beta = beta_B.reshape(-1, *[1] * (h.dim() - 1))
    return beta * h + (1 - beta) * fF, b.replace(y=beta_B[:, None] * b.y + (1 - beta_B[:, None]) * yF_BC)


def kl(p_logits_BC: Tensor, q_logits_BC: Tensor) -> Tensor:
    """KL(p || q) of the softmax of these logits, in nats, [B]."""
    log_p, log_q = p_logits_BC.log_softmax(-1), q_logits_BC.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def squared_distance_correlation(x: Tensor, f: Tensor, weight_B: Tensor, kinds: bool = False) -> Tensor:
    """Squared distance correlation (Szekely et al., 2007) of x and f over the samples of weight 1.

    kinds: x holds whole numbers that are codes; any two different codes have distance 1.

    The result is 0 with fewer than three samples or if x or f is constant, where it is undefined or always 1.
    """
    x_BD = x.flatten(1)
    differ_BB = (x_BD[:, None] != x_BD[None, :]).sum(-1).to(f.dtype).sqrt() if kinds else _distances(x_BD)
    A, B = _centred(differ_BB, weight_B), _centred(_distances(f.flatten(1)), weight_B)
    xf, xx, ff = (A * B).mean(), (A * A).mean(), (B * B).mean()
    spread = xx * ff
    defined = (spread > 0) & (weight_B.sum() > 2)
    return torch.where(defined, xf / torch.where(defined, spread, 1.0).sqrt(), 0.0)


def _distances(x_BD: Tensor) -> Tensor:
    """Euclidean distances of all pairs, [B, B]."""
    square = x_BD.pow(2).sum(1)
    squared_BB = square[:, None] + square[None, :] - 2 * x_BD @ x_BD.T
    distinct = (squared_BB > 1e-7 * (square[:, None] + square[None, :]).detach()) & ~torch.eye(
        len(x_BD), dtype=torch.bool, device=x_BD.device
    )  # duplicates: the square root has no gradient at 0
    return torch.where(distinct, torch.where(distinct, squared_BB, 1.0).sqrt(), 0.0)


def _centred(distance_BB: Tensor, weight_B: Tensor) -> Tensor:
    """Distances of all pairs, double-centred over the samples of weight 1, 0 elsewhere."""
    n = weight_B.sum().clamp(min=1)
    row_B = distance_BB @ weight_B / n
    grand_mean = row_B @ weight_B / n
    return (
        (distance_BB - row_B[:, None] - row_B[None, :] + grand_mean) * weight_B[:, None] * weight_B[None, :]
    )
