"""What leaves each client, told before round 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from unskew.core.account import Account
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part


def size(bytes_: float) -> str:
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} GB"


def leaves(loop: Any) -> list[str]:
    """Of a run that is about to begin."""
    return told(loop.method, loop.fed, loop.trainer.sent, loop.federation.label_counts)


def told(method: Method, fed: Fed, sent: Iterable[str], counts_KC: np.ndarray) -> list[str]:
    """The weights and every declared Share, with bytes and who reads it; then what noise amounts to.

    sent: names of the weights that leave. counts_KC: samples by client and class; zeros where clients do not tell.
    """
    w = fed.net.weights()
    total = sum(w[n].numel() * w[n].element_size() for n in sent)
    lines = [
        f"leaves each client  weights {size(total)} a round (read: {method.weights_read})"
        if total
        else "leaves each client  no weights"
    ]
    for part in method.parts:
        found = [(s, "a round") for s in part.shares(fed).items()]
        found += [(s, "once" if trip.everyone else "a round") for trip in part.trips for s in trip.shares(fed).items()]
        grouped: dict[tuple[str, str, str, str], int] = {}
        for (leaf, share), often in found:
            name = (f"{part.name}/{leaf.split('/', 1)[0]}", often, share.reads, share.guarantee)
            grouped[name] = grouped.get(name, 0) + share.max_bytes
        lines += [
            f"{'':<20}{name} at most {size(bytes_)} {often} (read: {reads}, guarantee: {guarantee})"
            for (name, often, reads, guarantee), bytes_ in grouped.items()
        ]
    for name, account in accounts(method, fed, counts_KC).items():
        first, *rest = account.lines()
        lines += [f"{'':<20}{line}" for line in (f"{name}: {first}", *rest)]
    return lines


def accounts(method: Method, fed: Fed, counts_KC: np.ndarray) -> dict[str, Account]:
    """By part, what its release amounts to as differential privacy, where it says so; else why nobody can tell here."""
    noisy = [part for part in method.parts if type(part).account is not Part.account]
    if not np.any(counts_KC):
        unknown = "epsilon depends on samples by class, which sites do not tell; each is told its own"
        return {part.name: Account(unknown) for part in noisy}
    found = {part.name: part.account(counts_KC, fed) for part in noisy}
    return {name: account for name, account in found.items() if account}
