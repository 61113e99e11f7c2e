"""What oracles of personalised methods have in common: how clients with weights of their own are scored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Weights, named_tensors
from tests.oracles.values import Client, Pass


class Divided(FedAvg):
    """Clients keep weights of the model, so each that took part is scored by the server's weights with its
    own in them."""

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.w | kept, self.tests_of(k))[0] for k, kept in self.kept.items()}


class Beside(FedAvg):
    """Clients train a model of their own beside the global one: `self.named(c)`, by the model's names, kept
    as `<part>.<name>`.

    Its running statistics are its own. Each client that took part is scored by it, everything else by the
    global model.
    """

    def keeps(self, name: str) -> bool:
        return name.startswith(f"{self.part}.")

    def freezes(self, name: str) -> bool:
        return self.keeps(name) and "running" in name

    def arrive(self, c: Client) -> None:
        for name, p in c.extra.items():
            p.requires_grad_(not self.freezes(name))

    def named(self, c: Client) -> dict[str, Tensor]:
        """The weights of client c's own model."""
        return {n.removeprefix(f"{self.part}."): p for n, p in c.extra.items()}

    def loss(self, c: Client, seen: Pass) -> Tensor:
        return super().loss(c, seen) + self.own_loss(c, self.named(c), seen)

    def own_loss(self, c: Client, v: dict[str, Tensor], seen: Pass) -> Tensor:
        """What the client's own model descends."""
        raise NotImplementedError

    def answers(self) -> dict[int, Tensor]:
        own = {k: self.evaluated(self.own_model(kept), self.tests_of(k))[0] for k, kept in self.kept.items()}
        return super().answers() | own

    def own_model(self, kept: Weights) -> Weights:
        """The weights that score a client, from what it keeps."""
        return {n: kept[f"{self.part}.{n}"] for n, _ in named_tensors(self.module)}


def logits_with(model: nn.Module, v: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits of this module with other weights; running statistics among them are updated in place."""
    return torch.func.functional_call(model, v, (x,))


class Dispatched(FedAvg):
    """Each client is sent weights of its own, `sent_to(k)`, from which it trains and by which it is
    scored."""

    def sent_to(self, k: int) -> Weights:
        """The weights that client k is sent."""
        raise NotImplementedError

    def client(self, k: int) -> Client:
        common, self.w = self.w, self.sent_to(k)
        try:
            return super().client(k)
        finally:
            self.w = common

    def answers(self) -> dict[int, Tensor]:
        return {k: self.evaluated(self.own(k), self.tests_of(k))[0] for k in range(self.clients)}

    def own(self, k: int) -> Weights:
        """The weights that score client k."""
        return self.sent_to(k)

    def rows(self, by_client: list[Weights]) -> Weights:
        """The same by name, [K, ...]."""
        return {n: torch.stack([w[n] for w in by_client]) for n in by_client[0]}


def head_rests(c: Client, head: float) -> dict[bool, bool]:
    """By whether a weight is of the head: whether it rests at this step, where a share of the steps trains
    the head first.

    Counted step by step: 0 of 1 would leave the head as it began, and 2 of 2 the body.
    """
    if c.steps == 1:
        return {True: False, False: False}
    turns = [True] * round(head * c.steps) + [False] * c.steps
    turns[0], turns[c.steps - 1] = True, False
    return {True: not turns[c.step], False: turns[c.step]}
