"""Membership: was this sample in the training? Loss (Yeom et al., 2018) and LiRA (Carlini et al., 2022).

loss:  score(x, y) = log p_y - log(1 - p_y) under the attacked model, larger for members
lira:  score = log N(phi; mu_in, s_in^2) - log N(phi; mu_out, s_out^2),  phi = log p_y - log(1 - p_y)
       mu_in, mu_out: of shadow models trained with and without the sample, each on half of the candidates
The attack is on the merged model (shadows start from the initial weights) and on the last update of single
clients (shadows start from the weights that the client received). Candidates are members and equally many
samples of no client, with equal counts of each class. If samples look different at each client (a feature
skew, sites), the non-members of an update are the client's own test samples, or it is not attacked. True
positives are counted at 1 % and 0.1 % false positives, or at none if there are too few non-members; without
the payload they are the expected rate above a non-member's score.
Differs from the paper: shadows are 16, share their first weights, and minimise the task's loss without the
method's Parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le, MultipleOf

from unskew.attacks import shadows, success
from unskew.attacks.attack import Attack, Outcome, Score
from unskew.attacks.auxiliary_samples import Samples, like_those_of, match_classes, unseen
from unskew.attacks.target_run import TargetRun
from unskew.core.random_keys import digest, numpy_key
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.round.clients import Broadcast

READS = ("w",)

MOST_PASSES = 20
LEAST_MEMBERS = 10
"""The least number of members for a meaningful area."""
RATES = (0.01, 0.001)
"""Rates of false positives at which true positives are counted."""


@dataclass(frozen=True)
class Membership(Attack):
    """Separates members of the training set from samples without a client."""

    clients: Annotated[
        int, Ge(0), Le(100), "how many clients' updates are attacked, the largest of the last round"
    ] = 3
    shadows: Annotated[
        int, Ge(0), MultipleOf(2), "shadow models of each attacked model; 0: the loss alone"
    ] = 16
    passes: Annotated[
        int, Ge(0), "passes of a shadow of the merged model; 0: as many as clients made, at most 20"
    ] = 0
    name: ClassVar[str] = "membership"
    asks: ClassVar[str] = "was this sample in the training?"
    adversary: ClassVar[str] = (
        "of the merged model: whoever gets it, all clients included; of an update: the server. Both know the"
        " candidates"
    )
    on_merged: ClassVar[bool] = True
    quick: ClassVar[Mapping[str, object]] = {"shadows": 8, "clients": 1, "samples": 200}
    one_input: ClassVar[bool] = False

    def refuse(self, target: TargetRun) -> str | None:
        if target.run.task.name != "classification":
            return "it needs one label a sample"
        if not target.sent:
            return "its clients send no weights"
        fed, method = target.run.fed, target.run.method
        own = [n for n in (*fed.net.trainable, *fed.net.buffers) if method.keeps(n, fed)]
        if own:
            text = (
                f"its clients keep '{own[0]}' of the model they train, of which whoever reads payloads has"
                " the first"
            )
            return (
                f"{text} values alone: the model that would be attacked is nobody's, and its area no measure"
                " of what leaks"
            )
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        members = target.federation.train.rows
        strangers = unseen(target.federation, target.stored(members), seed)
        first = Broadcast(1, target.run.settings.lr, target.run.fed.net.weights(), {})
        settings = target.run.settings
        passes = self.passes or min(settings.passes, MOST_PASSES)
        models = [TargetModel("merged model", -1, np.unique(members), target.final.weights, first, passes)]
        models += self._updates(target)
        scores, remarks = list[Score](), list[str]()
        for model in models:
            try:
                others = self._strangers(target, model, seed) or strangers
            except UsageError as error:
                remarks.append(f"{model.of} is not attacked: {error.text}")
                continue
            more = self._attacked(target, model, others, seed)
            scores += more
            if not more:
                remarks.append(
                    f"{model.of} is not attacked: fewer than {LEAST_MEMBERS} samples can be compared"
                )
        return Outcome(tuple(scores), f"{len(strangers)} {strangers.name}", {}, tuple(remarks))

    @staticmethod
    def _strangers(target: TargetRun, model: TargetModel, seed: int) -> Samples | None:
        """The non-members of a client whose samples look different from all others; else None."""
        if model.client < 0:
            return None
        held = target.stored(model.rows)
        return like_those_of(target.federation, model.client, held, seed)

    def _updates(self, target: TargetRun) -> list[TargetModel]:
        if not self.clients or target.merged_only:
            return []
        recorded = target.last_round
        assert recorded.start is not None
        largest = sorted(recorded.replies, key=lambda r: (-r.size, r.client))[: self.clients]
        return [
            TargetModel(
                f"update of {target.federation.name_of(r.client)}",
                r.client,
                np.asarray(target.federation.train[r.client]),
                {**start.weights, **r.weights},
                start,
                target.run.settings.epochs_in(target.final.t),
            )
            for r, start in zip(largest, [recorded.start.to(r.client) for r in largest])
        ]

    def _attacked(self, target: TargetRun, model: TargetModel, others: Samples, seed: int) -> list[Score]:
        """The scores of one attacked model. others: samples of no client."""
        rng = numpy_key(seed, "candidates", model.of)
        labels, groups = target.federation.y, target.federation.group_ids
        ours, theirs = match_classes(labels[model.rows], others.y.numpy(), self.samples, rng)
        if len(ours) < LEAST_MEMBERS:
            return []
        rest = others.take(theirs)
        stored = torch.cat([target.stored(model.rows[ours]).cpu(), rest.x])
        y = torch.cat([torch.as_tensor(labels[model.rows[ours]]), rest.y]).long()
        both = groups is not None and rest.groups is not None
        groups = np.concatenate([groups[model.rows[ours]], rest.groups]) if both else None  # type: ignore[index]
        x = target.seen(stored, model.client)
        y = y.to(x.device)
        own = shadows.confidences(target, [model.weights], x, y)[0]
        by_attacker = {"loss": own}
        if self.shadows:
            inside = shadows.halves(self.shadows, len(y), rng, groups)
            number = digest(seed, "shadows", model.of)
            models = shadows.train_shadows(target, x, y.cpu(), inside, model.start, (model.passes, number))
            by_attacker["lira"] = shadows.ratios(own, shadows.confidences(target, models, x, y), inside)
        scores = list[Score]()
        for attacker, values in by_attacker.items():
            pair = values[: len(ours)], values[len(ours) :]
            scores += _scores(f"{model.of}, {attacker}", *pair, rng, seed)
        return scores


@dataclass(frozen=True)
class TargetModel:
    """An attacked model. of: its description. client: its number, -1 for the merged model. rows: of its
    samples.

    start: the broadcast before its training. passes: over its samples.
    """

    of: str
    client: int
    rows: np.ndarray
    weights: Weights
    start: Broadcast
    passes: int


def _scores(
    of: str, members: np.ndarray, others: np.ndarray, rng: np.random.Generator, seed: int
) -> list[Score]:
    n = len(members) + len(others)
    low, high = success.interval_of_auc(members, others, rng)
    scores = [Score("w", of, "AUC", success.auc(members, others), low, high, 0.5, 1.0, n, main=True)]
    for rate in RATES:
        value, floor = success.tpr_at(rate, members, others), success.chance_of_tpr(rate, len(others))
        low, high = success.interval_of_tpr(rate, members, others, numpy_key(seed, "rates", of))
        scores.append(Score("w", of, f"TPR at {rate:.1%} FPR", value, low, high, floor, 1.0, n))
    return scores
