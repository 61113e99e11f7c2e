"""A run over a network as the coordinator has ordered it: what `unskew run --on` hands to the process that conducts it.

It travels as a file of the federation's folder, whose name nobody can guess. Over Flower goes that name alone, so that
whoever reaches the SuperLink cannot order anything.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unskew import disk

FILE = "deploy.json"
"""Where a run's folder holds its order."""
ENDING = "ending.json"
"""Where a run's folder says how the run ended."""


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


def hand_in(order: Order) -> str:
    """Leave an order in the federation's folder. Returns its name."""
    name = secrets.token_hex(16)
    path = _path(order.federation, name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk.replace(path, json.dumps(order.as_json()))
    return name


def exists(federation: Path, name: str) -> bool:
    """Whether this is the name of an order that was handed in here and has not been withdrawn."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None and _path(federation, name).exists()


def waiting(federation: Path) -> set[str]:
    """The names of all orders that were handed in here and have not been withdrawn."""
    return {path.stem for path in _path(federation, "").parent.glob("*.json")}


def read(federation: Path, name: str) -> Order:
    return Order.read(json.loads(_path(federation, name).read_text()))


def read_now(federation: Path, name: str) -> Order:
    """An order with what is left of its wait: a process that was killed and started again does not begin to wait anew."""
    order, age_s = read(federation, name), time.time() - _path(federation, name).stat().st_mtime
    left_s = order.terms.wait_s - max(0.0, age_s)
    return replace(order, terms=replace(order.terms, wait_s=max(0.0, left_s)))


def withdraw(federation: Path, name: str) -> None:
    _path(federation, name).unlink(missing_ok=True)


def _path(federation: Path, name: str) -> Path:
    return federation / "flower" / "orders" / f"{name}.json"
