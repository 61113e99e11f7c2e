"""Audit: a lower bound on epsilon by canaries in one run (Steinke, Nasr and Jagielski, NeurIPS 2023).

The run is trained once more with equal settings, but each of m canaries is left out with probability 1/2.
Canaries are samples of its clients, or whole clients. The auditor sees only the merged model and guesses: the
canaries with the most confident prediction of their class were in, those with the least were out, a `share`
of all canaries together. This many right guesses are unlikely (95 %, theorem 5.2) if epsilon is below the
bound.
canaries=mislabelled: canary samples have a random class, which a model can only memorise.
The claim is that of the run, or of the audited training if that protects less: clients without their canaries
are smaller, so dpsgd draws each sample more often. A claim with a delta above `delta` is audited at its
delta. The exchange of a sample is the removal and the addition of a client: with samples as canaries, a claim
(epsilon, delta) for clients becomes (2 epsilon, (1 + e^epsilon) delta). Canary samples belong to one client;
of a patient or another group of samples at most one is a canary.
Differs from the paper: the auditor sees the model after the last round, not every round, so the bound is
looser.

The theorem: each of m canaries is in the data with probability 1/2. The auditor makes r guesses, of which v
are right. If the run is (eps, delta)-DP, guesses are, up to delta, no better than coins with q = e^eps / (1 +
e^eps):
    P[V >= v] <= beta + 2 m delta alpha,     beta = P[B >= v],  B ~ Binomial(r, q)
    alpha = max_{1 <= i <= m} P[v > B >= v - i] / i
The bound is the largest eps for which this probability is at most 1 - confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import torch

from unskew.attacks import shadows
from unskew.attacks.attack import Attack, Outcome, Score
from unskew.attacks.target_run import TargetRun
from unskew.core.random_keys import numpy_key
from unskew.core.trees import Weights
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.formats.setting_ranges import BelowOne, Count, PositiveFraction
from unskew.records import schema
from unskew.round.loop import remaining_rounds
from unskew.round.run import Run
from unskew.runs import resolve
from unskew.runs.assemble import loop_of
from unskew.runs.disclosure import accounts

MOST_EPSILON = 60.0
"""The largest epsilon that is reported; larger ones protect nothing."""


@dataclass(frozen=True)
class Claim:
    """The claim that a run is (epsilon, delta)-DP for one canary; an infinite epsilon claims nothing."""

    epsilon: float
    delta: float

    def replaced(self) -> Claim:
        """The claim for a changed unit, which is the removal of one unit and the addition of another one.

        An update with and without a sample differ by a change of the client.
        """
        if self.epsilon > MOST_EPSILON:
            return NO_CLAIM
        delta = (1 + math.exp(self.epsilon)) * self.delta
        return Claim(2 * self.epsilon, delta) if delta < 1 else NO_CLAIM


NO_CLAIM = Claim(math.inf, 0.0)


def chance(counts: tuple[int, int, int], epsilon: float, delta: float) -> float:
    """The bound on P[V >= v] under (epsilon, delta)-DP. counts: m canaries, r guesses, v right ones."""
    from scipy.stats import binom  # slow to import

    m, r, v = counts
    q = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(v - 1, r, q))
    if not delta or not v:
        return min(1.0, beta)
    within_V = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q))  # P[v > B >= v - i] for i = 1 .. v
    alpha = float((within_V / np.arange(1, v + 1)).max())
    return min(1.0, beta + 2 * m * delta * alpha)


def bound(counts: tuple[int, int, int], delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that the guesses refute at this confidence; 0 if they refute none."""
    risk = 1 - confidence
    from scipy.optimize import brentq  # slow to import

    if chance(counts, 0.0, delta) > risk:
        return 0.0
    if chance(counts, MOST_EPSILON, delta) <= risk:
        return MOST_EPSILON
    return cast(
        float, brentq(lambda epsilon: chance(counts, epsilon, delta) - risk, 0.0, MOST_EPSILON, xtol=1e-9)
    )


