"""The scenes of attacks on a coordinator's run: with every site's samples its rounds again, with some of them the merged model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unskew.attacks.opening import settings_of
from unskew.attacks.replay import Listener
from unskew.attacks.scene import Scene
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.reopened import check_weights
from unskew.engine.disk.state import Checkpoint, digest
from unskew.engine.disk.store import Disk, Memory
from unskew.errors import StateError
from unskew.own import in_one_line


class Kept(Memory):
    """What the sites kept after the last round but one, computed again; the coordinator's folder holds none of it."""

    def check(self) -> None:
        """Nothing of it is on a disk."""


@dataclass
class Reheard(Folder):
    """The folder of a coordinator, with the sites' samples in its run.

    kept: the sites' private state after the last round but one.
    """

    kept: Kept = field(default_factory=Kept)

    def store(self, checkpoint: Checkpoint | None) -> Disk:
        return self.kept  # pyright: ignore[reportReturnType]  # which is read the same way


@dataclass(frozen=True)
class Given:
    """What was given to attack with. sites: whose samples. pictures: whether pictures of these may be kept. options: others."""

    sites: tuple[str, ...]
    pictures: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Came:
    """Whose replies a coordinator used. used: to training, by round. shared: whose shares it had, by round and the ledger's
    name of the share, one set for each time that it was sent in this round."""

    used: Mapping[int, Collection[int]]
    shared: Mapping[tuple[int, str], Sequence[Collection[int]]]


class Attended(Listener):
    """A listener that hears those sites whose replies came to the coordinator, and no others."""

    def __init__(self, trainer: Trainer, came: Came):
        super().__init__(trainer)
        self.came, self._visits = came, Counter[tuple[int, str]]()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        return super().train(start, [k for k in cohort if k in self.came.used.get(start.t, ())], private)

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """Sites may answer a round's training and then fail, so the ledger says who sent what the trip shares."""
        declared = sorted({path.partition("/")[0] for path in trip.shares(self.trainer.fed)})
        if declared:
            name = (start.t, f"{part.name}/{declared[0]}")
            trained = any(path.partition("/")[0] == declared[0] for path in part.shares(self.trainer.fed))
            before = self._visits[name] + (trained and start.t > 0)  # the training's own shares stand first
            self._visits[name] += 1
            sets = self.came.shared.get(name, ())
            there = sets[before] if before < len(sets) else ()
            ids = [k for k in ids if k in there]
        return super().visit(trip, part, start, ids, private)


class _OfSites(Scene):
    """A scene whose samples were given beside the folder."""

    no_anew = "it trains the run anew, in which every site would be there in every round"

    def __init__(self, path: Path, folder: Reheard, given: Given):
        self.given, self.pictures = given, given.pictures
        super().__init__(path, folder)

    def words(self) -> list[str]:
        """Without the paths of this machine: whoever reads the report need not know them."""
        data = [word for name in self.given.sites for word in ("--data", f"{name}=PATH")]
        model = ["--model", "MODEL"] if self.run.settings.model != settings_of(self.path).model else []
        return [self.path.name, *data, *self.given.options, *model]

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """The coordinator has seen counts alone, which were compared when the run was opened."""


class SitesScene(_OfSites):
    """A scene with the samples of all sites, whose every round ends as the coordinator's did."""

    def __init__(self, path: Path, folder: Reheard, given: Given, came: Came):
        """Raises StateError (E153) unless the run, computed again from its beginning, has the bits of both its checkpoints."""
        self.came = came
        super().__init__(path, folder, given)
        try:
            self._replay(folder)
        except BaseException:
            self.close()
            raise

    def _replay(self, folder: Reheard) -> None:
        loop, _ = self._loop(folder.kept)
        now = loop.begin()
        for t in range(1, self.last_t):
            now, _ = loop.round(now, t)
        tree, facts = self.before
        self._same({"w": now.weights, **now.slices}, {"w": tree["w"], **tree.get("slices", {})}, facts["t"])
        _ = self.last_round

    def heard_by(self) -> Listener:
        return Attended(self.trainer, self.came)

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = f"round {t} of {self.path}, computed again from the samples given, does not end with the bits that the run has"
            raise StateError(
                "E153",
                f"{text}: they are not those that the sites trained on, or versions or machines differ (sites.json and "
                "env.json name the versions), or a site's reply was spoilt on its way; --merged attacks the merged model alone.",
            )


class MergedScene(_OfSites):
    """A scene of a run whose rounds are not computed again: the merged model, and samples of some sites or of all."""

    def __init__(self, path: Path, folder: Reheard, given: Given, why: str):
        """why: rounds are not computed again, as the end of a sentence.

        Raises StateError (E156) for weights of another model, (E152) for a state that this method cannot have.
        """
        super().__init__(path, folder, given)
        self.merged_only = why
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Nothing but its names vouches for what such a folder holds: it is not computed again."""
        check_weights(self.path, self.run, self.final.weights)
        odd = [name for name, w in self.final.weights.items() if not bool(torch.isfinite(w).all())]
        if odd:
            raise StateError("E152", f"'{odd[0]}' of {self.path} is not finite, so there is no model to attack.")
        try:
            self.seen(self.trainer.samples.x[torch.zeros(1, dtype=torch.int64)].cpu())
        except Exception as error:
            text = f"the server's state in {self.path} is none that {self.run.method} can have ({in_one_line(error)})"
            raise StateError("E152", f"{text}; copy the folder again.") from None

    @property
    def told(self) -> str:
        return f"{super().told}; the members are samples of {', '.join(self.given.sites)}"
