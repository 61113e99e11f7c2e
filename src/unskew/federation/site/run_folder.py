"""A site's folder of a run: its files, their owner, and their removal when the run is over.

The folder contains the number of the last answered request, the run's setup, and the site's private state.
The private state after round t is in `private-<t>.safetensors`. A request names the last round of this site
that the server has counted, so a late answer, or a server that returns to its checkpoint, changes nothing.

Owner: files of two sites, or of two runs of one site, have equal names and often equal forms. Each file
therefore names its run, site and method, so that a file in the wrong folder is neither trained on nor
predicted with.

Noisy replies: a guarantee counts one reply per round and trip, for any number of requests. A site draws
this noise, and the samples of every step, from its operating system. A second reply to a request would
contain other noise, and a reader of both would learn more than epsilon allows. The reply is therefore
stored before it is sent, and sent again if the coordinator was killed and asks again. Scores are not
stored; no noise covers them.

Cleaning removes received models, private state and noisy replies. Files that protect the site remain: the
number of the last request, so that no old request is answered again, the last round with a noisy reply, and
the list and ledger of what has left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unskew.core.replies import Reply
from unskew.core.trees import Tree, flat_tree
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UsageError
from unskew.federation.protocol.hello import part_versions, version_change, versions
from unskew.federation.protocol.study_rules import SiteView
from unskew.federation.protocol.wire_format import Packet
from unskew.federation.site.file_names import (
    RECEIVED,
    REMOVED,
    SAMPLES,
    SETUP,
    STATELESS,
    VERSIONS,
    private_file,
)
from unskew.federation.site.local_run import SiteRun
from unskew.federation.site.site_ledger import KEPT_ROUNDS, AnsweredRequest, policy_refusal
from unskew.methods import registry
from unskew.records import checkpoints
from unskew.round.clients import Broadcast
from unskew.runs.run_folder import fingerprint
from unskew.system import disk

OWNER = "owner"
"""Key of a file's facts."""


