"""Run the engine and an oracle on the same federation and compare everything they leave, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracles import ours
from tests.oracles.plain import Case, Client, FedAvg, Pass, Reply, Snapshot, Weights, named_tensors
from tests.samples import EVERYTHING, turn


class Divided(FedAvg):
    """Clients keep weights of the model, and each that took part is scored with its own in the server's."""

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
    """A client is sent weights of its own, `sent_to(k)`, from which it trains and by which it is scored."""

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


class Encoded(FedAvg):
    """v_D is the change of a client's trained weights, with what it has not sent before if it remembers."""

    memory = True

    def read(self, k: int, v: Tensor) -> Tensor:
        """[D]: what the server makes of the message in which v is sent."""
        raise NotImplementedError

    def arrive(self, c: Client) -> None:
        if self.memory:
            zeros = torch.zeros(sum(self.w[n].numel() for n in self.learned), dtype=torch.float64)
            self.private.setdefault(c.k, {"error": zeros})

    def train(self, k: int) -> Reply:
        reply = super().train(k)
        v = torch.cat([(reply.w[n] - self.w[n]).flatten() for n in self.learned])
        if self.memory:
            v = v + self.private[k]["error"]
        arrived = self.read(k, v)
        if self.memory:
            self.private[k] = {"error": v - arrived}
        return replace(reply, w=reply.w | {n: self.w[n] + piece for n, piece in self.parts(arrived).items()})

    def parts(self, v: Tensor) -> Weights:
        """The numbers of each weight, in its shape."""
        pieces = v.split([self.w[n].numel() for n in self.learned])
        return {n: piece.reshape(self.w[n].shape) for n, piece in zip(self.learned, pieces)}

    def draws(self, k: int, purpose: str) -> torch.Generator:
        """What client and server both draw from."""
        return self.given.generator(self.t, k, self.part, purpose)


LANES = (1, 16)
BOTH = [Case("mlp"), Case("cnn", 0.9)]
"""Enough for a second setting of the same method."""
CASES = [Case(model, momentum) for model in ("mlp", "cnn") for momentum in (0.0, 0.9)] if EVERYTHING else BOTH
"""The cases every oracle is run with; `make matrix` has all."""
LANES_OF = {Case("mlp"): (1,), Case("cnn", 0.9): (16,)}
"""The lanes of the usual cases in `make test`, so that each method meets both; other cases have one of them."""
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.model}-momentum{c.momentum:g}")
on_both_models = pytest.mark.parametrize("case", BOTH, ids=lambda c: c.model)


def checked(*cases: Case, **settings: Any) -> Callable[[type[FedAvg]], type[FedAvg]]:
    """Declare cases in which `agreement_test` compares an oracle with the engine. settings: as for `agree`."""

    def declare(oracle: type[FedAvg]) -> type[FedAvg]:
        oracle.checks = [*((case, settings) for case in cases), *vars(oracle).get("checks", ())]
        return oracle

    return declare


def agreement_test(module: Mapping[str, Any]) -> Callable[..., None]:
    """The test of all checks that are declared on the oracles of a module, `globals()`."""
    oracles = [v for v in module.values() if isinstance(v, type) and v.__module__ == module["__name__"]]
    rows = [
        pytest.param(oracle, case, settings, id=f"{oracle.__name__}-{case.model}-{i}")
        for oracle in oracles
        for i, (case, settings) in enumerate(_tried(vars(oracle).get("checks", ())))
    ]

    @pytest.mark.parametrize(("oracle", "case", "settings"), rows)
    def test_agreement(oracle: type[FedAvg], case: Case, settings: dict[str, Any]) -> None:
        agree(case, oracle, **settings)

    return test_agreement


def _tried(checks: Sequence[tuple[Case, dict[str, Any]]]) -> list[tuple[Case, dict[str, Any]]]:
    """The checks of an oracle in `make test`: settings beside its first ones meet one of the usual cases."""
    kept, usual = list[tuple[Case, dict[str, Any]]](), set[str]()
    for case, settings in checks:
        text = repr(settings)
        if EVERYTHING or settings == checks[0][1] or case not in BOTH or text not in usual:
            kept.append((case, settings))
        usual |= {text} if case in BOTH else set()
    return kept


def agree(case: Case, oracle: type[FedAvg], atol: float = 1e-5, **settings: Any) -> None:
    """Assert that engine and oracle give the same weights, slices, private state and answers after every
    round.

    settings: of the method, for both. atol: the largest difference of any number, absolute.
    """
    arguments = ", ".join(f"{n}={v}" for n, v in settings.items())
    method = (f"{oracle.part}({arguments})" if arguments else oracle.part or "fedavg") + oracle.beside
    expected: list[Snapshot] = []
    one = LANES[turn(f"{method} {case}", 2)]
    for lanes in LANES if EVERYTHING else LANES_OF.get(case, (one,)):
        run = ours.run(method, case, lanes)
        expected = expected or oracle(run, **settings).run()
        assert len(run.rounds) == len(expected) == case.rounds
        for t, (engine, plain) in enumerate(zip(run.rounds, expected), 1):
            where = f"{method}, lanes={lanes}, round {t}"
            assert_same(engine.weights, plain.weights, atol, f"{where}: weights")
            assert_same(engine.slices, plain.slices, atol, f"{where}: slices")
            assert_same(engine.private, plain.private, atol, f"{where}: private")
            assert engine.loss == pytest.approx(plain.loss, rel=0, abs=atol, nan_ok=True), f"{where}: loss"
            for k, z in plain.answers.items():
                assert_same({"z": engine.answers[k]}, {"z": z}, atol, f"{where}: answers of {k}")


def assert_same(engine: Mapping[Any, Any], plain: Mapping[Any, Any], atol: float, where: str) -> None:
    """Both trees have the same leaves, and their numbers differ by at most `atol`."""
    ours_, theirs = leaves(engine), leaves(plain)
    assert sorted(ours_) == sorted(theirs), f"{where}: {sorted(ours_)}, the oracle {sorted(theirs)}"
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours_[name].double(),
            torch.as_tensor(value).double(),
            rtol=0,
            atol=atol,
            msg=lambda text, name=name: f"{where}: {name}: {text}",
        )


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a nested mapping by its path; empty branches do not count."""
    found: dict[str, Tensor] = {}
    for name, value in tree.items():
        found |= (
            leaves(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        )
    return found
