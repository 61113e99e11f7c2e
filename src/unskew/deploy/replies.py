"""A reply as the tensors that a site sends, and what a site has sent, read as a reply that the gate can check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat
from unskew.deploy.shelf import Shelf
from unskew.deploy.wire import Limits, Packet

MALFORMED = "the tensors have other names than a reply's. Reply dropped."


class Malformed(Exception):
    """The tensors of a packet do not have the names of a reply."""


def reply_of(k: int, packet: Packet, names: Iterable[str] = ()) -> Reply | None:
    """Client k's reply to "train" or "visit"; None if it has nothing to send. Raises Malformed.

    names: of the weights that are expected, in their model's order, in which the reply then has them.
    """
    if packet.header.get("n") == 0:
        return None
    weights, shares = packet.tree.get("w", {}), packet.tree.get("shares", {})
    if set(packet.tree) - {"w", "shares"} or not isinstance(weights, Mapping):
        raise Malformed
    return Reply(
        k, _samples(packet), _by_name(weights, names), _by_part(shares), {}, _number(packet.header.get("loss"))
    )


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


def _by_name(weights: Mapping[str, Any], names: Iterable[str]) -> Weights:
    """Weights in the order of `names`, before any others, which the gate will refuse. Those that stay on the disk do so,
    unless they are nested, which the gate will refuse, too."""
    if isinstance(weights, Shelf) and not any(isinstance(weights[name], Mapping) for name in weights):
        return weights.in_order(_first(names, weights))
    by_name = flat(weights)
    return {n: by_name[n] for n in _first(names, by_name)}


def _first(names: Iterable[str], sent: Mapping[str, Any]) -> list[str]:
    """The names of what was sent, those that are expected first."""
    return list(dict.fromkeys([*(n for n in names if n in sent), *sent]))


def _samples(packet: Packet) -> float:
    return _number(packet.header.get("n"))


def _number(value: Any) -> float:
    """NaN, which the gate drops, for anything that is not a number."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else float("nan")


def tree_of(weights: Weights, shares: dict[str, Tree]) -> Tree:
    """The tensors of a reply."""
    return ({"w": weights} if weights else {}) | without_empty({"shares": without_empty(shares)})


def without_empty(tree: Tree) -> Tree:
    """Without empty branches, which cannot be written on the wire."""
    return {name: branch for name, branch in tree.items() if flat(branch)}
