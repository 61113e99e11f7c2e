"""The engine on the tiny federation: the one file of the oracles that touches unskew.

It runs `unskew.run` in memory, with one more Part that changes nothing and takes notes.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest import mock

import torch
from torch import Tensor

import unskew
from tests.oracles.plain import SIZES, Case, Law, Snapshot, Tree, Weights, model_named, samples
from unskew.core import Client, Fed, Noise, Part, key
from unskew.core.method import Method
from unskew.methods.registry import parse
from unskew.records.private_state import MemoryStore
from unskew.round.noise import draw


@dataclass(frozen=True)
class Notes(Part):
    """Writes down the first weights, and all logits at test time; must be a method's last Part."""

    first: Weights = field(default_factory=dict)
    logits_by_round: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    name: ClassVar[str] = "notes"

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        self.first.update({n: t.clone() for n, t in w.items()})
        return {}

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        """A client's own score is the last that is taken of it in a round."""
        self.logits_by_round.setdefault(c.t, {})[int(c.id)] = z.clone()
        return z


@dataclass(frozen=True)
class Run:
    """A run of the engine: the state after every round, and the `Given` of an oracle that repeats it."""

    case: Case
    weights: Weights
    rounds: list[Snapshot]
    result: unskew.Result

    def rows(self, k: int) -> Tensor:
        return torch.as_tensor(self.result.federation.train[k])

    def orders(self, t: int, k: int) -> Tensor:
        rows, generator = self.rows(k), key(self.case.seed, t, k, "batch")
        return torch.stack(
            [rows[torch.randperm(len(rows), generator=generator)] for _ in range(self.case.epochs)]
        )

    def noise(self, t: int, k: int, steps: int, what: tuple[str, str], law: Law) -> Tensor:
        noise = Noise(cast(Any, law.name), law.args, law.shape, law.per_sample)
        drawn = draw(noise, steps, self.case.batch, self.case.seed, t, k, *what)
        return drawn.double() if drawn.is_floating_point() else drawn

    def sample(self, k: int, count: int, purpose: str, replace: bool = False) -> Tensor:
        rows, generator = self.rows(k), key(self.case.seed, "sample", purpose, k)
        if replace:
            return rows[torch.randint(len(rows), (count,), generator=generator)]
        return rows[torch.randperm(len(rows), generator=generator)[:count]]

    def reserved(self) -> tuple[Tensor, Tensor]:
        rows = self.result.federation.reserved
        return torch.as_tensor(self.result.federation.x[rows]), torch.as_tensor(
            self.result.federation.y[rows]
        )

    def generator(self, *purpose: object) -> torch.Generator:
        return key(self.case.seed, *purpose)


def run(method: str, case: Case, lanes: int) -> Run:
    """Train this method on the tiny federation."""
    notes = Notes()
    told: dict[int, Tree] = {}
    rounds: list[Snapshot] = []

    def put(store: MemoryStore, t: int, private: Mapping[int, Tree]) -> None:
        told.update({k: copied(tree) for k, tree in private.items() if tree})
        keep(store, t, private)

    def after(state: Any, report: Any) -> None:
        logits = notes.logits_by_round[state.t]
        rounds.append(Snapshot(copied(state.weights), copied(state.slices), dict(told), logits, report.loss))

    keep = MemoryStore.put
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(MemoryStore, "put", put):
        result = unskew.run(
            Method(*parse(method).parts, notes),
            data(case),
            model=model_named(case.model, case.shape),
            shown=after,
            skew="column:site" if case.sites else "iid",
            clients=len(SIZES),
            availability=f"trace:{trace(case, Path(folder))}",
            normalise="none",
            rounds=case.rounds,
            epochs=case.epochs,
            batch=case.batch,
            lr=case.lr,
            lr_decay=case.lr_decay,
            optimiser=case.optimiser,
            momentum=case.momentum,
            weight_decay=case.weight_decay,
            seed=case.seed,
            lanes=str(lanes),
            workers=1,
            device="cpu",
        )
    return Run(case, notes.first, rounds, result)


def data(case: Case) -> unskew.Dataset:
    """The samples of `tiny`, each with the site it belongs to."""
    s = samples(case)
    return unskew.data.arrays(
        s.x, s.y, s.x_test, s.y_test, columns={"site": s.owner}, test_columns={"site": s.owner_test}
    )


def trace(case: Case, folder: Path) -> Path:
    """A file that says who answers in which round."""
    path = folder / "trace.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["round", "client"])
        rows.writerows((t, k) for t, cohort in enumerate(case.attendance, 1) for k in cohort)
    return path


def copied(tree: Mapping[str, Any]) -> Tree:
    """A copy that later rounds cannot change."""
    return {n: copied(v) if isinstance(v, Mapping) else v.clone() for n, v in tree.items()}
