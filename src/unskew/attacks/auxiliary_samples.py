"""Samples that no client trained on: the attacker's own samples, and the non-members of membership attacks.

They are training samples of no client if there are enough of them, else test samples. Copies of an attacked
sample are left out, and so are samples of a group that a client holds. Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew.attacks.target_run import TargetRun
from unskew.core.random_keys import numpy_key
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError
from unskew.round.samples import load_samples

LEAST = 50
"""The least number of samples that an attacker needs."""
PIECE = 2000
"""The number of samples that are read at a time."""


@dataclass(frozen=True)
class Samples:
    """Samples in the order of their drawing. name: a description. x: [N, *shape], as stored. y: [N].

    groups: the group of each, [N]; None if samples are independent.
    """

    name: str
    x: Tensor
    y: Tensor
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> Samples:
        """The samples with these numbers."""
        index = torch.as_tensor(rows)
        groups = None if self.groups is None else self.groups[rows]
        return Samples(self.name, self.x[index], self.y[index], groups)


def like_those_of(federation: Federation, k: int, attacked: Tensor, seed: int) -> Samples | None:
    """Unseen samples that look like those of client k, in random order; None if all clients' samples do.

    attacked: as for `unseen`. If samples differ between clients, for example by device, an attacker that
    recognises the device would seem to recognise members; so the client's own test samples are used. Raises
    UsageError (E151) for fewer than LEAST samples.
    """
    if not (federation.natural or "+" in federation.skew or federation.skew == "sites"):
        return None
    rows = _of_no_held_group(federation, federation.test[k], federation.test_group_ids)
    rows = numpy_key(seed, "unseen").permutation(rows)
    own, rows = _fresh(federation.x_test, rows, prints(attacked.cpu().numpy()), len(rows))
    if len(rows) < LEAST:
        name = federation.name_of(k)
        strangers = "" if federation.test_group_ids is None else " of groups that no client holds"
        text = (
            f"samples look otherwise at each client, and {name} has {len(rows)} test samples{strangers}, of"
            f" which {LEAST} are needed"
        )
        raise UsageError(
            "E151", f"{text}, so nothing tells whether what it sends betrays members or how its samples look"
        )
    name = "test samples, of an update those of its client"
    return _samples(name, own, rows, federation.y_test, federation.test_group_ids)


def look_alikes(
    target: TargetRun, clients: Iterable[int], verb: str, seed: int
) -> tuple[dict[int, Samples | None], list[str]]:
    """(`like_those_of` each client, by client; remarks on clients without enough). verb: what they did with
    the attacked payload, such as "sent"."""
    alike, remarks = dict[int, Samples | None](), list[str]()
    for k in clients:
        try:
            alike[k] = like_those_of(target.federation, k, target.held_by(k), seed)
        except UsageError as error:
            remarks.append(f"what {target.federation.name_of(k)} {verb} is not attacked: {error.text}")
    return alike, remarks


def unseen(federation: Federation, attacked: Tensor, seed: int, most: int | None = None) -> Samples:
    """Samples of no client, in random order, without copies of the `attacked` samples [N, *shape];
    samples of a group that a client holds are none.

    most: the number of samples; None for all.
    Raises UsageError (E151) for fewer than LEAST samples.
    """
    spare = np.setdiff1d(np.arange(len(federation.y)), _held(federation))
    spare = _of_no_held_group(federation, spare, federation.group_ids)
    in_training = len(spare) >= 2 * LEAST
    x, y = (federation.x, federation.y) if in_training else (federation.x_test, federation.y_test)
    groups = federation.group_ids if in_training else federation.test_group_ids
    rows = spare if in_training else _of_no_held_group(federation, np.arange(len(y)), groups)
    rows = numpy_key(seed, "unseen").permutation(rows)
    own, rows = _fresh(x, rows, prints(attacked.cpu().numpy()), len(rows) if most is None else most)
    if len(rows) < min(LEAST, most or LEAST):
        text = (
            f"only {len(rows)} samples of {federation.name} are held by no client and differ from the"
            " attacked ones"
        )
        raise UsageError(
            "E151",
            f"{text}; the attacker needs {LEAST}. Train with fewer `samples` a client, or data with a test"
            " set.",
        )
    name = "training samples that no client holds" if in_training else "test samples"
    return _samples(name, own, rows, y, groups)


def _held(federation: Federation) -> np.ndarray:
    """The numbers of the training rows that a client or the server holds."""
    return np.unique(np.concatenate([federation.train.rows, federation.val.rows, federation.reserved]))


def _of_no_held_group(federation: Federation, rows: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Those of the rows whose group nobody holds. groups: that of every row; None if they are unknown."""
    if groups is None or federation.group_ids is None:
        return rows
    return rows[~np.isin(groups[rows], federation.group_ids[_held(federation)])]


def _samples(name: str, x: Tensor, rows: np.ndarray, y: np.ndarray, groups: np.ndarray | None) -> Samples:
    labels = torch.as_tensor(np.asarray(y[rows])).long()
    return Samples(name, x, labels, None if groups is None else groups[rows])


def _fresh(x: np.ndarray, rows: np.ndarray, seen: set[bytes], most: int) -> tuple[Tensor, np.ndarray]:
    """(samples, rows): the first `most` of these rows that are not `seen`, read in pieces to save memory."""
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
    """The bytes of each sample, by which equal samples are recognised."""
    return set(prints_in_order(x))


def prints_in_order(x: np.ndarray) -> Iterable[bytes]:
    """The bytes of each sample, in order."""
    return (np.ascontiguousarray(row).tobytes() for row in x)


def match_classes(
    y_M: np.ndarray, y_N: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of samples of two sets with equal counts of each class, at most `most` of each set.

    With unequal counts an attacker that recognises classes would seem to recognise members.
    """
    ours, theirs = list[np.ndarray](), list[np.ndarray]()
    share = min(1.0, most / max(1, len(y_M)))
    for label in np.unique(y_M):
        here, there = np.flatnonzero(y_M == label), np.flatnonzero(y_N == label)
        n = min(int(np.ceil(share * len(here))), len(there))
        ours.append(rng.choice(here, n, replace=False))
        theirs.append(rng.choice(there, n, replace=False))
    return np.concatenate(ours)[:most], np.concatenate(theirs)[:most]
