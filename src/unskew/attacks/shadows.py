"""Shadow models: models trained like the attacked one, on halves of the candidates that the attacker draws.

A shadow is a client, so shadows train in parallel lanes. They minimise the task's loss alone, without the
method's Parts. Letters: S shadows, N candidates, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unskew.attacks.target_run import TargetRun
from unskew.core.method import Method
from unskew.core.trees import Weights
from unskew.data.clients.partition import Index
from unskew.round.chunks import Recipe
from unskew.round.clients import Broadcast, LocalTraining
from unskew.round.samples import Samples as TrainingSamples
from unskew.round.trainer import Trainer


def halves(shadows: int, n: int, rng: np.random.Generator, groups: np.ndarray | None = None) -> np.ndarray:
    """Masks of the candidates of each shadow, bool [S, N]; each candidate is in half of the shadows.

    groups: the group of each candidate, [N]; a shadow then has all candidates of a group or none.
    """
    names, owner = np.unique(np.arange(n) if groups is None else groups, return_inverse=True)
    order = np.argsort(rng.random((shadows, len(names))), axis=0)
    return (order < shadows // 2)[:, owner]


def train_shadows(
    target: TargetRun, x: Tensor, y: Tensor, inside_SN: np.ndarray, start: Broadcast, plan: tuple[int, int]
) -> list[Weights]:
    """The weights of every shadow.

    x: inputs as the model sees them. start: the initial weights. plan: (passes over the half, seed).
    """
    passes, seed = plan
    run, settings = target.run, target.run.settings
    rows = [np.flatnonzero(inside) for inside in inside_SN]
    sizes = np.array([len(r) for r in rows])
    fed = replace(run.fed, clients=len(rows), sizes=sizes, epochs=passes, seed=seed)
    counts = np.array([np.bincount(y[torch.as_tensor(r)].numpy(), minlength=run.fed.classes) for r in rows])
    samples = TrainingSamples(x, run.task.targets(y.to(x.device), run.fed.classes), Index.of(rows), counts)
    recipe = Recipe(settings.batch, passes, bool(run.fed.net.norms), settings.drop_last)
    training = LocalTraining(
        recipe, settings.optimiser, settings.momentum, settings.weight_decay, settings.precision
    )
    trainer = Trainer(Method(), fed, samples, training, run.lanes, target.trainer.workers)
    try:
        replies = trainer.train(replace(start, down={}), range(len(rows)), {})
    finally:
        trainer.close()
    return [{**start.weights, **reply.weights} for reply in replies]


def confidences(target: TargetRun, weights: Sequence[Weights], x: Tensor, y: Tensor) -> np.ndarray:
    """log(p / (1 - p)) of each candidate's class under each model, [S, N]."""

    def of(w: Weights) -> np.ndarray:
        with target.trainer.evaluating():
            logits = torch.cat([target.trainer.net.run(w, piece)[0] for piece in x.split(500)])
            return margins(logits, y).cpu().numpy()

    return np.stack(target.trainer.each(of, weights))


def margins(z_NC: Tensor, y_N: Tensor) -> Tensor:
    """log(p / (1 - p)) with p the softmax of the sample's class, [N]; finite for finite logits."""
    own = z_NC.gather(1, y_N[:, None])[:, 0]
    rest = z_NC.scatter(1, y_N[:, None], -torch.inf)
    return own - rest.logsumexp(1)


def ratios(target_N: np.ndarray, shadow_SN: np.ndarray, inside_SN: np.ndarray) -> np.ndarray:
    """LiRA's score, [N]: log N(target; shadows with the sample) - log N(target; shadows without it).

    Means are per sample; because shadows are few, the two variances are over all samples.
    """
    inside, outside = (np.where(mask, shadow_SN, np.nan) for mask in (inside_SN, ~inside_SN))
    with_N, without_N = np.nanmean(inside, 0), np.nanmean(outside, 0)
    with_var, without_var = (
        float(np.nanmean((values - mean) ** 2)) + 1e-9
        for values, mean in ((inside, with_N), (outside, without_N))
    )
    log_ratio = -((target_N - with_N) ** 2) / (2 * with_var) + (target_N - without_N) ** 2 / (2 * without_var)
    return log_ratio - 0.5 * np.log(with_var / without_var)
