"""What a site keeps of a run in its folder: the last request it answered, what it was set up with, its private state.

The private state after round t is in `private-<t>.safetensors`. A request names the round that the server has counted
as the site's last, so an answer that came too late, or a server that went back to its checkpoint, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.core.trees import Tree
from unskew.data.dataset import Dataset
from unskew.deploy.federations import SitesView
from unskew.deploy.hello import versions
from unskew.deploy.owner import Owner
from unskew.deploy.site_files import RECEIVED, REMOVED, SAMPLES, SETUP, STATELESS, VERSIONS, private_file
from unskew.deploy.site_run import SiteRun
from unskew.deploy.spent import KEPT_ROUNDS
from unskew.deploy.versions import another, of_parts
from unskew.deploy.wire import Packet
from unskew.engine.disk import state
from unskew.engine.disk.fingerprint import fingerprint
from unskew.errors import StateError, UsageError
from unskew.methods import registry


@dataclass(frozen=True)
class RunFolder:
    """`<site>/runs/<run>/`. method: of the run; what is kept of its training is written and read with it."""

    path: Path
    site: str
    method: str = ""

    @property
    def owner(self) -> Owner:
        """Whose the files are that are written here, and have to be that are read."""
        return Owner(self.path.name, self.site, self.method)

    @staticmethod
    def of(folder: Path, site: str, run: str) -> RunFolder:
        """Of a run by its number, which is a valid name."""
        path = folder / "runs" / run
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path, site)

    def check_new(self, serial: object) -> None:
        """Remember a request's serial number. Raises UsageError (E307) unless it is larger than any before, or if the
        largest is not known any more."""
        book = self.path / "serial"
        written = book.read_bytes() if book.exists() else b"0"
        if not written.isdigit():
            text = f"which requests of the run were answered cannot be read any more ({book})"
            raise UsageError("E307", f"{text}, so that it gets no answers here; start a new run.")
        last = int(written)
        if not isinstance(serial, int) or serial <= last:
            raise UsageError("E307", "the request is older than one that was already answered.")
        disk.replace(book, str(serial))

    def write_leaves(self, text: str) -> None:
        """Keep what leaves this site in the run, for its operator."""
        disk.replace(self.path / "leaves.txt", text)

    def write_setup(self, tree: Tree, facts: Mapping[str, Any], data: Dataset) -> None:
        if not (self.path / SAMPLES).exists():
            disk.replace(self.path / VERSIONS, json.dumps(_versions(facts)))
            disk.replace(self.path / SAMPLES, _fingerprint(data))
        state.write(self.path / SETUP, tree, {**facts, **self._set_up_for(facts).facts})

    def check_same(self, data: Dataset, facts: Mapping[str, Any]) -> None:
        """Raises UsageError (E504) if the run began here with other samples, whose number may be the same, or with another
        version of what decides about its weights. The coordinator asks for neither where it never lost this site.

        facts: with which the run is set up.
        """
        if (known := self.path / VERSIONS).exists() and (
            text := another(f"site {self.site}", json.loads(known.read_bytes()), _versions(facts))
        ):
            raise UsageError("E504", f"{text}; bring that version back, or leave the site out.")
        known = self.path / SAMPLES
        if known.exists() and known.read_text() != _fingerprint(data):
            text = f"site {self.site} holds other samples than when the run began"
            raise UsageError("E504", f"{text}; give it those of then, in their order, or leave the site out.")

    def read_setup(self) -> tuple[Tree, dict[str, Any]]:
        """Raises StateError: E205 if this site was never set up for the run, or has lost that; E204 for what another was set up
        with."""
        try:
            tree, facts = state.read(self.path / SETUP)
            owner = self._set_up_for(facts)
        except (FileNotFoundError, KeyError, TypeError, StateError):
            raise StateError("E205", f"site {self.site} has not been set up for this run.") from None
        owner.check(self.path / SETUP, facts)
        return tree, facts

    def _set_up_for(self, facts: Mapping[str, Any]) -> Owner:
        return replace(self.owner, method=str(facts["settings"]["method"]))

    def write_received(self, request: Packet, run: SiteRun, t: int) -> None:
        """Keep what a request brought, the weights after round t, for the site to have the model after the run
        (`own_model.py`). Nothing of round 0, before which nobody has trained."""
        if t:
            came = {"t": t, "lr": run.settings.lr_in(t), "base": request.header.get("base", 0), "site": self.site}
            state.write(self.path / RECEIVED, request.tree, {**run.described, **came, **self.owner.facts})

    def read_private(self, request: Packet) -> Tree:
        """The state after the round that the server counts as this site's last; {} before that.

        Raises StateError (E204) if it is another's, or missing although there is state of other rounds.
        """
        t = request.header.get("base", 0)
        if t and self._private(t).exists():
            return self.owner.of(self._private(t))
        if t and any(self.path.glob("private-*")):
            raise StateError("E204", f"site {self.site} has lost its private state of round {t}.")
        return {}

    def keep(self, request: Packet, private: Tree) -> None:
        """Keep the private state after the round that was asked for, {} if there is none, and remove old state.

        Raises StateError (E204) if the server has counted a round of this site, and the folder, which may have been lost and
        set up anew, knows of none: what the site kept after it is gone.
        """
        base, stateless = request.header.get("base", 0), self.path / STATELESS
        if private:
            if base and not any(self.path.glob("private-*")) and not stateless.exists():
                disk.replace(self.path / REMOVED, "")
                raise StateError("E204", f"site {self.site} has lost its private state of round {base}.")
            state.write(self._private(request.header["t"]), private, {"t": request.header["t"], **self.owner.facts})
        elif not stateless.exists():
            disk.replace(stateless, "")
        self.sweep(request)

    def sweep(self, request: Packet) -> None:
        """Remove old state. Of the rounds before the one counted last one stays: the server may go back that far.

        So do those after it that the server may still count, and no others: it may never count one.
        """
        rounds = sorted(int(p.stem.partition("-")[2]) for p in self.path.glob("private-*.safetensors"))
        base, over = request.header.get("base", 0), request.header["t"] - KEPT_ROUNDS
        for t in [t for t in rounds if t < base][:-1] + [t for t in rounds if base < t <= over]:
            self._private(t).unlink()

    def _private(self, t: int) -> Path:
        return private_file(self.path, t)


def _versions(facts: Mapping[str, Any]) -> dict[str, str]:
    return versions() | of_parts(registry.parse(str(facts["settings"]["method"])))


def _fingerprint(data: Dataset) -> str:
    return fingerprint(SitesView.of(data, 0, 1, 0), by_sample=True)
