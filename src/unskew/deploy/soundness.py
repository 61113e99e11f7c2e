"""Which replies are sound enough to be merged, and who is to blame when training fails at many sites at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from unskew.core import encoding, gate
from unskew.core.replies import Reply
from unskew.core.values import Share
from unskew.deploy.attendance import Attendance
from unskew.deploy.proportion import Proportions
from unskew.engine.client.values import Start
from unskew.errors import UsageError

MOST_LOSS = 1e12
"""A loss beyond this is refused like one that is not finite: sums over sites must stay finite."""
Event = tuple[int, str, str]
"""(round, code, sentence)"""


@dataclass
class Soundness:
    """Drops replies that are out of all proportion and names their sites (E318), over a whole run."""

    sites: Attendance
    proportions: Proportions = field(init=False)

    def __post_init__(self) -> None:
        fed = self.sites.local.fed
        steps = {k: -(-int(n) // fed.batch) for k, n in enumerate(fed.sizes)}
        self.proportions = Proportions(fed.shared, steps)

    def trained(self, start: Start, replies: list[Reply], spec: gate.Spec, failed: Sequence[Event]) -> list[Reply]:
        """The replies of a round that may be merged, and those that the gate will name. failed: sites' own E301.

        Raises UsageError (E319) where half of the sites or more failed to train because of a model that one site has spoilt.
        """
        lost = {r.client for r in self._gate(replies, spec)[1] if r.code == "E301"}
        lost |= {r.client for r in replies if not abs(r.loss) <= MOST_LOSS}
        suspect = self.proportions.suspect()
        if suspect and 2 * (len(lost) + len(failed)) >= len(replies) + len(failed) > 0:
            t, change = suspect
            site, failing = self.sites.hellos[change.client].site, len(lost) + len(failed)
            text = f"round {start.t}: training fails at {failing} of {len(replies) + len(failed)} sites"
            text += f", for the model they received is spoilt. Most likely {site} spoilt it in round {t}"
            remedy = f"Begin a new run without it: --without {site}"
            raise UsageError("E319", f"{text}: {change.text}. {remedy}")
        for event in failed:
            self.sites.tell(*event)
        return self.in_proportion(start, replies, spec)

    def in_proportion(self, start: Start, replies: list[Reply], spec: gate.Spec) -> list[Reply]:
        """The replies without those that are out of all proportion, whose sites are named. spec: of this exchange."""
        passing = {r.client for r in self._gate(replies, spec)[0]}
        compared = [r for r in replies if r.client in passing]
        if spec.encoded:
            local = self.sites.local
            compared, _ = encoding.decoded(local.method, compared, start.received, local.fed, start.t)
        of_samples = {part for part, shares in spec.shares.items() if _are_of_samples(shares.values())}
        refused = self.proportions.check(start.t, start.weights, compared, start.received, of_samples)
        for change in refused:
            site = self.sites.hellos[change.client].site
            self.sites.tell(start.t, "E318", f"{site} round {start.t}: {change.text}. Reply dropped.")
        dropped = {change.client for change in refused}
        return [r for r in replies if r.client not in dropped]

    def _gate(self, replies: Sequence[Reply], spec: gate.Spec) -> tuple[list[Reply], list[gate.Refusal]]:
        """What the gate will say, which must not yet change the replies."""
        return gate.check([replace(r) for r in replies], spec, self.sites.local.fed.sizes)


def _are_of_samples(shares: Iterable[Share]) -> bool:
    """Whether all numbers that are shared, labels and counts apart, are inputs or features of samples."""
    kinds = {share.discloses for share in shares if share.dtype.is_floating_point}
    return bool(kinds) and kinds <= {"inputs", "features"}