@dataclass(frozen=True)
class Owner:
    """The run, site and method that a file belongs to. run: its number; method: its text."""

    run: str
    site: str
    method: str

    @property
    def facts(self) -> dict[str, dict[str, str]]:
        """The owner's entry for a file's facts."""
        return {OWNER: asdict(self)}

    def of(self, file: Path) -> Tree:
        """The tensors of this owner's file. Raises StateError: E201 as `check` does, and for a damaged
        file.
        """
        tree, facts = checkpoints.read(file)
        self.check(file, facts)
        return tree

    def check(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Raises StateError (E201) for a file of another owner, or without an owner."""
        stored = owner_facts(facts)
        wrong = [name for name, value in asdict(self).items() if stored.get(name) != value]
        if wrong:
            text = f"is of another {wrong[0]}" if stored else "does not say whose it is"
            text = f"{file.name} in the folder of run {self.run} at site {self.site} {text}"
            raise StateError("E201", f"{text}; put back the file that this site wrote in this run.")


def owner_facts(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner in a file's facts; {} if there is none."""
    stored = facts.get(OWNER)
    return stored if isinstance(stored, Mapping) else {}


@dataclass(frozen=True)
class RunFolder:
    """`<site>/runs/<run>/`. method: of the run; part of the owner of its private files."""

    path: Path
    site: str
    method: str = ""

    @property
    def owner(self) -> Owner:
        """The owner stamped on written files and required of read ones."""
        return Owner(self.path.name, self.site, self.method)

    @staticmethod
    def of(folder: Path, site: str, run: str) -> RunFolder:
        """The folder of a run by its number, which is a valid name. The folder is created if necessary."""
        path = folder / "runs" / run
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path, site)

    def check_new(self, serial: object) -> None:
        """Store a request's serial number.

        Raises UsageError (E307) unless it is larger than all before, or if the largest one is no longer
        known.
        """
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
        """Store for the operator what leaves this site in the run."""
        disk.replace(self.path / "leaves.txt", text)

    def write_setup(self, tree: Tree, facts: Mapping[str, Any], data: Dataset) -> None:
        """Store the run's setup, and at the first time also versions and the fingerprint of the samples."""
        if not (self.path / SAMPLES).exists():
            disk.replace(self.path / VERSIONS, json.dumps(_versions(facts)))
            disk.replace(self.path / SAMPLES, _fingerprint(data))
        checkpoints.write(self.path / SETUP, tree, {**facts, **self._set_up_for(facts).facts})

    def check_same(self, data: Dataset, facts: Mapping[str, Any]) -> None:
        """Raises UsageError (E504) if the run began here with other samples or other versions.

        Other samples may be equal in number, and the coordinator compares neither if it never lost this
        site. facts: the run's setup.
        """
        if (stored_file := self.path / VERSIONS).exists() and (
            text := version_change(
                f"site {self.site}", json.loads(stored_file.read_bytes()), _versions(facts)
            )
        ):
            raise UsageError("E504", f"{text}; bring that version back, or leave the site out.")
        stored_file = self.path / SAMPLES
        if stored_file.exists() and stored_file.read_text() != _fingerprint(data):
            text = f"site {self.site} holds other samples than when the run began"
            raise UsageError("E504", f"{text}; give it those of then, in their order, or leave the site out.")

    def read_setup(self) -> tuple[Tree, dict[str, Any]]:
        """The run's setup. Raises StateError: E205 if there is none here or it is lost, E201 if it is another
        owner's.
        """
        try:
            tree, facts = checkpoints.read(self.path / SETUP)
            owner = self._set_up_for(facts)
        except (FileNotFoundError, KeyError, TypeError, StateError):
            raise StateError("E205", f"site {self.site} has not been set up for this run.") from None
        owner.check(self.path / SETUP, facts)
        return tree, facts

    def _set_up_for(self, facts: Mapping[str, Any]) -> Owner:
        return replace(self.owner, method=str(facts["settings"]["method"]))

    def write_received(self, request: Packet, run: SiteRun, t: int) -> None:
        """Store the weights after round t, so that the site has the model after the run (see
        `site_model.py`).

        Nothing is stored for round 0, before which nothing was trained.
        """
        if t:
            facts = {
                "t": t,
                "lr": run.settings.lr_in(t),
                "base": request.header.get("base", 0),
                "site": self.site,
            }
            checkpoints.write(
                self.path / RECEIVED, request.tree, {**run.described, **facts, **self.owner.facts}
            )

    def read_private(self, request: Packet) -> Tree:
        """The private state after this site's last counted round; {} before that.

        Raises StateError (E201) if it is another owner's, or missing although other rounds have private
        state.
        """
        t = request.header.get("base", 0)
        if t and self._private(t).exists():
            return self.owner.of(self._private(t))
        if t and any(self.path.glob("private-*")):
            raise StateError("E201", f"site {self.site} has lost its private state of round {t}.")
        return {}

    def keep(self, request: Packet, private: Tree) -> None:
        """Store the private state after the requested round, {} if there is none, and remove old state.

        Raises StateError (E201) if the server has counted a round of this site but the folder, which may
        have been lost and set up anew, contains no private state.
        """
        base, stateless = request.header.get("base", 0), self.path / STATELESS
        if private:
            if base and not any(self.path.glob("private-*")) and not stateless.exists():
                disk.replace(self.path / REMOVED, "")
                raise StateError("E201", f"site {self.site} has lost its private state of round {base}.")
            checkpoints.write(
                self._private(request.header["t"]), private, {"t": request.header["t"], **self.owner.facts}
            )
        elif not stateless.exists():
            disk.replace(stateless, "")
        self.sweep(request)

    def sweep(self, request: Packet) -> None:
        """Remove old state, except one round before the last counted one, to which the server may return, and
        later rounds that the server may still count.
        """
        rounds = sorted(int(p.stem.partition("-")[2]) for p in self.path.glob("private-*.safetensors"))
        base, over = request.header.get("base", 0), request.header["t"] - KEPT_ROUNDS
        for t in [t for t in rounds if t < base][:-1] + [t for t in rounds if base < t <= over]:
            self._private(t).unlink()

    def _private(self, t: int) -> Path:
        return private_file(self.path, t)


def _versions(facts: Mapping[str, Any]) -> dict[str, str]:
    return versions() | part_versions(registry.parse(str(facts["settings"]["method"])))


def _fingerprint(data: Dataset) -> str:
    return fingerprint(SiteView.of(data, 0, 1, 0), by_sample=True)


NOISY_FILES = "noisy-*.safetensors"
"""Stored noisy replies in a run's folder."""
NOISY_ROUNDS = 2
"""Rounds of stored replies; a coordinator goes back by two rounds at most."""


