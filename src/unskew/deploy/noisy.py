"""Replies whose noise a guarantee counts: one a round and trip, however often the coordinator asks.

A site draws this noise, and the samples of every step, from its operating system. A second reply to the same request would
hold other noise, and whoever reads both knows more than epsilon says. So the reply is kept before it goes out, and sent
again where the coordinator was killed and asks again. Scores are no part of it: no noise covers them anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unskew import disk
from unskew.core.replies import Reply
from unskew.core.trees import Tree, flat
from unskew.deploy.refusing import refusal
from unskew.deploy.site_folder import RunFolder
from unskew.deploy.site_run import SiteRun
from unskew.deploy.spent import Asked
from unskew.deploy.wire import Packet
from unskew.engine.client.values import Start
from unskew.engine.disk import state
from unskew.errors import StateError

FILES = "noisy-*.safetensors"
"""The replies that are kept of a run, in its folder."""
KEPT = 2
"""Of how many rounds; a coordinator goes back by one or two at most."""


@dataclass(frozen=True)
class Noisy:
    """The replies of one run to training, or to one trip. of: the run's folder. trip: which trip, in figures; "": training."""

    of: RunFolder
    trip: str = ""

    def replies(self, request: Packet, answer: Callable[[], list[Reply]]) -> list[Reply]:
        """What `answer` returns, or what it returned for the same order of this round.

        Raises UsageError (E520) for another order of a round that was answered, or one whose reply is not kept any more, and
        StateError (E204) for a kept reply of another site, run or method.
        """
        t, order = request.header["t"], _order(request)
        if t > self._last():
            replies = answer()
            for reply in replies:
                self._keep(t, order, reply)
            return replies
        try:
            tree, facts = state.read(self._file(t))
        except (FileNotFoundError, StateError):
            raise refusal(f"round {t} is over, and its guarantee counts one reply a round") from None
        self.of.owner.check(self._file(t), facts)
        if facts["order"] != order:
            text = f"round {t} was answered for another order already"
            raise refusal(f"{text}, and its guarantee counts one reply a round")
        return [
            Reply(facts["client"], facts["size"], tree.get("w", {}), tree.get("shares", {}), tree.get("private", {}))
        ]

    def _keep(self, t: int, order: str, reply: Reply) -> None:
        branches = {"w": reply.weights, "shares": reply.shares, "private": reply.private}
        tree = {name: branch for name, branch in branches.items() if flat(branch)}
        facts = {"order": order, "client": reply.client, "size": reply.size, **self.of.owner.facts}
        state.write(self._file(t), tree, facts)
        disk.replace(self._book, str(t))
        kept = [p.stem.removeprefix(f"{self._name}-") for p in self.of.path.glob(f"{self._name}-*.safetensors")]
        rounds = sorted(int(t) for t in kept if t.isdigit())
        for old in rounds[:-KEPT]:
            self._file(old).unlink()

    @property
    def _name(self) -> str:
        return f"noisy-trip{self.trip}" if self.trip else "noisy"

    @property
    def _book(self) -> Path:
        """The last round that was answered. It stays when an operator removes the replies."""
        return self.of.path / self._name

    def _last(self) -> int:
        """Raises UsageError (E520) if it cannot be read."""
        if not self._book.exists():
            return -1 if self.trip else 0  # a trip may be due before round 1
        text = self._book.read_bytes()
        if not text.isdigit():
            raise refusal(f"which rounds were answered cannot be read from {self._book}, so none is")
        return int(text)

    def _file(self, t: int) -> Path:
        return self.of.path / f"{self._name}-{t}.safetensors"


def visited(
    run: SiteRun, folder: RunFolder, request: Packet, start: Start, trip: tuple[str, int], private: Tree
) -> list[Reply]:
    """As `SiteRun.visited`, with the noise of the first time where a guarantee counts it. folder: the run's. trip: the name
    of its Part, and its place among the Part's."""
    answer = partial(run.visited, start, *trip, private)
    names = [p.name for p in run.method.parts]
    if not run.method.samples_apart or trip[0] not in names:
        return answer()
    return Noisy(folder, f"{names.index(trip[0])}.{trip[1]}").replies(request, answer)


def _order(request: Packet) -> str:
    """The digest of all that decides about a reply."""
    return Asked.of({name: value for name, value in request.header.items() if name != "score"}).order
