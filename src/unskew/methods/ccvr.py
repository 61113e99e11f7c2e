"""CCVR (Luo et al., NeurIPS 2021, arXiv 2106.05001): the head is trained again at the end, on drawn features.

Up:     once, from every client and for each class: the number of samples N_kc, the mean m_kc and
        the unbiased covariance V_kc of features (0 for N_kc = 1)
Server: m_c = sum_k N_kc m_kc / N_c
        V_c = sum_k [(N_kc - 1) V_kc + N_kc m_kc m_kc^T] / (N_c - 1) - N_c / (N_c - 1) m_c m_c^T
        draws `each` features of each class from N(m_c, V_c) and trains the head on them
        the body does not change
With `mode="features"`, as in FLea's comparison, clients send the features of a tenth of their samples
instead.
Differs from the paper: it tunes `each` and the head's training for each data set; our defaults are fixed. A
class without samples keeps its row of the head; with `dpsgd`, so does a class with a count that cannot be
distinguished from noise.
Defaults: 200 features of a class, as in FL-bench; ten passes and momentum 0.9, as in Fed-CCVR, which draws
2,000 and has a rate of 0.001; a tenth of the samples, as in FLea's comparison.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Part, Share, Tensor, Tree, Trip, Ups, Weights, key
from unskew.formats.arguments import With
from unskew.formats.setting_ranges import BelowOne, Count, PositiveFraction, Rate
from unskew.methods.fedavg_ft import HeadTraining, train_head
from unskew.methods.shared.declarations import class_counts, class_features, row_labels


@dataclass(frozen=True)
class CCVR(Part):
    """Trains the head again, once at the end, on features drawn from the distribution of every class."""

    mode: Annotated[
        Literal["gaussian", "features"],
        "what clients send: means and covariances, or real features of some samples",
    ] = "gaussian"
    each: Annotated[
        int,
        Ge(1),
        Le(100_000),
        With("mode", "gaussian"),
        'features drawn of each class, with `mode="gaussian"`',
    ] = 200
    share: Annotated[
        PositiveFraction,
        With("mode", "features"),
        'share of a client\'s samples, at least one, with `mode="features"`',
    ] = 0.1
    epochs: Annotated[int, Ge(0), Le(10_000), "passes over the features that train the head"] = 10
    batch_size: Annotated[Count, "features in a step"] = 64
    lr: Annotated[Rate, "learning rate of SGD"] = 0.01
    momentum: Annotated[BelowOne, "momentum of SGD"] = 0.9
    name = "ccvr"
    family = "classifier"
    equal_samples = True
    against = ("labels",)
    use_when = (
        "After any run with label skew: one further exchange trains the head again, which the clients biased."
    )
    untuned = {"share": "it decides how much leaves a client"}
    tasks = ("classification",)
    needs = "means of features by class"
    clashes = {"local": "no head is common to the clients"}

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True) or fed.nothing_common(head=True)

    @property
    def trips(self) -> tuple[Trip, ...]:
        if self.mode == "features":
            return (Trip(lambda t, T: t == T, self.some, self.from_features, self.features, everyone=True),)
        return (
            Trip(
                lambda t, T: t == T, self.moments, self.from_moments, self.statistics, everyone=True, sums=2
            ),
        )

    def statistics(self, fed: Fed) -> dict[str, Share]:
        C, D = fed.classes, fed.features
        what = "covariance of features per class"
        return {
            "n": class_counts(fed, "each"),
            "mean": class_features(fed, "mean feature per class", "each"),
            "cov": Share((C, D, D), reads="each", what=what, kind="statistics", samples="class"),
        }

    def moments(self, w: Weights, c: Client) -> Tree:
        sums_CD, n_C = c.class_sums(w)
        mean_CD = sums_CD / n_C.clamp(min=1)[:, None]

        def scatter(b: Batch) -> dict[str, Tensor]:
            centred_BD, y_BC = c.features(w, b.x) - b.y @ mean_CD, b.y * b.weight[:, None]
            return {"S": torch.stack([(centred_BD * y_B[:, None]).T @ centred_BD for y_B in y_BC.T])}

        return {
            "n": n_C,
            "mean": mean_CD,
            "cov": c.total(scatter)["S"] / (n_C - 1).clamp(min=1)[:, None, None],
        }

    def from_moments(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if not len(ups):
            return w, s
        n_C, mean_CD, cov_CDD = pool_statistics(ups["n"], ups["mean"], ups["cov"])
        generator, h, y = key(fed.seed, self.name, "draw"), [], []
        for k in torch.nonzero(n_C).flatten().tolist():
            h.append(draw(mean_CD[k], cov_CDD[k], self.each, generator))
            y += [k] * self.each
        if not h:  # with noisy counts there may be no known class
            return w, s
        return self._retrained(w, torch.cat(h).to(mean_CD.device, mean_CD.dtype), torch.tensor(y), fed), s

    def features(self, fed: Fed) -> dict[str, Share]:
        rows, kind = max(1, int(self.share * int(fed.sizes.max()))), fed.kind_at("features", "features")
        return {
            "h": Share((None, fed.features), rows=rows, reads="each", what="features", kind=kind),
            "labels": row_labels(fed, rows, "their labels"),
        }

    def some(self, w: Weights, c: Client) -> Tree:
        b = c.sample(max(1, int(self.share * int(c.n))), self.name)
        return {"h": c.features(w, b.x), "labels": b.y.argmax(1)}

    def from_features(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if not len(ups):
            return w, s
        return self._retrained(w, torch.cat(tuple(ups["h"])), torch.cat(tuple(ups["labels"])), fed), s

    def _retrained(self, w: Weights, h_ND: Tensor, y_N: Tensor, fed: Fed) -> Weights:
        training = HeadTraining(self.epochs, self.batch_size, self.lr, self.momentum)
        y_NC = fed.task.targets(y_N.to(h_ND.device), fed.classes).to(h_ND.dtype)
        return w | train_head(w, h_ND, y_NC, fed, training, key(fed.seed, self.name, "batches"))


def pool_statistics(n_KC: Tensor, mean_KCD: Tensor, cov_KCDD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pools the clients' statistics by class: (N [C], mean [C, D], covariance [C, D, D]) over all samples."""
    n, m = n_KC.double(), mean_KCD.double()
    N = n.sum(0)
    mean = (n[..., None] * m).sum(0) / N.clamp(min=1)[:, None]
    second = torch.einsum("kc,kcd,kce->cde", n, m, m)
    for n_C, V_CDD in zip(n, cov_KCDD):  # one client at a time: the sum of all may not fit twice
        second += (n_C - 1).clamp(min=0)[:, None, None] * V_CDD.double()
    centre = N[:, None, None] * torch.einsum("cd,ce->cde", mean, mean)
    cov = (second - centre) / (N - 1).clamp(min=1)[:, None, None]
    return N, mean.to(mean_KCD.dtype), cov.to(cov_KCDD.dtype)


def draw(mean_D: Tensor, cov_DD: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws from a normal law with a covariance that may be singular; float64 [count, D]."""
    values, vectors = torch.linalg.eigh(cov_DD.double().cpu())
    root = vectors * values.clamp(min=0).sqrt()
    return (
        mean_D.double().cpu()
        + torch.randn(count, len(mean_D), generator=generator, dtype=torch.float64) @ root.T
    )
