"""The keys of admitted sites as they are on the disk at each moment, so that a key that is revoked is out at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unskew.deploy.identity import Public
from unskew.deploy.tickets import Coordinator


class Admitted(Mapping[str, Public]):
    """By site, in the order of clients."""

    def __init__(self, home: Coordinator):
        self.home = home

    def __getitem__(self, site: str) -> Public:
        return self.home.admitted()[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.home.admitted())

    def __len__(self) -> int:
        return len(self.home.admitted())
