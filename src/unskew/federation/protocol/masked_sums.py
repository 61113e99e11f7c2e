"""One sum of secure aggregation: a site's part, the coordinator's, and the cryptography (Bonawitz et al., CCS
2017; Bell et al., CCS 2020, with all sites as neighbours).

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

The coordinator adds the masked vectors and removes the masks that do not cancel:

    sum_i q_i = sum_i y_i - sum_i PRG(seed_i) - sum_{i, d} +- PRG(s_id)    i: present sites; d: departed ones

Seeds of present sites and keys of departed ones are reconstructed from shares. Each is compared with its
owner's published value, so that a false share is detected. If the secret fits without one site's share,
either that site has changed the share or the owner has dealt a false one: shares are encrypted between the
two, and no third party can tell.

All cryptography is from libraries: Flower's key agreement, encryption and secret sharing, and masks from AES
in counter mode by `cryptography`. Flower's own masks are drawn from 32 bits of each key, few enough for
exhaustive search, so they are not used. Here each key makes only one mask. Keys, seeds and shares come from
the operating system's generator.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import MissingPackage, UsageError
from unskew.federation.protocol.roster import Roster, add_pairwise, sum_refusal
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey
from unskew.privacy.fixed_point import shares_of_weight
from unskew.privacy.secure_aggregation import SecureAggregation

try:
    from cryptography.fernet import InvalidToken
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
        decrypt,
        encrypt,
        generate_shared_key,
    )
    from flwr.common.secure_aggregation.secaggplus_utils import (
        share_keys_plaintext_concat,
        share_keys_plaintext_separate,
    )
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key,
        generate_key_pairs,
        public_key_to_bytes,
    )
except ImportError as error:  # the extra is not installed
    raise MissingPackage("secure aggregation", "Flower 1.41", "flower") from error

SCALAR = 48
"""Bytes of a private key on the curve secp384r1, which Flower's keys are on."""
SEED = 32


@dataclass(frozen=True)
class KeyPair:
    """private: the scalar, which can be split into shares; public: in PEM form, for sending."""

    private: bytes
    public: str

    @staticmethod
    def make() -> KeyPair:
        """A new pair of keys."""
        private, public = generate_key_pairs()
        number = private.private_numbers().private_value
        return KeyPair(number.to_bytes(SCALAR, "big"), public_key_to_bytes(public).decode())


def commitment(secret: bytes) -> str:
    """A digest that identifies a reconstructed secret without revealing it."""
    return hashlib.sha256(secret).hexdigest()


def public_of(private: bytes) -> str:
    """The public key of a private one. Raises ValueError for invalid bytes."""
    return public_key_to_bytes(_private_key(private).public_key()).decode()


def agree_key(private: bytes, public: str) -> bytes:
    """The common secret of two sites, from one's private and the other's public key.

    Raises ValueError for an invalid public key, or one on another curve.
    """
    try:
        return generate_shared_key(_private_key(private), bytes_to_public_key(public.encode()))
    except Exception as error:  # the library names every way in which bytes are no key by another class
        raise ValueError(f"a public key cannot be used ({type(error).__name__})") from None


def encryption_key(common: bytes, context: str) -> bytes:
    """The key for messages between two sites, which only sites with a common context have."""
    return base64.urlsafe_b64encode(mask_seed(common, f"sealing {context}"))


def encrypt_shares(common: bytes, giver: int, taker: int, of_seed: bytes, of_key: bytes) -> str:
    """Two shares from the giver for the taker (indices in the roster), readable only by these two sites."""
    return encrypt(common, share_keys_plaintext_concat(giver, taker, of_seed, of_key)).decode()


def decrypt_shares(common: bytes, text: str) -> tuple[int, int, bytes, bytes]:
    """(giver, taker, share of the seed, share of the key). Raises ValueError for a changed text."""
    try:
        return share_keys_plaintext_separate(decrypt(common, text.encode()))
    except (InvalidToken, ValueError, TypeError):
        raise ValueError("it was not encrypted by the site that it names") from None


def mask_seed(common: bytes, context: str) -> bytes:
    """The seed of the mask that two sites have in common, if they have a common context."""
    derived = HKDF(algorithm=hashes.SHA256(), length=SEED, salt=None, info=context.encode())
    return derived.derive(base64.urlsafe_b64decode(common))


