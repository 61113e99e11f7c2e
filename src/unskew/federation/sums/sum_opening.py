"""The coordinator's part of one sum: it adds the masked vectors and removes the masks that do not cancel.

    sum_i q_i = sum_i y_i - sum_i PRG(seed_i) - sum_{i, d} +- PRG(s_id)    i: present sites; d: departed ones

Seeds of present sites and keys of departed ones are reconstructed from shares. Each is compared with its
owner's published value, so that a false share is detected. If the secret fits without one site's share,
either that site has changed the share or the owner has dealt a false one: shares are encrypted between the
two, and no third party can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from unskew.federation.sums import primitives
from unskew.federation.sums.roster import Roster, add_pairwise


class SumNotOpened(Exception):
    """The reason why a sum cannot be opened or used, as a sentence. code: of the event that reports it."""

    def __init__(self, text: str, code: str = "E309"):
        super().__init__(text)
        self.code = code


@dataclass
class Opening:
    """The state of an opening.

    needed: shares that restore a secret. context: digest of the sum's context. commitments: to the seeds,
    by site. vectors: y by present site. left: sites that have dealt shares and sent no numbers. false:
    after the opening, the dealers of false shares by giver.
    """

    roster: Roster
    needed: int
    bits: int
    context: str
    commitments: Mapping[str, str]
    vectors: Mapping[str, Tensor]
    left: tuple[str, ...]
    false: dict[str, set[str]] = field(default_factory=dict)

    def total(self, given: Mapping[str, Mapping[str, bytes]]) -> Tensor:
        """[N] int64, the sum of all q. given: shares by giver and by the site of the secret.

        Raises SumNotOpened for too few or false shares.
        """
        if len(given) < self.needed:
            text = f"{len(given)} sites gave shares, and {self.needed} are needed to open the sum"
            raise SumNotOpened(f"{text}. Nothing was opened.")
        first, *others = self.vectors.values()
        total = first.clone()
        for y in others:
            total += y
        for site in self.vectors:
            seed = self._secret(site, given, primitives.commitment, self.commitments[site])
            total -= primitives.mask(seed, len(total), self.bits)
        for site in self.left:
            key = self._secret(site, given, primitives.public_of, self.roster[site].masking)
            for present in self.vectors:
                common = primitives.agree_key(key, self.roster[present].masking)
                seed = primitives.mask_seed(common, self.context)
                add_pairwise(total, site, present, primitives.mask(seed, len(total), self.bits))
        return total.long()

    def _secret(
        self,
        site: str,
        given: Mapping[str, Mapping[str, bytes]],
        publish: Callable[[bytes], str],
        published: str,
    ) -> bytes:
        """The secret of a site from enough shares, first without givers of known false shares, then without
        each single giver. publish: computes what the site has published from its secret.

        Records givers of false shares: the one left out, and suspects with a false share here too.
        """

        def combine(shares: list[bytes]) -> bytes | None:
            try:
                secret = primitives.combine_secret(shares)
                return secret if publish(secret) == published else None
            except ValueError:
                return None

        givers = sorted(given, key=lambda giver: giver in self.false)
        for excluded in (None, *givers):
            chosen = [giver for giver in givers if giver != excluded][: self.needed]  # more only take longer
            if len(chosen) < self.needed or not (secret := combine([given[g][site] for g in chosen])):
                continue
            suspects = [giver for giver in self.false if giver in given and giver not in chosen]
            for giver in [*([excluded] if excluded else []), *suspects]:
                if not combine([given[giver][site], *(given[other][site] for other in chosen[1:])]):
                    self.false.setdefault(giver, set()).add(site)
            return secret
        text = f"the shares of {site} do not give back what it has published: it dealt false ones, or other"
        raise SumNotOpened(f"{text} sites gave them. Nothing was opened.", "E318")


def false_share_text(giver: str, dealers: set[str], t: int) -> str:
    """The event of false shares that were left out of a sum."""
    if dealers == {giver}:
        return f"{giver} round {t}: it gave back a false share of its own secret, which was left out."
    if len(dealers) == 1:
        (dealer,) = dealers
        text = f"{giver} gave back a false share of {dealer}'s secret, which was left out"
        return f"{giver} or {dealer} round {t}: {text}: one of the two has falsified it."
    text = f"it gave back false shares of {len(dealers)} sites' secrets, which were left out"
    return f"{giver} round {t}: {text}."
