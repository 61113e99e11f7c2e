"""What leaves each client, told before round 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unskew.privacy.accounting import Account


def size(bytes_: float) -> str:
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} GB"


def leaves(loop: Any) -> list[str]:
    """What leaves each client, before round 1: the weights and every declared Share, with bytes and who reads it."""
    w = loop.fed.net.weights()
    total = sum(w[n].numel() * w[n].element_size() for n in loop.trainer.sent)
    lines = [
        f"leaves each client  weights {size(total)} a round (read: {loop.method.weights_read})"
        if total
        else "leaves each client  no weights"
    ]
    for part in loop.method.parts:
        found = [(s, "a round") for s in part.shares(loop.fed).items()]
        found += [
            (s, "once" if trip.everyone else "a round") for trip in part.trips for s in trip.shares(loop.fed).items()
        ]
        grouped: dict[tuple[str, str, str, str], int] = {}
        for (leaf, share), often in found:
            name = (f"{part.name}/{leaf.split('/', 1)[0]}", often, share.reads, share.guarantee)
            grouped[name] = grouped.get(name, 0) + share.max_bytes
        lines += [
            f"{'':<20}{name} at most {size(bytes_)} {often} (read: {reads}, guarantee: {guarantee})"
            for (name, often, reads, guarantee), bytes_ in grouped.items()
        ]
    for name, account in accounts(loop).items():
        first, *rest = account.lines()
        lines += [f"{'':<20}{line}" for line in (f"{name}: {first}", *rest)]
    return lines


def accounts(loop: Any) -> dict[str, Account]:
    """What each part's release amounts to as differential privacy, where it says so."""
    told = {part.name: part.account(loop.federation.label_counts, loop.fed) for part in loop.method.parts}
    return {name: account for name, account in told.items() if account}
