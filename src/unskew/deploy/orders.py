"""A run over a network as the coordinator has ordered it: what `unskew run --on` hands to the process that conducts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "deploy.json"
"""Where a run's folder holds its order."""


@dataclass(frozen=True)
class Terms:
    """How a run deals with its sites.

    min_sites: a round with fewer replies changes nothing. deadline_s: how long an exchange waits for answers.
    wait_s: how long the run waits for missing sites before round 1. test: a test set at the server, an .npz or a folder.
    without: sites that are not asked.
    """

    min_sites: int = 1
    deadline_s: float = 600.0
    wait_s: float = 600.0
    test: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """path: the run's folder; federation: the coordinator's folder; settings: those of the study, as a dictionary."""

    path: Path
    federation: Path
    settings: Mapping[str, Any]
    terms: Terms

    def as_json(self) -> dict[str, Any]:
        places = {"path": str(self.path), "federation": str(self.federation)}
        return {**places, "settings": dict(self.settings), **asdict(self.terms)}

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Order:
        """From `as_json`. Raises KeyError if something is missing."""
        without = tuple(facts["without"])
        terms = Terms(facts["min_sites"], facts["deadline_s"], facts["wait_s"], facts["test"], without)
        return Order(Path(facts["path"]), Path(facts["federation"]), facts["settings"], terms)
