"""What a site has sent, read as a reply that the gate can check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Weights, flat
from unskew.deploy.shelf import Shelf
from unskew.deploy.wire import Limits, Packet

MALFORMED = "the tensors have other names than a reply's. Reply dropped."


class Malformed(Exception):
    """The tensors of a packet do not have the names of a reply."""


def reply_of(k: int, packet: Packet) -> Reply | None:
    """Client k's reply to "train" or "visit"; None if it has nothing to send. Raises Malformed."""
    if packet.header.get("n") == 0:
        return None
    weights, shares = packet.tree.get("w", {}), packet.tree.get("shares", {})
    if set(packet.tree) - {"w", "shares"} or not isinstance(weights, Mapping):
        raise Malformed
    return Reply(k, _samples(packet), _by_name(weights), _by_part(shares), {}, _number(packet.header.get("loss")))


def early_reply_of(k: int, tree: Any, packet: Packet) -> Reply:
    """What client k has sent for early trips together with its training. tree: its branch. Raises Malformed."""
    return Reply(k, _samples(packet), {}, _by_part(tree), {}, 0.0)


def limits_of(spec: gate.Spec) -> Limits:
    """The largest reply that the gate would pass."""
    return Limits(spec.max_bytes, len(spec.weights) + sum(map(len, spec.shares.values())))


def _by_part(shares: Any) -> dict[str, Any]:
    if not isinstance(shares, Mapping) or not all(isinstance(shares[part], Mapping) for part in shares):
        raise Malformed
    return dict(shares)


def _by_name(weights: Mapping[str, Any]) -> Weights:
    """Weights by name. Those that stay on the disk do so, unless they are nested, which the gate will refuse."""
    if isinstance(weights, Shelf) and not any(isinstance(weights[name], Mapping) for name in weights):
        return weights  # type: ignore[return-value]
    return flat(weights)


def _samples(packet: Packet) -> float:
    return _number(packet.header.get("n"))


def _number(value: Any) -> float:
    """NaN, which the gate drops, for anything that is not a number."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else float("nan")
