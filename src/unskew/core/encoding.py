"""Replies whose weights travel encoded: what the gate expects of them, how they are made, and the weights
read back.

A client's encoded change of the weights lies among what the encoding Part shares, in the branch `encoded`, so
that the gate checks it as it checks any Share. Weights that are not trained (statistics of batch
normalisation) leave as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from unskew.core import gate, keys
from unskew.core.client import Client, Fed
from unskew.core.keys import Keys
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.replies import DecodeError, Reply
from unskew.core.shares import Share
from unskew.core.trees import Weights, size_in_bytes

BRANCH = "encoded"


def plain_weights(method: Method, fed: Fed, sent: Sequence[str]) -> tuple[str, ...]:
    """Of the names of the weights that leave a client, those whose weights leave as they are."""
    return tuple(n for n in sent if n not in fed.shared) if method.encoder else tuple(sent)


def declared_shares(method: Method, fed: Fed) -> dict[str, dict[str, Share]]:
    """By Part, all that replies hold beside the weights that leave as they are: what it shares, and what it
    encodes."""
    shares = {name: dict(own) for name, own in method.shares(fed).items()}
    if p := method.encoder:
        shares[p.name] |= {f"{BRANCH}/{leaf}": share for leaf, share in p.encoded(fed).items()}
    return {name: own for name, own in shares.items() if own}


def spec_of(method: Method, fed: Fed, sent: Sequence[str], w: Weights) -> gate.Spec:
    """What a reply to training must hold. sent: names of the weights that leave; w: such weights."""
    plain = plain_weights(method, fed, sent)
    shapes, dtypes = {n: tuple(w[n].shape) for n in plain}, {n: w[n].dtype for n in plain}
    return gate.Spec(shapes, declared_shares(method, fed), dtypes, encoded=method.encoder is not None)


def bytes_of_weights(method: Method, fed: Fed, sent: Sequence[str]) -> int:
    """Bytes at most in which a client's weights leave it, encoded or as they are."""
    w, p = fed.net.weights(), method.encoder
    encoded = sum(share.max_bytes for share in p.encoded(fed).values()) if p else 0
    return size_in_bytes({n: w[n] for n in plain_weights(method, fed, sent)}) + encoded


def bytes_sent(method: Method, reply: Reply) -> int:
    """Bytes in which the weights of this reply have come."""
    p = method.encoder
    encoded = reply.shares.get(p.name, {}).get(BRANCH) if p else None
    return size_in_bytes(reply.weights) + (size_in_bytes({BRANCH: encoded}) if encoded is not None else 0)


def encode_reply(p: Part, c: Client, reply: Reply) -> Reply:
    """The reply with its change of the shared weights encoded by `p`. c: the client as the Part sees it."""
    change = {n: reply.weights[n] - c.start[n] for n in c.fed.shared}
    tree, mine = p.encode(change, c, _keys(p, c.fed, c.t, reply.client))
    plain = {n: t for n, t in reply.weights.items() if n not in change}
    shares = {**reply.shares, p.name: {**reply.shares.get(p.name, {}), BRANCH: tree}}
    return replace(
        reply, weights=plain, shares=shares, private=reply.private | ({p.name: mine} if mine else {})
    )


def decode_replies(
    method: Method, replies: Sequence[Reply], received: Callable[[int], Weights], fed: Fed, t: int
) -> tuple[list[Reply], list[gate.Refusal]]:
    """(the replies with weights again, refusals of those that cannot be read). replies: of round t, that
    passed the gate.

    received: the weights that a client was sent, by its number.
    """
    p = method.encoder
    if p is None:
        return list(replies), []
    good: list[Reply] = []
    refused: list[gate.Refusal] = []
    for reply in replies:
        own, w = dict(reply.shares[p.name]), received(reply.client)
        try:
            change = p.decode(own.pop(BRANCH), w, fed, _keys(p, fed, t, reply.client))
        except DecodeError as problem:
            refused.append(
                gate.Refusal(reply.client, "E324", f"what '{p.name}' encoded cannot be read: {problem}.")
            )
            continue
        weights = dict(reply.weights) | {n: w[n] + change[n] for n in fed.shared}
        if text := gate.merged_problem({n: weights[n] for n in fed.shared}, {}):
            refused.append(gate.Refusal(reply.client, "E301", f"as '{p.name}' decodes them, {text}"))
            continue
        shares = {name: tree for name, tree in {**reply.shares, p.name: own}.items() if tree}
        good.append(replace(reply, weights=weights, shares=shares))
    return good, refused


def _keys(p: Part, fed: Fed, t: int, client: int) -> Keys:
    return lambda purpose: keys.key(fed.seed, t, client, p.name, purpose)
