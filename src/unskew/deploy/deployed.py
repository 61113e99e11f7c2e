"""A run on disk whose clients are sites: the engine's folder and loop, with the exchange that goes over the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from unskew.core.trees import Tree
from unskew.deploy.attendance import Attendance
from unskew.deploy.hello import Hello
from unskew.deploy.notices import Notices
from unskew.deploy.post import Post
from unskew.deploy.remote import Remote
from unskew.deploy.scoring import SiteScores
from unskew.deploy.studies import check_noise
from unskew.engine.assemble import scoring_of, trainer_of
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.state import Checkpoint
from unskew.engine.disk.store import Disk
from unskew.engine.memory import check_room
from unskew.engine.server.loop import Loop
from unskew.errors import UsageError


class Away(Disk):
    """The store of a run whose private state stays at the sites: only the round of each one's counted state is here."""

    def facts(self) -> dict[str, Any]:
        """Every site with its round: sites are few, and nothing of theirs is in this folder."""
        return {"private": sorted(self.index.items()), "private_files": []}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.index.update(dict.fromkeys(trees, t))

    def check(self) -> None:
        """Sites check their own files."""

    def sweep(self) -> None:
        """Sites remove their own files."""


@dataclass
class Deployed(Folder):
    """The caller holds the folder's lock already, because it also writes the journal."""

    post: Post | None = None
    notices: Notices | None = None
    hellos: Sequence[Hello] = ()
    min_sites: int = 1

    def locked(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def store(self, checkpoint: Checkpoint | None) -> Away:
        return Away(self.path / "private", checkpoint[1] if checkpoint else None)

    def opened(self, checkpoint: Checkpoint | None) -> Loop:
        assert self.post is not None
        assert self.notices is not None
        record, store = self.record(checkpoint), self.store(checkpoint)
        self.notices.open(record)
        check_noise(self.run.method, self.run.fed)
        if (part := self.run.method.protector) and self.min_sites > 1:
            text = f"'{part.name}' counts every reply whatever the others do, so a round cannot need {self.min_sites} of them"
            raise UsageError("E506", f"{text}; leave --min-sites at 1.")
        check_room(self.run.method, self.run.fed)
        local = trainer_of(self.run)
        sites = Attendance(self.post, local, self.hellos, self.run.settings, store, self.min_sites)
        scores = SiteScores(sites, scoring_of(local, self.run.federation), record)
        loop = Loop(self.run, self._exchange(sites, scores), scores, store, record)
        loop.listener = self.notices.heard
        return loop

    def _exchange(self, sites: Attendance, scores: SiteScores) -> Remote:
        """What asks the sites: for their replies, or for the sum of them."""
        if not self.run.secure:
            return Remote(sites, scores)
        from unskew.deploy.summing.remote import SummedRemote  # which needs Flower

        return SummedRemote(sites, scores, run=self.run)
