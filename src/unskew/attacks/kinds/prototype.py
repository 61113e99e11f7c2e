"""Prototype: images from the class prototypes of ReBaFL and FedProto (Xu et al., arXiv 2303.06314).

A client's prototype of class c is the mean of its features of c, sums_c / n_c, under the body phi that it has
trained, which the server has from its update. The adversary has samples of its own, on which it trains, for
each client,
    linear the best affine map from phi(x) to x, which needs few samples
    upcnn  a decoder g that minimises |g(phi(x)) - x|^2: dense, then upsampling convolutions
    vae    the same with a stochastic bottleneck, and KL / 1000 to a standard normal law
and applies them to the client's prototypes.
    grnn   no training set: an image G(e) from noise e, with G optimised for |phi(G(e)) - prototype|^2
Each answer is shrunk towards the class mean by the factor that is best for prototypes of as many of its own
samples, so an attacker that learns nothing answers with the class mean. An image is compared with the nearest
of the client's samples of the class. The floor is the mean of the adversary's own samples of the class, which
contains nothing about the client. If samples look different at each client (a feature skew, sites), the floor
is the mean of the client's own test samples of the class, or the client is not attacked. The attacked
prototypes are those of the last round; for each number in `behind`, further prototypes are computed from this
many samples of a client. These were not sent, so they do not represent the attack in tables, and there are
none with noise for every sample (dpsgd), which they would lack.
Differs from the paper: it names upcnn, vae and grnn without their architectures or a measure; both are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from unskew.attacks import decoders, success
from unskew.attacks.attack import Attack, Outcome, Score, mean_of
from unskew.attacks.auxiliary_samples import Samples, look_alikes, unseen
from unskew.attacks.decoders import TrainingSet
from unskew.attacks.kinds.reconstruct import class_means
from unskew.attacks.payloads import part_of
from unskew.attacks.target_run import TargetRun
from unskew.core.part import Part
from unskew.core.random_keys import digest, numpy_key
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.formats.setting_ranges import Count
from unskew.methods.fedproto import FedProto
from unskew.methods.rebafl import ReBaFL

READS = ("rebafl/sums", "fedproto/sums")

AS_SENT = "as sent"
TRIALS = 24
"""Prototypes of its own samples by which an attacker chooses the shrinkage."""


@dataclass(frozen=True)
class Prototypes:
    """Mean features of samples of one class at one client.

    of: a description. h: [N, D]. x: N times [n, *shape], the samples of each, in natural units. plain:
    [N, *shape], the mean of similar samples of the class. client: [N].
    """

    of: str
    h: Tensor
    x: list[Tensor]
    plain: Tensor
    client: Tensor


@dataclass(frozen=True)
class Victim:
    """A client under attack. training: the attacker's own samples under the client's model. attackers: the
    maps from prototypes [N, D] to samples in natural units, by name."""

    training: TrainingSet
    attackers: Mapping[str, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Prototype(Attack):
    """Turns class prototypes of clients into images."""

    samples: Annotated[Count, "the most prototypes of a kind that are attacked"] = 50
    behind: Annotated[
        tuple[Annotated[int, Ge(1), Le(1_000_000)], ...],
        "numbers of samples of which further prototypes are computed",
    ] = (1, 2, 10, 100)
    own: Annotated[int, Ge(50), Le(1_000_000), "the most samples of its own that the attacker trains on"] = (
        2000
    )
    steps: Annotated[Count, "steps that an attacker trains at most"] = 600
    clients: Annotated[int, Ge(1), Le(1000), "how many clients of the last round are attacked, drawn"] = 5
    name: ClassVar[str] = "prototype"
    asks: ClassVar[str] = "which images are behind it?"
    adversary: ClassVar[str] = "the server, which reads each client's update, sums and counts"
    quick: ClassVar[Mapping[str, object]] = {
        "samples": 20,
        "own": 500,
        "steps": 100,
        "behind": (),
        "clients": 2,
    }

    def refuse(self, target: TargetRun) -> str | None:
        part = _part(target)
        if part is None or not part.shares(target.run.fed):
            return "its clients share no sums of features by class, as ReBaFL's and FedProto's do"
        return (
            None if target.sent else "its clients keep their models, without which prototypes cannot be read"
        )

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        part = _part(target)
        assert part is not None
        own = unseen(target.federation, target.held(), seed, most=self.own)
        mine = target.natural(own.x).float()
        means = class_means(mine, own.y, target.run.fed.classes)
        plains, remarks = self._plains(target, means, seed)
        victims = {k: self._victim(target, k, own, seed) for k in plains}
        span = float(mine.max() - mine.min())
        scores, pictures = list[Score](), dict[str, object]()
        for group in self._groups(target, part, plains, seed):
            answers = self._answers(group, victims, own.y, means, seed)
            for name, answer in answers.items():
                scores += _scores(f"{part.name}/sums", f"{group.of}, {name}", answer, group, span)
            nearest = torch.stack([_nearest(a, x) for a, x in zip(answers["linear"], group.x)])
            pictures[f"prototypes {group.of}"] = success.image_sheet(
                {"nearest sample": nearest, **answers, "class mean": group.plain}
            )
        return Outcome(tuple(scores), f"{len(own)} {own.name}", pictures, tuple(remarks))

    def _victim(self, target: TargetRun, k: int, own: Samples, seed: int) -> Victim:
        """The attackers on client k, which know its model."""
        net, w = target.trainer.net, _weights_of(target, k)
        features = _features(target, w)(target.seen(own.x, k))
        training = TrainingSet(features, target.natural(own.x).float(), self.steps, seed)

        def generated(h: Tensor) -> Tensor:
            plan, shape = (self.steps, digest(seed, "grnn")), torch.Size(target.run.fed.shape)
            x = decoders.fit_generator(lambda x: net.features_of(w, x), h, shape, plan)
            return target.natural(target.unseen_by_model(x)).float()

        trained = (("linear", decoders.linear_decoder), ("upcnn", decoders.upcnn), ("vae", decoders.vae))
        return Victim(training, {name: learn(training) for name, learn in trained} | {"grnn": generated})

    def _answers(
        self, group: Prototypes, victims: Mapping[int, Victim], y: Tensor, means: Tensor, seed: int
    ) -> dict[str, Tensor]:
        """The images of each attacker, shrunk. y: classes of the attacker's own samples. means: of these."""
        attacked = group.client.unique().tolist()
        usual = sorted(len(x) for x in group.x)[len(group.x) // 2]
        many = -(-TRIALS // len(attacked))
        trials = {
            k: _trial(victims[k].training, y, means, (usual, many, digest(seed, group.of, k)))
            for k in attacked
        }
        tried = list[Tensor](x for trial in trials.values() for x in trial.x)
        pooled = Prototypes(
            "own", torch.empty(0), tried, torch.cat([t.plain for t in trials.values()]), group.client
        )
        shrunk = dict[str, Tensor]()
        for name in victims[attacked[0]].attackers:
            answers, trial_answers = torch.zeros_like(group.plain), list[Tensor]()
            for k, trial in trials.items():
                both = victims[k].attackers[name](torch.cat([trial.h, group.h[group.client == k]]))
                trial_answers.append(both[: len(trial.h)])
                answers[group.client == k] = both[len(trial.h) :]
            share = _best_share(torch.cat(trial_answers), pooled)
            shrunk[name] = group.plain + share * (answers - group.plain)
        return shrunk

    def _plains(self, target: TargetRun, means: Tensor, seed: int) -> tuple[dict[int, Tensor], list[str]]:
        """([C, *shape] by client, the mean sample of each class, of samples that look like the client's; what
        is said of clients that are not attacked, for want of these). means: of samples that look like
        everybody's."""
        replies = target.last_round.replies
        drawn = numpy_key(seed, "clients").permutation(len(replies))[: self.clients]
        alike, remarks = look_alikes(target, (replies[i].client for i in drawn), "sent", seed)
        plains = {
            k: class_means(target.natural(own.x).float(), own.y, len(means)) if own else means
            for k, own in alike.items()
        }
        return plains, remarks

    def _groups(
        self, target: TargetRun, part: Part, plains: Mapping[int, Tensor], seed: int
    ) -> Iterator[Prototypes]:
        """The prototypes that were sent, and then those of each number of samples in `behind`.

        plains: the mean sample of each class, by attacked client.
        """
        shares = {r.client: r.shares[part.name] for r in target.last_round.replies}
        rows = {(k, c): _rows(target, k, c) for k in plains for c in range(target.run.fed.classes)}

        def group(of: str, pairs: list[tuple[int, int]], h: list[Tensor], held: list[Tensor]) -> Prototypes:
            x = [target.natural(target.stored(each)).float() for each in held]
            plain = torch.stack([plains[k][c] for k, c in pairs])
            return Prototypes(of, torch.stack(h), x, plain, torch.tensor([k for k, _ in pairs]))

        # noise makes counts of classes that a client does not have
        pairs = [(k, c) for (k, c), held in rows.items() if len(held) and shares[k]["counts"][c] > 0]
        if not pairs:
            text = "no client that can be attacked sent a count above 0 of a class that it has"
            raise UsageError(
                "E151", f"in the last round of {target.path} {text}, so there is no prototype to attack."
            )
        order = numpy_key(seed, "prototypes").permutation(len(pairs))
        chosen = [pairs[i] for i in order[: self.samples]]
        h = [shares[k]["sums"][c] / shares[k]["counts"][c] for k, c in chosen]
        yield group(AS_SENT, chosen, h, [rows[pair] for pair in chosen])
        for m in () if target.run.method.samples_apart else sorted(set(self.behind)):
            enough = [pair for pair, held in rows.items() if len(held) >= m]
            rng = numpy_key(seed, "behind", m)
            if chosen := [enough[i] for i in rng.permutation(len(enough))[: self.samples]]:
                held = [torch.as_tensor(rng.permutation(rows[pair].numpy())[:m]) for pair in chosen]
                h = [
                    _features(target, _weights_of(target, k))(target.seen(target.stored(each), k)).mean(0)
                    for (k, _), each in zip(chosen, held)
                ]
                yield group(f"of {m} sample{'s' * (m > 1)}", chosen, h, held)


def _weights_of(target: TargetRun, k: int) -> Weights:
    """The weights of client k after its last training."""
    recorded = target.last_round
    assert recorded.start is not None
    reply = next(r for r in recorded.replies if r.client == k)
    return {**recorded.start.to(k).weights, **reply.weights}


def _features(target: TargetRun, w: Weights) -> Callable[[Tensor], Tensor]:
    def features(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([target.trainer.net.features_of(w, piece) for piece in x.split(256)])

    return features


def _trial(training: TrainingSet, y: Tensor, means: Tensor, plan: tuple[int, int, int]) -> Prototypes:
    """Prototypes of the attacker's own samples. plan: (samples of each, number of prototypes, seed)."""
    usual, many, seed = plan
    rng = numpy_key(seed, "trial")
    counts = {c: int((y == c).sum()) for c in y.unique().tolist()}
    classes = [c for c, count in counts.items() if count >= min(usual, TRIALS, max(counts.values()))]
    labels = [int(rng.choice(classes)) for _ in range(many)]
    rows = [torch.as_tensor(rng.permutation(torch.nonzero(y == c).flatten().numpy())[:usual]) for c in labels]
    h, x = torch.stack([training.sent[each].mean(0) for each in rows]), [training.x[each] for each in rows]
    return Prototypes("own", h, x, means[labels], torch.full((many,), -1))


def _part(target: TargetRun) -> Part | None:
    return part_of(target, ReBaFL) or part_of(target, FedProto)


def _rows(target: TargetRun, k: int, c: int) -> Tensor:
    """The rows of client k with class c."""
    rows = np.asarray(target.federation.train[k])
    return torch.as_tensor(rows[target.federation.y[rows] == c])


def _nearest(answer: Tensor, x: Tensor) -> Tensor:
    """The sample of x [n, *shape] that is nearest to an answer."""
    return x[success.mse(answer.expand_as(x), x).argmin()]


def _best_share(answers: Tensor, trial: Prototypes) -> float:
    """The best factor on an answer's difference from the class mean: 0, 1/4, 1/2, 3/4 or 1."""

    def error(share: float) -> float:
        shrunk = trial.plain + share * (answers - trial.plain)
        near = torch.stack([_nearest(a, x) for a, x in zip(shrunk, trial.x)])
        return float(success.mse(shrunk, near).mean())

    return min((0.0, 0.25, 0.5, 0.75, 1.0), key=error)


def _scores(share: str, of: str, answers: Tensor, group: Prototypes, span: float) -> list[Score]:
    """The squared error to the nearest sample, and for images the gain in SSIM over the class mean."""
    there = torch.stack([_nearest(a, x) for a, x in zip(answers, group.x)])
    usual_there = torch.stack([_nearest(mean, x) for mean, x in zip(group.plain, group.x)])
    error, without = success.mse(answers, there), success.mse(group.plain, usual_there)
    images, as_sent = success.is_image(answers.shape[1:]), group.of == AS_SENT
    value, floor, main = mean_of(error.double().numpy()), float(without.mean()), as_sent and not images
    scores = [Score(share, of, "MSE to nearest", *value, floor, 0.0, len(error), main)]
    if images:
        alike, usual = success.ssim(answers, there, span), success.ssim(group.plain, usual_there, span)
        value, most = mean_of((alike - usual).double().numpy()), float((1 - usual).mean())
        scores.append(Score(share, of, "SSIM above class mean", *value, 0.0, most, len(error), as_sent))
    return scores