def count_guesses(scores_M: np.ndarray, inside_M: np.ndarray, share: float) -> tuple[int, int, int]:
    """(m, r, v): the number of canaries, of guesses and of right guesses. A share of the canaries is guessed:
    the half of it with the highest scores as trained on, the half with the lowest as left out."""
    m = len(scores_M)
    half = min(m // 2, max(1, round(share * m / 2)))  # nothing is guessed of one canary, and of none twice
    order = np.argsort(scores_M, kind="stable")
    right = int(inside_M[order[m - half :]].sum() + (~inside_M[order[:half]]).sum())
    return m, 2 * half, right


READS = ("w",)

METRIC = "epsilon, lower bound at 95 %"


@dataclass(frozen=True)
class Audit(Attack):
    """Bounds epsilon from below."""

    samples: Annotated[Count, "the most canaries"] = 1000
    unit: Annotated[
        Literal["sample", "client"], "what a canary is: a sample, or a client with all it has"
    ] = "sample"
    canaries: Annotated[Literal["mislabelled", "as they are"], "the classes of canary samples"] = (
        "mislabelled"
    )
    share: Annotated[PositiveFraction, "share of the canaries of which the auditor guesses"] = 0.2
    delta: Annotated[
        BelowOne, "the delta under which epsilon is bounded, or the claim's, if that is larger"
    ] = 1e-5
    name: ClassVar[str] = "audit"
    asks: ClassVar[str] = "which epsilon can the run not have?"
    adversary: ClassVar[str] = "whoever gets the merged model and knows the canaries"
    on_merged: ClassVar[bool] = True
    alone: ClassVar[str] = "it trains the run once more; name it, or use unskew audit"
    one_input: ClassVar[bool] = False

    def refuse(self, target: TargetRun) -> str | None:
        if target.run.task.name != "classification":
            return "it needs one label a sample"
        if not target.sent:
            return "its clients send no weights"
        if len(self._canaries(target.federation)):
            return None
        return "every sample is held by several of its clients"

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        federation = target.federation
        rng = numpy_key(seed, "canaries", self.unit)
        canaries = self._canaries(federation)
        if self.unit == "sample":
            canaries = _one_per_group(rng.permutation(canaries), federation.group_ids)
        canaries = canaries[: self.samples]
        inside = rng.random(len(canaries)) < 0.5
        lists, y = self._planted(federation, canaries, inside, rng)
        if not any(map(len, lists)):
            return self._outcome(
                (len(canaries), 0, 0),
                claim_of(target, self.unit, target.run),
                ("nothing was left to train on",),
            )
        again = resolve.run_on(
            replace(federation, train=Index.of(lists), y=y), target.run.settings, target.run.method
        )
        sure = self._sure(target, y, canaries, train_model(again))
        counts = count_guesses(sure, inside, self.share if self.unit == "sample" else 1.0)
        return self._outcome(counts, claim_of(target, self.unit, again), ())

    def _canaries(self, federation: Federation) -> np.ndarray:
        """The candidates for canaries: rows of a single client each, or clients."""
        if self.unit == "client":
            return np.flatnonzero(federation.sizes > 0)
        rows, holders = np.unique(federation.train.rows, return_counts=True)
        return rows[holders == 1]

    def _outcome(self, counts: tuple[int, int, int], claim: Claim, remarks: tuple[str, ...]) -> Outcome:
        """The bound with the claim as its ceiling. counts: as in `chance`."""
        delta = max(self.delta, claim.delta)
        value = bound(counts, delta)
        right = f"{counts[2]} of {counts[1]} guesses right, {counts[0]} canaries, delta = {delta:.1e}"
        of = f"{self.unit}s as canaries"
        score = Score("w", of, METRIC, value, value, value, 0.0, claim.epsilon, counts[0], main=True)
        if value > claim.epsilon:
            rare = chance(counts, claim.epsilon, delta)
            text = f"epsilon {claim.epsilon:.3g} is claimed, and the audit refutes it: {right}"
            remarks = (
                *remarks,
                f"{text}; where the claim holds, at most {rare:.2g} of audits come to as many",
            )
        return Outcome((score,), f"none; {right}", {}, remarks)

    def _planted(
        self, federation: Federation, canaries: np.ndarray, inside: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """(the rows of every client without the canaries that are left out, the classes of all rows)."""
        y = np.asarray(federation.y).copy()
        if self.unit == "client":
            out = set(canaries[~inside].tolist())
            return [rows[:0] if k in out else rows for k, rows in enumerate(federation.train)], y
        if self.canaries == "mislabelled":
            y[canaries] = rng.integers(0, federation.n_classes, len(canaries))
        return [rows[~np.isin(rows, canaries[~inside])] for rows in federation.train], y

    def _sure(self, target: TargetRun, y: np.ndarray, canaries: np.ndarray, weights: Weights) -> np.ndarray:
        """[M]: the confidence in each canary's class; of a client the mean over its samples."""
        rows = (
            [canaries]
            if self.unit == "sample"
            else [np.asarray(target.federation.train[k]) for k in canaries]
        )
        index = torch.as_tensor(np.concatenate(rows))
        own = torch.as_tensor(y)[index]
        sure = shadows.confidences(target, [weights], target.seen(target.stored(index)), own)[0]
        if self.unit == "sample":
            return sure
        ends = np.cumsum([len(r) for r in rows])[:-1]
        return np.array([part.mean() for part in np.split(sure, ends)])


def _one_per_group(rows: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """The first of these rows of every group: what a model knows of a canary must not come from another one.

    groups: the group of each row of x; None if samples are independent.
    """
    if groups is None:
        return rows
    return rows[np.sort(np.unique(groups[rows], return_index=True)[1])]


def train_model(run: Run) -> Weights:
    """The merged weights after the training of a run."""
    loop = loop_of(run)
    try:
        now = loop.begin()
        for after in remaining_rounds(loop, now, lambda *_: None):
            now = after
    finally:
        loop.trainer.close()
    return now.weights


def claim_of(target: TargetRun, unit: str, again: Run) -> Claim:
    """The claim for the merged model and one canary: by privacy.json, or for the audited run if that is
    weaker.

    unit: of a canary. A Part that protects samples (DP-SGD) claims nothing for clients, and a Part that
    protects clients has a weaker claim for samples.
    """
    kept = schema.read_privacy(target.path)
    anew = accounts(again.method, again.fed, again.federation.label_counts)
    claims = [NO_CLAIM]
    for part in target.run.method.parts:
        readings = kept.get(part.name, {}).get("epsilons", [])
        if (
            not readings
            or part.name not in anew
            or not (part.protects or (part.samples_apart and unit == "sample"))
        ):
            continue
        stated, now = readings[0]["epsilon"], anew[part.name].epsilons[0][0]
        claim = Claim(
            math.inf if stated is None else max(float(stated), now), float(getattr(part, "delta", 0.0))
        )
        claims.append(claim.replaced() if part.protects and unit == "sample" else claim)
    return min(claims, key=lambda claim: claim.epsilon)
