"""Classes of Parts as users write them: what Python takes and the engine would never call is refused in one
sentence (E121)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.methods.test_hooks_as_written import part, trained
from unskew.core import Noise, Part, Share, Trip
from unskew.core.method import Method, stage_remarks
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.fedprox import FedProx
from unskew.runs import conformance
from unskew.runs.resolve import resolve


def refused(**body: Any) -> str:
    with pytest.raises(UsageError, match=r"^E121 [^\n]*$") as error:
        Method(part(**body))
    return str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        {"gards": lambda self, g, w, c: g},
        {"on_finish": lambda self, w, c: ({}, {})},
        {"merge_s": True},
        {"loss": lambda self, w, out, b: 0.0},
        {"loss": lambda self, out, w, b, c: 0.0},
        {"merge": lambda self, w, s, ups, fed: (w, s)},
        {"personalise": lambda self, w, c: w},
        {"merges": True},
        {"tap": lambda self, cut, h, b, c: (h, b)},
        {"taps": "cut"},
        {"taps": lambda self: ("cut",)},
        {"trips": Trip(lambda t, T: True, lambda w, c: {}, lambda w, s, u, f: (w, s), lambda f: {})},
        {"called": "my/part"},
        {"called": "w"},
        {"called": "kept"},
        {"projection": torch.nn.Linear(3, 3)},
        {"decorated": False},
    ],
)
def test_what_the_engine_would_never_call_is_refused(body):
    """Before, a misspelt hook trained FedAvg, a name with '/' lost its slice on resuming, and one called w
    the weights."""
    with pytest.raises(UsageError, match=r"^E121 [^\n]*$"):
        Method(part(**body))


def test_a_class_that_is_not_frozen_or_whose_settings_would_be_lost_is_refused():
    @dataclass
    class Loose(Part):
        name = "loose"

    class Further(FedProx):
        further: float = 0.1

    for kind in (Loose, Further):
        with pytest.raises(
            UsageError, match=rf"E121 write @dataclass\(frozen=True\) above class {kind.__name__}"
        ):
            kind()


def test_methods_of_ones_own_and_static_hooks_are_no_mistake():
    """A helper that its hooks use may be called anything; so may what is annotated, which is a setting. A
    teacher is frozen."""

    @dataclass(frozen=True)
    class Fine(Part):
        merge_s: float = 0.1
        name = "fine"
        teacher = torch.nn.Linear(3, 3).requires_grad_(False)

        def losses(self, out):
            return out.logits.pow(2).sum(-1)

        def describe(self) -> str:
            return "fine"

        def loss(self, *given):
            _, out, b, _ = given
            return self.merge_s * self.teacher.bias.sum() * b.mean(self.losses(out))

        @staticmethod
        def grad(g, w, c):
            return g

    assert trained(Fine(), "16", until=1).digest == trained(Fine(), "16", until=1).digest


@pytest.mark.parametrize(
    ("shape", "further"),
    [
        (3, {}),
        ((None, 3), {}),
        ((3, None), {"rows": 2}),
        ((3,), {"dtype": "float32"}),
        ((3,), {"low": 1, "high": 0}),
        ((3,), {"kind": "sum"}),
        ((3,), {"samples": "all"}),
        ((3,), {"samples": 0}),
        ((3,), {"reads": "mean"}),
        ((3,), {"norm": 0.0}),
    ],
)
def test_a_share_that_cannot_be_meant_is_refused(shape, further):
    """Before, a kind or a number of samples in other words was declared to sites as it stood."""
    with pytest.raises(UsageError, match="E121 Share: "):
        Share(shape, **further)


@pytest.mark.parametrize(
    ("law", "args"),
    [
        ("gauss", ()),
        ("uniform", (-1, 1)),
        ("normal", (0, 0.1)),
        ("beta", ()),
        ("beta", (0, 1)),
        ("integers", (2.5,)),
    ],
)
def test_a_noise_that_cannot_be_meant_is_refused(law, args):
    """Before, the bounds of a uniform and the deviation of a normal law were taken and not looked at."""
    with pytest.raises(UsageError, match="E121 Noise: "):
        Noise(law, args)


def test_what_can_be_meant_is_taken():
    assert Share([None, 2], rows=4, kind="sums", samples="class", low=0, norm=1.0).rows == 4
    assert Noise("beta", (0.2, 0.2)).args == (0.2, 0.2)
    assert Share((), dtype=torch.int64).max_bytes == 8


def test_a_division_that_holds_nothing_of_this_model_is_remarked_on():
    """`keeps` with another model's names was silent beside other hooks, and clients sent all."""
    idle = part(
        keeps=lambda self, name, fed: name.startswith("classifier"), loss=lambda self, w, out, b, c: 0.0
    )
    assert [
        code
        for code, _ in resolve(conformance.short_settings(), conformance.small_federation(), idle).remarks
    ] == ["E121"]
    ((_, text),) = resolve(conformance.short_settings(), conformance.small_federation(), idle).remarks
    assert "`keeps` of 'mine' holds none of this model's" in text
    held = part(keeps=lambda self, name, fed: fed.net.of_head(name), loss=lambda self, w, out, b, c: 0.0)
    assert not resolve(conformance.short_settings(), conformance.small_federation(), held).remarks
    assert not resolve(
        conformance.short_settings(), conformance.small_federation(), Method(FedProx(mu=0.1))
    ).remarks


@pytest.mark.parametrize(
    ("method", "patience", "told"),
    [
        ("pfedsim", 5, "comes to its second stage, after round 10 of 20 (warm=0.5)"),
        ("pfedsim", 10, ""),
        ("pfedsim", 0, ""),
        ("pfedsim(warm=1.0)", 5, ""),
        ("feddpms(stage=0.9)", 3, "after round 18 of 20 (stage=0.9)"),
        ("scaffold", 3, ""),
        ("cfl", 0, "the run has 20 rounds, and 'cfl' comes to its second stage after round 20 (first=20)"),
        ("cfl", 5, "the run has 20 rounds"),
        ("cfl(first=19)", 0, ""),
        (
            "cfl(first=10)",
            5,
            (
                "patience=5 may end the run before 'cfl' comes to its second stage, after round 10 of 20"
                " (first=10)"
            ),
        ),
        ("cfl(first=0)", 5, ""),
        (
            "floco",
            5,
            "may end the run before 'floco' comes to its second stage, after round 10 of 20 (tau=0)",
        ),
        ("floco(tau=2.5)", 3, ""),
        ("floco(tau=2.5)", 2, "after round 3 of 20 (tau=2.5)"),
        (
            "floco(tau=1000)",
            0,
            "the run has 20 rounds, and 'floco' comes to its second stage after round 1000 (tau=1000)",
        ),
    ],
)
def test_a_run_that_may_end_in_its_first_stage_is_remarked_on(method, patience, told):
    """A run of pFedSim or CFL ended in the rounds in which it is plain averaging, and its scores passed for
    the method's."""
    (_, text), *_ = [*stage_remarks(registry.parse(method), 20, patience), ("", "")]
    assert told in text
    assert bool(text) == bool(told)
    settings = conformance.short_settings(rounds=20, patience=patience)
    if "pfedsim" in method or "cfl" in method:
        codes = [
            code
            for code, _ in resolve(settings, conformance.small_federation(), registry.parse(method)).remarks
        ]
        assert codes == ["E139"] * bool(told)
