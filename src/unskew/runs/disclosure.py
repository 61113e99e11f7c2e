"""The lines that are printed before round 1: what leaves each client, and remarks for the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from unskew.core import encoding
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.privacy_account import Account
from unskew.core.trees import bytes_text, size_in_bytes
from unskew.privacy.secure_aggregation import LEAST_SITES, SecureAggregation
from unskew.round.ledger import wire_bytes
from unskew.round.loop import Loop
from unskew.round.randomness import SeededSource, SystemSource

SERVER_NOISE = SystemSource.described


def disclosure_lines(loop: Loop) -> list[str]:
    """All lines for a run that is about to begin."""
    run = loop.run
    counts_KC = run.federation.label_counts
    lines = payload_lines(
        run.method, run.fed, loop.trainer.sent, counts_KC, loop.chance.described, run.secure
    )
    return [*lines, *remark_lines(loop)]


def remark_lines(loop: Loop) -> list[str]:
    """The remarks for the user before round 1, as sentences with their codes."""
    ends = [("E323", text)] if (text := loop.cut_short()) else []
    return [f"{code} {text}" for code, text in (*loop.run.remarks, *ends, *_cautions(loop))]


def _cautions(loop: Loop) -> list[tuple[str, str]]:
    """The merge's warning if round 1 will have too few replies."""
    merger, answered = loop.method.merger, loop.attendance(1).answered
    replies = int(np.count_nonzero(loop.fed.sizes[answered]))
    caution = merger.caution(replies) if merger and replies else None
    return [("E108", f"{merger.name}: {caution}.")] if merger and caution else []


def payload_lines(
    method: Method,
    fed: Fed,
    sent: Iterable[str],
    counts_KC: np.ndarray,
    drawn: str = SERVER_NOISE,
    secure: SecureAggregation | None = None,
) -> list[str]:
    """Lines on the weights and every declared Share, with their bytes and readers, and on differential
    privacy.

    sent: names of the weights that leave a client. counts_KC: samples by client and class; zeros if unknown.
    drawn: as for `accounts`. secure: the settings of secure aggregation, if replies are summed.
    """
    w, sent = fed.net.weights(), tuple(sent)
    total, constant = (
        wire_bytes(secure, {n: w[n] for n in sent}),
        size_in_bytes({n: w[n] for n in fed.net.constants}),
    )
    read = f"(read: {_read_by(method.weights_read, secure)})"
    weights = f"weights {bytes_text(total)} a round {read}" if total else "no weights"
    if encoder := method.encoder:
        encoded = bytes_text(encoding.bytes_of_weights(method, fed, sent))
        weights = (
            f"weights {encoded} a round, encoded by {encoder.name}, in place of {bytes_text(total)} {read}"
        )
    if constant:
        weights += f"; {bytes_text(constant)} are frozen in the model and stay as they are"
    lines = [line for part in method.parts for line in _share_lines(part, method, fed, secure)]
    lines += [f"{p.name} hands on to other clients: {p.handed_on}" for p in method.parts if p.handed_on]
    if secure:
        lines.append(f"{secure}, in steps of {2.0 ** -secure.fraction(fed.clients):.2g}")
    for name, account in accounts(method, fed, counts_KC, drawn).items():
        first, *rest = account.lines()
        lines += [f"{name}: {first}", *rest]
    return [f"leaves each client  {weights}", *(f"{'':<20}{line}" for line in lines)]


def _read_by(reads: str, secure: SecureAggregation | None) -> str:
    """Who reads a payload: with secure aggregation, its sum only."""
    return f"only in the sum of {LEAST_SITES} or more clients" if secure else reads


def _share_lines(part: Part, method: Method, fed: Fed, secure: SecureAggregation | None) -> list[str]:
    """The lines on a Part's Shares, one for those with an equal first name and equal properties."""
    shares = [(leaf, share, "a round") for leaf, share in method.covered(part.shares(fed)).items()]
    for trip in part.trips:
        often = "once" if trip.everyone else "a round"
        shares += [(leaf, share, often) for leaf, share in method.covered(trip.shares(fed)).items()]
    bytes_by_group: dict[tuple[str, str, str], int] = {}
    for leaf, share, often in shares:
        disclosed = f"kind: {share.discloses}, samples behind a number: {share.behind}"
        protected = f"read: {_read_by(share.reads, secure)}, guarantee: {share.guarantee}"
        group = (leaf.split("/", 1)[0], often, f"{disclosed}, {protected}")
        each = share.max_bytes // share.dtype.itemsize * secure.bits // 8 if secure else share.max_bytes
        bytes_by_group[group] = bytes_by_group.get(group, 0) + each
    return [
        f"{part.name}/{leaf} at most {bytes_text(bytes_)} {often} ({what})"
        for (leaf, often, what), bytes_ in bytes_by_group.items()
    ]


def account_entries(loop: Loop) -> dict[str, Any]:
    """The content of privacy.json for a run that is about to begin."""
    run = loop.run
    by_part = accounts(run.method, run.fed, run.federation.label_counts, loop.chance.described)
    return {name: account.as_json() for name, account in by_part.items()}


def accounts(
    method: Method, fed: Fed, counts_KC: np.ndarray, drawn: str = SERVER_NOISE
) -> dict[str, Account]:
    """The differential privacy of each noisy Part's release, by the Part's name.

    If it depends on unknown counts of samples, an account that says so. drawn: the source of the server's
    noise, in words.
    """
    noisy = [part for part in method.parts if type(part).account is not Part.account]
    unknown = Account("epsilon depends on samples by class, which sites do not tell; each is told its own")
    known = bool(np.any(counts_KC))
    accounted = {
        p: p.account(counts_KC, fed) if known or p.protects or p.samples_apart else unknown for p in noisy
    }
    return {
        p.name: account.with_source(drawn if p.protects or p.samples_apart else SeededSource.described)
        for p, account in accounted.items()
        if account
    }
