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

Units. The means and deviations that `standardise` collects reveal sites with other units of measurement.
Channel c of site k is unlike that of site j if

    |mu_kc - mu_jc| > 5 sigma_jc    or    sigma_kc > 5 sigma_jc    or    sigma_kc < sigma_jc / 5

and is reported if it is unlike those of most other sites. For example, a hospital's weights in pounds lie 7
deviations away from those in kilograms. Channels of zeros and ones at both sites, channels without variation,
and sites with few samples reveal nothing about units.

Letters: K replies or sites, J those other than one, C channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from unskew.config import Settings
from unskew.core import encoding, gate
from unskew.core.method import Method
from unskew.core.replies import Reply, cap_weights
from unskew.core.shares import Share
from unskew.core.trees import Weights, flat_tree
from unskew.errors import UsageError
from unskew.federation.coordinator.correspondence import Attendance
from unskew.federation.protocol.hello import NUMBERS, Hello
from unskew.round.clients import Broadcast

MOST_RATIO = 10.0
"""Largest ratio of a site's change of the model to the others'."""
MOST_SHARED, MOST_VALUES = 1e6, 1e3
MOST_STEPS = 1000
"""Largest credible ratio of a site's local steps to the others'."""
PAIR_FACTOR = 100.0
"""Largest change by one of two sites, as a multiple of the model's norm."""
ROUNDS_KEPT = 5
"""Rounds that are searched for the site that spoilt the model."""


@dataclass(frozen=True)
class Change:
    """The effect of one client's reply on the model. ratio: r_k. text: the change and the others', for a
    sentence.
    """

    client: int
    ratio: float
    refused: bool
    text: str


@dataclass
class NormOutliers:
    """The changes of the last rounds. shared: names of the trained weights; steps: local steps of a round by
    client.
    """

    shared: Sequence[str]
    steps: Mapping[int, int]
    _rounds: deque[tuple[int, Change]] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))

    def check(
        self,
        t: int,
        start: Weights,
        replies: Sequence[Reply],
        received: Callable[[int], Weights] | None = None,
        of_samples: Collection[str] = (),
    ) -> list[Change]:
        """The replies to refuse. The largest change among the others is remembered.

        start: the global model. replies: those that passed the gate. received: the weights sent to a
        client, if they differ from the global model. of_samples: Parts that share inputs or features of
        samples.
        """
        sent = {r.client: received(r.client) if received else start for r in replies}
        compared = self._quantities(start, sent, replies, of_samples)
        changes = [change for what in compared for change in self._changes(replies, *what)]
        refused = {c.client: c for c in changes if c.refused}
        merged = [c for c in changes if c.client not in refused]
        if merged:
            self._rounds.append((t, max(merged, key=lambda c: c.ratio)))
        return list(refused.values())

    def suspect(self) -> tuple[int, Change] | None:
        """(round, change) of the last rounds' largest outlier; None if there was none."""
        t, change = max(self._rounds, key=lambda entry: entry[1].ratio, default=(0, None))
        return (t, change) if change and change.ratio > MOST_RATIO else None

    def _quantities(
        self,
        start: Weights,
        received: Mapping[int, Weights],
        replies: Sequence[Reply],
        of_samples: Collection[str],
    ) -> list[tuple[str, list[float], float, float]]:
        """(name, |d_K|, largest ratio, norm above which the ratio counts), for each quantity to compare."""
        if len(replies) < 2:
            return []
        sent = [n for n, w in replies[0].weights.items() if w.is_floating_point()]
        groups = {
            "the model's weights": [n for n in sent if n in self.shared],
            "the statistics of batch normalisation": [n for n in sent if n not in self.shared],
        }
        factor = PAIR_FACTOR if len(replies) == 2 else 1.0
        compared = [
            (what, [_norm(r.weights[n] - received[r.client][n] for n in names) for r in replies], MOST_RATIO,
             factor * max(1.0, _norm(start[n] for n in names)))
            for what, names in groups.items() if names
        ]  # fmt: skip
        if len(replies) > 2:
            parts = sorted({part for r in replies for part in r.shares})
            for part in parts:
                if part in of_samples:
                    size_K = [_share_rms(r, part) for r in replies]
                    compared.append((f"what '{part}' shares", size_K, MOST_VALUES, 1.0))
                else:
                    compared.append(
                        (f"what '{part}' shares", [_share_norm(r, part) for r in replies], MOST_SHARED, 1.0)
                    )
        return compared

    def _changes(
        self, replies: Sequence[Reply], what: str, d_K: list[float], most: float, least: float
    ) -> list[Change]:
        steps_K = [max(1, self.steps[r.client]) for r in replies]
        changes: list[Change] = []
        for k, reply in enumerate(replies):
            others = [j for j in range(len(replies)) if j != k]
            usual, usual_step = (
                median(d_K[j] for j in others),
                median(d_K[j] / steps_K[j] for j in others),
            )
            steps = min(steps_K[k], MOST_STEPS * median(steps_K[j] for j in others))
            ratio = _ratio(d_K[k], usual)
            if most != MOST_VALUES:
                ratio = min(ratio, _ratio(d_K[k] / steps, usual_step))
            measured = "root mean squares" if most == MOST_VALUES else "norms"
            text = f"it changes {what} by {d_K[k]:.3g}, the other sites by {usual:.3g} (median of {measured})"
            changes.append(Change(reply.client, ratio, ratio > most and d_K[k] > least, text))
        return changes


