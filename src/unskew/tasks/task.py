"""Tasks: classification, several labels, regression, segmentation, and labels of tokens.

The labels determine the task, and a task defines targets, loss, predictions and scores. Further scores are in
`tasks/metrics.py`. Letters: N samples or images, B batch, C classes (0 is the background of masks), L labels,
P pixels, T tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.data.samples.dataset import NO_LABEL, Constants, Target
from unskew.errors import UsageError, printable
from unskew.formats.specs import split_names
from unskew.tasks.metric_functions import r2
from unskew.tasks.own_loss import LossFunction


@dataclass(frozen=True)
class Task(ABC):
    """Targets, loss, predictions and scores of one kind of labels.

    own_loss: a user's loss, which replaces the task's.
    Letters: N samples, B batch, C classes, or 1 for a number; `...` stands for the pixels of a mask, and for
    nothing else. With labels at every token, [B, T], outputs are [B, T, C] and targets the labels themselves.
    """

    own_loss: LossFunction | None = field(default=None, compare=False, kw_only=True)
    name: ClassVar[str]
    main_score: ClassVar[str]
    """The score by which methods are ranked; `unskew.scores` knows whether higher is better."""
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The range of a client's scores."""

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's label: (), (height, width) or (tokens,), from the shape of the sample."""
        return ()

    @abstractmethod
    def targets(self, y: Tensor, classes: int, /) -> Tensor:
        """Targets of the loss: class distributions, float32 [B, C, ...], from labels, int64 [B, ...], or
        their counterpart in another task."""

    @abstractmethod
    def loss(self, z: Tensor, y: Tensor, /) -> Tensor:
        """The loss of each sample, [B], from outputs and targets, both [B, C, ...]."""

    @abstractmethod
    def predictions(self, z: Tensor, /) -> Tensor:
        """The most likely class, [B, ...], from logits [B, C, ...]; or the number, or each label's
        probability [B, L]."""

    @abstractmethod
    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """The scores of predicted and true labels, both [N, ...], the main one first; {} for no samples."""

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """Those of the scores that are recorded for each single client; arguments as in `scores`."""
        return self.scores(guess, true, classes)

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The scores on all clients' rows, from those of each client and the shares of its rows among all."""
        return {m: float(sum(s * v[m] for s, v in zip(shares, scores, strict=True))) for m in scores[0]}


@dataclass(frozen=True)
class Classification(Task):
    """One class for every sample, trained with cross-entropy against class distributions, scored by a
    confusion matrix. weights_C: the weight of each class in the loss; None for 1."""

    weights_C: Tensor | None = field(default=None, compare=False)
    name: ClassVar[str] = "classification"
    main_score: ClassVar[str] = "accuracy"

    def loss(self, z_BC: Tensor, y_BC: Tensor) -> Tensor:
        """-sum_c v_c y_c log softmax(z)_c of each sample, with the classes' weights v, in nats, [B].

        A class with y_c = 0 adds nothing, even where its logit is -inf.
        """
        if self.own_loss is not None:
            return self.own_loss(z_BC, y_BC)
        log_p = z_BC.log_softmax(-1)
        y_BC = y_BC if self.weights_C is None else y_BC * self.weights_C.to(z_BC.device)
        return -(y_BC * log_p.masked_fill(y_BC == 0, 0.0)).sum(-1)

    def targets(self, y_B: Tensor, classes: int) -> Tensor:
        """One-hot rows, float32 [B, C], which Parts may mix or smooth."""
        return F.one_hot(y_B, classes).float()

    def predictions(self, z_BC: Tensor) -> Tensor:
        """The most likely class of each sample, int64 [B]."""
        return z_BC.argmax(-1)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """accuracy, macro_f1 and worst_class of predicted and true classes, both [N]; the means leave out
        classes without a sample. {} for no samples."""
        right, *both = (
            np.bincount(labels, minlength=classes) for labels in (true[true == guess], true, guess)
        )
        return _class_scores(right, *both)

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """The accuracy on one client's test samples; {} if it has none."""
        return {"accuracy": float((guess == true).mean())} if len(true) else {}


