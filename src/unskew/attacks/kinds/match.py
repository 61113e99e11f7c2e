"""Match: which record is behind the noisy latent means of FedDPMS (ours; Chen & Vikalo, CVPRW 2023)?

The adversary averages the vectors that a client released for one class, which reduces the noise to sigma /
sqrt(alpha), encodes candidates with the encoder of that round, and names the candidate nearest to the
average. Candidates are the client's samples of the class and as many samples of the class from no client, so
that chance is 1/2. If samples look different at each client (a feature skew, sites), the latter are the
client's own test samples, or the client is not attacked. Equally near candidates share the answer.
    one vector        without averaging
    all vectors       the average of all released vectors
Each (client, class) is attacked: the more samples a mean is over, the less it is near any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from unskew.attacks import success
from unskew.attacks.attack import Attack, Outcome, Score, share_of
from unskew.attacks.auxiliary_samples import Samples, look_alikes, unseen
from unskew.attacks.payloads import part_of
from unskew.attacks.target_run import RecordedRound, TargetRun, Visit
from unskew.core.random_keys import numpy_key
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.methods.feddpms import FedDPMS
from unskew.methods.shared.sample_images import decode
from unskew.records.checkpoints import State

READS = ("feddpms/z",)

ONE, ALL = "one vector", "all vectors"


@dataclass(frozen=True)
class Trial:
    """A released mean. z: [n, L], its vectors. candidates: [2 m, L] latents, the client's m first. x:
    samples."""

    z: Tensor
    candidates: Tensor
    x: Tensor

    def hit(self, z_L: Tensor) -> float:
        """The share of the client's samples among the candidates nearest to this vector."""
        distance = torch.linalg.vector_norm(self.candidates - z_L, dim=1)
        nearest = (distance == distance.min()).double()
        return float(nearest[: len(nearest) // 2].sum() / nearest.sum()) if bool(nearest.any()) else 0.5


@dataclass(frozen=True)
class Match(Attack):
    """Names records behind noisy means."""

    name: ClassVar[str] = "match"
    asks: ClassVar[str] = "which record is behind it?"
    adversary: ClassVar[str] = (
        "the server, and the clients matched with it, who are sent its latents, the encoder and the decoder"
    )

    def refuse(self, target: TargetRun) -> str | None:
        if part_of(target, FedDPMS):
            return None
        return "its clients share no noisy means of latents, as FedDPMS's do"

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        part = part_of(target, FedDPMS)
        assert part is not None
        visit, decoder = _release(target, part)
        own = unseen(target.federation, target.held(), seed)
        alike, remarks = look_alikes(target, (r.client for r in visit.replies), "released", seed)
        strangers = {k: samples or own for k, samples in alike.items()}
        trials = list(self._trials(target, visit, strangers, seed))
        if not trials:
            text = f"{target.path}: no class with a released mean has samples that no client holds"
            raise UsageError(
                "E151", "; ".join(remarks) or f"{text}, so its members can be compared with nothing."
            )
        hits = {ONE: sum(t.hit(t.z[0]) for t in trials), ALL: sum(t.hit(t.z.mean(0)) for t in trials)}
        n, share, metric = len(trials), f"{part.name}/z", "top-1 match"
        scores = [
            Score(share, of, metric, *share_of(hit, n), 0.5, 1.0, n, main=of == ALL)
            for of, hit in hits.items()
        ]
        sheet = self._sheet(target, decoder, trials)
        first = next(iter(strangers.values()))
        name = f"{len(own)} {own.name}" if first is own else "test samples, of each client its own"
        return Outcome(tuple(scores), name, {"noisy means, decoded": sheet}, tuple(remarks))

    def _trials(
        self, target: TargetRun, visit: Visit, strangers: Mapping[int, Samples], seed: int
    ) -> Iterator[Trial]:
        """At most `samples` released means with their candidates, in random order.

        strangers: by client, the samples of no client among the candidates.
        """
        sent = {r.client: r.shares[visit.part.name] for r in visit.replies}
        pairs = [(k, c) for k, s in sent.items() if k in strangers for c in s["labels"].unique().tolist()]
        rng = numpy_key(seed, "match")
        federation = target.federation
        for i in rng.permutation(len(pairs))[: self.samples]:
            k, c = pairs[i]
            own = strangers[k]
            rows = np.asarray(federation.train[k])
            mine, theirs = rows[federation.y[rows] == c], np.flatnonzero(own.y.numpy() == c)
            m = min(len(mine), len(theirs))
            if not m:
                continue
            stored = torch.cat([
                target.stored(rng.permutation(mine)[:m]).cpu(),
                own.x[torch.as_tensor(rng.permutation(theirs)[:m])],
            ])  # fmt: skip
            with target.trainer.evaluating():
                trained = visit.private.get(k, {}).get(visit.part.name, {}).get("w", {})  # which it also sent
                w = {**visit.start.weights, **trained}
                latents = target.trainer.net.features_of(w, target.seen(stored, k))
            yield Trial(sent[k]["z"][sent[k]["labels"] == c], latents, stored[:m])

    def _sheet(self, target: TargetRun, decoder: Weights, trials: list[Trial]) -> dict[str, object]:
        shape = target.run.fed.shape
        with torch.no_grad():
            decoded = decode(
                decoder, torch.stack([t.z.mean(0) for t in trials[: success.MOST_IMAGES]]), shape
            )
        decoded = target.natural(target.unseen_by_model(decoded)).float()
        shown = [target.natural(t.x).float() for t in trials[: success.MOST_IMAGES]]
        nearest = torch.stack([x[success.mse(d.expand_as(x), x).argmin()] for d, x in zip(decoded, shown)])
        return success.image_sheet({"nearest sample": nearest, "decoded average": decoded})


def _release(target: TargetRun, part: FedDPMS) -> tuple[Visit, Weights]:
    """The first trip with releases, and the server's decoder. Raises StateError (E112) for other latents."""

    def look(_: int, recorded: RecordedRound, after: State) -> tuple[Visit, Weights, Tensor] | None:
        for visit in recorded.visits:
            if visit.part is part and any(len(r.shares[part.name].get("z", ())) for r in visit.replies):
                slice_ = after.slices[part.name]
                return visit, slice_["decoder"], slice_["z"][[r.client for r in visit.replies]]
        return None

    release = target.first(f"{part.name} release", look)
    if release is None:
        raise UsageError(
            "E151",
            f"no client of {target.path} released anything: no class is large enough, or no round was left.",
        )
    visit, decoder, ours = release
    target.check_same(
        ours, target.final.slices[part.name]["z"][[r.client for r in visit.replies]], f"{part.name}/z"
    )
    return visit, decoder
