"""Audit: a lower bound on epsilon by canaries in one run (Steinke, Nasr and Jagielski, NeurIPS 2023).

The run is trained once more with the same settings, but each of m canaries is left out with probability 1/2: samples of
its clients, or whole clients. The auditor sees the merged model alone and guesses, of the `share` of canaries whose own
class it is most and least sure of, that they were in and out. So many right guesses would be unlikely under a smaller
epsilon than the bound (`attacks/auditing.py`), at 95 %.
canaries=mislabelled: canary samples have a class drawn at random, which a model can only memorise.
Differs from the paper: the auditor sees the model after the last round, not every round; so the bound is looser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt

from unskew.attacks import auditing, shadows
from unskew.attacks.attack import Attack
from unskew.attacks.scene import Scene
from unskew.attacks.scores import Outcome, Score
from unskew.core.keys import numpy_key
from unskew.core.trees import Weights
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.engine import resolve
from unskew.engine.assemble import loop_of
from unskew.engine.disk import privacy
from unskew.engine.server.loop import rounds

READS = ("w",)
"""The payloads that it attacks, as the ledger calls them."""

METRIC = "epsilon, lower bound at 95 %"


@dataclass(frozen=True)
class Audit(Attack):
    """Bounds epsilon from below."""

    samples: Annotated[int, Ge(1), Le(1_000_000), "the most canaries"] = 1000
    unit: Annotated[Literal["sample", "client"], "what a canary is: a sample, or a client with all it has"] = "sample"
    canaries: Annotated[Literal["mislabelled", "as they are"], "the classes of canary samples"] = "mislabelled"
    share: Annotated[float, Gt(0), Le(1), "share of the canaries of which the auditor guesses"] = 0.2
    delta: Annotated[float, Ge(0), Lt(1), "the delta under which epsilon is bounded"] = 1e-5
    name: ClassVar[str] = "audit"
    asks: ClassVar[str] = "which epsilon can the run not have?"
    adversary: ClassVar[str] = "whoever gets the merged model and knows the canaries"
    on_merged: ClassVar[bool] = True
    alone: ClassVar[str] = "it trains the run once more; name it, or use unskew audit"
    one_input: ClassVar[bool] = False

    def refuse(self, scene: Scene) -> str | None:
        if scene.run.task.name != "classification":
            return "it needs one label a sample"
        return None if scene.sent else "its clients send no weights"

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        federation = scene.run.federation
        rng = numpy_key(seed, "canaries", self.unit)
        if self.unit == "sample":
            canaries = rng.permutation(np.unique(federation.train.rows))[: self.samples]
        else:
            canaries = np.flatnonzero(federation.sizes > 0)[: self.samples]
        inside = rng.random(len(canaries)) < 0.5
        changed = self._planted(federation, canaries, inside, rng)
        weights = trained_again(scene, changed)
        sure = self._sure(scene, changed, canaries, weights)
        counts = auditing.guessed(sure, inside, self.share if self.unit == "sample" else 1.0)
        value = auditing.bound(counts, self.delta)
        claim = claimed(scene, self.unit)
        right = f"{counts[2]} of {counts[1]} guesses right, {counts[0]} canaries"
        score = Score("w", f"{self.unit}s as canaries", METRIC, value, value, value, 0.0, claim, counts[0], main=True)
        remarks = (f"epsilon {claim:.3g} is claimed, and the audit refutes it: {right}",) if value > claim else ()
        return Outcome((score,), f"none; {right}", {}, remarks)

    def _planted(
        self, federation: Federation, canaries: np.ndarray, inside: np.ndarray, rng: np.random.Generator
    ) -> Federation:
        """The federation without the canaries that are left out."""
        if self.unit == "client":
            out = set(canaries[~inside].tolist())
            lists = [rows[:0] if k in out else rows for k, rows in enumerate(federation.train)]
            return replace(federation, train=Index.of(lists))
        out = canaries[~inside]
        y = np.asarray(federation.y).copy()
        if self.canaries == "mislabelled":
            y[canaries] = rng.integers(0, federation.n_classes, len(canaries))
        lists = [rows[~np.isin(rows, out)] for rows in federation.train]
        return replace(federation, y=y, train=Index.of(lists))

    def _sure(self, scene: Scene, planted: Federation, canaries: np.ndarray, weights: Weights) -> np.ndarray:
        """[M] how sure the model is of each canary's own class; of a client the mean over what it had."""
        rows = [canaries] if self.unit == "sample" else [np.asarray(scene.run.federation.train[k]) for k in canaries]
        index = torch.as_tensor(np.concatenate(rows))
        y = torch.as_tensor(np.asarray(planted.y))[index]
        sure = shadows.confidences(scene, [weights], scene.seen(scene.trainer.samples.x[index]), y)[0]
        if self.unit == "sample":
            return sure
        ends = np.cumsum([len(r) for r in rows])[:-1]
        return np.array([part.mean() for part in np.split(sure, ends)])


def trained_again(scene: Scene, federation: Federation) -> Weights:
    """The merged weights of the run with its settings on these clients."""
    run = resolve.run_on(federation, scene.run.settings, scene.run.method)
    loop = loop_of(run)
    try:
        now = loop.begin()
        for after in rounds(loop, now, lambda *_: None):
            now = after
    finally:
        loop.trainer.close()
    return now.weights


def claimed(scene: Scene, unit: str) -> float:
    """The epsilon that privacy.json claims of the merged model for one canary, against whoever gets it; infinite where nothing
    is claimed. unit: what a canary is; what protects samples (DP-SGD) claims nothing of whole clients."""
    parts = (p for p in scene.run.method.parts if p.protects or (p.samples_apart and unit == "sample"))
    accounts = [privacy.read(scene.path).get(part.name, {}) for part in parts]
    claims = [a["epsilons"][0]["epsilon"] for a in accounts if a.get("epsilons")]
    return min((float(c) for c in claims if c is not None), default=float("inf"))
