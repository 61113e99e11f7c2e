"""Predictions of a run's model for new, unscaled samples.

Letters: N samples, C classes, H x W pixels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from unskew.core.trees import Tree, restride, tree_map
from unskew.data.clients.federation import Federation, RemoteFederation
from unskew.data.python_objects import is_frame
from unskew.data.readers.from_tables import encode_frame
from unskew.data.samples import scaling
from unskew.data.samples.conversion import DEPTHS, channels_first, sample_array, scale_samples
from unskew.data.samples.packing import archive_inputs_for, pack_to_layout
from unskew.data.standardisation import column_name, has_columns
from unskew.errors import DataError, UsageError, suggestion
from unskew.records.private_state import Store
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.precision import torch_defaults
from unskew.round.run import Run
from unskew.round.samples import load_samples
from unskew.round.trainer import Trainer
from unskew.runs.assemble import trainer_of

ODD_DEVIATION, LEAST_SAMPLES = 3.0, 10
"""At least this many standardised samples whose channel has a larger mean or deviation are reported as
odd."""
NOBODY = -1
"""The client number of samples that belong to no client."""


class RemoteRows(Sequence[np.ndarray]):
    """The rows of clients with samples on other machines."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, k: Any) -> Any:
        text = "this method makes a client's own model with its samples, which are not kept with the run"
        how = "use the result of unskew.run, which has them, give them at a site (--data, in Python data=)"
        raise UsageError("E131", f"{text}; {how}, or leave the client out.")


@dataclass(frozen=True)
class TrainedRun:
    """The models of a finished run. end: the broadcast after its last round. store: the clients' private
    state; None if it is not in the run's folder."""

    run: Run
    end: Broadcast
    store: Store | None

    @torch_defaults()
    def outputs(self, x: Any, client: int | str | None = None) -> Tensor:
        """The model's outputs: logits [N, C], or [N, C, H, W] for masks.

        x: [N, *shape], an array or tensor like the training samples; for several inputs, a dictionary or
        tuple of them. client: name or number of the client whose model and statistics are used; by default
        the global model. Raises UsageError: E131 if the model is not available or has diverged, E109 for an
        unknown client; DataError (E403, E405) for invalid samples.
        """
        k, x_N = client_number(self.run.federation, client), prepare_samples(self.run, x)
        if not len(x_N):
            raise DataError("E403", "predict: no samples were given; give one at least.")
        trainer = trainer_of(self.run)
        try:
            private = self.private(trainer, k)
            if isinstance(self.run.federation, RemoteFederation):
                trainer.samples = replace(trainer.samples, rows=RemoteRows())
            x_device = load_samples(x_N, trainer.device)
            evaluation = Evaluation(trainer, x_device, np.zeros(len(x_N), np.int64), [])
            end = replace(self.end, weights={n: restride(t) for n, t in self.end.weights.items()})
            found = evaluation.outputs(k, end, tree_map(restride, private), own=k >= 0).cpu()
        finally:
            trainer.close()
        if not (found < math.inf).all():  # -inf rules a class out; NaN is not below infinity either
            text = "this run's model answers with NaN or infinity, because training diverged"
            raise UsageError("E131", f"{text}; train again with a lower lr.")
        return found

    def private(self, trainer: Trainer, k: int) -> Tree:
        """The private state of client k; {} for no client. Raises UsageError (E131) if the model of client k,
        or the global model, is not available."""
        method, federation = self.run.method, self.run.federation
        keeps, personal = bool(trainer.kept or not trainer.sent), any(p.personal for p in method.parts)
        if k == NOBODY:
            if trainer.keeps_model or not trainer.sent:
                text = (
                    f"with {method} every client keeps weights of its own, so no global model predicts alone"
                )
                raise UsageError("E131", f"{text}; name a client, such as {federation.name_of(0)}.")
            return {}
        name = federation.name_of(k)
        if self.store is None and (keeps or personal):
            text = f"what makes the model of {name} its own is not in the run's folder"
            raise UsageError("E131", f"{text}: it stayed at the site, or is kept of the last round only.")
        private = self.store.fetch([k]).get(k, {}) if self.store else {}
        if keeps and not private:
            raise UsageError("E131", f"{name} never took part in this run, so it has no model of its own.")
        if personal and isinstance(federation, RemoteFederation) and not federation.counted(k):
            text = f"the run's folder does not say what {name} holds, which its own model is made with."
            raise UsageError("E131", text)
        return private


