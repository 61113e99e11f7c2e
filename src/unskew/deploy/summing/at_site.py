"""What a site answers in the phases of a sum: it trains, holds its reply back, and gives masked numbers instead.

Which sites a round's sum was opened over is kept in the run's folder: a second sum over others would differ from the first
by what one site sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew import disk
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.deploy.site_run import SiteRun
from unskew.deploy.summing.roster import refusal
from unskew.deploy.wire import Packet
from unskew.engine.client.values import Start
from unskew.engine.server.summed import numbers_of, unsound
from unskew.errors import UsageError
from unskew.privacy.fixed_point import FixedPoint
from unskew.privacy.secure import SecureAggregation

if TYPE_CHECKING:
    from unskew.deploy.summing.member import Member

Answer = tuple[dict[str, Any], Tree]
"""What a reply's header says beside run, serial, kind, t, re and site; and its tensors."""
OPENED = "opened.json"
KEPT_ROUNDS = 20
"""Of how many rounds a run remembers who was in the sum; older ones are refused as over long before."""
MOST_SUMS = 4
"""How many runs may be in the middle of a sum at a site."""


@dataclass
class Underway:
    """A sum between its phases, in memory only."""

    t: int
    numbers: FixedPoint
    member: Member


@dataclass
class Sums:
    """The sums that a site takes part in. folder: the site's."""

    site: str
    folder: Path
    underway: dict[str, Underway] = field(default_factory=dict)
    """By run; a round that begins anew takes the place of the one before."""

    @property
    def answers(self) -> dict[str, Callable[[Packet], Answer]]:
        """By kind of request."""
        return {"share": self._share, "mask": self._mask, "open": self._open}

    def begin(self, number: str, run: SiteRun, secure: SecureAggregation, start: Start, reply: Reply) -> dict[str, Any]:
        """Hold a reply back for the sum of its round. Returns what the coordinator learns: samples, and keys of this sum.

        Raises UsageError if the reply must not enter a sum, with the code that the gate would have.
        """
        numbers = numbers_of(run.method, run.trainer.fed, secure, run.trainer.sent)
        if problem := unsound(reply, numbers.spec, run.trainer.fed.sizes):
            raise UsageError(*problem)
        weighting = "equal" if run.settings.weighting == "equal" else run.method.weighting

        def steps(weight: float):  # type: ignore[no-untyped-def]
            return numbers.numbers(reply, start.weights, weight)

        from unskew.deploy.summing.member import Member  # which needs Flower

        member = Member(self.site, reply.size, secure, steps, weighting, run.settings.cap)
        self.underway.pop(number, None)
        while len(self.underway) >= MOST_SUMS:
            self.underway.pop(next(iter(self.underway)))
        self.underway[number] = Underway(start.t, numbers, member)
        return {"n": reply.size, "keys": member.keys}

    def _share(self, request: Packet) -> Answer:
        dealt, commitment = self._of(request).member.deal(request.header["roster"])
        return {"dealt": dealt, "seed": commitment}, {}

    def _mask(self, request: Packet) -> Answer:
        underway = self._of(request)
        return {}, underway.numbers.tree(underway.member.masked(request.header["dealt"]))

    def _open(self, request: Packet) -> Answer:
        underway, came = self._of(request), sorted(request.header["came"])
        path = self.folder / "runs" / request.header["run"] / OPENED
        before: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
        if (known := before.get(str(underway.t))) not in (None, came):
            raise refusal(
                f"round {underway.t} was summed over {', '.join(known or [])}, and what differs would be one site's"
            )
        shares = underway.member.opened(came, request.header["left"])
        recent = {t: sites for t, sites in before.items() if int(t) > underway.t - KEPT_ROUNDS}
        disk.replace(path, json.dumps(recent | {str(underway.t): came}))  # before the answer goes out
        del self.underway[request.header["run"]]
        return {"shares": {site: base64.b64encode(share).decode() for site, share in shares.items()}}, {}

    def _of(self, request: Packet) -> Underway:
        underway, t = self.underway.get(request.header["run"]), request.header["t"]
        if underway is None or underway.t != t:
            raise refusal(f"this site has no numbers of round {t} (it was restarted, or has not trained)")
        return underway
