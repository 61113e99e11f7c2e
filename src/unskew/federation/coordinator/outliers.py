"""Sites that differ suspiciously from the others, in norms of replies, units or sample counts; and sites'
weights in a run.

Norms. A reply may be finite, of the right shape, and still ruin the model. Three norms of each are compared
with the median of the other sites': of its change of all trained weights, of its change of all statistics of
batch normalisation, and of all numbers that a Part shares. A change is refused if it is more than 100 times
the median, and larger than the model and than 1. With two sites either may be the outlier, so a change must
be a hundred times as large as the model, and Shares are not compared. Shared sums grow with the samples, so
1,000,000 times is too much for them, and 1,000 times for inputs and features.

Units. The means and deviations that `standardise` collects reveal sites with other units of measurement
(unskew.data.column_statistics).

Letters: K replies or sites, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import median

import numpy as np
from torch import Tensor

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.replies import Reply, cap_weights
from unskew.core.trees import Weights, flat_tree
from unskew.data import column_statistics
from unskew.federation.protocol.hello import NUMBERS, Hello

MOST_RATIO, MOST_SHARED, MOST_VALUES = 100.0, 1e6, 1e3
"""Largest ratios to the other sites': of a change of the model, of a shared sum, of inputs and features."""
PAIR_FACTOR = 100.0
"""Largest change by one of two sites, as a multiple of the model's norm."""


def norm_outliers(
    shared: Collection[str],
    start: Weights,
    replies: Sequence[Reply],
    received: Callable[[int], Weights],
    of_samples: Collection[str] = (),
) -> dict[int, str]:
    """The replies to refuse: by client the change and the others', for a sentence.

    shared: names of the trained weights. start: the global model. replies: those that passed the gate.
    received: the weights that a client was sent. of_samples: Parts that share inputs or features of samples.
    """
    if len(replies) < 2:
        return {}
    names = [n for n, w in replies[0].weights.items() if w.is_floating_point()]
    groups = {
        "the model's weights": [n for n in names if n in shared],
        "the statistics of batch normalisation": [n for n in names if n not in shared],
    }
    sent, refused = [received(r.client) for r in replies], dict[int, str]()

    def compare(what: str, d_K: list[float], most: float, least: float) -> None:
        for k, reply in enumerate(replies):
            usual = median(d_K[:k] + d_K[k + 1 :])
            if d_K[k] > max(most * usual, least):
                text = f"it changes {what} by {d_K[k]:.3g}, the other sites by {usual:.3g} (median of norms)"
                refused[reply.client] = text

    for what, group in groups.items():
        d_K = [_norm(r.weights[n] - w[n] for n in group) for r, w in zip(replies, sent)]
        factor = PAIR_FACTOR if len(replies) == 2 else 1.0
        compare(what, d_K, MOST_RATIO, factor * max(1.0, _norm(start[n] for n in group)))
    for part in sorted({part for r in replies for part in r.shares}) if len(replies) > 2 else ():
        numbers_K = [flat_tree(r.shares.get(part, {})).values() for r in replies]
        d_K = [_norm(t for t in numbers if t.is_floating_point()) for numbers in numbers_K]
        compare(f"what '{part}' shares", d_K, MOST_VALUES if part in of_samples else MOST_SHARED, 1.0)
    return refused


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(t.double().pow(2).sum()) for t in tensors) ** 0.5


def unit_remarks(hellos: Sequence[Hello], replies: Sequence[Reply], part: str) -> dict[str, str]:
    """Remarks on sites with numbers unlike the other sites', as ends of sentences, by site.

    replies: to the trip in which `part` asks for `mu` and `sigma`, [C] each.
    """
    used = [reply for reply in replies if reply.size >= column_statistics.FEWEST]
    if len(used) < 2:
        return {}
    mu_KC, sigma_KC = (
        np.stack([r.shares[part][leaf].double().numpy() for r in used]) for leaf in ("mu", "sigma")
    )
    remarks = column_statistics.unit_remarks(
        mu_KC, sigma_KC, lambda k, c: _channel_name(hellos[used[k].client], c)
    )
    return {hellos[used[k].client].site: text for k, text in remarks.items()}


def _channel_name(hello: Hello, channel: int) -> str:
    """The name of a channel's column or input, or its number if the name is unknown."""
    if hello.layout:
        return hello.layout.called(channel)
    columns = [name for name, encoding in hello.form for _ in range(_width(encoding))]
    return f"column '{columns[channel]}'" if len(columns) == hello.shape[0] else f"channel {channel}"


def _width(encoding: str) -> int:
    """The number of numeric columns for a column of a table: one per word, but one for two words."""
    words = int(encoding.partition(" ")[0]) if encoding[:1].isdigit() else 0
    return 1 if encoding == NUMBERS or words == 2 else words


DECISIVE = 0.5
"""A site with more weight than this dominates the model."""
MOST_TIMES, LEAST_DOUBTED = 1000, 100_000
"""A number of samples is doubted if it is so many times the median of the other sites', and at least so
large."""


def doubtful_counts(hellos: Sequence[Hello]) -> dict[str, str]:
    """Claims of sites with far more samples than the others, as sentences without a full stop, by site.

    Some methods share quantities that grow with the largest number, so one false number makes every honest
    site refuse.
    """
    texts: dict[str, str] = {}
    for what, counts in (("training", [h.train for h in hellos]), ("test", [h.test for h in hellos])):
        for k, (hello, number) in enumerate(zip(hellos, counts)):
            usual = median(counts[:k] + counts[k + 1 :] or [number])
            if number >= LEAST_DOUBTED and number > MOST_TIMES * usual:
                text = f"{hello.site} says it holds {number:,} {what} samples, the other sites {usual:,g}"
                texts[hello.site] = f"{text} (median)"
    return texts


def weight_lines(hellos: Sequence[Hello], method: Method, settings: Settings) -> list[str]:
    """A line for each training site (samples, weight), and a warning about a dominant one."""
    training = [h for h in hellos if h.train]
    equal = settings.weighting == "equal" or method.weighting == "equal"
    total = sum(h.train for h in training)
    raw_K = [1 / len(training) if equal else h.train / total for h in training]
    weight_K = cap_weights(raw_K, settings.cap)
    lines: list[str] = []
    for hello, p, raw in zip(training, weight_K, raw_K):
        cut = f", cut from {raw:.1%}" if raw > p + 1e-9 else ""
        label = "" if lines else "weights"
        lines.append(f"{label:<7} {hello.site:<20} {hello.train:>13,} samples {p:>6.1%}{cut}")
    largest = max(range(len(training)), key=lambda k: weight_K[k])
    if len(training) > 1 and weight_K[largest] > DECISIVE + 1e-9:
        text = "outweighs all others together; --set cap=0.5 or --set weighting=equal limits it."
        lines.append(f"        {training[largest].site} {text}")
    return lines
