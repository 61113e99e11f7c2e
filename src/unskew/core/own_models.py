"""Base classes of Parts whose clients keep a model of their own that never leaves them: a second model that
is trained with the global one (OwnModel), or the model after their last local training (Remembered).
"""

from __future__ import annotations

from unskew.core.client import Client, Fed
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights, under


class OwnModel(Part):
    """A Part with a second model at each client, whose weights are named `<part>.<name>` after the model's.

    They start equal to the model's and take every step with them. A subclass adds their loss in `loss`, from
    `c.run_training(self.own(w), x)`; hooks of other Parts do not see them. The second model has its own
    running statistics. Clients' own scores are this model's; all other scores are the global model's.
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
    """A Part whose clients keep the weights of their last local training, as `w` of the private tree, and are
    scored with them. A subclass may start training from `last`, mix with it, or score otherwise."""

    personal = True

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"w": {n: w[n] for n in model_names(fed.net)}}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"w": {n: w[n] for n in model_names(c.net)}}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c)

    def last(self, w: Weights, c: Client) -> Weights:
        """The weights after the client's last training; the received ones if it has not taken part yet."""
        return w | c.mine.get("w", {})


def model_names(net: Network) -> list[str]:
    """The names of the model's weights and running statistics, without those that Parts add."""
    return [*net.trainable, *net.buffers]
