"""A site's answers in the phases of a sum: it trains, holds its reply back, and sends masked numbers instead.

The operator reads in the worker's log which sites were in each sum.

Two sums with equal numbers of this site over different sets of sites reveal by their difference what one
site sent. A round is therefore opened over one set of sites only, in all runs of a study with one seed
together, for any weights that the coordinator sent, because weights that differ by one rounding bring the
same numbers. `sums/STUDY.json` in the site's folder records the sites of every round. So are equal numbers of
other studies, which a setting that changes nothing would bring; `opened.json` records the latest ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.errors import UsageError
from unskew.federation.protocol.roster import sum_refusal
from unskew.federation.protocol.study_rules import SITE_CHOICES
from unskew.federation.protocol.wire_format import Packet
from unskew.federation.site.local_run import SiteRun
from unskew.privacy.fixed_point import FixedPoint
from unskew.privacy.secure_aggregation import SecureAggregation
from unskew.records.checkpoints import digest
from unskew.round.clients import Broadcast
from unskew.round.exchange import fixed_point_of, reply_problem
from unskew.system import disk

if TYPE_CHECKING:
    from unskew.federation.protocol.masked_sums import Member

SUMS_FILE, STUDIES = "opened.json", "sums"
MOST_NUMBERS = 10_000
"""Recorded digests of numbers of all studies."""


@dataclass(frozen=True)
class SumLog:
    """The recorded sums of a study. folder: the site's; study: a digest of what determines its numbers.

    No round of a study is forgotten, because a coordinator could repeat others until it was.
    """

    folder: Path
    study: str

    def check(self, t: int, numbers: str, came: Sequence[str]) -> None:
        """Raises UsageError (E525) if round t, or these numbers, were summed over other sites."""
        sites, earlier = sorted(came), _read_sums(self._study_file).get(str(t))
        differs = "and what differs would be one site's"
        if earlier not in (None, sites):
            text = f"round {t} was summed over {', '.join(earlier or [])}, {differs}"
            raise sum_refusal(f"{text}; a run over other sites needs another seed")
        earlier = _read_sums(self.folder / SUMS_FILE).get(numbers)
        if earlier not in (None, sites):
            text = f"these numbers were summed before, over {', '.join(earlier or [])}, {differs}"
            raise sum_refusal(f"{text}; a run over other sites needs another seed")

    def note(self, t: int, numbers: str, came: Sequence[str]) -> None:
        """Record the sites of a sum, before the answer is sent."""
        self._study_file.parent.mkdir(exist_ok=True, mode=0o700)
        for path, key in ((self._study_file, str(t)), (self.folder / SUMS_FILE, numbers)):
            sums = {name: sites for name, sites in _read_sums(path).items() if name != key}
            latest = [*sums.items(), (key, sorted(came))]
            if path.name == SUMS_FILE:
                latest = latest[-MOST_NUMBERS:]
            disk.replace_private(path, json.dumps(dict(latest)))

    @property
    def _study_file(self) -> Path:
        return self.folder / STUDIES / f"{self.study}.json"


def facts_digest(*facts: Any) -> str:
    """SHA-256 of facts, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _read_sums(path: Path) -> dict[str, list[str]]:
    """The recorded sums. Raises UsageError (E521) for an unreadable file: they are then unknown."""
    try:
        earlier = json.loads(path.read_text()) if path.exists() else {}
        return {str(key): [str(site) for site in sites] for key, sites in earlier.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        text = f"over whom sums were opened cannot be read from {path}, so the site takes part in none"
        raise UsageError("E521", f"{text}; put the file back as it was.") from None


Answer = tuple[dict[str, Any], Tree]
"""Fields of a reply's header in addition to run, serial, kind, t, re and site; and its tensors."""
VARIABLE_SETTINGS = ("model", *SITE_CHOICES)
"""Settings that may differ between runs with equal numbers of a site."""
MOST_SUMS = 4


@dataclass
class PendingSum:
    """A sum between its phases, in memory only.

    study, values: digests by which its numbers are recognised in another run, of study and seed, and of the
    numbers themselves.
    """

    t: int
    study: str
    values: str
    numbers: FixedPoint
    member: Member


@dataclass
class SiteSums:
    """The sums that a site takes part in. folder: the site's; say: shows text to its operator.

    check: checks the sites of a sum, and how many have to be in it, against the site's policy.
    """

    site: str
    folder: Path
    say: Callable[[str], None]
    check: Callable[[Iterable[str], int], None] = lambda sites, fewest: None
    underway: dict[str, PendingSum] = field(default_factory=dict)
    """Pending sums by run; a new round replaces the one before."""

    @property
    def answers(self) -> dict[str, Callable[[Packet], Answer]]:
        """The function that answers each kind of request for a sum."""
        return {"share": self._share, "mask": self._mask, "agree": self._agree, "open": self._open}

    def begin(
        self, request: Packet, run: SiteRun, secure: SecureAggregation, start: Broadcast, reply: Reply
    ) -> dict[str, Any]:
        """Hold a reply back for the sum of its round. Returns what the coordinator learns: samples, and keys
        of this sum.

        request: the request of the reply. Raises UsageError with the gate's code if the reply must not
        enter a sum.
        """
        numbers = fixed_point_of(run.method, run.trainer.fed, secure, run.trainer.sent)
        if problem := reply_problem(reply, numbers.spec, run.trainer.fed.sizes):
            code, text = problem  # which may hold a number of this site's own
            self.say(f"{code} {text}")
            text = "its reply does not pass the checks of a reply; the site's log says which."
            raise UsageError(code, text)
        weighting = "equal" if run.settings.weighting == "equal" else run.method.weighting

        def steps(weight: float):  # type: ignore[no-untyped-def]
            return numbers.numbers(reply, start.weights, weight)

        from unskew.federation.protocol.masked_sums import Member  # which needs Flower

        header, number = request.header, request.header["run"]
        settings = {n: v for n, v in run.settings.as_dict().items() if n not in VARIABLE_SETTINGS}
        received = [header.get(name) for name in ("t", "lr", "sha256", "axes")]
        study, values = facts_digest(settings), digest({"w": reply.weights, "shares": reply.shares})
        context = facts_digest(run.set_up_with, *received)
        member = Member(self.site, reply.size, secure, steps, weighting, run.settings.cap, context)
        self.underway.pop(number, None)
        while len(self.underway) >= MOST_SUMS:
            self.underway.pop(next(iter(self.underway)))
        self.underway[number] = PendingSum(start.t, study, values, numbers, member)
        return {"n": reply.size, "keys": member.keys}

    def _share(self, request: Packet) -> Answer:
        member = self._of(request).member
        dealt, commitment = member.deal(request.header["roster"])
        return {"dealt": dealt, "seed": commitment, "context": member.context}, {}

    def _mask(self, request: Packet) -> Answer:
        underway, dealt = self._of(request), request.header["dealt"]
        self.check([self.site, *dealt], underway.member.needed)
        return {}, underway.numbers.tree(underway.member.masked(dealt))

    def _agree(self, request: Packet) -> Answer:
        member, header = self._of(request).member, request.header
        self.check(header["came"], member.needed)
        return {"signature": member.signed(header["came"], header["left"])}, {}

    def _open(self, request: Packet) -> Answer:
        underway, came = self._of(request), request.header["came"]
        self.check(came, underway.member.needed)
        opened = SumLog(self.folder, underway.study)
        opened.check(underway.t, underway.values, came)
        shares = underway.member.opened(came, request.header["left"], request.header.get("signatures"))
        opened.note(underway.t, underway.values, came)
        self.say(f"round {underway.t}: in the sum of {', '.join(sorted(came))}")
        del self.underway[request.header["run"]]
        return {"shares": {site: base64.b64encode(share).decode() for site, share in shares.items()}}, {}

    def _of(self, request: Packet) -> PendingSum:
        underway, t = self.underway.get(request.header["run"]), request.header["t"]
        if underway is None or underway.t != t:
            raise sum_refusal(f"this site has no numbers of round {t} (it was restarted, or has not trained)")
        return underway
