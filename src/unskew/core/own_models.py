"""Parts whose clients keep a model of their own, which never leaves them: a second model that is trained with
the global one, or the model that they trained last.
"""

from __future__ import annotations

from unskew.core.client import Client, Fed
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights, under


class OwnModel(Part):
    """Its weights are named `<part>.<name>` after the model's, begin as these do, and take every step with
    them.

    A subclass adds to `loss` what they descend, by `c.run_training(self.own(w), x)`; no other Part's hook
    sees them or their gradients. They have running statistics of their own. Clients' own scores are this
    model's; all other scores are the global one's.
    """

    personal = True

    def weights(self, fed: Fed) -> Weights:
        net = fed.net
        return {n: t for n, t in net.weights().items() if n not in net.extra and n not in net.constants}

    def keeps(self, name: str, fed: Fed) -> bool:
        return name.startswith(f"{self.name}.")

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.own(w)

    def own(self, w: Weights) -> Weights:
        """The weights of the client's own model, under the model's names."""
        return {**w, **under(w, self.name)}


class Remembered(Part):
    """The weights that a client trained last are `w` of its private tree, and its own score is theirs.

    A subclass may start training from `last`, mix with it, or score otherwise.
    """

    personal = True

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"w": {n: w[n] for n in model_names(fed.net)}}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"w": {n: w[n] for n in model_names(c.net)}}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c)

    def last(self, w: Weights, c: Client) -> Weights:
        """The weights that the client trained last; those received if it has not taken part yet."""
        return w | c.mine.get("w", {})


def model_names(net: Network) -> list[str]:
    """Names of the weights and running statistics of the model itself, without what Parts train beside it."""
    return [*net.trainable, *net.buffers]
