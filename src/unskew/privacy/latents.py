"""What FedDPMS's release of noisy latent means amounts to, as published and by honest readings.

A mean of m vectors in [0, 1]^l has L2 sensitivity sqrt(l) / m; with noise sigma that is mu-GDP, mu = sqrt(l) / (m sigma).
That holds for a given encoder and for given sizes of the classes and lists of those that are shared: a record more or less
can change which classes are shared, and so the shape of what leaves the client, which no noise covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.core.account import Account
from unskew.privacy.accounting import composed, epsilon_of


@dataclass(frozen=True)
class Latents:
    """The release of one class's mean by one client.

    m: samples in the mean. width: l, the coordinates of a latent. sigma: standard deviation of the noise. copies: noisy
    vectors that are released of this mean. classes: means that the client releases.
    """

    m: int
    width: int
    sigma: float
    copies: int
    classes: int

    @property
    def mu(self) -> float:
        """Of one released vector."""
        return math.sqrt(self.width) / (self.m * self.sigma)

    def paper(self, delta: float) -> float:
        """Epsilon as published: one coordinate, one release, by the classical bound, which holds below 1 only."""
        return math.sqrt(2 * math.log(1.25 / delta)) / (self.m * self.sigma)

    def added(self, delta: float) -> float:
        """Epsilon when one record is added or removed: it has one class, so classes compose in parallel."""
        return epsilon_of(composed(self.mu, self.copies), delta)

    def replaced(self, delta: float) -> float:
        """Epsilon when one record is replaced by one of another class: two means change."""
        return epsilon_of(composed(self.mu, 2 * self.copies), delta)

    def worst(self, delta: float) -> float:
        """Epsilon where it is not certain that classes are disjoint: all means of the client change, or two, if it has one."""
        return epsilon_of(composed(self.mu, self.copies * max(2, self.classes)), delta)

    @property
    def delta(self) -> float:
        """A delta well below 1 / m, so that it says something about each of the m records."""
        return min(1e-5, 1 / (10 * self.m))


@dataclass(frozen=True)
class Release:
    """The rule by which every client releases latents.

    width, sigma, copies: as in Latents. top: the largest classes of a client are shared, at most so many. least: samples
    that a class needs to be shared. filtered: whether only vectors leave that passed a filter which saw the data.
    """

    width: int
    sigma: float
    copies: int
    top: int
    least: int
    filtered: bool

    def account(self, counts_KC: np.ndarray[Any, Any]) -> Account:
        """What can be said of each shared class of each client, and of the smallest one, from samples per class."""
        order_KC = np.argsort(-counts_KC, axis=1, kind="stable")[:, : self.top]
        shared = [
            (i, int(c), int(counts_KC[i, c]))
            for i, order_C in enumerate(order_KC)
            for c in order_C
            if counts_KC[i, c] >= self.least
        ]
        if not shared:
            return Account("no client has a class large enough to share")
        means = {m: Latents(m, self.width, self.sigma, self.copies, self.top) for m in {m for _, _, m in shared}}
        least = means[min(means)]
        delta = least.delta
        figures = {m: (latents.paper(delta), latents.added(delta)) for m, latents in means.items()}
        return Account(
            f"m = {least.m}, l = {least.width}, sigma = {least.sigma:g}, alpha = {least.copies}, n = {least.classes}, "
            f"delta = {delta:.1e}",
            self._readings(least),
            tuple((i, c, m, *figures[m]) for i, c, m in shared),
            delta,
        )

    def _readings(self, least: Latents) -> tuple[tuple[float, str], ...]:
        given = "given the encoder, the class sizes and the class lists"
        sound = f"not guaranteed, also {given}: the filter sees the data" if self.filtered else given
        delta = least.delta
        return (
            (least.paper(delta), "as published: one coordinate, one release"),
            (least.added(delta), f"of the latents, a record added or removed; {sound}"),
            (least.replaced(delta), f"of the latents, a record replaced by one of another class; {sound}"),
            (least.worst(delta), f"of the latents, at worst; {sound}"),
            (math.inf, "end to end: weights, encoder, decoder, class sizes and class lists carry no noise"),
        )
