"""The ledger: one row for every payload that went between the server and its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.core import encoding
from unskew.core.method import Method
from unskew.core.replies import Reply
from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights, leaves, size_in_bytes
from unskew.privacy.secure_aggregation import SecureAggregation
from unskew.records import client_lists
from unskew.records.record import Record
from unskew.round.clients import Broadcast


class Ledger:
    """Adds rows to a run's record; docs/files.md gives their form.

    sent: names of the weights that leave a client. method: says who reads weights, and what protects them.
    secure: in which numbers replies are masked and summed, if they are.
    """

    def __init__(
        self, record: Record, sent: Sequence[str], method: Method, secure: SecureAggregation | None = None
    ):
        self.record, self.sent, self.method, self.secure = record, sent, method, secure
        up = "dp" if method.samples_apart else "none"
        down = "dp" if method.samples_apart or method.protector else "none"
        self.weights = Share((), reads=method.weights_read, kind="weights", samples="client", guarantee=up)
        """How clients' weights are declared in the ledger."""
        self.down = Share((), reads=method.weights_read, guarantee=down)
        """How broadcasts are: made of what a guarantee covers, or not."""
        self.dispatcher = method.dispatcher
        self.handed_on = {"hands_on": self.dispatcher.handed_on} if self.dispatcher else {}
        """What of single other clients is in what its Part dispatches, as a fact of a row."""

    def broadcast(self, t: int, asked: list[int], start: Broadcast) -> None:
        """What a round's clients were sent: the weights, and every Part's slice; where a Part dispatches, its
        own to each."""
        self.weights_down(t, asked, start)
        for part, slice_ in start.to(asked[0]).down.items() if asked else ():  # all have the same shapes
            handed = self.handed_on if self.dispatcher and part == self.dispatcher.name else {}
            self._add(
                {"t": t, "way": "down", "share": part, **handed}, asked, size_in_bytes(slice_), self.down
            )

    def weights_down(self, t: int, clients: list[int], start: Broadcast) -> None:
        """The weights alone, on their way to clients."""
        own = start.own is not None and any(_differ(start.own(k)[0], start.weights) for k in clients)
        row = {"t": t, "way": "down", "share": "w", **(self.handed_on if own else {})}
        self._add(row, clients, self._size_of_weights(start), self.down)

    def trained(self, t: int, replies: Sequence[Reply], start: Broadcast) -> None:
        """The weights that came back from training, in the bytes in which they came."""
        row, clients = {"t": t, "way": "up", "share": "w"}, [r.client for r in replies]
        if encoder := self.method.encoder:
            sizes = [encoding.bytes_sent(self.method, r) for r in replies]
            self._add(row | {"encoded": encoder.name}, clients, sizes, self.weights)
            return
        self._add(
            row, clients, wire_bytes(self.secure, {n: start.weights[n] for n in self.sent}), self.weights
        )

    def shared(self, t: int, replies: Sequence[Reply], declared: Mapping[str, Mapping[str, Share]]) -> None:
        """What the replies hold beside the weights. declared: by Part and leaf.

        A tree of tensors of one kind (`delta/conv.weight`, `delta/conv.bias`) has one row; a single tensor's
        row gives its shape, with "rows" for as many as a client has.
        """
        for part, shares in declared.items():
            for leaf, share in {path.split("/", 1)[0]: share for path, share in shares.items()}.items():
                sizes = [wire_bytes(self.secure, _single_leaf(r.shares.get(part, {}), leaf)) for r in replies]
                row = {"t": t, "way": "up", "share": f"{part}/{leaf}"}
                self._add(row, [r.client for r in replies], sizes, share, shaped=leaf in shares)

    def _size_of_weights(self, start: Broadcast) -> int:
        return size_in_bytes({n: start.weights[n] for n in self.sent})

    def _add(
        self,
        row: dict[str, Any],
        clients: list[int],
        size: int | list[int],
        share: Share,
        shaped: bool = False,
    ) -> None:
        """size: bytes of every client's payload, one number where all are equal."""
        if not clients or not size:
            return
        each = size if isinstance(size, int) else client_lists.encode_bytes(size)
        whole = {
            **row,
            "clients": client_lists.encode_clients(clients),
            "bytes": each,
            "reads": share.reads,
            "guarantee": share.guarantee,
        }
        if row["way"] == "up":
            whole |= {"kind": share.discloses, "samples": share.samples}
            whole |= {"sum_of": len(clients)} if self.secure else {}
        if shaped and share.shape:
            whole["shape"] = ["rows" if s is None else s for s in share.shape]
        self.record.add("ledger", [whole])


def wire_bytes(secure: SecureAggregation | None, tree: Tree) -> int:
    """Bytes in which a tree leaves a client: as it is, or as masked numbers."""
    return sum(t.numel() for _, t in leaves(tree)) * secure.bits // 8 if secure else size_in_bytes(tree)


def _single_leaf(tree: Tree, leaf: str) -> Tree:
    return {leaf: tree[leaf]} if leaf in tree else {}


def _differ(w: Weights, everybodys: Weights) -> bool:
    """Whether a client is sent other weights than all are. Tensors are compared by identity: what a Part
    makes for a client differs even where its values do not."""
    return w is not everybodys and any(t is not everybodys[n] for n, t in w.items())
