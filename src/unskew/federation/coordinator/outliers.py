"""Sites that differ suspiciously from the others, in norms of replies, units or sample counts; and sites'
weights in a run.

Norms. A reply may be finite, of the right shape, and still ruin the model. A site's change d_k of the model
is measured by its norm over all trained weights together, and over all statistics of batch normalisation
together; the contribution of a Part's Share is measured by the norm of all its tensors. The norm is compared
with the median of the other sites', both as it is and per local step, because a site with many samples moves
further and one with few moves further in each step:

    r_k = min(|d_k| / median_{j != k} |d_j|,  (|d_k| / S_k) / median_{j != k} (|d_j| / S_j))    S local steps

A reply is refused if r_k > 10 and |d_k| > max(|w|, 1). With two sites either may be the outlier, so |d_k|
must be a hundred times that bound, and Shares are not compared. Shared sums grow with the samples, so r_k >
1,000,000 is required for them. Inputs and features do not grow: their root mean square is compared without
regard to the steps, and r_k > 1,000 is refused.

Units. The means and deviations that `standardise` collects reveal sites with other units of measurement
(unskew.data.column_statistics).

Letters: K replies or sites, J those other than one, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from torch import Tensor

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.replies import Reply, cap_weights
from unskew.core.trees import Weights, flat_tree
from unskew.data import column_statistics
from unskew.federation.protocol.hello import NUMBERS, Hello

MOST_RATIO, MOST_SHARED, MOST_VALUES = 10.0, 1e6, 1e3
"""Largest ratios to the other sites': of a change of the model, of a shared sum, of shared values."""
MOST_STEPS = 1000
"""Largest credible ratio of a site's local steps to the others'."""
PAIR_FACTOR = 100.0
"""Largest change by one of two sites, as a multiple of the model's norm."""


@dataclass(frozen=True)
class Change:
    """A refused reply. text: its change of the model and the others', for a sentence."""

    client: int
    text: str


@dataclass
class NormOutliers:
    """shared: names of the trained weights; steps: local steps, by client."""

    shared: Sequence[str]
    steps: Mapping[int, int]

    def check(
        self,
        start: Weights,
        replies: Sequence[Reply],
        received: Callable[[int], Weights] | None = None,
        of_samples: Collection[str] = (),
    ) -> list[Change]:
        """The replies to refuse.

        start: the global model. replies: those that passed the gate. received: the weights sent to a
        client, if they differ from the global model. of_samples: Parts that share inputs or features of
        samples.
        """
        if len(replies) < 2:
            return []
        sent = [received(r.client) if received else start for r in replies]
        names = [n for n, w in replies[0].weights.items() if w.is_floating_point()]
        groups = {
            "the model's weights": [n for n in names if n in self.shared],
            "the statistics of batch normalisation": [n for n in names if n not in self.shared],
        }
        factor = PAIR_FACTOR if len(replies) == 2 else 1.0
        changes: list[Change] = []
        for what, group in groups.items():
            d_K = [_norm(r.weights[n] - w[n] for n in group) for r, w in zip(replies, sent)]
            least = factor * max(1.0, _norm(start[n] for n in group))
            changes += self._changes(replies, what, d_K, MOST_RATIO, least)
        for part in sorted({part for r in replies for part in r.shares}) if len(replies) > 2 else ():
            values = part in of_samples
            d_K = [_share_size(r, part, values) for r in replies]
            most = MOST_VALUES if values else MOST_SHARED
            changes += self._changes(replies, f"what '{part}' shares", d_K, most, 1.0)
        return list({change.client: change for change in changes}.values())

    def _changes(
        self, replies: Sequence[Reply], what: str, d_K: list[float], most: float, least: float
    ) -> list[Change]:
        """The changes above the ratio `most` and the norm `least`."""
        values = most == MOST_VALUES
        steps_K = [max(1, self.steps[r.client]) for r in replies]
        changes: list[Change] = []
        for k, reply in enumerate(replies):
            others = [j for j in range(len(replies)) if j != k]
            usual = median(d_K[j] for j in others)
            ratio = _ratio(d_K[k], usual)
            if not values:
                steps = min(steps_K[k], MOST_STEPS * median(steps_K[j] for j in others))
                ratio = min(ratio, _ratio(d_K[k] / steps, median(d_K[j] / steps_K[j] for j in others)))
            measured = "root mean squares" if values else "norms"
            text = f"it changes {what} by {d_K[k]:.3g}, the other sites by {usual:.3g} (median of {measured})"
            if ratio > most and d_K[k] > least:
                changes.append(Change(reply.client, text))
        return changes


def _ratio(value: float, usual: float) -> float:
    if usual:
        return value / usual
    return float("inf") if value else 1.0


def _share_size(reply: Reply, part: str, mean: bool) -> float:
    """The norm of all numbers that a Part shares, or their root mean square."""
    numbers = [t for t in flat_tree(reply.shares.get(part, {})).values() if t.is_floating_point()]
    return _norm(numbers) / (max(1, sum(t.numel() for t in numbers)) ** 0.5 if mean else 1.0)


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