def _class_scores(right_C: np.ndarray, true_C: np.ndarray, guessed_C: np.ndarray) -> dict[str, float]:
    """accuracy, macro_f1 and worst_class from the correct, true and predicted samples of each class; {}
    without samples. Unlike a matrix [C, C], this takes little memory with many classes."""
    if not true_C.sum():
        return {}
    present = true_C > 0
    f1 = 2 * right_C / np.maximum(true_C + guessed_C, 1)
    return {
        "accuracy": float(right_C.sum() / true_C.sum()),
        "macro_f1": float(f1[present].mean()),
        "worst_class": float((right_C[present] / true_C[present]).min()),
    }


@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of labels for every sample, each present or absent, trained with binary cross-entropy.

    loss        mean_l -(y_l log s(z_l) + (1 - y_l) log(1 - s(z_l))),   s the logistic function
    predicted   the labels with s(z_l) > 1/2
    sample F1   2 |P and G| / (|P| + |G|) of the predicted and true labels of a sample, 1 if both are empty;
                the mean over samples. It is the main score because the score of all rows follows from those
                of the clients.
    """

    name: ClassVar[str] = "multilabel"
    main_score: ClassVar[str] = "sample_f1"

    def targets(self, y_BL: Tensor, classes: int) -> Tensor:
        """1 where a label is present, else 0, float32 [B, L]."""
        return y_BL.float()

    def loss(self, z_BL: Tensor, y_BL: Tensor) -> Tensor:
        """The mean over labels of the binary cross-entropy of each sample, in nats, [B]."""
        if self.own_loss is not None:
            return self.own_loss(z_BL, y_BL)
        return (F.softplus(z_BL) - y_BL * z_BL).mean(-1)

    def predictions(self, z_BL: Tensor) -> Tensor:
        """The probability of each label, float32 [B, L]; a label is predicted where it is above a half."""
        return z_BL.sigmoid()

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """sample_f1 of probabilities and true labels, both [N, L]; {} for no samples."""
        if not len(true):
            return {}
        guess_NL, true_NL = guess.reshape(len(true), -1) > 0.5, true.reshape(len(true), -1) > 0
        size_N = guess_NL.sum(1) + true_NL.sum(1)
        f1_N = np.where(size_N > 0, 2 * (guess_NL & true_NL).sum(1) / np.maximum(size_N, 1), 1.0)
        return {"sample_f1": float(f1_N.mean())}


REGRESSION_LOSSES = ("mse", "mae")
LARGEST_ERROR = 1e30
"""The largest absolute value of a prediction."""


@dataclass(frozen=True)
class Regression(Task):
    """A number for every sample, or several, trained with squared or absolute error, scored in its own unit.

    target      u = (y - center) / scale, which is compared with the model's output z
    mse, mae    (z - u)^2, |z - u|
    RMSE, MAE   sqrt(mean (g - y)^2), mean |g - y|       of predictions g = center + scale z
    R2          1 - sum (g - y)^2 / sum (y - mean y)^2; left out where all targets are equal

    For several targets, loss and R2 are means over targets; RMSE and MAE are of errors (g - y) / scale,
    because units differ, and `rmse:NAME` is that of one target, in its own unit. A prediction that is not
    finite counts as LARGEST_ERROR, so that no mean leaves it out. center, scale: of each target; a float for
    a single one. kind: the training loss, "mse" or "mae". names: of several targets that are also scored one
    by one. Letter K: targets.
    """

    center: Constants = 0.0
    scale: Constants = 1.0
    kind: str = "mse"
    names: tuple[str, ...] = ()
    name: ClassVar[str] = "regression"
    main_score: ClassVar[str] = "rmse"
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """Standardised targets, float32 [B, K], from targets [B], or [B, K], in their own units."""
        u = ((y.double() - _as_numbers(self.center, y)) / _as_numbers(self.scale, y)).float()
        return u if u.dim() > 1 else u[:, None]

    def loss(self, z_BK: Tensor, y_BK: Tensor) -> Tensor:
        """The error of each sample, [B], in units of `scale`, or its square for "mse"; the mean over
        targets."""
        if self.own_loss is not None:
            return self.own_loss(z_BK, y_BK)
        error = z_BK - y_BK
        return (error.square() if self.kind == "mse" else error.abs()).mean(-1)

    def predictions(self, z_BK: Tensor) -> Tensor:
        """The predicted targets of each sample in their own units, float64 [B], or [B, K] of several."""
        z = z_BK if isinstance(self.center, tuple) else z_BK[:, 0]
        guess = z.double() * _as_numbers(self.scale, z) + _as_numbers(self.center, z)
        return guess.nan_to_num(nan=LARGEST_ERROR, posinf=LARGEST_ERROR, neginf=-LARGEST_ERROR).clamp(
            -LARGEST_ERROR, LARGEST_ERROR
        )

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """`client_scores`, and r2 of predicted and true targets, both [N], or [N, K] of several, where these
        differ; {} for no samples. r2 is the mean over those of the targets that differ."""
        if not len(true):
            return {}
        share = r2(true, guess)
        return self.client_scores(guess, true, classes) | ({} if share is None else {"r2": share})

    def client_scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """rmse and mae on one client's test samples; {} if it has none. With several targets errors are in
        units of each one's scale, and the means are also over targets; rmse:NAME of each is in its own."""
        if not len(true):
            return {}
        own = guess - true.astype(np.float64)
        error = own / np.array(self.scale) if isinstance(self.scale, tuple) else own
        return {
            "rmse": math.sqrt(float((error**2).mean())),
            "mae": float(np.abs(error).mean()),
            **{f"rmse:{name}": math.sqrt(float((e**2).mean())) for name, e in zip(self.names, own.T)},
        }

    def pooled(self, shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        roots = [name for name in scores[0] if name.partition(":")[0] == "rmse"]
        # squares are averaged, not roots
        means = super().pooled(shares, [{name: one[name] ** 2 for name in roots} for one in scores])
        return super().pooled(shares, scores) | {name: math.sqrt(means[name]) for name in roots}


def _as_numbers(values: Constants, like: Tensor) -> float | Tensor:
    """Constants of targets to compute with: a float, or a tensor [K] on the device of `like`."""
    return torch.tensor(values, device=like.device).double() if isinstance(values, tuple) else values


DICE_SMOOTHING = 1e-5
SEGMENTATION_LOSSES = ("ce", "dice", "ce+dice")


@dataclass(frozen=True)
class Segmentation(Task):
    """A class for every pixel, trained with cross-entropy and soft Dice, scored by Dice.

    soft Dice   1 - mean_c (2 sum_p p_c y_c + e) / (sum_p p_c + sum_p y_c + e),   e = 1e-5, over all C classes
    ce          mean_p -sum_c y_c log softmax(z)_c
    ce+dice     the mean of both, as FedFA's public code trains its U-Net (Zhou & Konukoglu, ICLR 2023)
    Dice        2 |P and G| / (|P| + |G|) of an image and a class: left out where both masks are empty, 0
                where one is

    Every sum runs over the pixels of one sample, so a batch's loss is a mean over samples. kind: the training
    loss, "ce", "dice" or "ce+dice".
    """

    kind: str = "ce+dice"
    name: ClassVar[str] = "segmentation"
    main_score: ClassVar[str] = "dice"

    def __post_init__(self) -> None:
        if self.kind not in SEGMENTATION_LOSSES:
            raise ValueError(f"kind must be one of {', '.join(SEGMENTATION_LOSSES)}, got '{self.kind}'")

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(height, width) of a mask, for samples of shape [channels, height, width]."""
        return tuple(shape[1:])

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """One-hot masks, float32 [B, C, ...], from masks [B, ...]; Parts may mix or smooth them."""
        return torch.stack([(y == c).float() for c in range(classes)], 1)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [B], from logits and class distributions, both [B, C, ...]."""
        if self.own_loss is not None:
            return self.own_loss(z, y)
        z_BCP, y_BCP = z.flatten(2), y.flatten(2)
        if self.kind == "ce":
            return cross_entropy(z_BCP, y_BCP)
        if self.kind == "dice":
            return soft_dice(z_BCP, y_BCP)
        return (cross_entropy(z_BCP, y_BCP) + soft_dice(z_BCP, y_BCP)) / 2

    def predictions(self, z: Tensor) -> Tensor:
        """The most likely class of every pixel, [B, ...]: uint8 up to 256 classes, int64 above."""
        return z.argmax(1).to(torch.uint8 if z.shape[1] <= 256 else torch.int64)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """Means over images, in [0, 1]: `dice` over the classes except the background, `dice_both` over all
        classes; {} for no images.

        An image counts only the classes that are in its mask or predicted, so that absent classes do not
        raise the score. An image without any counts 1.
        """
        if not len(true):
            return {}
        dice_NC, in_NC = dice(guess, true, classes), present_classes(guess, true, classes)
        return {
            "dice": _mean_over_present(dice_NC[:, 1:], in_NC[:, 1:]),
            "dice_both": _mean_over_present(dice_NC, in_NC),
        }


def cross_entropy(z_BCP: Tensor, y_BCP: Tensor) -> Tensor:
    """Cross-entropy of each sample in nats, the mean over its pixels, [B]."""
    return -(y_BCP * F.log_softmax(z_BCP, 1)).sum(1).mean(-1)


def soft_dice(z_BCP: Tensor, y_BCP: Tensor) -> Tensor:
    """One minus the soft Dice of each sample, the mean over classes, [B]."""
    p_BCP = F.softmax(z_BCP, 1)
    both_BC = torch.einsum("bcp,bcp->bc", p_BCP, y_BCP)
    return 1 - ((2 * both_BC + DICE_SMOOTHING) / (p_BCP.sum(-1) + y_BCP.sum(-1) + DICE_SMOOTHING)).mean(1)


def dice(guess: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Dice of every image and class, float64 [N, C], from predicted and true masks, both [N, ...]."""
    guess_NP, true_NP = guess.reshape(len(guess), -1), true.reshape(len(true), -1)
    dice_NC = np.ones((len(true), classes))
    for c in range(classes):
        p, g = guess_NP == c, true_NP == c
        size = p.sum(1) + g.sum(1)
        np.divide(2 * (p & g).sum(1), size, out=dice_NC[:, c], where=size > 0)
    return dice_NC


def present_classes(guess: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Whether a class is in an image's true or predicted mask, bool [N, C]."""
    guess_NP, true_NP = guess.reshape(len(guess), -1), true.reshape(len(true), -1)
    return np.stack([(guess_NP == c).any(1) | (true_NP == c).any(1) for c in range(classes)], axis=1)


def _mean_over_present(dice_NC: np.ndarray, in_NC: np.ndarray) -> float:
    """The mean over images of the mean over an image's classes, which is 1 if it has none."""
    if in_NC.all():
        return float(dice_NC.mean())
    count_N = in_NC.sum(1)
    return float(np.where(count_N > 0, (dice_NC * in_NC).sum(1) / np.maximum(count_N, 1), 1.0).mean())


@dataclass(frozen=True)
class TokenLabels(Task):
    """A class for every labelled token of a sample: the next word, or the kind of each word.

    The loss is the mean of -log softmax(z)_y over a sample's labelled places, in nats; token accuracy is the
    share of them where the likeliest class is the true one, and its mean over samples. Places without a
    label, such as padding, have the label -1 and are ignored; every sample has a labelled place. places: the
    number of tokens of a sample; 0: the sample's length.
    """

    places: int = 0

    name: ClassVar[str] = "tokens"
    main_score: ClassVar[str] = "token_accuracy"

    def pixels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(tokens,): the shape of a sample, unless it is a row of several inputs."""
        return (self.places,) if self.places else tuple(shape)

    def targets(self, y_BT: Tensor, classes: int) -> Tensor:
        """The labels, int64 [B, T], because distributions over a vocabulary would be as large as the
        logits."""
        return y_BT.long()

    def loss(self, z_BTC: Tensor, y_BT: Tensor) -> Tensor:
        """The loss of each sample, [B]; 0 where no place has a label."""
        if self.own_loss is not None:
            return self.own_loss(z_BTC, y_BT)
        labelled = y_BT != NO_LABEL
        log_p_BT = _of_labels(z_BTC.log_softmax(-1), y_BT)
        return -log_p_BT.masked_fill(~labelled, 0.0).sum(-1) / labelled.sum(-1).clamp(min=1)

    def predictions(self, z_BTC: Tensor) -> Tensor:
        """The likeliest class at each place, int64 [B, T]."""
        return z_BTC.argmax(-1)

    def probabilities(self, z_BTC: Tensor, y_BT: Tensor) -> Tensor:
        """The probability of each place's label, [B, T]; arbitrary where there is no label."""
        return _of_labels(z_BTC.softmax(-1), y_BT)

    def scores(self, guess: np.ndarray, true: np.ndarray, classes: int) -> dict[str, float]:
        """token_accuracy of predicted and true labels, both [N, T]; {} for no samples."""
        if not len(true):
            return {}
        labelled = true != NO_LABEL
        right_N = ((guess == true) & labelled).sum(1) / np.maximum(labelled.sum(1), 1)
        return {"token_accuracy": float(right_N.mean())}


def _of_labels(values_BTC: Tensor, y_BT: Tensor) -> Tensor:
    return values_BTC.gather(-1, y_BT.clamp(min=0)[..., None])[..., 0]


def class_weights(text: str, counts_C: np.ndarray) -> Tensor:
    """The setting `class_weights`, balanced or numbers, as float32 [C]. counts_C: training samples of each
    class.

    Balanced weights are v_c = N / (C n_c) for C classes with n_c of the N samples, with mean 1 over samples
    (King and Zeng, Political Analysis 2001; scikit-learn's "balanced"); a class without samples has weight 1.

    Raises UsageError (E109) for another number of weights than of classes.
    """
    if text == "balanced":
        here_C = counts_C > 0
        return torch.tensor(
            np.where(here_C, counts_C.sum() / (here_C.sum() * np.maximum(counts_C, 1)), 1.0),
            dtype=torch.float32,
        )
    weights = [float(number) for number in text.split(",")]
    if len(weights) != len(counts_C):
        raise UsageError(
            "E109", f"class_weights has {len(weights)} numbers, and there are {len(counts_C)} classes."
        )
    return torch.tensor(weights)


def task_of(
    y: np.ndarray,
    loss: str = "auto",
    target: Target | None = None,
    shape: tuple[int, ...] = (),
    weights_C: Tensor | None = None,
    own: LossFunction | None = None,
) -> Task:
    """Classification for labels [N], segmentation for masks [N, height, width], regression for a target;
    multi-label for truth values [N, L]; a class for every token for labels [N, T] of samples [T], or of rows
    with several inputs.

    loss: the setting of that name. target: of data whose labels are numbers. shape: of one sample.
    weights_C: of the classes, in the loss. own: a user's loss, which replaces the task's. Raises UsageError
    (E109) for a loss of another task, and for weights where a sample has no single class, or with a loss of
    the user's.
    """
    if own is not None:
        if weights_C is not None:
            raise UsageError("E109", "class_weights weighs the usual loss; weigh classes in your own.")
        return replace(task_of(y, "auto", target, shape), own_loss=own)
    if target is not None:
        name, known = "a number each", REGRESSION_LOSSES
        names = tuple(map(printable, split_names(target.name))) if y.ndim > 1 else ()
        task = Regression(target.center, target.scale, "mse" if loss == "auto" else loss, names)
    elif y.dtype.kind == "b":
        name, known, task = "several labels each", (), MultiLabel()
    elif y.ndim == 2 and len(shape) == 1:
        name, known, task = "labelled tokens", ("ce",), TokenLabels(y.shape[1])
    elif y.ndim > 1:
        name, known = "masks", SEGMENTATION_LOSSES
        task = Segmentation(loss) if loss in known else Segmentation()
    else:
        name, known, task = "one label each", ("ce",), Classification(weights_C)
    if weights_C is not None and not isinstance(task, Classification):
        raise UsageError("E109", "class_weights weighs samples of one class each, which these do not have.")
    if loss not in ("auto", *known):
        raise UsageError(
            "E109", f"loss={loss} does not fit samples with {name}: use {' or '.join(('auto', *known))}."
        )
    return task
