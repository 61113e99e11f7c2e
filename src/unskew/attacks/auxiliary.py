"""Samples that no client trained on: the attacker's own, and the strangers that members are told from.

They are training samples that nobody holds where there are enough of these, else test samples. What equals an
attacked sample, value by value, is left out. Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew.core.keys import numpy_key
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError
from unskew.round.samples import load_samples

LEAST = 50
"""Fewer samples than this teach an attacker nothing that could be told from chance."""
PIECE = 2000
"""Samples that are read at a time."""


@dataclass(frozen=True)
class Samples:
    """Samples in the order in which they were drawn. name: what they are, in words. x: [N, *shape], as
    stored. y: [N]."""

    name: str
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> Samples:
        """Those with these numbers."""
        index = torch.as_tensor(rows)
        return Samples(self.name, self.x[index], self.y[index])


def like_those_of(federation: Federation, k: int, attacked: Tensor, seed: int) -> Samples | None:
    """Samples that no client holds and that look like those of client k, in random order; None where all
    clients' look alike.

    attacked: as for `unseen`. Where clients have devices or places of their own, whoever tells these apart
    would seem to tell members apart, so they are the client's own test samples. Raises UsageError (E154)
    where fewer than LEAST are left.
    """
    if not (federation.natural or "+" in federation.skew or federation.skew == "sites"):
        return None
    rows = numpy_key(seed, "unseen").permutation(federation.test[k])
    own, rows = _fresh(federation.x_test, rows, prints(attacked.cpu().numpy()), len(rows))
    if len(rows) < LEAST:
        name = federation.name_of(k)
        text = (
            f"samples look otherwise at each client, and {name} has {len(rows)} test samples, of which"
            f" {LEAST} are needed"
        )
        raise UsageError(
            "E154", f"{text}, so nothing tells whether what it sends betrays members or how its samples look"
        )
    name = "test samples, of an update those of its client"
    return Samples(name, own, torch.as_tensor(np.asarray(federation.y_test[rows])).long())


def unseen(
    federation: Federation, attacked: Tensor, seed: int, half: int | None = None, most: int | None = None
) -> Samples:
    """Samples that no client holds, in random order. attacked: samples [N, *shape] that must not be among
    them.

    half: 0 or 1 for one of two disjoint halves, where an attack needs both an auxiliary set and strangers.
    most: how many are needed; all if left out.
    Raises UsageError (E154) where fewer than LEAST are left.
    """
    held = np.unique(np.concatenate([federation.train.rows, federation.val.rows, federation.reserved]))
    spare = np.setdiff1d(np.arange(len(federation.y)), held)
    in_training = len(spare) >= 2 * LEAST
    x, y = (federation.x, federation.y) if in_training else (federation.x_test, federation.y_test)
    rows = spare if in_training else np.arange(len(y))
    rows = numpy_key(seed, "unseen").permutation(rows)
    rows = rows if half is None else rows[half::2]
    own, rows = _fresh(x, rows, prints(attacked.cpu().numpy()), len(rows) if most is None else most)
    if len(rows) < min(LEAST, most or LEAST):
        text = (
            f"only {len(rows)} samples of {federation.name} are held by no client and differ from the"
            " attacked ones"
        )
        raise UsageError(
            "E154",
            f"{text}; the attacker needs {LEAST}. Train with fewer `samples` a client, or data with a test"
            " set.",
        )
    name = "training samples that no client holds" if in_training else "test samples"
    return Samples(name, own, torch.as_tensor(np.asarray(y[rows])).long())


def _fresh(x: np.ndarray, rows: np.ndarray, seen: set[bytes], most: int) -> tuple[Tensor, np.ndarray]:
    """(samples, their rows): the first of these rows that are not among those seen; read piece by piece, as
    data may be large."""
    pieces, kept = [load_samples(np.asarray(x[:0]), "cpu")[:]], [rows[:0]]
    for begin in range(0, len(rows), PIECE):
        if sum(map(len, kept)) >= most:
            break
        some = rows[begin : begin + PIECE]
        own = load_samples(np.asarray(x[some]), "cpu")[:]
        fresh = np.array([p not in seen for p in prints_in_order(own.numpy())], dtype=bool)
        pieces.append(own[torch.as_tensor(fresh)])
        kept.append(some[fresh])
    return torch.cat(pieces)[:most], np.concatenate(kept)[:most]


def prints(x: np.ndarray) -> set[bytes]:
    """What tells samples apart: the bytes of each."""
    return set(prints_in_order(x))


def prints_in_order(x: np.ndarray) -> Iterable[bytes]:
    """The same, one for each sample."""
    return (np.ascontiguousarray(row).tobytes() for row in x)


def match_classes(
    y_M: np.ndarray, y_N: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of samples on either side, as many of each class here as there, at most `most` a side.

    Without that, who tells classes apart would seem to tell members apart.
    """
    ours, theirs = list[np.ndarray](), list[np.ndarray]()
    share = min(1.0, most / max(1, len(y_M)))
    for label in np.unique(y_M):
        here, there = np.flatnonzero(y_M == label), np.flatnonzero(y_N == label)
        n = min(int(np.ceil(share * len(here))), len(there))
        ours.append(rng.choice(here, n, replace=False))
        theirs.append(rng.choice(there, n, replace=False))
    return np.concatenate(ours)[:most], np.concatenate(theirs)[:most]
