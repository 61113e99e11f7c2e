"""The format of a message: a JSON header, its signature, and tensors in safetensors format.

The header contains the SHA-256 of the tensors' bytes and the signature covers the header, so neither part
can be changed or combined with a part of another message. Nothing is parsed before its size, signature and
digest are checked, and nothing is unpickled.

Header of a request: run, serial (grows with every request to a site), site, kind ("hello", "setup",
"train", "visit", "score", "share", "mask", "agree", "open"), t (the round). Header of a reply: these fields
and `re`, the SHA-256 of the request's header, so that a reply answers one request only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, align, flat_tree, nested_tree
from unskew.federation.protocol.signed_messages import (
    PrivateKey,
    PublicKey,
    SignedMessage,
    address_of,
    aligned_buffer,
)
from unskew.records.checkpoints import TYPES, file_buffers


def in_axis_order(tensor: Tensor, order: list[int]) -> Tensor:
    """Undo the reordering of axes of a sent tensor. order: the axes as they are sent."""
    return tensor.permute([order.index(i) for i in range(tensor.dim())])


MOST_HEADER = 1 << 20
"""Bytes of JSON; the settings and names of ten thousand sites fit."""
PER_TENSOR = 512
"""Bytes of the safetensors header that one tensor may take: its name, type, shape and offsets."""


Blob = bytes | memoryview
DTYPES = {text: dtype for dtype, text in TYPES.items()}
_UNREADABLE = (
    ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError, RecursionError,
)  # fmt: skip
MOST_LEVELS = 16
"""Depth of a message's tree; functions that walk through it are recursive."""


class WireError(Exception):
    """A refused message. text: the end of a sentence that begins with the sender's name."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(frozen=True)
class Limits:
    """The largest size of an honest message: bytes of tensors and number of tensors."""

    bytes: int
    tensors: int

    def __add__(self, other: Limits) -> Limits:
        return Limits(self.bytes + other.bytes, self.tensors + other.tensors)

    @property
    def blob(self) -> int:
        """Bytes of the tensors with their safetensors header."""
        return self.bytes + self.names

    @property
    def names(self) -> int:
        """Bytes of the safetensors header."""
        return PER_TENSOR * (self.tensors + 1)


@dataclass(frozen=True)
class Packet:
    """A checked message."""

    header: dict[str, Any]
    tree: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class PackedTree:
    """A tree in wire format. facts: the tree's fields of the header."""

    blob: bytes
    facts: Mapping[str, Any]


def pack(tree: Mapping[str, Any]) -> PackedTree:
    """Pack a tree."""
    tensors = {n: t.detach().cpu() for n, t in flat_tree(tree).items()}
    axes = {n: order for n, t in tensors.items() if (order := _axes(t))}
    in_order = {n: (t.permute(axes[n]) if n in axes else t).contiguous() for n, t in tensors.items()}
    blob = b"".join(file_buffers(in_order) if in_order else [])
    return PackedTree(blob, {"sha256": _sha256(blob)} | ({"axes": axes} if axes else {}))


def seal(header: Mapping[str, Any], tree: Mapping[str, Any] | PackedTree, key: PrivateKey) -> SignedMessage:
    """Pack and sign a message. Numbers that are not finite become null, as JSON has no others."""
    packed = tree if isinstance(tree, PackedTree) else pack(tree)
    text = json.dumps(
        {n: _finite(v) for n, v in header.items()} | dict(packed.facts), sort_keys=True, allow_nan=False
    )
    return SignedMessage(text, key.sign(text.encode()), packed.blob)


