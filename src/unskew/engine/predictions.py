"""What a run's global model says of new samples, given as the user's own are: before any scaling.

Letters: N samples, C classes, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from unskew.core.trees import Tree, Weights
from unskew.data.convert import DEPTHS, samples, scaled
from unskew.data.federation import Federation
from unskew.engine.assemble import trainer_of
from unskew.engine.client.values import Start
from unskew.engine.inputs import inputs_of
from unskew.engine.resolve import Run
from unskew.engine.server.scores import Evaluation
from unskew.errors import DataError, UsageError, suggestion

NOBODY = -1
"""The client of samples that belong to none."""


def outputs(run: Run, w: Weights, down: dict[str, Tree], x: Any, client: int | str | None = None) -> Tensor:
    """What predictions are read from, by samples: logits [N, C], or [N, C, H, W] where samples have masks.

    w, down: the global weights, and what the method's Parts broadcast with them. x: [N, *shape], an array or tensor of the
    kind that was given for training. client: whose statistics scale the samples, by name or number, where a Part has
    such; default: nobody's.
    Raises UsageError (E131) where clients keep weights, E109 for an unknown client; DataError (E403, E405) for samples.
    """
    k, x_N = number_of(run.federation, client), natural(run, x)
    trainer = trainer_of(run)
    try:
        if trainer.kept or not trainer.sent:
            raise UsageError(
                "E131",
                f"with {run.method} every client keeps weights of its own, so no global model predicts alone; "
                "result.clients() has each client's score.",
            )
        x_device = inputs_of(x_N, trainer.device)
        evaluation = Evaluation(trainer, x_device, np.zeros(len(x_N), np.int64), [])
        return evaluation.outputs(k, Start(run.settings.rounds, run.settings.lr, w, down)).cpu()
    finally:
        trainer.close()


def natural(run: Run, x: Any) -> np.ndarray:
    """Samples as the run's model, or its Parts, receive them: float32 [N, *shape], scaled as the training samples were.

    Raises DataError: E403 for another shape or kind of numbers, E405 for NaN and infinity.
    """
    federation = run.federation
    given = samples(x, "predict")
    if given.shape[1:] != federation.shape:
        raise DataError(
            "E403", f"predict: samples are {list(given.shape[1:])}; the model was trained on {list(federation.shape)}."
        )
    if run.fed.net.embeds:
        return given.astype(np.float32)
    came = np.dtype(federation.intake.dtype) if federation.intake and federation.intake.dtype else np.dtype(np.float32)
    if given.dtype != came and (given.dtype in DEPTHS or came in DEPTHS):
        raise DataError(
            "E403",
            f"predict: samples are {given.dtype}, those of training were {came}, which are scaled in another way; give "
            f"x.astype('{came}') on the scale of the training samples.",
        )
    x_N = federation.from_natural(scaled(given, "predict"))
    if not np.isfinite(x_N).all():
        raise DataError("E405", "predict: a sample holds NaN or infinity.")
    return x_N


def number_of(federation: Federation, client: int | str | None) -> int:
    """The number of a client given by name or number. Raises UsageError (E109) for one that does not exist."""
    if client is None:
        return NOBODY
    names = [federation.name_of(k) for k in range(federation.clients)]
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, int) and 0 <= client < federation.clients:
        return client
    raise UsageError(
        "E109",
        f"there is no client {client!r}; clients are 0 to {federation.clients - 1}, or their names."
        + suggestion(str(client), names),
    )


def facts(federation: Federation) -> dict[str, Any]:
    """What a file with the model's weights says of its inputs and outputs, so that samples can be scaled elsewhere."""
    mean, std = federation.applied or (None, None)
    came = federation.intake.dtype if federation.intake else ""
    return {
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        "dtype": came or "float32",
        "divided_by": (1 << DEPTHS[np.dtype(came)]) - 1 if came and np.dtype(came) in DEPTHS else 1,
        "mean": list(mean) if mean else None,
        "std": list(std) if std else None,
    }


def labels(federation: Federation, guess: np.ndarray) -> np.ndarray:
    """Predicted classes [N] by what they are called: whole numbers where all names are such. Masks stay numbers of classes."""
    if federation.masks:
        return guess
    names = federation.classes
    return np.array([int(c) for c in names] if all(c.isdecimal() for c in names) else names)[guess]
