"""Replies with encoded weights: what the gate expects of them, and how they are encoded and decoded.

A client's encoded change of the weights is sent among the encoding Part's Shares, in the branch `encoded`, so
that the gate checks it like any Share. Weights that are not trained (statistics of batch normalisation) are
sent as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from unskew.core import gate, random_keys
from unskew.core.client import Client, Fed
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.random_keys import Keys
from unskew.core.replies import DecodeError, Reply
from unskew.core.shares import Share
from unskew.core.trees import Weights, size_in_bytes

BRANCH = "encoded"


def plain_weights(method: Method, fed: Fed, sent: Sequence[str]) -> tuple[str, ...]:
    """The names, among those of the weights that leave a client, of weights that are not encoded."""
    return tuple(n for n in sent if n not in fed.shared) if method.encoder else tuple(sent)


def declared_shares(method: Method, fed: Fed) -> dict[str, dict[str, Share]]:
    """The Shares in replies by Part: those that it declares, and those of the encoded weights."""
    shares = {name: dict(own) for name, own in method.shares(fed).items()}
    if p := method.encoder:
        shares[p.name] |= {f"{BRANCH}/{leaf}": share for leaf, share in p.encoded(fed).items()}
    return {name: own for name, own in shares.items() if own}


def spec_of(method: Method, fed: Fed, sent: Sequence[str], w: Weights) -> gate.Spec:
    """The gate's specification of a reply to training. sent: names of the weights that leave a client; w:
    weights of their shapes."""
    plain = plain_weights(method, fed, sent)
    shapes, dtypes = {n: tuple(w[n].shape) for n in plain}, {n: w[n].dtype for n in plain}
    return gate.Spec(shapes, declared_shares(method, fed), dtypes, encoded=method.encoder is not None)


def bytes_of_weights(method: Method, fed: Fed, sent: Sequence[str]) -> int:
    """The most bytes of a client's weights in a reply, encoded or not."""
    w, p = fed.net.weights(), method.encoder
    encoded = sum(share.max_bytes for share in p.encoded(fed).values()) if p else 0
    return size_in_bytes({n: w[n] for n in plain_weights(method, fed, sent)}) + encoded


def bytes_sent(method: Method, reply: Reply) -> int:
    """The bytes of the weights in this reply, encoded or not."""
    p = method.encoder
    encoded = reply.shares.get(p.name, {}).get(BRANCH) if p else None
    return size_in_bytes(reply.weights) + (size_in_bytes({BRANCH: encoded}) if encoded is not None else 0)


def encode_reply(p: Part, c: Client, reply: Reply) -> Reply:
    """The reply with its change of the shared weights encoded by `p`. c: the client as the Part sees it."""
    change = {n: reply.weights[n] - c.start[n] for n in c.fed.shared}
    tree, mine = p.encode(change, c, keys_of(p, c.fed, c.t, reply.client))
    plain = {n: t for n, t in reply.weights.items() if n not in change}
    shares = {**reply.shares, p.name: {**reply.shares.get(p.name, {}), BRANCH: tree}}
    return replace(
        reply, weights=plain, shares=shares, private=reply.private | ({p.name: mine} if mine else {})
    )


def decode_replies(
    method: Method, replies: Sequence[Reply], received: Callable[[int], Weights], fed: Fed, t: int
) -> tuple[list[Reply], list[gate.Refusal]]:
    """(replies with decoded weights, refusals of those that cannot be decoded).

    replies: of round t, accepted by the gate. received: from a client's number to the weights that it was
    sent.
    """
    p = method.encoder
    if p is None:
        return list(replies), []
    good: list[Reply] = []
    refused: list[gate.Refusal] = []
    for reply in replies:
        own, w = dict(reply.shares[p.name]), received(reply.client)
        try:
            change = p.decode(own.pop(BRANCH), w, fed, keys_of(p, fed, t, reply.client))
        except DecodeError as problem:
            refused.append(
                gate.Refusal(reply.client, "E303", f"what '{p.name}' encoded cannot be read: {problem}.")
            )
            continue
        weights = dict(reply.weights) | {n: w[n] + change[n] for n in fed.shared}
        if text := gate.merged_problem({n: weights[n] for n in fed.shared}, {}):
            refused.append(gate.Refusal(reply.client, "E301", f"as '{p.name}' decodes them, {text}"))
            continue
        shares = {name: tree for name, tree in {**reply.shares, p.name: own}.items() if tree}
        good.append(replace(reply, weights=weights, shares=shares))
    return good, refused


def keys_of(p: Part, fed: Fed, t: int, client: int) -> Keys:
    """The random numbers of a client in round t for an encoding Part, by purpose."""
    return lambda purpose: random_keys.key(fed.seed, t, client, p.name, purpose)