def prepare_samples(run: Run, x: Any) -> np.ndarray:
    """Samples as the run's model, or its Parts, receive them: float32 [N, *shape], scaled as the training
    samples were.

    Raises DataError: E403 for another shape or kind of numbers, E405 for NaN and infinity; UsageError (E131)
    where every site scaled its own.
    """
    federation = run.federation
    if isinstance(federation, RemoteFederation) and federation.scaled_apart:
        text = "sites standardised their samples by constants of their own, which stayed there"
        remedy = "predict at a site, unskew predict SITE/runs/NUMBER INPUT, or scale and call result.model"
        raise UsageError("E131", f"{text}: {remedy}.")
    if federation.layout:
        named = isinstance(x, Mapping) and federation.layout.named
        rows = pack_to_layout(federation.layout, archive_inputs_for(x, "predict") if named else x, "predict")
        return _warn_if_scaled(federation, federation.from_natural(rows))
    if isinstance(x, Mapping):
        text = "a dictionary was given; samples have one input, so give an array [N, ...]"
        raise DataError("E403", f"predict: {text}.")
    form = federation.intake.form if federation.intake else {}
    if is_frame(x) and form.get("kind") == "table":
        x = encode_frame(x, form, "predict")
    given = channels_first(sample_array(x, "predict"), form.get("axes", "auto"), "predict")
    if given.shape[1:] != federation.shape:
        text = f"samples are {list(given.shape[1:])}; the model was trained on {list(federation.shape)}"
        raise DataError("E403", f"predict: {text}.")
    if run.fed.net.embeds:
        return _token_ids(federation, given)
    came = np.dtype((federation.intake and federation.intake.dtype) or np.float32)
    divided = len(federation.shape) > 1  # columns of numbers stay what they are, whatever their type
    if divided and given.dtype != came and (given.dtype in DEPTHS or came in DEPTHS):
        text = f"samples are {given.dtype}, those of training were {came}, which are scaled in another way"
        raise DataError("E403", f"predict: {text}; give x.astype('{came}') on the scale of training.")
    x_N = _warn_if_scaled(federation, federation.from_natural(scale_samples(given, "predict")))
    if not np.isfinite(x_N).all():
        raise DataError("E405", "predict: a sample holds NaN or infinity.")
    return x_N


def _token_ids(federation: Federation, given: np.ndarray) -> np.ndarray:
    """Samples [N, ...] that the model looks up."""
    came = federation.intake.dtype if federation.intake else ""
    if came and np.dtype(came).kind in "iu" and given.dtype.kind == "f":
        wrong = np.argwhere(given != np.rint(given))  # also NaN
        if len(wrong):
            holds = f"{given[tuple(wrong[0])]:.4g}"
            text = f"sample {wrong[0][0]} holds {holds}, and the model looks whole numbers up"
            raise DataError("E405", f"predict: {text}; give the numbers that stand for the words.")
    return given.astype(np.float32)


def _warn_if_scaled(federation: Federation, x_N: np.ndarray) -> np.ndarray:
    """The samples themselves, with a warning where they seem to have been scaled before."""
    if text := _scaled_twice(federation, x_N):
        warnings.warn(text, stacklevel=5)
    return x_N


def _scaled_twice(federation: Federation, x_N: np.ndarray) -> str:
    """Why samples that have been standardised by the training samples' constants look odd, "" if they do
    not."""
    if federation.applied is None or len(x_N) < LEAST_SAMPLES:
        return ""
    (means, stds), (mean, std) = federation.applied, scaling.channel_constants(x_N, federation.layout)
    untouched = (np.asarray(means) == 0) & (np.asarray(stds) == 1)
    odd = np.flatnonzero(((np.abs(mean) > ODD_DEVIATION) | (std > ODD_DEVIATION)) & ~untouched)
    if not len(odd):
        return ""
    c = int(odd[0])
    which = federation.layout.called(c) if federation.layout else f"channel {c}"
    if has_columns(federation):
        which = f"column {column_name(federation, c)}"
    came = f"mean {mean[c] * stds[c] + means[c]:.3g} and standard deviation {std[c] * stds[c]:.3g}"
    was = f"mean {means[c]:.3g} and standard deviation {stds[c]:.3g}"
    return (
        f"{which} of these samples has {came}, that of the training samples {was}: are they scaled already?"
        " They must come as the training samples did; predict scales them."
    )


def client_number(federation: Federation, client: int | str | None) -> int:
    """The number of a client given by name or number. Raises UsageError (E109) for one that does not
    exist."""
    if client is None:
        return NOBODY
    names = [federation.name_of(k) for k in range(federation.clients)]
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, int) and 0 <= client < federation.clients:
        return client
    text = f"there is no client {client!r}; clients are 0 to {federation.clients - 1}, or their names."
    raise UsageError("E109", text + suggestion(str(client), names))


def input_facts(federation: Federation) -> dict[str, Any]:
    """The facts on inputs and outputs in a file of weights, by which other programs scale samples."""
    mean, std = federation.applied or (None, None)
    came = federation.intake.dtype if federation.intake else ""
    form = dict(federation.intake.form) if federation.intake else {}
    scaled_by = came and np.dtype(came) in DEPTHS and len(federation.shape) > 1
    apart = isinstance(federation, RemoteFederation) and federation.scaled_apart
    return {
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        **({"layout": federation.layout.as_json()} if federation.layout else {}),
        **({"places": federation.y.shape[1]} if federation.layout and federation.tokens else {}),
        "dtype": came or "float32",
        "divided_by": (1 << DEPTHS[np.dtype(came)]) - 1 if scaled_by else 1,
        **({"target": asdict(federation.target)} if federation.target else {}),
        "mean": list(mean) if mean else None,
        "std": list(std) if std else None,
        **({"form": form} if form else {}),
        **({"scaled_apart": True} if apart else {}),
    }


def class_names(federation: Federation, guess: np.ndarray) -> np.ndarray:
    """Predicted classes [N] by what they are called: whole numbers where all names are such. Masks stay
    numbers of classes, predicted numbers as they are; of several labels, whether each is there, bool [N,
    L]."""
    if federation.several:
        return guess > 0.5
    if federation.target:
        return guess
    guess = guess.astype(np.int64)
    if federation.masks:
        return guess
    names = federation.classes
    return np.array([int(c) for c in names] if all(c.isdecimal() for c in names) else names)[guess]
