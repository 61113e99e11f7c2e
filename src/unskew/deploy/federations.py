"""A federation over a network, as each side sees it: the server no samples at all, a site only its own.

Letters: K sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.data.unseen import Unseen
from unskew.deploy.hello import Hello, check_alike


@dataclass(frozen=True)
class ServersView(Unseen):
    """K sites of known sizes and none of their samples; perhaps a test set at the server. Sites do not count their labels.

    tested: test samples of each site, on which it scores itself; the server scores none of them.
    """

    tested: tuple[int, ...] = ()

    @property
    def test_sizes(self) -> np.ndarray:  # type: ignore[override]
        return np.array(self.tested, np.int64)

    @staticmethod
    def of(name: str, hellos: Sequence[Hello], test: Dataset | None = None) -> ServersView:
        """Clients in the order of `hellos`. Raises UsageError (E504) unless all data and the test set fit together."""
        check_alike(hellos)
        first = hellos[0]
        shape, pixels = first.shape, first.pixels
        if test is not None:
            check_alike([first, Hello.of("the server", test, first.versions)])
        target = first.learnt
        nothing = np.zeros((0, *pixels), np.float64 if target else np.int64)
        if first.several:
            nothing = np.zeros((0, len(first.classes)), bool)
        return ServersView(
            name,
            np.zeros((0, *shape), np.float32),
            nothing,
            np.zeros((0, *shape), np.float32) if test is None else test.x_test,
            nothing if test is None else test.y_test,
            first.classes,
            Index(np.zeros(0, np.int64), np.cumsum([0, *(h.train for h in hellos)], dtype=np.int64)),
            Index.empty(len(hellos)),
            "sites",
            names=tuple(h.site for h in hellos),
            target=target,
            layout=first.layout,
            applied=first.applied,
            scaled_apart=any(h.own_scale for h in hellos),
            tested=tuple(h.test for h in hellos),
        )


@dataclass(frozen=True)
class SitesView(Federation):
    """One site's samples as client k of the federation. largest: the most training samples that any site holds."""

    largest: int = 0

    @property
    def sizes(self) -> np.ndarray:  # type: ignore[override]
        """[K]: this site's own number of samples and `largest` for the others, so that bounds equal the server's."""
        own = self.train.sizes
        return np.where(own > 0, own, self.largest)

    @staticmethod
    def of(data: Dataset, k: int, clients: int, largest: int) -> SitesView:
        return SitesView(
            data.name,
            data.x,
            data.y,
            data.x_test,
            data.y_test,
            data.classes,
            _only_client(k, clients, len(data.y)),
            _only_client(k, clients, len(data.y_test)),
            "sites",
            largest=largest,
            target=data.target,
            layout=data.layout,
            intake=data.intake,
            applied=data.applied,
        )


def _only_client(k: int, clients: int, rows: int) -> Index:
    """Client k holds rows 0 to rows - 1, the others hold none."""
    return Index(np.arange(rows, dtype=np.int64), np.where(np.arange(clients + 1) > k, rows, 0).astype(np.int64))
