"""A Part with a second model: each client trains one of its own beside the global one, which never leaves it."""

from __future__ import annotations

from unskew.core.client import Client, Fed
from unskew.core.part import Part
from unskew.core.trees import Weights, under


class OwnModel(Part):
    """Its weights are named `<part>.<name>` after the model's, begin as these do, and take every step with them.

    A subclass adds to `loss` what they descend, by `c.run_training(self.own(w), x)`; no other Part's hook sees them or their
    gradients. They have running statistics of their own. Clients' own scores are this model's; all other scores are the
    global one's.
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
