"""The sites of a sum, as the coordinator lists them, and the signs with which their masks cancel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor

from unskew.errors import UsageError

KEYS, MOST_KEY = 3, 1000
MOST_NAME = 64
MOST_SIGNATURE = 200
MOST_SEALED = 2000


@dataclass(frozen=True)
class RosterEntry:
    """One site of a sum. samples: determine its weight. The others are its public keys of this sum."""

    site: str
    samples: float
    masking: str
    sealing: str
    signing: str

    @property
    def keys(self) -> tuple[str, str, str]:
        """The keys for masks, for sealed shares, and for signatures."""
        return self.masking, self.sealing, self.signing

    def as_json(self) -> list[Any]:
        """The entry as a JSON list: site, samples, keys."""
        return [self.site, self.samples, *self.keys]


@dataclass(frozen=True)
class Roster:
    """The sites of a sum in the coordinator's order, from which all sites derive places and weights."""

    listed: tuple[RosterEntry, ...]

    @staticmethod
    def read(rows: Any) -> Roster:
        """Parse a roster. Raises ValueError for anything that an honest coordinator does not send."""
        if not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise ValueError("the list of sites cannot be read")
        roster = Roster(tuple(RosterEntry(site, float(n), *keys) for site, n, *keys in rows))
        keys = [key for one in roster.listed for key in one.keys]
        if len(set(roster.sites)) < len(rows) or len(set(keys)) < len(keys):
            raise ValueError("the list of sites names one twice")
        return roster

    def digest(self, context: str) -> str:
        """SHA-256 of the roster and of `context`."""
        rows = json.dumps([context, *(one.as_json() for one in self.listed)])
        return hashlib.sha256(rows.encode()).hexdigest()

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the listed sites, in order."""
        return tuple(one.site for one in self.listed)

    def place(self, site: str) -> int:
        """The index of a site, from 0."""
        return self.sites.index(site)

    def __getitem__(self, site: str) -> RosterEntry:
        return self.listed[self.place(site)]

    def __len__(self) -> int:
        return len(self.listed)


def add_pairwise(vector: Tensor, site: str, other: str, mask: Tensor) -> None:
    """Add the mask of a pair to the vector of one of its sites; in the sum of both it cancels."""
    vector.add_(mask) if site > other else vector.sub_(mask)


def is_texts(value: Any, most: int) -> TypeGuard[Mapping[str, str]]:
    """True for a mapping from names to texts of at most `most` characters."""
    texts = value.values() if isinstance(value, Mapping) else [None]
    return all(isinstance(text, str) and len(text) <= most for text in texts)


def sum_refusal(text: str) -> UsageError:
    """The error for both ends if a site does not continue a sum."""
    return UsageError("E525", f"the sum is not secure: {text}. This site gives nothing.")


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 2 + KEYS:
        return False
    site, samples, *keys = row
    has_samples = isinstance(samples, int | float) and not isinstance(samples, bool) and 0 < samples < 1e15
    return (
        isinstance(site, str)
        and len(site) <= MOST_NAME
        and site.isprintable()
        and has_samples
        and all(isinstance(key, str) and len(key) <= MOST_KEY for key in keys)
    )
