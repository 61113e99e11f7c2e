"""The ledger: one row for every payload between the server and its clients."""

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
from unskew.round.deliveries import Delivery


class Ledger:
    """Adds rows on payloads to a run's record; docs/files.md has their form.

    sent: names of the weights that leave a client. method: decides who reads weights and what protects them.
    secure: the settings of secure aggregation, if replies are summed.
    """

    def __init__(
        self, record: Record, sent: Sequence[str], method: Method, secure: SecureAggregation | None = None
    ):
        self.record, self.sent, self.method, self.secure = record, sent, method, secure
        up = "dp" if method.samples_apart else "none"
        down = "dp" if method.samples_apart or method.protector else "none"
        self.weights = Share((), reads=method.weights_read, kind="weights", samples="client", guarantee=up)
        """The declaration of clients' weights."""
        self.down = Share((), reads=method.weights_read, guarantee=down)
        """The declaration of broadcasts; "dp" if they are made of protected replies."""
        self.dispatcher = method.dispatcher
        self.handed_on = {"hands_on": self.dispatcher.handed_on} if self.dispatcher else {}
        """The entry of a row on the values of other clients in a dispatch."""

    def broadcast(self, t: int, clients: list[int], start: Broadcast, sent: Delivery) -> None:
        """Add rows for the weights in the broadcast to these clients, and for what each is sent of every
        Part's slice."""
        self._weights_down(t, clients, start)
        for part in start.to(clients[0]).down if clients else ():
            handed = self.handed_on if self.dispatcher and part == self.dispatcher.name else {}
            sizes = sent.bytes(part)
            to = [k for k in clients if sizes[k]]
            each = [sizes[k] for k in to]
            row = {"t": t, "way": "down", "share": part, **handed}
            self._add(row, to, each[0] if len(set(each)) == 1 else each, self.down)

    def _weights_down(self, t: int, clients: list[int], start: Broadcast) -> None:
        own = start.own is not None and any(_differ(start.own(k)[0], start.weights) for k in clients)
        row = {"t": t, "way": "down", "share": "w", **(self.handed_on if own else {})}
        sent = {n: start.weights[n] for n in self.sent if n in start.weights}
        self._add(row, clients, size_in_bytes(sent), self.down)

    def trained(self, t: int, replies: Sequence[Reply], start: Broadcast) -> None:
        """Add a row for the weights in the replies of training."""
        row, clients = {"t": t, "way": "up", "share": "w"}, [r.client for r in replies]
        if encoder := self.method.encoder:
            sizes = [encoding.bytes_sent(self.method, r) for r in replies]
            self._add(row | {"encoded": encoder.name}, clients, sizes, self.weights)
            return
        self._add(
            row, clients, wire_bytes(self.secure, {n: start.weights[n] for n in self.sent}), self.weights
        )

    def shared(self, t: int, replies: Sequence[Reply], declared: Mapping[str, Mapping[str, Share]]) -> None:
        """Add rows for the Shares in the replies. declared: by Part and leaf.

        A tree of tensors (`delta/conv.weight`, `delta/conv.bias`) has one row; the row of a single tensor has
        its shape, with "rows" for a number that differs by client.
        """
        for part, shares in declared.items():
            for leaf, share in {path.split("/", 1)[0]: share for path, share in shares.items()}.items():
                trees = [r.shares.get(part, {}) for r in replies]
                sizes = [wire_bytes(self.secure, {leaf: t[leaf]} if leaf in t else {}) for t in trees]
                row = {"t": t, "way": "up", "share": f"{part}/{leaf}"}
                self._add(row, [r.client for r in replies], sizes, share, shaped=leaf in shares)

    def _add(
        self,
        row: dict[str, Any],
        clients: list[int],
        size: int | list[int],
        share: Share,
        shaped: bool = False,
    ) -> None:
        """Add a row. size: the bytes of every client's payload; one number if all are equal."""
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
    """The bytes of a tree in a client's message, plain or as masked numbers."""
    return sum(t.numel() for _, t in leaves(tree)) * secure.bits // 8 if secure else size_in_bytes(tree)


def _differ(w: Weights, common: Weights) -> bool:
    """Whether a client's weights are not the common ones."""
    return w is not common and any(t is not common[n] for n, t in w.items())
