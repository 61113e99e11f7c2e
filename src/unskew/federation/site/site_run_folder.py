"""A site's folder of a run, `SITE/runs/NUMBER/`, and its files.

The folder contains the number of the last answered request, the run's setup, and the site's private state.
The private state after round t is in `private-<t>.safetensors`. A request names the last round of this site
that the server has counted, so a late answer, or a server that returns to its checkpoint, changes nothing.

Noisy replies: a guarantee counts one reply per round and trip, for any number of requests. A site draws
this noise, and the samples of every step, from its operating system. A second reply to a request would
contain other noise, and a reader of both would learn more than epsilon allows. The reply is therefore
stored before it is sent, and sent again if the coordinator was killed and asks again. Scores are not
stored; no noise covers them.

An operator may remove all `*.safetensors` of a run that is over. Files that protect the site remain: the
number of the last request, so that no old request is answered again, the last round with a noisy reply, and
the list and ledger of what has left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unskew.core.replies import Reply
from unskew.core.trees import Tree, flat_tree
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UsageError
from unskew.federation.protocol.hello import version_change, versions
from unskew.federation.protocol.study_rules import SiteView
from unskew.federation.protocol.wire_format import Packet
from unskew.federation.site.local_run import SiteRun
from unskew.federation.site.site_ledger import KEPT_ROUNDS, AnsweredRequest, policy_refusal
from unskew.records import checkpoints
from unskew.round.clients import Broadcast
from unskew.runs.run_folder import fingerprint
from unskew.system import disk
from unskew.system.disk import AT_SITE as SETUP

RECEIVED = "received.safetensors"
"""The last received weights, with the rest of their request."""
HELD = "slices.safetensors"
"""The slices of Parts as they came last (see `local_run.py`)."""
PRIVATE = "private-{}.safetensors"
"""The private state after a round."""
STATELESS = "stateless"
"""Marks that this site has trained in the run without private state."""
SAMPLES = "samples"
"""The fingerprint of the samples at the begin of the run."""
VERSIONS = "versions.json"
"""The versions at the begin of the run."""
NOISY_ROUNDS = 2
"""Rounds of stored noisy replies; a coordinator goes back by two rounds at most."""


@dataclass(frozen=True)
class SiteRunFolder:
    """The folder of a run. path: named after the run's number. site: the site's name."""

    path: Path
    site: str

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
        if not isinstance(serial, int) or serial <= int(written):
            raise UsageError("E307", "the request is older than one that was already answered.")
        disk.replace(book, str(serial))

    def write_setup(self, tree: Tree, facts: Mapping[str, Any], data: Dataset) -> None:
        """Store the run's setup, and at the first time also versions and the fingerprint of the samples.

        Slices of Parts are removed, because the coordinator sends them again.
        """
        (self.path / HELD).unlink(missing_ok=True)
        if not (self.path / SAMPLES).exists():
            disk.replace(self.path / VERSIONS, json.dumps(versions()))
            disk.replace(self.path / SAMPLES, _fingerprint(data))
        checkpoints.write(self.path / SETUP, tree, facts)

    def check_same(self, data: Dataset) -> None:
        """Raises UsageError (E504) if the run began here with other samples or another version of torch.

        Other samples may be equal in number, and the coordinator compares neither if it never lost this
        site.
        """
        known, samples = self.path / VERSIONS, self.path / SAMPLES
        before = json.loads(known.read_bytes()) if known.exists() else None
        if before is not None and (text := version_change(f"site {self.site}", before, versions())):
            raise UsageError("E504", f"{text}; bring that version back, or leave the site out.")
        if samples.exists() and samples.read_text() != _fingerprint(data):
            text = f"site {self.site} holds other samples than when the run began"
            raise UsageError("E504", f"{text}; give it those of then, in their order, or leave the site out.")

    def read_setup(self) -> tuple[Tree, dict[str, Any]]:
        """The run's setup. Raises StateError (E205) if there is none here, or it is damaged."""
        try:
            return checkpoints.read(self.path / SETUP)
        except (FileNotFoundError, StateError):
            raise StateError("E205", f"site {self.site} has not been set up for this run.") from None

    def write_received(self, request: Packet, run: SiteRun, t: int) -> None:
        """Store the weights after round t, so that the site has the model after the run (see
        `site_model.py`).

        Nothing is stored for round 0, before which nothing was trained.
        """
        if t:
            base = request.header.get("base", 0)
            facts = {"t": t, "lr": run.settings.lr_in(t), "base": base, "site": self.site}
            checkpoints.write(self.path / RECEIVED, request.tree, {**run.described, **facts})

    def read_private(self, request: Packet) -> Tree:
        """The private state after this site's last counted round; {} before that.

        Raises StateError (E201) if it is missing although other rounds have private state.
        """
        t = request.header.get("base", 0)
        if t and self._private(t).exists():
            return checkpoints.read(self._private(t))[0]
        if t and self._private_rounds():
            raise StateError("E201", f"site {self.site} has lost its private state of round {t}.")
        return {}

    def keep(self, request: Packet, private: Tree) -> None:
        """Store the private state after the requested round, {} if there is none. Remove old state, except
        one round before the last counted one, to which the server may return, and later rounds that the
        server may still count.

        Raises StateError (E201) if the server has counted a round of this site but the folder, which may
        have been lost and set up anew, contains no private state.
        """
        base, t, stateless = request.header.get("base", 0), request.header["t"], self.path / STATELESS
        if private:
            if base and not self._private_rounds() and not stateless.exists():
                raise StateError("E201", f"site {self.site} has lost its private state of round {base}.")
            checkpoints.write(self._private(t), private, {"t": t})
        elif not stateless.exists():
            disk.replace(stateless, "")
        rounds = self._private_rounds()
        uncounted = [late for late in rounds if base < late <= t - KEPT_ROUNDS]
        for old in [early for early in rounds if early < base][:-1] + uncounted:
            self._private(old).unlink()

    def _private(self, t: int) -> Path:
        return self.path / PRIVATE.format(t)

    def _private_rounds(self) -> list[int]:
        return sorted(int(p.stem.partition("-")[2]) for p in self.path.glob(PRIVATE.format("*")))

    def visit_replies(
        self, run: SiteRun, request: Packet, start: Broadcast, trip: tuple[str, int], private: Tree
    ) -> list[Reply]:
        """The replies to a trip; with a guarantee, stored replies are repeated with their first noise.

        trip: name of its Part, and its index among the Part's trips.
        """
        answer = partial(run.visit_trip, start, *trip, private)
        names = [p.name for p in run.method.parts]
        if not run.method.samples_apart or trip[0] not in names:
            return answer()
        return self.noisy_replies(request, answer, f"noisy-trip{names.index(trip[0])}.{trip[1]}", -1)

    def noisy_replies(
        self, request: Packet, answer: Callable[[], list[Reply]], name: str = "noisy", before: int = 0
    ) -> list[Reply]:
        """The result of `answer`, or its stored result for an earlier request with an equal order.

        name: of the file with the last answered round, which stays when an operator removes the replies.
        before: that round while there is no file; a trip may be due before round 1. Raises UsageError
        (E520) for another order in an answered round, or if the reply is no longer stored.
        """
        t, book = request.header["t"], self.path / name
        # everything in a request that determines the reply
        order = AnsweredRequest.of({n: v for n, v in request.header.items() if n != "score"}).order
        written = book.read_bytes() if book.exists() else str(before).encode()
        if book.exists() and not written.isdigit():
            raise policy_refusal(f"which rounds were answered cannot be read from {book}, so none is")
        if t > int(written):
            replies = answer()
            for reply in replies:
                branches = {"w": reply.weights, "shares": reply.shares, "private": reply.private}
                tree = {branch: tensors for branch, tensors in branches.items() if flat_tree(tensors)}
                facts = {"order": order, "client": reply.client, "size": reply.size}
                checkpoints.write(self._noisy(name, t), tree, facts)
                disk.replace(book, str(t))
                numbers = [p.stem.removeprefix(f"{name}-") for p in self.path.glob(f"{name}-*.safetensors")]
                for old in sorted(int(number) for number in numbers if number.isdigit())[:-NOISY_ROUNDS]:
                    self._noisy(name, old).unlink()
            return replies
        try:
            tree, facts = checkpoints.read(self._noisy(name, t))
        except (FileNotFoundError, StateError):
            raise policy_refusal(f"round {t} is over, and its guarantee counts one reply a round") from None
        if facts["order"] != order:
            text = f"round {t} was answered for another order already"
            raise policy_refusal(f"{text}, and its guarantee counts one reply a round")
        branches = (tree.get(branch, {}) for branch in ("w", "shares", "private"))
        return [Reply(facts["client"], facts["size"], *branches)]

    def _noisy(self, name: str, t: int) -> Path:
        return self.path / f"{name}-{t}.safetensors"


def _fingerprint(data: Dataset) -> str:
    return fingerprint(SiteView.of(data, 0, 1, 0), by_sample=True)
