"""A site's part of one sum (Bonawitz et al., CCS 2017; Bell et al., CCS 2020, with all sites as neighbours).

    keys    three new key pairs; all sites receive the public keys
    deal    for a new seed and a new private masking key one share for every site, encrypted for it
    mask    y_i = q_i + PRG(seed_i) + sum_{j < i} PRG(s_ij) - sum_{j > i} PRG(s_ij)
            s_ij: from the key agreement of i and j and the common context: roster, round's weights, settings
    agree   if a site has left: a signature of the lists of present and departed sites, one per site
    open    a share of the seed of every site with y received; of the key of every other one; never of both

Seed and key of a site together reveal its q. The masks of sites with different contexts do not cancel, so
no coordinator can have all but one site train on weights that change nothing or have no weight (Pasquini et
al., CCS 2022). Such sites cannot read each other's shares either, so no site can be given a roster of few.
No key is released unless as many sites as are needed to open the sum have signed one list of departed
sites: two such lists would have an honest site in common.

Secrets are in memory only: a restarted site counts as departed.

Letters: i, j sites; q, y vectors of N whole numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from unskew.errors import UsageError
from unskew.federation.protocol.identity import PrivateKey, PublicKey
from unskew.federation.sums import primitives
from unskew.federation.sums.primitives import KeyPair
from unskew.federation.sums.roster import Roster, add_pairwise, sum_refusal
from unskew.privacy.fixed_point import shares_of_weight
from unskew.privacy.secure_aggregation import SecureAggregation

Stage = Literal["keys", "dealt", "masked", "opened"]


@dataclass
class Member:
    """site: its name; samples: number of its training samples. numbers: computes q from its weight in the
    mean.

    weighting, cap: the study's weighting of clients. context: a digest of what every site of the sum must
    have received identically; once shares are dealt, of the roster as well.
    """

    site: str
    samples: float
    secure: SecureAggregation
    numbers: Callable[[float], Tensor]
    weighting: str = "size"
    cap: float = 1.0
    context: str = ""
    needed: int = 0
    """Sites without whose numbers the sum is not opened; known once shares are dealt."""
    stage: Stage = "keys"
    _masking: KeyPair = field(default_factory=KeyPair.make)
    _sealing: KeyPair = field(default_factory=KeyPair.make)
    _signing: PrivateKey = field(default_factory=PrivateKey.make)
    _seed: bytes = field(default_factory=primitives.new_seed)
    _roster: Roster = field(default_factory=lambda: Roster(()))
    _common: dict[str, bytes] = field(default_factory=dict)
    _shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _signed: bytes = b""
    """The digest of the lists that this site has signed."""

    @property
    def keys(self) -> list[str]:
        """The public keys of this sum: for masks, for encryption and for signatures."""
        return [self._masking.public, self._sealing.public, self._signing.public.text]

    def deal(self, rows: object) -> tuple[dict[str, str], str]:
        """(encrypted shares by other site, a commitment to the seed), for a roster.

        Raises UsageError (E525) for a roster that no honest coordinator sends.
        """
        self._check_stage("keys", "deal shares")
        try:
            roster = Roster.read(rows)
        except ValueError as error:
            raise sum_refusal(f"{error}") from None
        self._check_listed(roster)
        self._roster, self.needed = roster, self.secure.needed(len(roster))
        self.context = roster.digest(self.context)
        of_seed, of_key = (
            primitives.split_secret(secret, self.needed, len(roster))
            for secret in (self._seed, self._masking.private)
        )
        here, dealt = roster.place(self.site), {}
        for place, one in enumerate(roster.listed):
            if one.site == self.site:
                self._shares[one.site] = of_seed[place], of_key[place]
                continue
            common = self._agree_key(self._sealing, one.sealing, one.site)
            self._common[one.site] = primitives.encryption_key(common, self.context)
            shares = of_seed[place], of_key[place]
            dealt[one.site] = primitives.encrypt_shares(self._common[one.site], here, place, *shares)
        self.stage = "dealt"
        return dealt, primitives.commitment(self._seed)

    def masked(self, dealt: Mapping[str, str]) -> Tensor:
        """y, masked with every site that has dealt shares. dealt: encrypted shares for this site, by sender.

        Raises UsageError (E525) for too few sites, or shares that are not from the site that they name.
        """
        self._check_stage("dealt", "send its numbers")
        here, shares = self._roster.place(self.site), {self.site: self._shares[self.site]}
        for site, text in dealt.items():
            if site not in self._common:
                raise sum_refusal(f"shares come from '{site}', which is not among the sites of the sum")
            try:
                giver, taker, of_seed, of_key = primitives.decrypt_shares(self._common[site], text)
            except ValueError as error:
                raise sum_refusal(f"the shares of '{site}' cannot be read: {error}") from None
            if (giver, taker) != (self._roster.place(site), here):
                raise sum_refusal(f"the shares of '{site}' were dealt by or for another site")
            shares[site] = of_seed, of_key
        self._enough(len(shares), "have dealt shares")
        q = self.numbers(self._weight())
        bits = self.secure.bits
        y = q.to(primitives.dtype_of(bits)) + primitives.mask(self._seed, len(q), bits)
        for site in dealt:
            common = self._agree_key(self._masking, self._roster[site].masking, site)
            mask = primitives.mask(primitives.mask_seed(common, self.context), len(q), bits)
            add_pairwise(y, self.site, site, mask)
        self._shares, self.stage = shares, "masked"
        return y

    def signed(self, came: Sequence[str], left: Sequence[str]) -> str:
        """A signature of the lists of present and departed sites. Raises UsageError (E525) as `opened`."""
        self._check_stage("masked", "agree on who left")
        self._signed = self._digest_of(came, left)
        return base64.b64encode(self._signing.sign(self._signed)).decode()

    def opened(
        self, came: Sequence[str], left: Sequence[str], signatures: Mapping[str, str] | None = None
    ) -> dict[str, bytes]:
        """A share of the seed of each present site and of the key of each departed one, by site.

        signatures: of these lists, by site. Raises UsageError (E525) for a site on both lists, for too few
        sites or signatures, for other lists than those that this site has signed, and for a second call.
        """
        self._check_stage("masked", "open the sum")
        digest = self._digest_of(came, left)
        if left:
            signers = sum(self._has_signed(site, digest, text) for site, text in (signatures or {}).items())
            self._enough(signers, "have signed who left")
        self.stage = "opened"
        return {s: self._shares[s][0] for s in came} | {s: self._shares[s][1] for s in left}

    def _digest_of(self, came: Sequence[str], left: Sequence[str]) -> bytes:
        """A digest of these lists and of the sum's context. Raises UsageError (E525)."""
        if both := set(came) & set(left):
            text = f"'{min(both)}' is said to have sent its numbers and not"
            raise sum_refusal(f"{text}: both shares would show what it sent")
        if {*came, *left} != set(self._shares) or len({*came, *left}) < len(came) + len(left):
            raise sum_refusal("the sites of the sum are others than those that have dealt shares")
        if self.site not in came:
            raise sum_refusal("this site's own numbers are said not to have come")
        self._enough(len(came), "have sent their numbers")
        digest = hashlib.sha256(json.dumps([self.context, sorted(came), sorted(left)]).encode()).digest()
        if self._signed not in (b"", digest):
            raise sum_refusal("this site has signed that other sites came and left")
        return digest

    def _has_signed(self, site: str, digest: bytes, text: str) -> bool:
        """True if a site of the sum has signed these lists."""
        try:
            signature = base64.b64decode(text, validate=True)
            return PublicKey.parse(self._roster[site].signing).signed(digest, signature)
        except (UsageError, ValueError):  # it is not on the list, or this is no key or no signature
            return False

    def _check_listed(self, roster: Roster) -> None:
        if self.site not in roster.sites:
            raise sum_refusal("this site is not on the list")
        entry = roster[self.site]
        if [*entry.keys] != self.keys or entry.samples != self.samples:
            text = "the list has other keys or another number of samples of this site than it has sent"
            raise sum_refusal(text)
        self._enough(len(roster), "are on the list", self.secure.needed(len(roster)))

    def _enough(self, sites: int, what: str, needed: int = 0) -> None:
        if sites < (needed or self.needed):
            raise sum_refusal(f"{sites} sites {what}, and {needed or self.needed} are needed")

    def _weight(self) -> float:
        samples = [one.samples for one in self._roster.listed]
        return shares_of_weight(samples, self.weighting, self.cap)[self._roster.place(self.site)]

    def _agree_key(self, pair: KeyPair, public: str, site: str) -> bytes:
        try:
            return primitives.agree_key(pair.private, public)
        except ValueError as error:
            raise sum_refusal(f"'{site}': {error}") from None

    def _check_stage(self, stage: Stage, what: str) -> None:
        if self.stage != stage:
            text = f"this site is asked to {what}, and it is at '{self.stage}'"
            raise sum_refusal(f"{text}, where that was done or is too early")
