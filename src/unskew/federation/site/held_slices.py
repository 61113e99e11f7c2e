"""The slices that a site holds of a run. A request leaves out the leaves that the site holds already, and
those that are still the zeros they began with (see `round/deliveries.py`).

`SITE/runs/NUMBER/slices.safetensors` has them, so that a restarted site needs nothing again. A new setup
removes the file, and the coordinator then sends everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unskew.core.trees import Tree, nested_tree, sorted_tree
from unskew.errors import StateError
from unskew.federation.protocol.wire_format import Packet
from unskew.federation.site.local_run import SiteRun
from unskew.records import checkpoints


@dataclass
class HeldSlices:
    """path: of the file. tree: leaves by Part, as they came. numbers: the coordinator's, by `part/leaf`."""

    path: Path
    tree: Tree
    numbers: dict[str, int]

    @staticmethod
    def read(path: Path) -> HeldSlices:
        """The slices in a file; none if it is missing or damaged."""
        try:
            tree, facts = checkpoints.read(path)
            return HeldSlices(path, tree, dict(facts["numbers"]))
        except (FileNotFoundError, StateError, KeyError):
            return HeldSlices(path, {}, {})

    def complete(self, request: Packet, run: SiteRun) -> None:
        """Give a request the slices that it leaves out, and hold those that it brings.

        Its SHA-256 becomes that of the whole content, so that requests of equal content are one order,
        whichever part of it was sent. Raises StateError (E205) if the site does not hold what it should.
        """
        numbers, sent = request.header.pop("slices", {}), request.tree.get("down", {})
        if not numbers or not isinstance(sent, Mapping):
            return
        down: Tree = {part: dict(tree) for part, tree in sent.items() if isinstance(tree, Mapping)}
        came = [path for path in numbers if _leaf(path, down) is not None]
        for path, number in numbers.items():
            part, _, leaf = path.partition("/")
            if path in came:
                self.tree.setdefault(part, {})[leaf], self.numbers[path] = down[part][leaf], number
            elif number == 0:
                down.setdefault(part, {}).update(_zeros(path, run))
            elif self.numbers.get(path) == number:
                down.setdefault(part, {})[leaf] = self.tree[part][leaf]
            else:
                raise StateError("E205", f"the site does not hold '{path}'; it has to be set up again.")
        if came:
            checkpoints.write(self.path, self.tree, {"numbers": self.numbers})
        for part in run.method.parts:
            for leaf, index in sorted(part.row_of.items(), key=lambda entry: entry[1]):  # own rows are first
                if numbers.get(f"{part.name}/{leaf}"):
                    row = int(down[part.name][index][run.k]) if index else run.k
                    down[part.name][leaf] = _placed(down[part.name][leaf], row, run.trainer.fed.clients)
        request.tree["down"] = sorted_tree(down)
        whole = {branch: request.tree[branch] for branch in ("w", "down") if branch in request.tree}
        request.header["sha256"] = checkpoints.digest(whole)
        request.header.pop("axes", None)


def _leaf(path: str, down: Tree) -> Any:
    part, _, leaf = path.partition("/")
    return down.get(part, {}).get(leaf)


def _zeros(path: str, run: SiteRun) -> Tree:
    """The leaf as it was before round 1."""
    part, _, leaf = path.partition("/")
    forms = run.slice_forms.get(part, {})
    return nested_tree(
        {
            place: torch.zeros(shape, dtype=dtype)
            for place, (shape, dtype) in forms.items()
            if place.partition("/")[0] == leaf
        }
    )


def _placed(row: torch.Tensor, at: int, clients: int) -> torch.Tensor:
    """The table of which a client was sent one row [1, ...]: zeros elsewhere."""
    table = torch.zeros((clients, *row.shape[1:]), dtype=row.dtype)
    table[at] = row[0]
    return table