@dataclass(frozen=True)
class NoisyReplies:
    """The stored replies of a run to training, or to one trip. trip: the trip's number as text; "" for
    training.
    """

    of: RunFolder
    trip: str = ""

    def replies(self, request: Packet, answer: Callable[[], list[Reply]]) -> list[Reply]:
        """The result of `answer`, or its stored result for an earlier request with an equal order.

        Raises UsageError (E520) for another order in an answered round, or if the reply is no longer
        stored, and StateError (E201) for a stored reply of another owner.
        """
        t, order = request.header["t"], _order_digest(request)
        if t > self._last():
            replies = answer()
            for reply in replies:
                self._keep(t, order, reply)
            return replies
        try:
            tree, facts = checkpoints.read(self._file(t))
        except (FileNotFoundError, StateError):
            raise policy_refusal(f"round {t} is over, and its guarantee counts one reply a round") from None
        self.of.owner.check(self._file(t), facts)
        if facts["order"] != order:
            text = f"round {t} was answered for another order already"
            raise policy_refusal(f"{text}, and its guarantee counts one reply a round")
        return [
            Reply(
                facts["client"],
                facts["size"],
                tree.get("w", {}),
                tree.get("shares", {}),
                tree.get("private", {}),
            )
        ]

    def _keep(self, t: int, order: str, reply: Reply) -> None:
        branches = {"w": reply.weights, "shares": reply.shares, "private": reply.private}
        tree = {name: branch for name, branch in branches.items() if flat_tree(branch)}
        facts = {"order": order, "client": reply.client, "size": reply.size, **self.of.owner.facts}
        checkpoints.write(self._file(t), tree, facts)
        disk.replace(self._round_file, str(t))
        kept = [
            p.stem.removeprefix(f"{self._name}-") for p in self.of.path.glob(f"{self._name}-*.safetensors")
        ]
        rounds = sorted(int(t) for t in kept if t.isdigit())
        for old in rounds[:-NOISY_ROUNDS]:
            self._file(old).unlink()

    @property
    def _name(self) -> str:
        return f"noisy-trip{self.trip}" if self.trip else "noisy"

    @property
    def _round_file(self) -> Path:
        """The file with the last answered round. It stays when an operator removes the replies."""
        return self.of.path / self._name

    def _last(self) -> int:
        """The last answered round. Raises UsageError (E520) if it cannot be read."""
        if not self._round_file.exists():
            return -1 if self.trip else 0  # a trip may be due before round 1
        text = self._round_file.read_bytes()
        if not text.isdigit():
            raise policy_refusal(
                f"which rounds were answered cannot be read from {self._round_file}, so none is"
            )
        return int(text)

    def _file(self, t: int) -> Path:
        return self.of.path / f"{self._name}-{t}.safetensors"


def visit_replies(
    run: SiteRun, folder: RunFolder, request: Packet, start: Broadcast, trip: tuple[str, int], private: Tree
) -> list[Reply]:
    """The replies to a trip; with a guarantee, stored replies are repeated with their first noise.

    folder: the run's folder. trip: name of its Part, and its index among the Part's trips.
    """
    answer = partial(run.visit_trip, start, *trip, private)
    names = [p.name for p in run.method.parts]
    if not run.method.samples_apart or trip[0] not in names:
        return answer()
    return NoisyReplies(folder, f"{names.index(trip[0])}.{trip[1]}").replies(request, answer)


def _order_digest(request: Packet) -> str:
    """The digest of everything in a request that determines the reply."""
    return AnsweredRequest.of(
        {name: value for name, value in request.header.items() if name != "score"}
    ).order


IN_USE_S = 3600.0
"""A run that was used within this many seconds may be in progress."""
DAY_S = 86400.0
PRIVATE_FILES = "private-*.safetensors"


@dataclass(frozen=True)
class RunFiles:
    """The removable files of a run. used_s: seconds since its last use."""

    path: Path
    files: tuple[Path, ...]
    bytes: int
    used_s: float

    @staticmethod
    def of(path: Path) -> RunFiles:
        states = (p for files in (PRIVATE_FILES, NOISY_FILES, "*.part") for p in sorted(path.glob(files)))
        files = tuple(p for p in (path / SETUP, path / RECEIVED, *states) if p.exists())
        used = max((p.stat().st_mtime for p in path.iterdir()), default=path.stat().st_mtime)
        return RunFiles(path, files, sum(p.stat().st_size for p in files), time.time() - used)

    def remove(self) -> None:
        """Remove the files. A coordinator that continues the run is informed that the private state is
        lost.
        """
        if any(p.match(PRIVATE_FILES) for p in self.files):
            disk.replace(self.path / REMOVED, "")
        for path in self.files:
            path.unlink(missing_ok=True)


def time_ago(seconds: float) -> str:
    """An age in words."""
    for unit, length_s in (("day", DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}s ago"
    return f"{max(0.0, seconds):.0f} seconds ago"


def active_runs(folder: Path, older_days: float) -> list[RunFiles]:
    """Runs old enough for removal that may still be in progress."""
    kept = [RunFiles.of(path) for path in sorted((folder / "runs").glob("*")) if path.is_dir()]
    return [k for k in kept if k.files and older_days * DAY_S <= k.used_s < IN_USE_S]


def removable_runs(folder: Path, runs: Sequence[str], older_days: float) -> list[RunFiles]:
    """The removable files of these runs, or of all runs that were not used for `older_days` days.

    Raises UsageError (E111) for an unknown run, StateError (E110) for one that may still be in progress.
    """
    folders = {path.name: path for path in sorted((folder / "runs").glob("*")) if path.is_dir()}
    for run in runs:
        if run not in folders:
            raise UsageError("E111", f"{folder} keeps nothing of a run '{run}'.")
    kept = [RunFiles.of(folders[run]) for run in (runs or folders)]
    if runs and (used := [k for k in kept if k.used_s < IN_USE_S]):
        text = f"run {used[0].path.name} was last used {time_ago(used[0].used_s)} and may be going on"
        raise StateError("E110", f"{text}; try again once it has been quiet for an hour.")
    return [k for k in kept if k.files and (runs or k.used_s >= max(older_days * DAY_S, IN_USE_S))]