def mask(secret: bytes, numbers: int, bits: int) -> Tensor:
    """[numbers] uniform over all whole numbers of so many bits, int64 or int32: the key stream of AES-256."""
    stream = (
        Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor().update(bytes(numbers * bits // 8))
    )
    return torch.frombuffer(bytearray(stream), dtype=dtype_of(bits))


def dtype_of(bits: int) -> torch.dtype:
    """The integer type with additions that wrap around at so many bits."""
    return torch.int64 if bits == 64 else torch.int32


def _private_key(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(scalar, "big"), ec.SECP384R1())


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
    _seed: bytes = field(default_factory=lambda: os.urandom(SEED))
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
            create_shares(secret, self.needed, len(roster)) for secret in (self._seed, self._masking.private)
        )
        here, dealt = roster.place(self.site), {}
        for place, one in enumerate(roster.listed):
            if one.site == self.site:
                self._shares[one.site] = of_seed[place], of_key[place]
                continue
            common = self._agree_key(self._sealing, one.sealing, one.site)
            self._common[one.site] = encryption_key(common, self.context)
            shares = of_seed[place], of_key[place]
            dealt[one.site] = encrypt_shares(self._common[one.site], here, place, *shares)
        self.stage = "dealt"
        return dealt, commitment(self._seed)

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
                giver, taker, of_seed, of_key = decrypt_shares(self._common[site], text)
            except ValueError as error:
                raise sum_refusal(f"the shares of '{site}' cannot be read: {error}") from None
            if (giver, taker) != (self._roster.place(site), here):
                raise sum_refusal(f"the shares of '{site}' were dealt by or for another site")
            shares[site] = of_seed, of_key
        self._enough(len(shares), "have dealt shares")
        q = self.numbers(self._weight())
        bits = self.secure.bits
        y = q.to(dtype_of(bits)) + mask(self._seed, len(q), bits)
        for site in dealt:
            common = self._agree_key(self._masking, self._roster[site].masking, site)
            pair_seed = mask_seed(common, self.context)
            add_pairwise(y, self.site, site, mask(pair_seed, len(q), bits))
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
            return agree_key(pair.private, public)
        except ValueError as error:
            raise sum_refusal(f"'{site}': {error}") from None

    def _check_stage(self, stage: Stage, what: str) -> None:
        if self.stage != stage:
            text = f"this site is asked to {what}, and it is at '{self.stage}'"
            raise sum_refusal(f"{text}, where that was done or is too early")


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
    after the opening, the site of the first false share by its giver.
    """

    roster: Roster
    needed: int
    bits: int
    context: str
    commitments: Mapping[str, str]
    vectors: Mapping[str, Tensor]
    left: tuple[str, ...]
    false: dict[str, str] = field(default_factory=dict)

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
            seed = self._secret(site, given, commitment, self.commitments[site])
            total -= mask(seed, len(total), self.bits)
        for site in self.left:
            key = self._secret(site, given, public_of, self.roster[site].masking)
            for present in self.vectors:
                common = agree_key(key, self.roster[present].masking)
                seed = mask_seed(common, self.context)
                add_pairwise(total, site, present, mask(seed, len(total), self.bits))
        return total.long()

    def _secret(
        self,
        site: str,
        given: Mapping[str, Mapping[str, bytes]],
        publish: Callable[[bytes], str],
        published: str,
    ) -> bytes:
        """The secret of a site from enough shares, first without givers of known false shares, then without
        each single giver, which is recorded. publish: computes what the site has published from its secret.
        """

        def combine(shares: list[bytes]) -> bytes | None:
            try:
                secret = combine_shares(shares)
                return secret if publish(secret) == published else None
            except Exception:  # the library has many for shares that do not fit together
                return None

        givers = sorted(given, key=lambda giver: giver in self.false)
        for excluded in (None, *givers):
            chosen = [giver for giver in givers if giver != excluded][: self.needed]  # more only take longer
            if len(chosen) < self.needed or not (secret := combine([given[g][site] for g in chosen])):
                continue
            if excluded:
                self.false.setdefault(excluded, site)
            return secret
        text = f"the shares of {site} do not give back what it has published: it dealt false ones, or other"
        raise SumNotOpened(f"{text} sites gave them. Nothing was opened.", "E318")


def false_share_text(giver: str, dealer: str, t: int) -> str:
    """The event of a false share that was left out of a sum. Its giver or its dealer has falsified it."""
    if giver == dealer:
        return f"{giver} round {t}: it gave back a false share of its own secret, which was left out."
    text = f"{giver} gave back a false share of {dealer}'s secret, which was left out"
    return f"{giver} or {dealer} round {t}: {text}: one of the two has falsified it."
