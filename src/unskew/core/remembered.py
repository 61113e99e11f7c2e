"""A Part whose clients remember the model that they trained last, which never leaves them."""

from __future__ import annotations

from unskew.core.client import Client, Fed
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights


class Remembered(Part):
    """The weights that a client trained last are `w` of its private tree, and its own score is theirs.

    A subclass may start training from `last`, mix with it, or score otherwise.
    """

    personal = True

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"w": {n: w[n] for n in of_model(fed.net)}}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"w": {n: w[n] for n in of_model(c.net)}}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c)

    def last(self, w: Weights, c: Client) -> Weights:
        """The weights that the client trained last; those received if it has not taken part yet."""
        return w | c.mine.get("w", {})


def of_model(net: Network) -> list[str]:
    """Names of the weights and running statistics of the model itself, without what Parts train beside it."""
    return [*net.trainable, *net.buffers]