def unseal(sealed: SignedMessage, key: PublicKey, limits: Limits) -> Packet:
    """Check and unpack a message that `key` should have signed.

    Raises WireError: E303 if the message is too large; E310 if it was changed, truncated or not signed by
    this key.
    """
    if len(sealed.blob) > limits.blob or len(sealed.text) > MOST_HEADER:
        size, most = f"{len(sealed.blob):,} and {len(sealed.text):,}", f"{limits.blob:,} and {MOST_HEADER:,}"
        raise WireError("E303", f"its tensors and header have {size} bytes; at most {most} are expected.")
    if not key.signed(sealed.text.encode(), sealed.signature):
        text = "the signature does not match: the message was changed, or sent by somebody else."
        raise WireError("E310", text)
    try:
        header = json.loads(sealed.text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise WireError("E310", "the header is not a JSON object.")
    if header.get("sha256") != _sha256(sealed.blob):
        raise WireError("E310", "the tensors do not have the SHA-256 that was signed.")
    return Packet(header, _tensors(sealed.blob, limits, header.get("axes", {})) if len(sealed.blob) else {})


def _sha256(blob: Blob) -> str:
    return hashlib.sha256(blob).hexdigest()


def _tensors(blob: Blob, limits: Limits, orders: Any) -> Tree:
    """The nested tree of tensors by name. orders: the axes as they were sent, by name."""
    if int.from_bytes(blob[:8], "little") > limits.names:
        raise WireError("E303", f"the message lists more than the {limits.tensors} tensors expected.")
    try:
        tensors = _views(blob)
    except _UNREADABLE as error:
        raise WireError("E310", f"the tensors cannot be read ({type(error).__name__}).") from error
    names = sorted(tensors)
    if len(names) > limits.tensors:
        text = f"the message holds {len(names)} tensors; at most {limits.tensors} are expected."
        raise WireError("E303", text)
    if any(path.count("/") >= MOST_LEVELS for path in names):
        raise WireError("E310", f"a tensor's name has more than {MOST_LEVELS} levels.")
    branches = {path[:i] for path in names for i, character in enumerate(path) if character == "/"}
    try:
        if branches.intersection(names):
            raise KeyError
        aligned = {name: align(tensors.pop(name)) for name in names}  # each original can be freed
        return nested_tree(aligned | {n: in_axis_order(aligned[n], o) for n, o in dict(orders).items()})
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise WireError("E310", "the tensors' names or axes do not fit together.") from None


def _views(blob: Blob) -> dict[str, Tensor]:
    """The tensors of a file in safetensors format, as views of its bytes, which are copied once unless they
    lie as tensors do. They must fill the file without a gap. Raises one of _UNREADABLE."""
    if isinstance(blob, bytes) or address_of(blob) % 64:
        blob, content = aligned_buffer(len(blob)), blob
        blob[:] = content
    start = 8 + int.from_bytes(blob[:8], "little")
    tensors, end = dict[str, Tensor](), start
    forms = json.loads(bytes(blob[8:start])).items()
    for name, form in sorted(forms, key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, stop) = DTYPES[form["dtype"]], form["shape"], form["data_offsets"]
        count = math.prod(shape)
        if start + begin != end or count * dtype.itemsize != stop - begin or min(shape, default=0) < 0:
            raise ValueError("a gap between tensors, or a wrong size")
        piece = blob[end : end + stop - begin] or bytearray(dtype.itemsize)  # torch takes no empty buffer
        tensors[name] = torch.frombuffer(piece, dtype=dtype, count=max(count, 1))[:count].view(shape)
        end += stop - begin
    if end != len(blob):
        raise ValueError("bytes behind the last tensor")
    return tensors


def _axes(t: Tensor) -> list[int] | None:
    """The order of a tensor's axes in memory, which the receiver restores because sums over the tensor depend
    on it.

    None for tensors that are contiguous or have gaps; those are sent in the order of their shape.
    """
    if t.is_contiguous():
        return None
    order = sorted(range(t.dim()), key=lambda i: -t.stride(i))
    return order if t.permute(order).is_contiguous() else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


MALFORMED_TEXT = "the tensors have other names than a reply's. Reply dropped."


class MalformedReply(Exception):
    """The tensors of a packet do not have the names of a reply."""


def reply_of(k: int, packet: Packet, names: Iterable[str] = ()) -> Reply | None:
    """Client k's reply to "train" or "visit"; None if it has nothing to send. Raises MalformedReply.

    names: expected weights in the model's order, which becomes the order of the reply; others follow, and
    the gate refuses them.
    """
    if packet.header.get("n") == 0:
        return None
    weights: Any = packet.tree.get("w", {})
    if set(packet.tree) - {"w", "shares"} or not isinstance(weights, Mapping):
        raise MalformedReply
    by_name = flat_tree(weights)
    ordered = {n: by_name[n] for n in dict.fromkeys([*(n for n in names if n in by_name), *by_name])}
    shares, loss = _by_part(packet.tree.get("shares", {})), _number(packet.header.get("loss"))
    return Reply(k, _number(packet.header.get("n")), ordered, shares, {}, loss)


def early_reply_of(k: int, tree: Any, packet: Packet) -> Reply:
    """Client k's answer to an early trip. tree: the trip's branch. Raises MalformedReply."""
    return Reply(k, _number(packet.header.get("n")), {}, _by_part(tree), {}, 0.0)


def limits_of(spec: gate.Spec) -> Limits:
    """The size limits for a reply that the gate would accept."""
    return Limits(spec.max_bytes, len(spec.weights) + sum(map(len, spec.shares.values())))


def _by_part(shares: Any) -> dict[str, Any]:
    if not isinstance(shares, Mapping) or not all(isinstance(shares[part], Mapping) for part in shares):
        raise MalformedReply
    return dict(shares)


def _number(value: Any) -> float:
    """The value as a float; NaN, which the gate refuses, if it is not a number."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else float("nan")


def tree_of(weights: Weights, shares: dict[str, Tree]) -> Tree:
    """The tensors of a reply."""
    return ({"w": weights} if weights else {}) | without_empty({"shares": without_empty(shares)})


def without_empty(tree: Tree) -> Tree:
    """The tree without empty branches, which cannot be sent."""
    return {name: branch for name, branch in tree.items() if flat_tree(branch)}
