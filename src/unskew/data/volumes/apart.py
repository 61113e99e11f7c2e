"""Which patients are held out: a patient's volumes, and so their slices, are all on one side of a split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unskew.data.rounding import largest_remainder
from unskew.data.volumes.layout import Scan
from unskew.errors import DataError


def parts_of(name: str, scans: Sequence[Scan], share: float) -> np.ndarray:
    """Whether each volume is of the test part, bool [N]: as its folder says, else this share of every site's and class's patients.

    Raises DataError: E409 for a patient in both parts, E403 where one patient is all there is.
    """
    test = np.array([scan.part == "test" for scan in scans])
    owners = np.array([scan.owner for scan in scans])
    if test.any():
        both = sorted(set(owners[test]) & set(owners[~test]))
        if both:
            raise DataError(
                "E409",
                f"{name}: the patient {both[0]} is in train/ and in test/; move all of each one into one of them.",
            )
        return test
    patients, first = np.unique(owners, return_index=True)
    if len(patients) < 2:
        raise DataError(
            "E403",
            f"{name}: all volumes are of one patient, {scans[0].patient}, so none is left to test on; add others.",
        )
    kinds = np.array([f"{scans[i].site}/{scans[i].label}" for i in first])
    held = patients[held_out(kinds, share)]
    return np.isin(owners, held)


def held_out(kinds: np.ndarray, share: float) -> np.ndarray:
    """Which of these patients are held out, bool [N]: the share of each kind, at least one, and never all of a kind."""
    rng = np.random.default_rng(1797)
    names, counts = np.unique(kinds, return_counts=True)
    quota = counts * share * max(1.0, 1 / (len(kinds) * share))
    numbers = largest_remainder(quota, np.maximum(counts - 1, 0))
    if not numbers.any():  # every kind has one patient
        numbers[0] = 1
    held = np.zeros(len(kinds), dtype=bool)
    for kind, number in zip(names, numbers):
        held[rng.permutation(np.flatnonzero(kinds == kind))[:number]] = True
    return held
