"""FedDPMS (Chen & Vikalo, CVPRW 2023, arXiv 2206.00686): images of missing classes from noisy latent means.

Model:    ... base -> latent: mu = sigmoid(W h + b) in [0, 1]^l -> head
          with a layer of log s^2 (linear in h) and a decoder
Stage I   (t <= T_p):  CE + lam (KL(N(mu, s^2) || N(0, I)) / l + |decode(mu + s e) - x|^2)
          decoders stay local
At T_p    clients send their decoders; w_d is their mean
Share     (T_p <= t < T, each client once): for each of its n largest classes c,
          with m_c the mean of mu over its samples by the merged encoder (`encoder="own"`: the
          client's own, as it has just trained it),
          "paper": alpha vectors m_c + N(0, sigma^2) with decoded images that the classifier
              assigns to c (200 batches at most)
          "single": m_c + N(0, sigma^2 / alpha) once; receivers add N(0, spread^2) and filter
              by the global model
Lack      (t = T_p): every client says of which n classes it has fewest samples
Match     R_i = the client j != i with the most shared classes among those that i lacks, of all
          that have shared when i first trains in stage II; the lowest id of several
Stage II  (t > T_p): CE on real and synthetic images w_d(Z_{R_i}); each sample is synthetic with
          probability |synthetic| / (n_i + |synthetic|), so that an epoch keeps its length
Differs from the paper: clients share after the last round of stage I and after their first round of stage II,
not before it, so a match is among those that shared up to the round before; means and filter are those of the
merged encoder and classifier unless `encoder="own"`; clients weigh by their real samples; the number of
synthetic samples in an epoch is binomial (paper: a draw without replacement); the head reads mu, not a drawn
z. Pixel errors are summed and KL is averaged, as in the public code, which has cross-entropy of pixels in
place of squares; the decoder has no batch normalisation. The matching is reconstructed from the text. The
public code has linear mu, one scalar for a mean, and shares once for all, after stage I.
Encoder: the paper argues for the client's own encoder and classifier. The default is the merged ones, which
receivers train and the mean decoder belongs to, and with which clients keep no copy of the model.
Privacy: what "paper" releases has passed a filter that saw the data, so no figure is guaranteed. The figures
of "single" hold given the encoder, the class sizes and the class lists: adding or removing a record can
change which classes are shared, and so the shape of the release. Encoder, weights, sizes and lists are not
protected, so the end-to-end epsilon is infinite. See `account`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from unskew.core import (
    Batch,
    Client,
    Fed,
    Noise,
    Out,
    Part,
    Share,
    Tree,
    Trip,
    Ups,
    Weights,
    add_noise,
    key,
    under,
)
from unskew.core.modules import with_latent
from unskew.core.network import Network
from unskew.core.part import model_names
from unskew.core.privacy_account import Account
from unskew.formats.arguments import With
from unskew.methods.shared import sample_images
from unskew.methods.shared.declarations import class_marks
from unskew.methods.shared.sample_images import decode
from unskew.privacy.accounting import LatentRelease

ATTEMPTS = 200
"""The most batches of vectors that are drawn until the filter has passed enough."""

Classify = Callable[[Tensor], Tensor]
"""The predicted class of each latent after decoding: [N, L] -> [N]."""


def noisy_copies(mean_L: Tensor, sigma: float, count: int, generator: torch.Generator) -> Tensor:
    """The mean with normal noise of standard deviation sigma, [count, L]."""
    return mean_L + sigma * torch.randn(count, len(mean_L), generator=generator).to(mean_L.device)


def filter_copies(
    mean_L: Tensor, label: int, sigma: float, count: int, classify: Classify, generator: torch.Generator
) -> Tensor:
    """Noisy copies of a mean that are classified as its class, [at most count, L]."""
    passed: list[Tensor] = []
    total = 0
    for _ in range(ATTEMPTS):
        z_NL = noisy_copies(mean_L, sigma, count, generator)
        passed.append(z_NL[classify(z_NL) == label])
        total += len(passed[-1])
        if total >= count:
            break
    return torch.cat(passed)[:count]


def multiply_means(
    means: Tensor, labels: Tensor, spread: float, count: int, classify: Classify, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """For each noisy mean up to `count` vectors that are classified as its class, or the mean itself: ([N,
    L], [N])."""
    vectors: list[Tensor] = []
    names: list[int] = []
    for mean_L, label in zip(means, labels.tolist()):
        near_NL = noisy_copies(mean_L, spread, 4 * count, generator)
        right_NL = near_NL[classify(near_NL) == label]
        vectors.append(right_NL[:count] if len(right_NL) else mean_L[None])
        names += [label] * len(vectors[-1])
    return torch.cat(vectors), torch.tensor(names, dtype=torch.int64, device=means.device)


def match_client(i: int, lacks_KC: Tensor, classes_KC: Tensor) -> int:
    """The client with the most shared classes among those that client i lacks; the lowest id of several, -1
    for none.

    lacks, classes: 1 where a client has few samples of a class, and where it shares the class.
    """
    meets_K = classes_KC @ lacks_KC[i]
    meets_K[i] = 0
    return int(meets_K.argmax()) if meets_K.max() > 0 else -1


@dataclass(frozen=True)
class FedDPMS(Part):
    """Shares noisy means of latents, from which clients draw images of the classes they lack."""

    lam: Annotated[float, Ge(0), Le(1_000_000), "weight of the autoencoder's loss in stage I"] = 0.05
    stage: Annotated[float, Gt(0), Lt(1), "share of the rounds that are stage I"] = 0.4
    width: Annotated[int, Ge(1), Le(65_536), "l, the coordinates of a latent"] = 32
    top: Annotated[
        int, Ge(1), Le(100_000), "n, the largest classes of a client, of which it shares means"
    ] = 3
    alpha: Annotated[int, Ge(1), Le(100_000), "latent vectors of each shared class"] = 200
    sigma: Annotated[
        float,
        Ge(1e-6),
        Le(1_000_000),
        "standard deviation of the noise on a mean with coordinates in [0, 1]",
    ] = 4.0
    least: Annotated[int, Ge(1), Le(1_000_000), "samples that a class needs to be shared"] = 2
    mechanism: Annotated[
        Literal["paper", "single"],
        "many noisy vectors past the client's filter, or one that receivers multiply",
    ] = "paper"
    spread: Annotated[
        float,
        Ge(0),
        Le(1_000_000),
        With("mechanism", "single"),
        'standard deviation of the noise receivers add, with `mechanism="single"`',
    ] = 0.25
    encoder: Annotated[
        Literal["merged", "own"],
        "compute means and filter with the merged model, or with the one that the client has just trained",
    ] = "merged"
    name = "feddpms"
    first_stage = "stage"
    family = "data"
    equal_samples = True
    against = ("labels",)
    use_when = "Clients lack classes, and may share noisy means of latents from which others draw images."
    untuned = {
        "sigma": "it is the noise on what leaves a client",
        "spread": "it belongs to the noise on what leaves a client",
    }
    tasks = ("classification",)
    needs = "class counts"
    normalises = True
    keeps_at_server = ("classes", "lacks", "begun")
    row_of = {"asked": "", "match": "", "z": "match", "label": "match", "count": "match"}
    clashes = {
        "fedrdn": "its decoder draws inputs in [0, 1]",
        "norm": "its decoder draws inputs in [0, 1]",
        "moon": "both put a layer of their own before the head",
        "local": "nothing would be shared",
        "fedfa": "its latent means are of features that are not shaken",
        "flea": "its decoder would draw the sample alone from the latent of FLea's mixture",
    }

    @property
    def taps(self) -> tuple[str, ...]:
        return ("base",)

    @property
    def rows(self) -> int:
        """Number of vectors of a client from which others draw."""
        return self.top * self.alpha

    def last_of_stage(self, rounds: int) -> int:
        """The last round T_p of stage I."""
        return sample_images.last_of_stage(self.stage, rounds)

    def refuse(self, fed: Fed) -> str | None:
        if reason := sample_images.drawing_refusal(fed, "its decoder"):
            return reason
        return None if fed.classes > 1 else "with one class there is nothing to lack"

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        return with_latent(module, self.width)

    def weights(self, fed: Fed) -> Weights:
        """The layer of log s^2, named `var_...`, and the decoder, named `dec_...`."""
        if self.refuse(fed):
            return {}  # there is no decoder of such samples
        generator, inside = key(fed.seed, self.name, "weights"), math.prod(fed.net.shape_at("base"))
        variance = sample_images.uniform_weights(self.width, inside, fan=3 * inside, generator=generator)
        layer = {"var_w": variance, "var_b": torch.zeros(self.width)}
        return layer | sample_images.initial_decoder(fed.shape, self.width, generator)

    def keeps(self, name: str, fed: Fed) -> bool:
        return name.startswith(f"{self.name}.dec_")

    @property
    def trips(self) -> tuple[Trip, ...]:
        last, read = self.last_of_stage, ("asked",) if self.mechanism == "single" else ("asked", "decoder")
        return (
            Trip(
                lambda t, T: t == last(T),
                self.send_decoder,  # which stays at the client until then
                self.merge_decoders,
                self.decoders,
                weights=False,
                reads=(),
            ),
            Trip(
                lambda t, T: t == last(T) < T,
                self.send_lacks,
                self.note_lacks,
                self.lacks,
                everyone=True,
                weights=False,
                reads=(),
            ),
            Trip(
                lambda t, T: last(T) <= t < T,
                self.release,
                self.collect,
                self.releases,
                weights=self.encoder == "merged",
                reads=read,
            ),
        )

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        K, C = fed.clients, fed.classes
        return {
            "decoder": {n: torch.zeros_like(t) for n, t in _decoder_of(w, self.name).items()},
            "z": torch.zeros(K, self.rows, self.width),
            "label": torch.zeros(K, self.rows, dtype=torch.int64),
            "count": torch.zeros(K),
            "asked": torch.zeros(K),
            "match": torch.full((K,), -1, dtype=torch.int64),
            "begun": torch.zeros(K),
            "classes": torch.zeros(K, C),
            "lacks": torch.zeros(K, C),
        }

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return self._trained(w, fed.net)

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, self._trained(w, c.net)

    def _trained(self, w: Weights, net: Network) -> Tree:
        """What a client keeps of its model for the release."""
        return {"w": {n: w[n] for n in model_names(net)}} if self.encoder == "own" else {}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        drawn = {"e": Noise("normal", shape=(self.width,))}
        if (down["match"] >= 0).any():
            drawn |= {"turn": Noise("uniform"), "row": Noise("uniform")}
        return drawn

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if c.t > self.last_of_stage(c.fed.rounds):
            return 0.0
        own, mu = under(w, self.name), out.features
        log_var = F.linear(out.before["base"].flatten(1), own["var_w"], own["var_b"]).clamp(-10, 10)
        drawn = decode(own, mu + (log_var / 2).exp() * c.noise["e"], c.fed.shape)
        far_B = (drawn - b.x).pow(2).flatten(1).sum(1)
        return self.lam * b.mean(divergence(mu, log_var) / self.width + far_B)

    def begin(self, w: Weights, c: Client) -> Tree:
        """The client's synthetic images, drawn from the same latents in every round."""
        if c.t <= self.last_of_stage(c.fed.rounds):
            return {}
        match = c.down["match"][c.id]
        z, label = c.down["z"][match.clamp(min=0)], c.down["label"][match.clamp(min=0)]
        count = c.down["count"][match.clamp(min=0)] * (match >= 0)
        return {"x": decode(c.down["decoder"], z, c.fed.shape), "label": label, "count": count}

    def batch(self, b: Batch, c: Client) -> Batch:
        if "turn" not in c.noise or not c.round:
            return b
        count = c.round["count"]
        synthetic_B = c.noise["turn"] < count / (c.n + count)
        row_B = (c.noise["row"] * count).long().clamp(max=len(c.round["label"]) - 1)
        y_BC = F.one_hot(c.round["label"][row_B], c.fed.classes).to(b.y.dtype)
        x = torch.where(synthetic_B[:, None, None, None], c.round["x"][row_B], b.x)
        return b.replace(x=x, y=torch.where(synthetic_B[:, None], y_BC, b.y))

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor]:
        """The latents of all clients, decoded."""
        sharers = [k for k in range(fed.clients) if down["count"][k] > 0]
        rows = [slice(int(down["count"][k])) for k in sharers]
        z = torch.cat([down["z"][k, r] for k, r in zip(sharers, rows)] or [down["z"][0, :0]])
        label = torch.cat([down["label"][k, r] for k, r in zip(sharers, rows)] or [down["label"][0, :0]])
        return torch.cat([decode(down["decoder"], part, fed.shape) for part in z.split(256)]), label

    def decoders(self, fed: Fed) -> dict[str, Share]:
        own = _decoder_of(fed.net.weights(), self.name)
        return {
            f"decoder/{n}": Share(
                tuple(t.shape), what="the decoder's weights", kind="weights", samples="client"
            )
            for n, t in own.items()
        }

    def send_decoder(self, w: Weights, c: Client) -> Tree:
        return {"decoder": _decoder_of(w, self.name)}

    def merge_decoders(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        if not len(ups):
            return w, s
        share = torch.tensor(ups.shares_of_weight(), dtype=torch.float32)
        mean = {n: torch.einsum("k,k...->...", share.to(t.device), t) for n, t in ups["decoder"].items()}
        return w, s | {"decoder": mean}

    def lacks(self, fed: Fed) -> dict[str, Share]:
        return {"lacks": class_marks(fed, "which classes it has least of")}

    def send_lacks(self, w: Weights, c: Client) -> Tree:
        fewest = c.counts.argsort(stable=True)[: self.top]
        return {"lacks": torch.zeros(c.fed.classes, device=fewest.device).scatter(0, fewest, 1.0)}

    def note_lacks(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        lacks_KC = s["lacks"].clone()
        for k, reply in zip(ups.clients.tolist(), ups.replies):
            lacks_KC[k] = reply.shares[self.name]["lacks"]
        return w, s | {"lacks": lacks_KC}

    def releases(self, fed: Fed) -> dict[str, Share]:
        kind, rows = ("dp", self.top) if self.mechanism == "single" else ("none", self.rows)
        what = "noisy latent means" + (
            " (dp only given the encoder, class sizes and lists)" if kind == "dp" else ""
        )
        z = Share(
            (None, self.width),
            rows=rows,
            guarantee=kind,
            reads="each",
            what=what,
            kind="sums",
            samples="class",
        )
        return {
            "z": z,
            "labels": replace(
                z,
                shape=(None,),
                dtype=torch.int64,
                low=0,
                high=fed.classes - 1,
                guarantee="none",
                what="their classes",
                kind="statistics",
            ),
            "classes": class_marks(fed, "which classes it shares"),
        } | self.lacks(fed)

    def release(self, w: Weights, c: Client) -> Tree:
        """Noisy means of the client's largest classes at the first call; later, or without samples, no
        rows."""
        device, C, w = c.counts.device, c.fed.classes, w | c.mine.get("w", {})
        order = c.counts.argsort(descending=True, stable=True)
        top = [k for k in order[: self.top].tolist() if c.counts[k] >= self.least]
        z = [torch.zeros(0, self.width, device=device)]
        labels: list[int] = []
        if c.down["asked"][c.id] == 0:
            means_CL, n_C = c.class_sums(w)
            generator = key(c.fed.seed, self.name, "release", int(c.id))
            for k in top:
                rows = self._noisy((means_CL[k] / n_C[k]).clamp(0, 1), k, w, c, generator)
                z.append(rows)
                labels += [k] * len(rows)
        shared = torch.zeros(C)
        shared[labels] = 1.0
        return {
            "z": torch.cat(z),
            "labels": torch.tensor(labels, dtype=torch.int64, device=device),
            "classes": shared.to(device),
        } | self.send_lacks(w, c)

    def _noisy(self, mean_L: Tensor, label: int, w: Weights, c: Client, generator: torch.Generator) -> Tensor:
        if self.mechanism == "single":
            drawn_NL = torch.randn(1, len(mean_L), dtype=torch.float64, generator=generator)
            return add_noise(mean_L, self.sigma / math.sqrt(self.alpha), drawn_NL).to(mean_L.dtype)

        def classify(z_NL: Tensor) -> Tensor:
            return c.run(w, decode(c.down["decoder"], z_NL, c.fed.shape)).argmax(-1)

        return filter_copies(mean_L, label, self.sigma, self.alpha, classify, generator)

    def collect(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """Stores the received latents in their clients' rows, then matches all clients that have not trained
        with a match yet."""
        s = {n: t.clone() if isinstance(t, Tensor) else t for n, t in s.items()}
        for k, reply in zip(ups.clients.tolist(), ups.replies):
            sent = reply.shares[self.name]
            s["asked"][k] = 1.0
            s["begun"][k] = float(s["match"][k] >= 0)
            s["lacks"][k] = sent["lacks"]
            if len(sent["z"]):
                z, labels = self._rows_of(k, sent, w, s, fed)
                s["z"][k, : len(z)], s["label"][k, : len(z)], s["count"][k] = z, labels, len(z)
                s["classes"][k] = sent["classes"]
        for i in torch.nonzero((s["begun"] == 0) & (s["lacks"].sum(1) > 0)).flatten().tolist():
            s["match"][i] = match_client(i, s["lacks"], s["classes"])
        return w, s

    def _rows_of(self, k: int, sent: Tree, w: Weights, s: Tree, fed: Fed) -> tuple[Tensor, Tensor]:
        """The latents from which others will draw, and their classes: as received, or multiplied by the
        server."""
        if self.mechanism == "paper":
            return sent["z"], sent["labels"]

        def classify(z_NL: Tensor) -> Tensor:
            with torch.no_grad():
                return fed.net.run(w, decode(s["decoder"], z_NL, fed.shape))[0].argmax(-1)

        generator = key(fed.seed, self.name, "spread", k)
        z, labels = multiply_means(sent["z"], sent["labels"], self.spread, self.alpha, classify, generator)
        return z[: self.rows], labels[: self.rows]

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account:
        """The accounting by client and class, and for the smallest shared class; `privacy/accounting.py`
        explains the readings."""
        filtered = self.mechanism == "paper"
        return LatentRelease(self.width, self.sigma, self.alpha, self.top, self.least, filtered).account(
            counts_KC
        )


def divergence(mu_BL: Tensor, log_var_BL: Tensor) -> Tensor:
    """KL(N(mu, s^2) || N(0, I)) of each sample in nats, summed over coordinates; [B]."""
    return 0.5 * (log_var_BL.exp() + mu_BL.pow(2) - 1 - log_var_BL).sum(-1)


def _decoder_of(w: Weights, name: str) -> Weights:
    return {n: t for n, t in under(w, name).items() if n.startswith("dec_")}
