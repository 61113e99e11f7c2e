"""The built-in metrics, by the kind of labels; means are over the classes or labels with a defined score.

Letters: N samples, B bins of confidence, C classes, L labels, T tokens, y targets, g predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unskew.data.samples.dataset import NO_LABEL


def auroc(positive_N: np.ndarray, score_N: np.ndarray) -> float | None:
    """Area under the ROC curve, in [0, 1]: P(s_i > s_j) + P(s_i = s_j) / 2 of a random positive i and a
    random negative j. None (undefined) without a positive or without a negative."""
    positives, negatives = int(positive_N.sum()), int((~positive_N).sum())
    if not positives or not negatives:
        return None
    from sklearn.metrics import roc_auc_score  # slow to import

    return float(roc_auc_score(positive_N, score_N))


def average_precision(positive_N: np.ndarray, score_N: np.ndarray) -> float | None:
    """Average precision, in [0, 1]: sum_n (R_n - R_(n-1)) P_n over the distinct scores in descending order,
    with recall R and precision P. None (undefined) without a positive."""
    if not positive_N.any():
        return None
    from sklearn.metrics import average_precision_score  # slow to import

    return float(average_precision_score(positive_N, score_N))


def class_auroc(y_N: np.ndarray, p_NC: np.ndarray) -> float | None:
    """Mean over classes of the AUROC of each against the others, in [0, 1]; for two classes that of the
    second. None if only one class is present."""
    return _over_classes(auroc, y_N, p_NC)


def class_average_precision(y_N: np.ndarray, p_NC: np.ndarray) -> float | None:
    """Mean average precision over classes, in [0, 1]; None for two classes without the second."""
    return _over_classes(average_precision, y_N, p_NC)


BINS = 15


def ece(y_N: np.ndarray, p_NC: np.ndarray) -> float:
    """Expected calibration error, sum_b n_b/N |accuracy_b - confidence_b|, in [0, 1], over BINS even bins of
    the predicted classes' probabilities (Guo et al., ICML 2017). A bin (a, b] includes b."""
    confidence_N = p_NC.max(1).astype(np.float64)
    bin_N = np.clip(np.ceil(confidence_N * BINS), 1, BINS).astype(np.int64) - 1
    gap = np.bincount(bin_N, weights=(p_NC.argmax(1) == y_N) - confidence_N, minlength=BINS)
    return float(np.abs(gap).sum() / len(y_N))


def brier(y_N: np.ndarray, p_NC: np.ndarray) -> float:
    """Brier score (Brier, Monthly Weather Review 1950): mean over samples of sum_c (p_c - y_c)^2, in [0,
    2]."""
    p = p_NC.astype(np.float64)
    return float(((p**2).sum(1) - 2 * p[np.arange(len(y_N)), y_N] + 1).mean())


def class_perplexity(y_N: np.ndarray, p_NC: np.ndarray) -> float:
    """Perplexity, exp of the mean over samples of -log p_y, at least 1. For the next word among C, chance
    level is C. Probabilities are clipped from below at the smallest normal float32."""
    return _perplexity(p_NC[np.arange(len(y_N)), y_N])


def _perplexity(p_N: np.ndarray) -> float:
    return float(np.exp(-np.log(np.maximum(p_N.astype(np.float64), np.finfo(np.float32).tiny)).mean()))


def class_macro_f1(y_N: np.ndarray, guess_N: np.ndarray) -> float:
    """Mean of 2 TP / (2 TP + FP + FN) over the classes that are present, in [0, 1]: the `macro_f1` of the
    whole test set, which is always recorded."""
    classes = np.unique(y_N)
    both = [int(((y_N == c) & (guess_N == c)).sum()) for c in classes]
    either = [int((y_N == c).sum() + (guess_N == c).sum()) for c in classes]
    return float(np.mean(2 * np.array(both) / np.array(either)))


def balanced_accuracy(y_N: np.ndarray, guess_N: np.ndarray) -> float:
    """Mean recall over the classes that are present, in [0, 1]."""
    return float(np.mean([(guess_N[y_N == c] == c).mean() for c in np.unique(y_N)]))


