"""Prototype: images from the class prototypes of ReBaFL and FedProto (Xu et al., arXiv 2303.06314).

A client's prototype of class c is the mean of its features of c, sums_c / n_c. The adversary has the body
phi, and samples of its own, on which it trains
    linear the best affine map from phi(x) to x, which needs few samples
    upcnn  a decoder g that minimises |g(phi(x)) - x|^2: dense, then upsampling convolutions
    vae    the same with a stochastic bottleneck, and KL / 1000 to a standard normal law
and applies them to prototypes.
    grnn   no training set: an image G(e) from noise e, with G optimised for |phi(G(e)) - prototype|^2
The server has each client's model, so features are shifted by the difference of the mean features of its own
samples of the class between the merged model and the client's. Each answer is shrunk towards the class mean
by the factor that is best for prototypes of as many of its own samples, so an attacker that learns nothing
answers with the class mean. An image is compared with the nearest of the client's samples of the class. The
floor is the mean of the adversary's own samples of the class, which contains nothing about the client. If
samples look different at each client (a feature skew, sites), the floor is the mean of the client's own test
samples of the class, or the client is not attacked. The attacked prototypes are those of the last round; for
each number in `behind`, further prototypes are computed from this many samples of a client. These were not
sent, so they do not represent the attack in tables, and there are none with noise for every sample (dpsgd),
which they would lack.
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
from unskew.attacks.auxiliary import Samples, like_those_of, unseen
from unskew.attacks.decoders import Lesson
from unskew.attacks.kinds.reconstruct import class_means
from unskew.attacks.payloads import part_of
from unskew.attacks.scene import RecordedRound, Scene
from unskew.core.keys import digest, numpy_key
from unskew.core.part import Part
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.methods.fedproto import FedProto
from unskew.methods.rebafl import ReBaFL

READS = ("rebafl/sums", "fedproto/sums")
"""The attacked payloads, by their names in the ledger."""

AS_SENT = "as sent"
TRIALS = 24
"""Prototypes of its own samples by which an attacker chooses the shrinkage."""


@dataclass(frozen=True)
class Prototypes:
    """Mean features of samples of one class at one client.

    of: a description. h: [N, D]. y: [N]. x: N times [n, *shape], the samples of each, in natural units.
    plain: [N, *shape], the mean of similar samples of the class.
    """

    of: str
    h: Tensor
    y: Tensor
    x: list[Tensor]
    plain: Tensor


@dataclass(frozen=True)
class Prototype(Attack):
    """Turns class prototypes of clients into images."""

    samples: Annotated[int, Ge(1), Le(1_000_000), "the most prototypes of a kind that are attacked"] = 50
    behind: Annotated[
        tuple[Annotated[int, Ge(1), Le(1_000_000)], ...],
        "numbers of samples of which further prototypes are computed",
    ] = (1, 2, 10, 100)
    own: Annotated[int, Ge(50), Le(1_000_000), "the most samples of its own that the attacker trains on"] = (
        2000
    )
    steps: Annotated[int, Ge(1), Le(1_000_000), "steps that an attacker trains at most"] = 600
    name: ClassVar[str] = "prototype"
    asks: ClassVar[str] = "which images are behind it?"
    adversary: ClassVar[str] = (
        "the server, which reads each client's sums and counts, and has the merged model"
    )
    quick: ClassVar[Mapping[str, object]] = {"samples": 20, "own": 500, "steps": 100, "behind": ()}

    def refuse(self, scene: Scene) -> str | None:
        part = _part(scene)
        if part is None or not part.shares(scene.run.fed):
            return "its clients share no sums of features by class, as ReBaFL's and FedProto's do"
        return (
            None if scene.sent else "its clients keep their models, without which prototypes cannot be read"
        )

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        part = _part(scene)
        assert part is not None
        rows = torch.as_tensor(np.unique(scene.run.federation.train.rows))
        own = unseen(scene.run.federation, scene.trainer.samples.x[rows], seed, most=self.own)
        mine = scene.natural(own.x).float()
        lesson = Lesson(self._features(scene, scene.final.weights)(scene.seen(own.x)), mine, self.steps, seed)
        attackers = {
            "linear": decoders.linear_decoder(lesson),
            "upcnn": decoders.upcnn(lesson),
            "vae": decoders.vae(lesson),
        }
        attackers["grnn"] = lambda h: self._fitted(scene, h, seed)
        means = class_means(mine, own.y, scene.run.fed.classes)
        plains, remarks = self._plains(scene, means, seed)
        span = float(mine.max() - mine.min())
        scores, pictures = list[Score](), dict[str, object]()
        for group in self._groups(scene, part, own, plains, seed):
            trial = self._trial(group, lesson, own.y, means, seed)
            answers = dict[str, Tensor]()
            for name, attacker in attackers.items():
                both = attacker(torch.cat([trial.h, group.h]))
                share = _best_share(both[: len(trial.h)], trial)
                answers[name] = group.plain + share * (both[len(trial.h) :] - group.plain)
                scores += _scores(f"{part.name}/sums", f"{group.of}, {name}", answers[name], group, span)
            nearest = torch.stack([_nearest(a, x) for a, x in zip(answers["linear"], group.x)])
            if sheet := success.image_sheet(
                {"nearest sample": nearest, **answers, "class mean": group.plain}
            ):
                pictures[f"prototypes {group.of}"] = sheet
        drawn = {"images": pictures} if pictures else {}
        return Outcome(tuple(scores), f"{len(own)} {own.name}", drawn, tuple(remarks))

    @staticmethod
    def _plains(scene: Scene, means: Tensor, seed: int) -> tuple[dict[int, Tensor], list[str]]:
        """([C, *shape] by client, the mean sample of each class, of samples that look like the client's; what
        is said of clients that are not attacked, for want of these). means: of samples that look like
        everybody's."""
        federation = scene.run.federation
        plains, remarks = dict[int, Tensor](), list[str]()
        for k in (r.client for r in scene.last_round.replies):
            held = scene.trainer.samples.x[torch.as_tensor(np.asarray(federation.train[k]))]
            try:
                alike = like_those_of(federation, k, held, seed)
            except UsageError as error:
                remarks.append(f"what {federation.name_of(k)} sent is not attacked: {error.text}")
                continue
            plains[k] = (
                means if alike is None else class_means(scene.natural(alike.x).float(), alike.y, len(means))
            )
        return plains, remarks

    def _trial(self, group: Prototypes, lesson: Lesson, y: Tensor, means: Tensor, seed: int) -> Prototypes:
        """Prototypes of the attacker's own samples, each of the median number of samples in the group."""
        usual = sorted(len(x) for x in group.x)[len(group.x) // 2]
        rng = numpy_key(seed, "trial", group.of)
        counts = {c: int((y == c).sum()) for c in y.unique().tolist()}
        classes = [c for c, count in counts.items() if count >= min(usual, TRIALS, max(counts.values()))]
        h, labels, x = list[Tensor](), list[int](), list[Tensor]()
        for _ in range(TRIALS):
            c = int(rng.choice(classes))
            rows = torch.as_tensor(rng.permutation(torch.nonzero(y == c).flatten().numpy())[:usual])
            h.append(lesson.sent[rows].mean(0))
            labels.append(c)
            x.append(lesson.x[rows])
        return Prototypes("own", torch.stack(h), torch.tensor(labels), x, means[labels])

    def _moved(self, scene: Scene, own: Samples, w: Weights) -> Tensor:
        """[C, D]: the shift, by class, from features under these weights to features of the merged model."""
        seen, classes = scene.seen(own.x), scene.run.fed.classes
        ours, theirs = (self._features(scene, weights)(seen) for weights in (scene.final.weights, w))
        return class_means(ours - theirs, own.y, classes)

    def _features(self, scene: Scene, w: Weights) -> Callable[[Tensor], Tensor]:
        net = scene.trainer.net

        def features(x: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.cat([net.features_of(w, piece) for piece in x.split(256)])

        return features

    def _fitted(self, scene: Scene, h: Tensor, seed: int) -> Tensor:
        """Images in natural units whose features under the merged model are near these."""
        net, w = scene.trainer.net, scene.final.weights
        shape = torch.Size(scene.run.fed.shape)
        x = decoders.fit_generator(
            lambda x: net.features_of(w, x), h, shape, (self.steps, digest(seed, "grnn"))
        )
        return scene.natural(scene.unseen_by_model(x)).float()

    def _groups(
        self, scene: Scene, part: Part, own: Samples, plains: Mapping[int, Tensor], seed: int
    ) -> Iterator[Prototypes]:
        """The prototypes that were sent, and then those of each number of samples in `behind`.

        plains: the mean sample of each class, by attacked client.
        """
        heard = scene.last_round
        assert heard.start is not None
        moves = {
            r.client: self._moved(scene, own, {**heard.start.weights, **r.weights}) for r in heard.replies
        }
        pairs = [
            (r, c)
            for r in heard.replies
            if r.client in plains
            for c in torch.nonzero(r.shares[part.name]["counts"] > 0).flatten().tolist()
            if len(_rows(scene, r.client, c))  # noise makes counts of classes that a client does not have
        ]
        if not pairs:
            text = "no client that can be attacked sent a count above 0 of a class that it has"
            raise UsageError(
                "E151", f"in the last round of {scene.path} {text}, so there is no prototype to attack."
            )
        chosen = numpy_key(seed, "prototypes").permutation(len(pairs))[: self.samples]
        sent = [(pairs[i][0].shares[part.name], pairs[i][1]) for i in chosen]
        move = torch.stack([moves[pairs[i][0].client][pairs[i][1]] for i in chosen])
        h = torch.stack([shares["sums"][c] / shares["counts"][c] for shares, c in sent]) + move
        x = [
            scene.natural(scene.trainer.samples.x[_rows(scene, pairs[i][0].client, pairs[i][1])]).float()
            for i in chosen
        ]
        plain = torch.stack([plains[pairs[i][0].client][pairs[i][1]] for i in chosen])
        yield Prototypes(AS_SENT, h, torch.tensor([c for _, c in sent]), x, plain)
        for m in () if scene.run.method.samples_apart else sorted(set(self.behind)):
            if group := self._of(scene, heard, m, (moves, plains, seed)):
                yield group

    def _of(
        self,
        scene: Scene,
        heard: RecordedRound,
        m: int,
        plan: tuple[Mapping[int, Tensor], Mapping[int, Tensor], int],
    ) -> Prototypes | None:
        """Prototypes of m samples of one class at one client, under the client's trained model.

        plan: (shifts of features by client, mean samples of classes by client, seed).
        """
        moves, plains, seed = plan
        assert heard.start is not None
        counts = scene.run.federation.label_counts
        replies = [r for r in heard.replies if r.client in plains]
        pairs = [(r, c) for r in replies for c in range(scene.run.fed.classes) if counts[r.client, c] >= m]
        if not pairs:
            return None
        rng = numpy_key(seed, "behind", m)
        h, y, x, plain = list[Tensor](), list[int](), list[Tensor](), list[Tensor]()
        for i in rng.permutation(len(pairs))[: self.samples]:
            reply, c = pairs[i]
            rows = rng.permutation(_rows(scene, reply.client, c).numpy())[:m]
            stored = scene.trainer.samples.x[torch.as_tensor(rows)]
            w = {**heard.start.weights, **reply.weights}
            h.append(
                self._features(scene, w)(scene.seen(stored, reply.client)).mean(0) + moves[reply.client][c]
            )
            y.append(c)
            x.append(scene.natural(stored).float())
            plain.append(plains[reply.client][c])
        return Prototypes(
            f"of {m} sample{'s' * (m > 1)}", torch.stack(h), torch.tensor(y), x, torch.stack(plain)
        )


def _part(scene: Scene) -> Part | None:
    return part_of(scene, ReBaFL) or part_of(scene, FedProto)


def _rows(scene: Scene, k: int, c: int) -> Tensor:
    """The rows of client k with class c."""
    rows = np.asarray(scene.run.federation.train[k])
    return torch.as_tensor(rows[scene.run.federation.y[rows] == c])


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
    value, low, high = mean_of(error.double().numpy())
    scores = [
        Score(
            share,
            of,
            "MSE to nearest",
            value,
            low,
            high,
            float(without.mean()),
            0.0,
            len(error),
            main=as_sent and not images,
        )
    ]
    if images:
        alike, usual = success.ssim(answers, there, span), success.ssim(group.plain, usual_there, span)
        value, low, high = mean_of((alike - usual).double().numpy())
        most = float((1 - usual).mean())
        scores.append(
            Score(share, of, "SSIM above class mean", value, low, high, 0.0, most, len(error), main=as_sent)
        )
    return scores
