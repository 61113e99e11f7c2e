"""FedBABU (Oh, Kim & Yun, ICLR 2022, arXiv 2106.06042): only the body learns; the head stays at its start.

Client: trains everything but the head, which keeps its common random start;  Up: the body
Test:   the global model is used unchanged; with `finetune_epochs`, each client's own score is taken
        after so many passes of SGD on its head, in shuffled minibatches of size `batch`; the result
        is never sent
Differs from the paper: clients are weighted by size; `weighted=False` gives the official 1/K. The paper
fine-tunes the head or all weights; ours fine-tunes the head, by SGD without momentum or weight decay, while
the body runs in evaluation mode.
Defaults: no fine-tuning, as in ReBaFL's comparison.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from unskew.core import Client, Fed, Part, Weights
from unskew.formats.arguments import With


@dataclass(frozen=True)
class FedBABU(Part):
    """Freezes the head at its random start; clients train the body."""

    finetune_epochs: Annotated[
        int,
        Ge(0),
        Le(10_000),
        "passes over a client's data that train its head before its own score is taken",
    ] = 0
    lr: Annotated[
        float, Ge(0), Le(1000), With("finetune_epochs"), "learning rate of these passes; 0: the round's"
    ] = 0.0
    weighted: Annotated[bool, "weigh clients by their samples in the merge; False: equally"] = True
    name = "fedbabu"
    divides = True
    family = "personalised"
    equal_samples = True
    against = ("labels",)
    use_when = "Label skew damages the head first; a common head that is not trained cannot be damaged."

    def refuse(self, fed: Fed) -> str | None:
        return fed.net.untrained_head(alone=True) if self.finetune_epochs else None

    @property
    def weighting(self) -> Literal["size", "equal"] | None:  # type: ignore[override]
        return None if self.weighted else "equal"

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.finetune_epochs > 0

    def freezes(self, name: str, fed: Fed) -> bool:
        return fed.net.of_head(name)

    def personalise(self, w: Weights, c: Client) -> Weights:
        head = {n: t.clone() for n, t in w.items() if c.net.of_head(n)}
        for epoch in range(self.finetune_epochs):
            shuffled = c.sample(int(c.n), f"{self.name}/{c.t}/{epoch}")
            for x, y in zip(shuffled.x.split(c.fed.batch), shuffled.y.split(c.fed.batch)):
                h_BD = c.features(w, x)
                with torch.enable_grad():
                    head = {n: t.detach().requires_grad_() for n, t in head.items()}
                    loss = c.fed.task.loss(c.head(w | head, h_BD), y).mean()
                    steps = torch.autograd.grad(loss, list(head.values()))
                head = {n: t.detach() - (self.lr or c.lr) * g for (n, t), g in zip(head.items(), steps)}
        return w | head
