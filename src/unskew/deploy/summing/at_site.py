"""What a site answers in the phases of a sum: it trains, holds its reply back, and gives masked numbers instead.

Its operator reads in the worker's log with whom each sum was made.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.deploy.site_run import SiteRun
from unskew.deploy.studies import OF_SITES
from unskew.deploy.summing.roster import refusal
from unskew.deploy.summing.sums_opened import SumsOpened, digest_of
from unskew.deploy.wire import Packet
from unskew.engine.client.values import Start
from unskew.engine.disk.state import digest
from unskew.engine.server.summed import numbers_of, unsound
from unskew.errors import UsageError
from unskew.privacy.fixed_point import FixedPoint
from unskew.privacy.secure import SecureAggregation

if TYPE_CHECKING:
    from unskew.deploy.summing.member import Member

Answer = tuple[dict[str, Any], Tree]
"""What a reply's header says beside run, serial, kind, t, re and site; and its tensors."""
OWN = ("model", *OF_SITES)
"""Settings that may differ where a site's numbers are the same: who else takes part, and how the site names and computes what
it trains."""
MOST_SUMS = 4
"""How many runs may be in the middle of a sum at a site."""


@dataclass
class Underway:
    """A sum between its phases, in memory only. known_by: digests by which its numbers are recognised in another run, of all
    that decides about them and of what they are made of."""

    t: int
    known_by: tuple[str, str]
    numbers: FixedPoint
    member: Member


@dataclass
class Sums:
    """The sums that a site takes part in. folder: the site's; say: tells its operator."""

    site: str
    folder: Path
    say: Callable[[str], None]
    underway: dict[str, Underway] = field(default_factory=dict)
    """By run; a round that begins anew takes the place of the one before."""

    @property
    def answers(self) -> dict[str, Callable[[Packet], Answer]]:
        """By kind of request."""
        return {"share": self._share, "mask": self._mask, "agree": self._agree, "open": self._open}

    def begin(
        self, request: Packet, run: SiteRun, secure: SecureAggregation, start: Start, reply: Reply
    ) -> dict[str, Any]:
        """Hold a reply back for the sum of its round. Returns what the coordinator learns: samples, and keys of this sum.

        request: for which it was computed.

        Raises UsageError if the reply must not enter a sum, with the code that the gate would have.
        """
        numbers = numbers_of(run.method, run.trainer.fed, secure, run.trainer.sent)
        if problem := unsound(reply, numbers.spec, run.trainer.fed.sizes):
            code, text = problem
            self.say(
                f"{code} {text}"
            )  # which may hold a number of this site's own, and the coordinator is to read sums alone
            raise UsageError(code, "its reply does not pass the checks of a reply; the site's log says which.")
        weighting = "equal" if run.settings.weighting == "equal" else run.method.weighting

        def steps(weight: float):  # type: ignore[no-untyped-def]
            return numbers.numbers(reply, start.weights, weight)

        from unskew.deploy.summing.member import Member  # which needs Flower

        header, number = request.header, request.header["run"]
        settings = {n: v for n, v in run.settings.as_dict().items() if n not in OWN}
        received = [header.get(name) for name in ("t", "lr", "sha256", "axes")]
        computed_from = digest_of(settings, *received, run.k, int(run.trainer.fed.sizes[run.k]), header.get("base"))
        known_by = computed_from, digest({"w": reply.weights, "shares": reply.shares})
        context = digest_of(run.set_up_with, *received)
        member = Member(self.site, reply.size, secure, steps, weighting, run.settings.cap, context)
        self.underway.pop(number, None)
        while len(self.underway) >= MOST_SUMS:
            self.underway.pop(next(iter(self.underway)))
        self.underway[number] = Underway(start.t, known_by, numbers, member)
        return {"n": reply.size, "keys": member.keys}

    def _share(self, request: Packet) -> Answer:
        member = self._of(request).member
        dealt, commitment = member.deal(request.header["roster"])
        return {"dealt": dealt, "seed": commitment, "context": member.context}, {}

    def _mask(self, request: Packet) -> Answer:
        underway = self._of(request)
        return {}, underway.numbers.tree(underway.member.masked(request.header["dealt"]))

    def _agree(self, request: Packet) -> Answer:
        header = request.header
        return {"signature": self._of(request).member.signed(header["came"], header["left"])}, {}

    def _open(self, request: Packet) -> Answer:
        underway, came = self._of(request), request.header["came"]
        opened = SumsOpened(self.folder, request.header["run"])
        opened.check(underway.t, underway.known_by, came)
        shares = underway.member.opened(came, request.header["left"], request.header.get("signatures"))
        opened.note(underway.t, underway.known_by, came)
        self.say(f"round {underway.t}: in the sum of {', '.join(sorted(came))}")
        del self.underway[request.header["run"]]
        return {"shares": {site: base64.b64encode(share).decode() for site, share in shares.items()}}, {}

    def _of(self, request: Packet) -> Underway:
        underway, t = self.underway.get(request.header["run"]), request.header["t"]
        if underway is None or underway.t != t:
            raise refusal(f"this site has no numbers of round {t} (it was restarted, or has not trained)")
        return underway