def _over_classes(
    score: Callable[[np.ndarray, np.ndarray], float | None], y_N: np.ndarray, p_NC: np.ndarray
) -> float | None:
    """The mean over the classes with a defined score; None if there are none."""
    if p_NC.shape[1] == 2:
        return score(y_N == 1, p_NC[:, 1])
    values = [v for c in np.unique(y_N) if (v := score(y_N == c, p_NC[:, c])) is not None]
    return float(np.mean(values)) if values else None


CLASS_PROBABILITY_METRICS = {
    "auroc": class_auroc,
    "map": class_average_precision,
    "ece": ece,
    "brier": brier,
    "perplexity": class_perplexity,
}
CLASS_METRICS = {"macro_f1": class_macro_f1, "balanced_accuracy": balanced_accuracy}


def label_auroc(y_NL: np.ndarray, p_NL: np.ndarray) -> float | None:
    """Mean over labels of the AUROC of each, in [0, 1]; None if no label is both present and absent among the
    samples."""
    return _over_labels(auroc, y_NL, p_NL)


def label_average_precision(y_NL: np.ndarray, p_NL: np.ndarray) -> float | None:
    """Mean average precision over labels, in [0, 1]; None if no sample has a label."""
    return _over_labels(average_precision, y_NL, p_NL)


def label_micro_f1(y_NL: np.ndarray, p_NL: np.ndarray) -> float | None:
    """Micro F1, 2 TP / (2 TP + FP + FN) counted over all labels together, in [0, 1]; a label is predicted if
    its probability exceeds 0.5. None if no label is present or predicted."""
    guess = p_NL > 0.5
    either = int(y_NL.sum() + guess.sum())
    return 2 * int((y_NL & guess).sum()) / either if either else None


def label_macro_f1(y_NL: np.ndarray, p_NL: np.ndarray) -> float | None:
    """Mean F1 over labels, in [0, 1]; None if no sample has a label."""
    return _over_labels(lambda y, p: label_micro_f1(y, p) if y.any() else None, y_NL, p_NL)


def _over_labels(
    score: Callable[[np.ndarray, np.ndarray], float | None], y_NL: np.ndarray, p_NL: np.ndarray
) -> float | None:
    """The mean over the labels with a defined score; None if there are none."""
    values = [v for y, p in zip(y_NL.T, p_NL.T, strict=True) if (v := score(y, p)) is not None]
    return float(np.mean(values)) if values else None


LABEL_METRICS = {
    "auroc": label_auroc,
    "map": label_average_precision,
    "micro_f1": label_micro_f1,
    "macro_f1": label_macro_f1,
}


def r2(y_N: np.ndarray, guess_N: np.ndarray) -> float | None:
    """Coefficient of determination, 1 - sum (g - y)^2 / sum (y - mean y)^2, at most 1; None (undefined) if
    all targets are equal. For several targets, [N, K], the mean over those that differ."""
    y = y_N.astype(np.float64)
    if y.ndim > 1:
        values = [value for y, g in zip(y.T, guess_N.T) if (value := r2(y, g)) is not None]
        return float(np.mean(values)) if values else None
    if y.min() == y.max():
        return None
    return float(1 - ((guess_N - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def median_error(y_N: np.ndarray, guess_N: np.ndarray) -> float | None:
    """Median absolute error, in the unit of the target."""
    return float(np.median(np.abs(guess_N - y_N.astype(np.float64))))


NUMBER_METRICS = {"r2": r2, "median_error": median_error}


def token_perplexity(y_NT: np.ndarray, p_NT: np.ndarray) -> float | None:
    """Perplexity over all labelled places, at least 1; None if there are none. p_NT: the probability of each
    place's label.

    Probabilities are clipped from below at the smallest normal float32.
    """
    p = p_NT[y_NT != NO_LABEL]
    return _perplexity(p) if len(p) else None


TOKEN_METRICS = {"perplexity": token_perplexity}
