"""Gradient: labels (iDLG, Zhao et al., 2020) and images (Geiping et al., NeurIPS 2020) from an update.

With D = w_t - w_k, the update of a client with n samples, and d_c its entry for class c in the head's bias:
    labels:  n_c = n (p_c - d_c / sum_s lr_s)      p: mean prediction on the adversary's own samples
             the n classes with the largest n_c, each as often as n_c says; with n = 1 the class with the
             least d_c
    images:  min_x  1 - cos(D(x), D) + tv TV(x)    D(x): the update that x, with these labels, would have
    given
by signed Adam with a falling rate. A dense layer of the input has gradients dL/dW_u = sum_n g_nu x_n and
dL/db_u = sum_n g_nu, so dW_u / db_u is x_n exactly if sample n alone moves unit u (with n = 1 always): these
quotients, if within the range of the adversary's own samples, are answers as well. Each sample is paired with
an answer of its own by least squared error, so it has the better of both. With `batch=0` the same quotients
are read from the sum of the changes of SCAFFOLD's control variate that a client sent: its mean gradient.
The attacked clients hold `batch` samples each, drawn from the run's clients, and train on the weights that
the run's last round, or its first, began with, without the method's Parts; so where a Part changes what
leaves (noise for every sample, an encoding), only `batch=0` is made, which attacks the updates that were
sent.
Differs from the papers: D(x) is unrolled over plain full-batch steps, as many as the client takes; labels are
not known but guessed as above.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from unskew.attacks import shadows, success
from unskew.attacks.attack import Attack, Outcome, Score, share_of
from unskew.attacks.auxiliary_samples import Samples, unseen
from unskew.attacks.inversion import Inversion, Search, Update, round_counts
from unskew.attacks.payloads import control_variate
from unskew.attacks.target_run import TargetRun
from unskew.core import module_inputs
from unskew.core.part import overrides
from unskew.core.random_keys import digest, numpy_key
from unskew.core.trees import Weights
from unskew.formats.setting_ranges import Count
from unskew.round.clients import Broadcast

READS = ("w", "scaffold/delta")

MOST = 64
"""The most samples of an update that are recovered."""


@dataclass(frozen=True)
class Gradient(Attack):
    """Inverts updates of clients with few samples."""

    samples: Annotated[Count, "the most samples that are attacked"] = 8
    batch: Annotated[
        int, Ge(0), Le(MOST), "samples of each attacked client; 0: its update as it was sent"
    ] = 1
    most: Annotated[int, Ge(1), Le(MOST), "the most samples of an attacked client, if batch is 0"] = MOST
    epochs: Annotated[int, Ge(1), Le(100), "local epochs of an attacked client, if batch is not 0"] = 1
    at: Annotated[
        Literal["last", "first"], "the round on whose first weights clients train, if batch is not 0"
    ] = "last"
    steps: Annotated[Count, "steps of an inversion"] = 300
    tv: Annotated[float, Ge(0), Le(1000), "weight of the total variation"] = 0.01
    rate: Annotated[float, Gt(0), Le(10), "first size of a step, in units of standardised inputs"] = 0.1
    name: ClassVar[str] = "gradient"
    lookups: ClassVar[Collection[module_inputs.TableExposure]] = ("",)
    asks: ClassVar[str] = "which labels and images was it trained on?"
    adversary: ClassVar[str] = "the server, which reads each update and knows how many samples are behind it"
    quick: ClassVar[Mapping[str, object]] = {"samples": 4, "steps": 100, "batch": 0, "most": 8}

    def refuse(self, target: TargetRun) -> str | None:
        if target.run.task.name != "classification":
            return "it needs one label a sample"
        if not set(target.run.fed.net.learnable) <= set(target.sent):
            return "its clients do not send all weights that they train"
        if any(overrides(p, hook) for p in target.run.method.parts for hook in ("starts", "dispatch")):
            return (
                "its clients start from weights of their own, and an inversion from those that all are sent"
            )
        if module_inputs.has_embedding(target.run.fed.net.module):
            return "its model looks whole numbers up, and an inversion moves inputs"
        changing = [
            p.name
            for p in target.run.method.parts
            if p.samples_apart or overrides(p, "encode") or overrides(p, "sends")
        ]
        if self.batch and changing:
            text = (
                f"'{changing[0]}' changes what its clients send, and not what clients that are made up for"
                " the attack would"
            )
            return f"{text}; set batch=0, which attacks updates as they were sent"
        if not self.batch and not self._smallest(target):
            return f"no client that answered in its last round has at most {self.most} samples; set batch"
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        start, clients = self._clients(target, seed)
        attacked = torch.cat([stored for stored, _, _ in clients])
        own = unseen(target.federation, attacked, seed, most=500)
        own_x = target.seen(own.x)
        inversion = Inversion(
            target.trainer.net, target.run, (self.steps, self.tv, self.rate), Search.like(own_x)
        )
        answers, there, owners = list[Tensor](), list[Tensor](), list[int]()
        right = list[tuple[int, int]]()
        for number, (stored, y, after) in enumerate(clients):
            update = Update(start.weights, after, start.lr, len(y), self._steps(target, len(y)))
            labels = inversion.labels(update, own_x)
            right.append((_common(labels, y), _common(_likeliest(own, len(y), target.run.fed.classes), y)))
            x = inversion.inputs(update, labels, digest(seed, "inversion", number))
            x = torch.cat([x, inversion.read_off(update, own_x)])
            stored_x = target.unseen_by_model(x)
            answers.append(stored_x[_pairs(stored_x, stored)])
            there.append(stored)
            owners += [number] * len(y)
        found = torch.cat(answers), torch.cat(there), torch.tensor(owners)
        outcome = self._outcome(target, own, found, right)
        if self.batch:
            return outcome
        return replace(outcome, scores=(*outcome.scores, *self._from_variates(target, inversion, own)))

    def _from_variates(self, target: TargetRun, inversion: Inversion, own: Samples) -> list[Score]:
        """The scores of what dense layers of the input give away in SCAFFOLD's control variates; the guess
        stands for answers that they do not give."""
        own_x, rows = target.seen(own.x), target.federation.train
        answers, there, owners = list[Tensor](), list[Tensor](), list[int]()
        attacked = self._attacked(target)
        for reply in (r for r in target.last_round.replies if r.client in attacked):
            if not (gradient := control_variate(target, reply)):
                continue
            none = {n: torch.zeros_like(t) for n, t in gradient.items()}
            stored = target.stored(rows[reply.client])
            x = target.unseen_by_model(inversion.read_off(Update(gradient, none, 0.0, len(stored), 1), own_x))
            guessed = target.unseen_by_model(own_x.mean(0, keepdim=True)).expand_as(stored)
            x = torch.cat([x, guessed[len(x) :]])
            answers.append(x[_pairs(x, stored)])
            there.append(stored)
            owners += [reply.client] * len(stored)
        if not answers:
            return []
        back, were = (target.natural(torch.cat(x)).float() for x in (answers, there))
        guess, of = success.guess_of(target.natural(own.x).float()), "the sum of what each client sent"
        return success.likeness_scores("scaffold/delta", of, back, were, guess, torch.tensor(owners))

    def _attacked(self, target: TargetRun) -> list[int]:
        """The clients that are attacked with batch=0."""
        return self._smallest(target)[: max(1, self.samples // 2)]

    def _smallest(self, target: TargetRun) -> list[int]:
        """Clients that answered in the last round and have at most `most` samples, the smallest first."""
        sizes = target.federation.sizes
        answered = (k for k in target.answered(target.final.t) if 0 < sizes[k] <= self.most)
        return sorted(answered, key=lambda k: (sizes[k], k))

    def _steps(self, target: TargetRun, n: int) -> int:
        epochs = self.epochs if self.batch else target.run.settings.epochs_in(target.final.t)
        return epochs * -(-n // target.run.settings.batch)

    def _clients(
        self, target: TargetRun, seed: int
    ) -> tuple[Broadcast, list[tuple[Tensor, Tensor, Weights]]]:
        """(the broadcast, for each client its stored samples, their classes, and its weights after
        training)."""
        y = torch.as_tensor(target.federation.y)
        if not self.batch:
            recorded, least = target.last_round, self._attacked(target)
            assert recorded.start is not None
            rows = [torch.as_tensor(np.asarray(target.federation.train[k])) for k in least]
            sent = {r.client: {**recorded.start.weights, **r.weights} for r in recorded.replies}
            return recorded.start, [(target.stored(r), y[r], sent[k]) for k, r in zip(least, rows)]
        start = target.last_round.start if self.at == "last" else None
        start = start or Broadcast(1, target.run.settings.lr, target.run.fed.net.weights(), {})
        count = max(1, self.samples // self.batch)
        drawn = numpy_key(seed, "gradient").permutation(np.unique(target.federation.train.rows))[
            : count * self.batch
        ]
        inside = np.kron(np.eye(count, dtype=bool), np.ones((1, self.batch), dtype=bool))[:, : len(drawn)]
        stored, labels = target.stored(drawn), y[torch.as_tensor(drawn)]
        plan = self.epochs, digest(seed, "clients")
        after = shadows.train_shadows(target, target.seen(stored), labels, inside, start, plan)
        return start, [
            (stored[torch.as_tensor(row)], labels[torch.as_tensor(row)], w) for row, w in zip(inside, after)
        ]

    def _outcome(
        self,
        target: TargetRun,
        own: Samples,
        found: tuple[Tensor, Tensor, Tensor],
        right: Sequence[tuple[int, int]],
    ) -> Outcome:
        """found: an answer to each sample, the samples, and the numbers of their clients."""
        answers, there, client_N = found
        of = (
            f"clients of {self.batch}, {self.epochs} epochs, {self.at} round"
            if self.batch
            else "updates as sent"
        )
        mine, back, were = (target.natural(x).float() for x in (own.x, answers, there))
        recovered, guessed = (sum(r[i] for r in right) for i in (0, 1))
        n = len(there)
        scores = [Score("w", of, "labels recovered", *share_of(recovered, n), guessed / n, 1.0, n)]
        guess = success.guess_of(mine)
        scores += success.likeness_scores("w", of, back, were, guess, client_N)
        sheet = success.image_sheet(
            {"there": were, "from the update": back, "mean of own": guess.x.expand_as(were)}
        )
        return Outcome(tuple(scores), f"{len(own)} {own.name}", {f"updates inverted, {of}": sheet})


def _common(guess: Tensor, y: Tensor) -> int:
    """The number of right labels in any order."""
    classes = int(max(guess.max(), y.max())) + 1
    both = torch.minimum(
        torch.bincount(guess.cpu(), minlength=classes), torch.bincount(y.cpu(), minlength=classes)
    )
    return int(both.sum())


def _likeliest(own: Samples, n: int, classes: int) -> Tensor:
    """The guessed labels of n samples, with the class shares of the attacker's own samples."""
    return round_counts(torch.bincount(own.y, minlength=classes).double() / len(own) * n, n)


def _pairs(answers: Tensor, there: Tensor) -> Tensor:
    """For each sample the index of its reconstruction, by the assignment with the least squared error."""
    cost = torch.cdist(there.float().flatten(1), answers.float().flatten(1)).pow(2)
    from scipy.optimize import linear_sum_assignment  # slow to import

    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1])
