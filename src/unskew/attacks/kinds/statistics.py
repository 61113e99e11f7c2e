"""Statistics: the information in a site's means and deviations of FedRDN (ours).

Differencing: a site that shares twice, with n samples and then with one more, shares its difference
    x_c = (n + 1) mu'_c - n mu_c,   s_c = (n + 1) sigma'_c - n sigma_c
which are that sample's mean and standard deviation of every channel, up to rounding of float32. Channels in
which all of the adversary's own samples agree are no secret and are left out.
Property: which site, or which largest class, has these statistics? The adversary computes statistics of its
own samples of each and names the nearest by (mu, log sigma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from unskew.attacks.attack import Attack, Outcome, Score, mean_of, share_of
from unskew.attacks.auxiliary_samples import unseen
from unskew.attacks.payloads import first_trip, part_of
from unskew.attacks.target_run import TargetRun
from unskew.core.client import Batch, replace_fields
from unskew.core.random_keys import numpy_key
from unskew.formats.setting_ranges import Count
from unskew.methods.fedrdn import FedRDN
from unskew.round.samples import load_samples

READS = ("fedrdn/mu", "fedrdn/sigma")


LEAST_SPREAD = 1e-5
"""The least variation relative to a statistic's size; less is rounding."""


@dataclass(frozen=True)
class Statistics(Attack):
    """Differences two releases of statistics, and guesses their site."""

    samples: Annotated[Count, "the most samples that are added to a site, one after another"] = 100
    name: ClassVar[str] = "statistics"
    asks: ClassVar[str] = "which statistics has one added sample, and whose are they?"
    adversary: ClassVar[str] = "the server, and every client, for all are sent the table of all sites"
    quick: ClassVar[Mapping[str, object]] = {"samples": 20}

    def refuse(self, target: TargetRun) -> str | None:
        if target.run.method.samples_apart:
            return "what it differences has noise here, and `privacy.json` says what that hides of a sample"
        if part_of(target, FedRDN):
            return None
        return "its clients share no statistics of their inputs, as FedRDN's do"

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        part = part_of(target, FedRDN)
        assert part is not None
        visit = first_trip(target, part)
        for leaf in ("mu", "sigma"):
            sent = torch.stack([r.shares[part.name][leaf] for r in visit.replies])
            target.check_same(sent, target.final.slices[part.name][leaf], f"{part.name}/{leaf}")
        stored = target.held()
        own = unseen(target.federation, stored, seed)
        of_own = _each(target, part, own.x[:500].to(stored.device))
        scores = self._differences(target, part, seed, of_own)
        scores += self._properties(target, part, seed)
        of_sites = "; of each site its test samples" if target.federation.natural else ""
        return Outcome(tuple(scores), f"{len(own)} {own.name}{of_sites}")

    def _differences(self, target: TargetRun, part: FedRDN, seed: int, of_own: Tensor) -> list[Score]:
        """The error of one added sample's statistics from two releases, in units of their deviation."""
        guess, spread_C = of_own.mean(0), of_own.std(0)
        varies_C = spread_C > LEAST_SPREAD * guess.abs().clamp(min=LEAST_SPREAD)
        rng = numpy_key(seed, "added")
        errors, without = list[Tensor](), list[Tensor]()
        federation = target.federation
        sites = [k for k in range(federation.clients) if federation.sizes[k] > 1]
        for _ in range(self.samples):
            rows = rng.permutation(federation.train[int(rng.choice(sites))])
            x = target.stored(rows)
            before, after = _released(target, part, x[:-1]), _released(target, part, x)
            recovered = after * len(x) - before * (len(x) - 1)
            there = _released(target, part, x[-1:])
            errors.append((recovered - there).abs() / spread_C)
            without.append((guess - there).abs() / spread_C)
        scores = list[Score]()
        for leaf, half in zip(("mu", "sigma"), torch.arange(len(guess)).chunk(2)):
            half = half[varies_C[half].cpu()]
            if not len(half):
                continue
            value, low, high = mean_of(torch.stack(errors)[:, half].mean(1).double().numpy())
            floor = float(torch.stack(without)[:, half].mean())
            of, metric = "two releases around one sample", "error of its statistics"
            scores.append(
                Score(f"{part.name}/{leaf}", of, metric, value, low, high, floor, 0.0, len(errors), main=True)
            )
        return scores

    def _properties(self, target: TargetRun, part: FedRDN, seed: int) -> list[Score]:
        """The accuracy with which the nearest statistics name the site, or its largest class."""
        federation = target.federation
        if not federation.natural and target.run.task.name != "classification":
            return []  # no class is a site's largest
        kept = target.final.slices[part.name]
        sent = torch.cat([kept["mu"], kept["sigma"].log()], 1)
        if federation.natural:
            own = [load_samples(np.asarray(federation.x_test[rows]), "cpu")[:] for rows in federation.test]
            truth, what = list(range(federation.clients)), "which site it is"
        else:
            samples = unseen(federation, target.held(), seed)
            own = [samples.x[samples.y == c] for c in range(federation.n_classes)]
            truth, what = federation.label_counts.argmax(1).tolist(), "its largest class"
        known = [i for i, x in enumerate(own) if len(x)]
        tables = torch.stack([_released(target, part, own[i].to(sent.device)) for i in known])
        tables[:, tables.shape[1] // 2 :] = tables[:, tables.shape[1] // 2 :].log()
        rows = kept["row"].tolist()
        sites = [k for k in range(federation.clients) if rows[k] >= 0]
        scale = tables.std(0).clamp(min=1e-6)
        nearest = torch.cdist(sent[[rows[k] for k in sites]] / scale, tables / scale).argmin(1).tolist()
        hits = sum(known[i] == truth[k] for i, k in zip(nearest, sites))
        most_common = max(np.bincount([truth[k] for k in sites])) / len(sites)
        share = f"{part.name}/mu"
        return [
            Score(share, what, "accuracy", *share_of(hits, len(sites)), float(most_common), 1.0, len(sites))
        ]


def _released(target: TargetRun, part: FedRDN, x: Tensor) -> Tensor:
    """[2 C]: the means and deviations that a site with these stored samples would share."""
    batch = Batch(
        x, torch.zeros(len(x), target.run.fed.classes, device=x.device), torch.ones(len(x), device=x.device)
    )
    with target.trainer.evaluating():
        w = target.final.weights
        c = replace_fields(
            target.trainer.client(0, target.ended, part.name, w, {}), data=lambda _: iter([batch])
        )
        shared = part.measure(w, c)
    return torch.cat([shared["mu"], shared["sigma"]])


def _each(target: TargetRun, part: FedRDN, x: Tensor) -> Tensor:
    """[N, 2 C]: the means and deviations of each sample alone."""
    return torch.stack([_released(target, part, one[None]) for one in x])
