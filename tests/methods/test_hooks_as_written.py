"""Parts as users write them, with the mistakes that they make: each ends right, or in one sentence with the
hook (E127, E121).

Likely mistakes: another shape than the engine goes on with, which torch would spread over a weight; a leaf
left out; something changed in place that other clients read; random numbers that no seed reaches; a hook that
nobody would ever call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unskew.core import Noise, Part, Share, Trip
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.merge.mean import weighted_mean
from unskew.methods.fedprox import FedProx
from unskew.runs import conformance

ONE = {"v": Share((3,), kind="statistics", samples="client")}


def part(*, called: str = "", decorated: bool = True, **body: Any) -> Part:
    """A Part with this body; its hooks are written as functions of what they are called with."""
    kind = type("Mine", (Part,), {"name": called or "mine", "__module__": __name__, **body})
    return (dataclass(frozen=True)(kind) if decorated else kind)()


def trained(mine: Part, lanes: str, **changes: Any) -> conformance.CheckRun:
    return conformance.train_run(Method(mine), lanes=lanes, **{"rounds": 2, **changes})


def refused(mine: Part, lanes: str = "1", **changes: Any) -> str:
    with pytest.raises(UsageError) as error:
        trained(mine, lanes, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def sized(out: Any) -> Tensor:
    return out.logits.pow(2).sum(-1)


def dropping(tree: Any) -> Any:
    return {n: t for n, t in tree.items() if "bias" not in n}


def means(tree: Any) -> Any:
    return {n: t.mean() for n, t in tree.items()}


def doubles(tree: Any) -> Any:
    return {n: t.double() for n, t in tree.items()}


RETURNED = [
    ("loss", lambda s, w, out, b, c: None),
    ("loss", lambda s, w, out, b, c: sized(out)),
    ("loss", lambda s, w, out, b, c: b.mean(sized(out)).reshape(1)),
    (
        "loss",
        lambda s, w, out, b, c: b.mean(sized(out).detach()),
    ),
    ("loss", lambda s, w, out, b, c: torch.tensor(math.nan)),
    ("grad", lambda s, g, w, c: None),
    ("grad", lambda s, g, w, c: dropping(g)),
    ("grad", lambda s, g, w, c: {**g, "head.wieght": g["head.weight"]}),
    ("grad", lambda s, g, w, c: means(g)),
    (
        "grad",
        lambda s, g, w, c: {n: t.mean(0, keepdim=True) for n, t in g.items()},
    ),
    ("grad", lambda s, g, w, c: doubles(g)),
    ("batch", lambda s, b, c: None),
    (
        "batch",
        lambda s, b, c: b.replace(x=b.x.double()),
    ),
    ("batch", lambda s, b, c: b.replace(y=b.y[:, :1])),
    ("batch", lambda s, b, c: b.replace(y=b.y.mean(0, keepdim=True))),
    ("logits", lambda s, z, b, c: z[:, :1]),
    ("begin", lambda s, w, c: {"k": 1.0}),
    ("starts", lambda s, w, c: doubles(w)),
    ("sends", lambda s, w, c: dropping(w)),
    ("sends", lambda s, w, c: {**w, "more": torch.zeros(3)}),
    ("perturb", lambda s, g, w, c: means(w)),
    (
        "holds",
        lambda s, c: {n: torch.tensor(1.0) for n in c.net.trainable},
    ),
    ("finish", lambda s, w, c: None),
    ("finish", lambda s, w, c: ({"v": torch.ones(3)}, {})),
    ("client_init", lambda s, w, fed: None),
    ("server", lambda s, old, ups, fed: None),
    (
        "refine",
        lambda s, w, old, fed, t: w,
    ),
    ("dispatch", lambda s, w, old, k, fed: (means(w), {})),
    ("noise", lambda s, fed, down: {"u": torch.rand(3)}),
    ("weights", lambda s, fed: {"p": torch.zeros(3, dtype=torch.int64)}),
    (
        "model",
        lambda s, module, classes: nn.Sequential(module, nn.Linear(3, 7)),
    ),
    ("refuse", lambda s, fed: True),
]


@pytest.mark.parametrize(("number", "hook", "written"), [(i, *case) for i, case in enumerate(RETURNED)])
def test_what_a_hook_returned_is_held_against_what_the_engine_goes_on_with(number, hook, written):
    """A gradient of one row moved the whole weight, a loss that is a vector counted B times."""
    said = refused(part(**{hook: written}), ("1", "16")[number % 2], until=1)
    assert ("E127" in said and hook in said) or "E123" in said


@pytest.mark.parametrize(
    "result",
    [
        (lambda w, s, ups: w),
        (lambda w, s, ups: ({n: ups.stack(n).mean(0) for n in list(ups.replies[0].weights)[:1]}, s),),
        (lambda w, s, ups: ({**w, **doubles(ups.replies[0].weights)}, s)),
        (lambda w, s, ups: ({**w, "more": torch.ones(1)}, s)),
    ],
)
def test_merged_weights_are_those_of_the_model(result):
    assert "E127" in refused(part(merges=True, merge=lambda self, w, s, ups, fed: result(w, s, ups)))


@pytest.mark.parametrize(
    "keeps",
    [
        (lambda c: {"h": torch.cat([c.mine["h"], torch.ones(1)])},),
        (lambda c: {}),
    ],
)
def test_a_private_tree_keeps_its_leaves_and_shapes(keeps):
    """What grew failed where clients of unlike age trained side by side; what was left out was made anew."""
    mine = part(
        client_init=lambda self, w, fed: {"h": torch.zeros(1)}, finish=lambda self, w, c: ({}, keeps(c))
    )
    assert "E127 the hook `finish`" in refused(mine)


def test_a_slice_keeps_its_leaves():
    body = {"server_init": lambda self, w, fed: {"k": torch.ones(())}, "server": lambda self, s, ups, fed: {}}
    assert "returned no 'k', which the slice had" in refused(part(**body))


def test_scores_and_inputs_at_test_time_have_the_shape_they_were_given():
    assert "expected [60, 3]" in refused(part(scores=lambda self, z, h, c: z[:, :1]), scored=True)
    assert "expected [" in refused(
        part(evaluate_with=lambda self, x, c: x.mean(0, keepdim=True)), scored=True
    )


def in_place(tree: Any) -> None:
    for t in tree.values():
        t.mul_(0.9)


def put(tree: Any) -> None:
    for n in tree:
        tree[n] = tree[n] * 0.9


STATE = {
    "server_init": lambda self, w, fed: {"k": torch.ones(3)},
    "client_init": lambda self, w, fed: {"k": torch.ones(3)},
    "begin": lambda self, w, c: {"k": torch.ones(3)},
}
CHANGED = [
    ("begin", lambda s, w, c: in_place(c.start) or {}, "changes c.start['"),
    ("begin", lambda s, w, c: in_place(w) or {}, "changes 'conv1.0.bias' of argument 1 in place"),
    ("grad", lambda s, g, w, c: in_place(c.down) or g, "changes c.down['k'] in place"),
    ("grad", lambda s, g, w, c: in_place(c.mine) or g, "changes c.mine['k'] in place"),
    ("loss", lambda s, w, out, b, c: put(c.mine) or 0.0, "replaces c.mine['k'], which has no effect"),
    ("loss", lambda s, w, out, b, c: c.round.update(new=c.round["k"]) or 0.0, "replaces c.round['new']"),
    ("finish", lambda s, w, c: in_place(w) or ({}, c.mine), "changes 'conv1.0.bias' of argument 1"),
    ("server", lambda s, old, ups, fed: in_place(old) or old, "changes 'k' of argument 1 in place"),
    ("server", lambda s, old, ups, fed: in_place(ups.replies[0].weights) or old, "of client 0's reply"),
    ("batch", lambda s, b, c: b.replace(x=b.x.mul_(0.5)), "changes 'x' of the batch in place"),
    ("loss", lambda s, w, out, b, c: b.weight.mul_(0.5).sum() * 0, "changes 'weight' of the batch in place"),
    ("loss", lambda s, w, out, b, c: out.logits.mul_(0.5).sum(), "changes 'logits' of the model's output"),
    ("logits", lambda s, z, b, c: z.mul_(0.5), "changes argument 1 in place"),
    ("scores", lambda s, z, h, c: z.mul_(0.5), "changes argument 1 in place"),
]


def checked(mine: Part, check: conformance.Check) -> str:
    """The text of a failed check; "" if the Part passes."""
    (result,) = conformance.check_method(mine, [check])
    return "" if result.ok else result.detail


@pytest.mark.parametrize(("hook", "written", "told"), CHANGED)
def test_the_check_finds_arguments_that_a_hook_changes_in_place(hook, written, told):
    detail = checked(part(**{**STATE, hook: written}), conformance.changes_no_argument_in_place)
    assert detail.startswith(f"E127 the hook `{hook}` of 'mine' ")
    assert told in detail


@pytest.mark.parametrize(
    "nothing", [lambda out: 0.0, lambda out: torch.tensor(0.0), lambda out: out.logits.new_zeros(())]
)
@pytest.mark.parametrize("lanes", ["1", "16"])
def test_a_loss_may_add_nothing(nothing, lanes):
    """Such as in the rounds before a method begins; another number without a gradient is a mistake."""
    plain = conformance.train_run(Method(), lanes=lanes, rounds=1)
    mine = trained(part(loss=lambda s, w, out, b, c: nothing(out)), lanes, rounds=1)
    assert mine.digest == plain.digest


def test_what_the_server_draws_from_torch_is_seeded():
    """Before, two equal runs ended with different weights."""

    def merge(self, w, s, ups, fed):
        return {n: t + 0.01 * torch.randn_like(t) for n, t in weighted_mean(w, ups).items()}, s

    def mine():
        weights, first = lambda self, fed: {"p": torch.randn(3)}, lambda self, w, fed: {"k": torch.randn(3)}
        return part(merges=True, merge=merge, weights=weights, server_init=first)

    one, other = (conformance.train_run(Method(mine()), lanes="16", rounds=2) for _ in range(2))
    assert one.digest == other.digest
    assert not torch.equal(
        one.first["mine.p"], conformance.train_run(Method(mine()), lanes="16", seed=1).first["mine.p"]
    )


def test_an_error_of_a_hook_names_the_hook_and_the_line():
    """Before, E143, a traceback in a log and exit code 1."""
    told = refused(part(loss=lambda self, w, out, b, c: c.noise["u"].mean()))
    assert "E127 the hook `loss` of 'mine' failed in " in told
    assert f"{__file__}, line " in told
    assert told.endswith("KeyError: 'u'.")

    def kept(self, w, out, b, c):
        self.count = 1
        return 0.0

    assert "remembers something on the Part or the client" in refused(part(loss=kept))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (lambda z: z[z > 0].sum(), "picks values by what they are"),
        (lambda z: z.argmax(-1).unique().sum() * 0.0, "picks values by what they are"),
        (lambda z: float(z.detach().numpy().mean()), "leaves torch"),
        (lambda z: z.data.sum(), "reads .data"),
    ],
)
def test_a_rule_of_hooks_is_told_in_words(written, told):
    assert told in refused(part(loss=lambda self, w, out, b, c: written(out.logits)), "16", until=1)


TRIPS = [
    {"client": lambda w, c: None},
    {"client": lambda w, c: {"u": torch.ones(3)}},
    {"client": lambda w, c: {"v": torch.ones(4)}},
    {"server": lambda w, s, ups, fed: None},
    {"server": lambda w, s, ups, fed: (means(w), s)},
    {"server": lambda w, s, ups, fed: (w, {"v": ups["u"]})},
]


def trip_part(**body: Any) -> Part:
    whole = {
        "when": lambda t, T: t == 0,
        "client": lambda w, c: {"v": torch.ones(3)},
        "server": lambda w, s, ups, fed: (w, {"v": ups["v"].sum(0)}),
        "shares": lambda fed: ONE,
    }
    return part(trips=(Trip(**{**whole, **body}),))


@pytest.mark.parametrize("body", TRIPS)
def test_both_sides_of_a_trip_are_held_to_the_same(body):
    assert "E127 the trip's" in refused(trip_part(**body), until=1)


@pytest.mark.parametrize(
    ("side", "written"),
    [
        ("client", lambda w, c: in_place(w) or {"v": torch.ones(3)}),
        ("server", lambda w, s, ups, fed: in_place(w) or (w, s)),
    ],
)
def test_the_check_finds_arguments_that_a_trip_changes_in_place(side, written):
    detail = checked(trip_part(**{side: written}), conformance.changes_no_argument_in_place)
    assert f"the trip's `{side}` of 'mine' changes 'conv1.0.bias' of argument 0 in place" in detail


@pytest.mark.parametrize(
    "body",
    [
        {"when": lambda t: True},
        {"client": lambda c: {}},
        {"server": lambda w, s, ups: (w, s)},
        {"shares": ONE},
    ],
)
def test_functions_of_a_trip_take_what_they_are_called_with(body):
    with pytest.raises(UsageError, match="E121 a trip of 'mine'"):
        Method(trip_part(**body))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"gards": lambda self, g, w, c: g}, "defines 'gards', which is no hook .* Did you mean 'grad'"),
        ({"merge_s": True}, "Did you mean 'merges'"),
        ({"loss": lambda self, w, out, b: 0.0}, r"takes \(self, w, out, b\), and is called with"),
        ({"merge": lambda self, w, s, ups, fed: (w, s)}, "only called with merges = True"),
        ({"merges": True}, "says merges = True and defines no `merge`"),
        ({"tap": lambda self, cut, h, b, c: (h, b)}, "only called with taps"),
        ({"taps": "cut"}, r"taps has to be a tuple, like \('cut',\)"),
        (
            {"trips": Trip(lambda t, T: True, lambda w, c: {}, lambda w, s, u, f: (w, s), lambda f: {})},
            "trips has to be",
        ),
        ({"called": "my/part"}, "is called 'my/part'"),
        ({"called": "kept"}, "is called 'kept'"),
        ({"projection": torch.nn.Linear(3, 3)}, r"defines 'projection'"),
        ({"decorated": False}, r"write @dataclass\(frozen=True\) above class Mine"),
    ],
)
def test_what_the_engine_would_never_call_is_refused(body, told):
    """A misspelt hook trained FedAvg, a name with '/' lost its slice on resuming, and 'w' the weights."""
    with pytest.raises(UsageError, match=f"^E121 [^\n]*{told}"):
        Method(part(**body))


def test_a_class_that_is_not_frozen_or_whose_settings_would_be_lost_is_refused():
    @dataclass
    class Loose(Part):
        name = "loose"

    class Further(FedProx):
        further: float = 0.1

    for kind in (Loose, Further):
        with pytest.raises(UsageError, match=rf"E121 write @dataclass.* above class {kind.__name__}"):
            kind()


@pytest.mark.parametrize(
    ("shape", "further", "told"),
    [
        (3, {}, "shape has to be a tuple"),
        ((3, None), {"rows": 2}, "None, a number of rows that differs"),
        ((3,), {"dtype": "float32"}, "dtype has to be one of torch's"),
        ((3,), {"low": 1, "high": 0}, "low has to be at most high"),
        ((3,), {"kind": "sum"}, "kind is .*Did you mean 'sums'"),
        ((3,), {"samples": 0}, "samples is"),
        ((3,), {"reads": "mean"}, "reads is 'sum' or 'each'"),
        ((3,), {"norm": 0.0}, "norm has to be above 0"),
    ],
)
def test_a_share_that_cannot_be_meant_is_refused(shape, further, told):
    """Before, a kind or a number of samples in other words was declared to sites as it stood."""
    with pytest.raises(UsageError, match=f"E121 Share: {told}"):
        Share(shape, **further)


@pytest.mark.parametrize(
    ("law", "args", "told"),
    [
        ("gauss", (), "law is"),
        ("uniform", (-1, 1), r"takes 0 args above 0; got \(-1, 1\). Scale what you draw"),
        ("beta", (), "takes 2 args"),
        ("integers", (2.5,), "a whole number"),
    ],
)
def test_a_noise_that_cannot_be_meant_is_refused(law, args, told):
    """Before, the bounds of a uniform and the deviation of a normal law were taken and not looked at."""
    with pytest.raises(UsageError, match=f"E121 Noise: .*{told}"):
        Noise(law, args)
