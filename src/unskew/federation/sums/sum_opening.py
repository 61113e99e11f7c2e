"""The coordinator's part of one sum: it adds up the masked vectors and removes the masks that do not cancel.

    sum_i q_i = sum_i y_i - sum_i PRG(seed_i) - sum_{i, d} +- PRG(s_id)        i: sites that came; d: those
    that left
Seeds of sites that came and keys of those that left are reconstructed from shares. Each is compared with what
its owner has published, so that a false share is noticed. Where the secret fits without one site's share,
either that site has changed the share or the owner has dealt it so: shares are encrypted between the two, and
no third party can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from unskew.federation.sums import primitives
from unskew.federation.sums.roster import Roster, add_pairwise


class SumNotOpened(Exception):
    """Why a sum cannot be opened or used, as a sentence. code: of the event that tells it."""

    def __init__(self, text: str, code: str = "E321"):
        super().__init__(text)
        self.code = code


@dataclass
class Opening:
    """needed: how many shares give a secret back. context: a digest of what all sites of the sum were told.

    commitments: to the seeds, by site. vectors: by site that came, its y. left: sites that have dealt shares
    and sent no
    numbers. false: by giver of false shares, the sites that had dealt them, once it is opened.
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
        """[N] int64, the sum of all q. given: by giver and by the site it is about, a share.

        Raises SumNotOpened if too few shares came, or false ones.
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
            for came in self.vectors:
                common = primitives.agree_key(key, self.roster[came].masking)
                add_pairwise(
                    total,
                    site,
                    came,
                    primitives.mask(primitives.mask_seed(common, self.context), len(total), self.bits),
                )
        return total.long()

    def _secret(
        self, site: str, given: Mapping[str, Mapping[str, bytes]], is_it: Callable[[bytes], bool]
    ) -> bytes:
        """The secret of a site, from enough shares of it, first those of givers of whom no false one is
        known; or without one that is false."""
        givers = sorted(given, key=lambda giver: giver in self.false)
        for out in (None, *givers):
            some = [giver for giver in givers if giver != out][: self.needed]  # more only take longer
            if len(some) == self.needed and (
                secret := _combine([given[giver][site] for giver in some], is_it)
            ):
                self._note_false(site, given, some, out, is_it)
                return secret
        text = (
            f"the shares of {site} do not give back what it has published: it dealt false ones, or other"
            " sites gave them"
        )
        raise SumNotOpened(f"{text}. Nothing was opened.", "E526")

    def _note_false(
        self,
        site: str,
        given: Mapping[str, Mapping[str, bytes]],
        good: list[str],
        out: str | None,
        is_it: Callable[[bytes], bool],
    ) -> None:
        """Note whose share of a site's secret is false: `out`, and those of whom another was, if this one is,
        too."""
        suspects = [giver for giver in self.false if giver in given and giver not in good]
        for giver in [*([out] if out else []), *suspects]:
            tried = [given[giver][site], *(given[other][site] for other in good[1:])]
            if not _combine(tried, is_it):
                self.false.setdefault(giver, set()).add(site)


def false_share_text(giver: str, dealers: set[str], t: int) -> str:
    """The event of false shares that a sum was opened without."""
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


def _combine(shares: list[bytes], is_it: Callable[[bytes], bool]) -> bytes | None:
    try:
        secret = primitives.combine_secret(shares)
        return secret if is_it(secret) else None
    except ValueError:
        return None