def _ratio(value: float, usual: float) -> float:
    return value / usual if usual else float("inf") if value else 1.0


def _share_norm(reply: Reply, part: str) -> float:
    return _norm(t for t in flat_tree(reply.shares.get(part, {})).values() if t.is_floating_point())


def _share_rms(reply: Reply, part: str) -> float:
    """The root mean square of all numbers that a Part shares; 0 for none."""
    count = sum(t.numel() for t in flat_tree(reply.shares.get(part, {})).values() if t.is_floating_point())
    return _share_norm(reply, part) / max(1, count) ** 0.5


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(t.double().pow(2).sum()) for t in tensors) ** 0.5


MOST_LOSS = 1e12
"""A loss beyond this is refused like one that is not finite: sums over sites must stay finite."""
Event = tuple[int, str, str]
"""(round, code, sentence)"""


@dataclass
class OutlierFilter:
    """Drops outlying replies and reports their sites (E318), over a whole run."""

    sites: Attendance
    proportions: NormOutliers = field(init=False)

    def __post_init__(self) -> None:
        fed = self.sites.local.fed
        steps = {k: -(-int(n) // fed.batch) for k, n in enumerate(fed.sizes)}
        self.proportions = NormOutliers(fed.shared, steps)

    def without_outliers(
        self, start: Broadcast, replies: list[Reply], spec: gate.Spec, failed: Sequence[Event]
    ) -> list[Reply]:
        """The replies of a round that may be merged, or that the gate will report. failed: the sites' own
        E301.

        Raises UsageError (E318) if at least half of the sites failed to train because one site has spoilt
        the model.
        """
        lost = {r.client for r in self._gate(replies, spec)[1] if r.code == "E301"}
        lost |= {r.client for r in replies if not abs(r.loss) <= MOST_LOSS}
        suspect = self.proportions.suspect()
        if suspect and 2 * (len(lost) + len(failed)) >= len(replies) + len(failed) > 0:
            t, change = suspect
            site, failing = self.sites.hellos[change.client].site, len(lost) + len(failed)
            text = f"round {start.t}: training fails at {failing} of {len(replies) + len(failed)} sites"
            text += f", for the model they received is spoilt. Most likely {site} spoilt it in round {t}"
            remedy = f"Begin a new run without it: --without {site}"
            raise UsageError("E318", f"{text}: {change.text}. {remedy}")
        for event in failed:
            self.sites.tell(*event)
        return self.in_proportion(start, replies, spec)

    def in_proportion(self, start: Broadcast, replies: list[Reply], spec: gate.Spec) -> list[Reply]:
        """The replies without outliers, which are reported. spec: the declaration of this exchange."""
        passing = {r.client for r in self._gate(replies, spec)[0]}
        compared = [r for r in replies if r.client in passing]
        if spec.encoded:
            local = self.sites.local
            compared, _ = encoding.decode_replies(local.method, compared, start.received, local.fed, start.t)
        of_samples = {part for part, shares in spec.shares.items() if _are_of_samples(shares.values())}
        refused = self.proportions.check(start.t, start.weights, compared, start.received, of_samples)
        for change in refused:
            site = self.sites.hellos[change.client].site
            self.sites.tell(start.t, "E318", f"{site} round {start.t}: {change.text}. Reply dropped.")
        dropped = {change.client for change in refused}
        return [r for r in replies if r.client not in dropped]

    def _gate(self, replies: Sequence[Reply], spec: gate.Spec) -> tuple[list[Reply], list[gate.Refusal]]:
        """The gate's verdict on copies of the replies."""
        return gate.check([replace(r) for r in replies], spec, self.sites.local.fed.sizes)


def _are_of_samples(shares: Iterable[Share]) -> bool:
    """True if all shared numbers, except labels and counts, are inputs or features of samples."""
    kinds = {share.discloses for share in shares if share.dtype.is_floating_point}
    return bool(kinds) and kinds <= {"inputs", "features"}


Array = np.ndarray[Any, Any]
MOST_DEVIATIONS, MOST_SPREAD = 5.0, 5.0
FEWEST = 10
"""Samples below which a site's deviation says little."""
MOST_NAMED = 4
UNIT_REMEDY = "it may be measured in other units there; ask the site, and have all sites use the same"


def unit_remarks(hellos: Sequence[Hello], replies: Sequence[Reply], part: str) -> dict[str, str]:
    """Remarks on sites with numbers unlike the other sites', as ends of sentences, by site.

    replies: to the trip in which `part` asks for `mu` and `sigma`, [C] each.
    """
    replies_used = [reply for reply in replies if reply.size >= FEWEST]
    if len(replies_used) < 2:
        return {}
    mu_KC, sigma_KC = (
        np.stack([r.shares[part][leaf].double().numpy() for r in replies_used]) for leaf in ("mu", "sigma")
    )
    texts: dict[str, str] = {}
    for k, reply in enumerate(replies_used):
        others, hello = np.arange(len(replies_used)) != k, hellos[reply.client]
        differences = _channel_remarks(mu_KC[k], sigma_KC[k], mu_KC[others], sigma_KC[others])
        remarks = [
            f"{_channel_name(hello, c)} {difference}"
            for c, difference in enumerate(differences)
            if difference
        ]
        more = f" and {len(remarks) - MOST_NAMED} more" if len(remarks) > MOST_NAMED else ""
        if remarks:
            texts[hello.site] = f"{'; '.join(remarks[:MOST_NAMED])}{more}; {UNIT_REMEDY}"
    return texts


def _channel_remarks(mu_C: Array, sigma_C: Array, mu_JC: Array, sigma_JC: Array) -> list[str]:
    """How each channel of one site differs from those of most other sites; "" if it does not."""
    comparable = (sigma_C > _noise(mu_C)) & (sigma_JC > _noise(mu_JC))
    comparable &= ~(_is_binary(mu_C, sigma_C) & _is_binary(mu_JC, sigma_JC))
    scale_JC = np.where(comparable, sigma_JC, 1.0)
    distance_JC, times_JC = np.abs(mu_C - mu_JC) / scale_JC, sigma_C / scale_JC
    far = comparable & (distance_JC > MOST_DEVIATIONS)
    unlike_JC = far | (comparable & ((times_JC > MOST_SPREAD) | (times_JC < 1 / MOST_SPREAD)))
    distance_C, times_C = np.median(distance_JC, 0), np.median(times_JC, 0)
    return [
        (
            ""
            if 2 * unlike_JC[:, c].sum() <= len(mu_JC)
            else (
                f"has a mean {distance_C[c]:.3g} of the other sites' standard deviations away from theirs"
                " (median)"
                if 2 * far[:, c].sum() > len(mu_JC)
                else f"has {times_C[c]:.3g} times the other sites' standard deviation (median)"
            )
        )
        for c in range(len(mu_C))
    ]


def _noise(mean: Array) -> Array:
    """The deviation that rounding of a mean can cause."""
    return 1e-6 * np.abs(mean)


def _is_binary(mean: Array, deviation: Array) -> Array:
    """True for the mean and deviation of zeros and ones."""
    return np.abs(deviation**2 - mean * (1 - mean)) < 1e-4


def _channel_name(hello: Hello, channel: int) -> str:
    """The name of a channel's column or input, or its number if the name is unknown."""
    if hello.layout:
        return hello.layout.called(channel)
    columns = [name for name, encoding in hello.form for _ in range(_width(encoding))]
    return f"column '{columns[channel]}'" if len(columns) == hello.shape[0] else f"channel {channel}"


def _width(encoding: str) -> int:
    """The number of numeric columns for a column of a table: one per word, but one for two words."""
    words = 1 if encoding == NUMBERS else int(encoding.partition(" ")[0]) if encoding[:1].isdigit() else 0
    return 1 if words == 2 else words


MOST_LINES = 30
DECISIVE = 0.5
"""A site with more weight than this dominates the model."""
MOST_TIMES, LEAST_DOUBTED = 1000, 100_000
"""A number of samples is doubted if it is so many times the median of the other sites', and at least so
large."""


def doubtful_counts(hellos: Sequence[Hello], bounds: Mapping[str, int]) -> dict[str, str]:
    """Claims of sites with far more samples than the others, as sentences without a full stop, by site.

    Some methods share quantities that grow with the largest number, so one false number makes every honest
    site refuse. bounds: numbers that were agreed with their sites are not doubted.
    """
    texts: dict[str, str] = {}
    for hello in hellos:
        others = [h for h in hellos if h is not hello]
        for what, number, usual in (
            ("training", hello.train, median([h.train for h in others] or [hello.train])),
            ("test", hello.test, median([h.test for h in others] or [hello.test])),
        ):
            if hello.site not in bounds and number >= LEAST_DOUBTED and number > MOST_TIMES * usual:
                claim = (
                    f"{hello.site} says it holds {number:,} {what} samples, the other sites {usual:,g}"
                    " (median)"
                )
                texts[hello.site] = claim
    return texts


def weight_lines(
    hellos: Sequence[Hello], method: Method, settings: Settings, bounds: Mapping[str, int]
) -> list[str]:
    """A line for each training site: samples, bound, weight if all answer; and a warning about a dominant
    site.
    """
    training = [h for h in hellos if h.train]
    equal = settings.weighting == "equal" or method.weighting == "equal"
    total = sum(h.train for h in training)
    raw_K = [1 / len(training) if equal else h.train / total for h in training]
    weight_K = cap_weights(raw_K, settings.cap)
    lines = [
        f"{'weights' if not i else '':<7} {h.site:<20} {h.train:>13,} samples {_bound_text(h, bounds):<22}"
        f" {p:>6.1%}{_cap_text(p, raw)}"
        for i, (h, p, raw) in enumerate(zip(training[:MOST_LINES], weight_K, raw_K))
    ]
    if len(training) > MOST_LINES:
        lines.append(f"        and {len(training) - MOST_LINES} more sites")
    largest = max(range(len(training)), key=lambda k: weight_K[k])
    if len(training) > 1 and weight_K[largest] > DECISIVE + 1e-9:
        site = training[largest].site
        lines.append(
            f"        {site} outweighs all others together; --set cap=0.5 or --set weighting=equal limits it."
        )
    return lines


def _bound_text(hello: Hello, bounds: Mapping[str, int]) -> str:
    return f"(at most {bounds[hello.site]:,})" if hello.site in bounds else "(no bound)"


def _cap_text(weight: float, raw: float) -> str:
    return f", cut from {raw:.1%}" if raw > weight + 1e-9 else ""
