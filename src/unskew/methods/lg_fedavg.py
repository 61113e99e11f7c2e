"""LG-FedAvg (Liang et al. 2020, arXiv 2001.01523): the body stays with the clients, the head is averaged.

Client: trains its representation l_k and the global layers g together;  Up: g
Server: g <- sum_k n_k/n g_k;   l_k is neither sent nor overwritten, and begins at the common start
Differs from the paper: its runs begin with a model that FedAvg has trained for many rounds; ours begin at the
random start. Its code weighs clients equally, sends the new layers to all clients at once, and reports for
every client the best model on its test samples. Its auxiliary and adversarial losses on the representation
are left out. A new client is not served by an ensemble of all local models. FL-bench merges the first layers
instead of the last.
Defaults: one layer, as by default in the authors' program; its scripts merge two for CIFAR-10 and three for
MNIST.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from unskew.core import Fed, Part
from unskew.methods.shared.weights import block_refusal, in_last_blocks


@dataclass(frozen=True)
class LGFedAvg(Part):
    """Keeps everything below the head, or below the last blocks, on the client."""

    blocks: Annotated[int, Ge(1), Le(1000), "how many of the model's last blocks are merged; 1: the head"] = 1
    name = "lg_fedavg"
    family = "personalised"
    against = ("features",)
    use_when = "Clients' inputs look different and little may be sent: only the last layers leave a client."
    divides = True

    def refuse(self, fed: Fed) -> str | None:
        if self.blocks == 1 and fed.net.untrained_head():
            return "it merges the head alone, which is frozen"
        return block_refusal(self.blocks, fed)

    def keeps(self, name: str, fed: Fed) -> bool:
        return not in_last_blocks(name, self.blocks, fed)
