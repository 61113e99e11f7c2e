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
            seed = self._secret(
                site, given, lambda secret, site=site: primitives.commitment(secret) == self.commitments[site]
            )
            total -= primitives.mask(seed, len(total), self.bits)
        for site in self.left:
            public = self.roster[site].masking
            key = self._secret(
                site, given, lambda secret, public=public: primitives.public_of(secret) == public
            )
            for present in self.vectors:
                common = primitives.agree_key(key, self.roster[present].masking)
                add_pairwise(
                    total,
                    site,
                    present,
                    primitives.mask(primitives.mask_seed(common, self.context), len(total), self.bits),
                )
        return total.long()

    def _secret(
        self, site: str, given: Mapping[str, Mapping[str, bytes]], is_secret: Callable[[bytes], bool]
    ) -> bytes:
        """The secret of a site from enough shares, first without givers of known false shares, then without
        each single giver.
        """
        givers = sorted(given, key=lambda giver: giver in self.false)
        for excluded in (None, *givers):
            chosen = [giver for giver in givers if giver != excluded][: self.needed]  # more only take longer
            if len(chosen) == self.needed and (
                secret := _combine([given[giver][site] for giver in chosen], is_secret)
            ):
                self._note_false(site, given, chosen, excluded, is_secret)
                return secret
        text = (
            f"the shares of {site} do not give back what it has published: it dealt false ones, or other"
            " sites gave them"
        )
        raise SumNotOpened(f"{text}. Nothing was opened.", "E318")

    def _note_false(
        self,
        site: str,
        given: Mapping[str, Mapping[str, bytes]],
        honest_givers: list[str],
        excluded: str | None,
        is_secret: Callable[[bytes], bool],
    ) -> None:
        """Record the givers of false shares of a site's secret: `out`, and suspects with a false share here
        too.
        """
        suspects = [giver for giver in self.false if giver in given and giver not in honest_givers]
        for giver in [*([excluded] if excluded else []), *suspects]:
            trial_shares = [given[giver][site], *(given[other][site] for other in honest_givers[1:])]
            if not _combine(trial_shares, is_secret):
                self.false.setdefault(giver, set()).add(site)


def false_share_text(giver: str, dealers: set[str], t: int) -> str:
    """The event of false shares that were left out of a sum."""
    if dealers == {giver}:
        return f"{giver} round {t}: it gave back a false share of its own secret, which was left out."
    if len(dealers) == 1:
        (dealer,) = dealers
        text = (
            f"{giver} gave back a false share of {dealer}'s secret, which was left out: one of the two has"
            " falsified it"
        )
        return f"{giver} or {dealer} round {t}: {text}."
    return (
        f"{giver} round {t}: it gave back false shares of {len(dealers)} sites' secrets, which were left out."
    )


def _combine(shares: list[bytes], is_secret: Callable[[bytes], bool]) -> bytes | None:
    try:
        secret = primitives.combine_secret(shares)
        return secret if is_secret(secret) else None
    except ValueError:
        return None
