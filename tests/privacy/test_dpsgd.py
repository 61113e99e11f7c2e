"""Sample-level differential privacy: bounds on a sample, how samples are drawn, and what may go with it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import unskew
from tests.privacy.test_sums import norm
from unskew.config import build
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data import read
from unskew.data.clients.availability import Availability
from unskew.errors import UsageError
from unskew.federation.protocol.study_rules import prepare
from unskew.methods import registry
from unskew.privacy.accounting import epsilon_after
from unskew.privacy.dpsgd import DPSGD
from unskew.round.chunks import Recipe, chunks, poisson_rows, poisson_steps, work_of
from unskew.round.randomness import SystemSource
from unskew.runs import conformance
from unskew.runs.disclosure import accounts
from unskew.runs.resolve import resolve

pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")


@pytest.mark.parametrize("far", [1.0, 1e3, 1e38])
def test_one_samples_gradient_is_at_most_the_clip_as_one_vector(far):
    clipped = DPSGD(clip=0.5).sample_grad({"a": torch.full((3,), far), "b": torch.tensor([-far])}, None)
    assert norm(clipped) <= 0.5
    assert norm(clipped) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_counts_as_none(bad):
    clipped = DPSGD().sample_grad({"a": torch.tensor([bad, 1.0])}, None)
    assert clipped["a"].tolist() == [0.0, 0.0]


def test_every_sample_is_drawn_by_itself():
    """Batches of one size are drawn without replacement, for which the accountant's figure is another."""
    rows = np.arange(50, 150)
    drawn = poisson_rows(rows, 2000, 20, np.random.default_rng(0))
    sizes = np.array([len(batch) for batch in drawn])
    assert sizes.mean() == pytest.approx(20, abs=0.5)
    assert sizes.var() == pytest.approx(100 * 0.2 * 0.8, rel=0.15)
    assert {len(set(batch.tolist())) - len(batch) for batch in drawn} == {0}
    assert all(len(batch) == 5 for batch in poisson_rows(rows[:5], 10, 20, np.random.default_rng(0)))


def test_padding_of_drawn_batches_has_no_weight_and_clients_stop_after_their_steps():
    recipe = Recipe(batch=16, epochs=2, has_norms=False, apart=True)
    sizes = np.array([40, 3])
    (chunk,) = chunks([0, 1], sizes, recipe, 8)
    assert [w.steps(2) for w in chunk.work] == [6, 2]
    drawn = {0: [np.arange(s) for s in (5, 0, 9, 1, 2, 3)], 1: [np.array([41, 42])] * 2}
    plan = poisson_steps(chunk, drawn, recipe)
    assert [s.active for s in plan] == [2, 2, 1, 1, 1, 1]
    assert [s.weight_GB.sum(1).tolist() for s in plan] == [[5, 2], [0, 2], [9], [1], [2], [3]]
    assert plan[2].size == 16
    assert work_of(0, 40, recipe).full == 3


@pytest.mark.parametrize(("first", "passes"), [(0, 6), (5, 9)])
def test_epsilon_is_that_of_the_client_that_is_protected_least(first, passes):
    """passes: 2 in each of 3 rounds, or 5 in the first one and 2 in each of the others."""
    method = registry.parse("dpsgd(noise_multiplier=4.0)")
    loop = conformance.loop_for(method, epochs=2, rounds=3, first_epochs=first)
    told = accounts(loop.method, loop.fed, np.zeros((8, 3)), "drawn so")["dpsgd"]
    each = [
        epsilon_after(passes * -(-n // 16), min(1.0, 16 / n), 4.0, 1e-5)
        for n in (int(n) for n in loop.fed.sizes)
        if n
    ]
    assert told.epsilons[0][0] == pytest.approx(max(each), abs=2e-6)
    assert "17 samples" in told.release
    assert told.epsilons[0][1].endswith("against whoever reads it; delta 1e-05; drawn so")


@pytest.mark.parametrize("beside", ["rebafl", "scaffold", "flea", "feddyn", "fedavg_ft", "moon"])
def test_what_could_read_samples_in_another_way_is_refused_by_name(beside):
    with pytest.raises(UsageError, match=f"E107 '{beside}' and 'dpsgd' cannot be combined"):
        conformance.loop_for(registry.parse(f"{beside}+dpsgd"))


def test_batch_normalisation_is_refused_in_a_sentence():
    with pytest.raises(UsageError, match="E108 'dpsgd' cannot run here: batch normalisation mixes"):
        conformance.loop_for(registry.parse("dpsgd"), model="cnn_small(batch_norm=True)")


def test_a_loss_that_would_leave_a_site_is_withheld():
    loop = conformance.loop_for(registry.parse("dpsgd"))
    start = loop.down(loop.begin(), 1)
    assert all(float(r.loss) > 0 for r in loop.trainer.train(start, [0, 4], {}))
    loop.trainer.chance = SystemSource()
    first, again = (loop.trainer.train(start, [0, 4], {}) for _ in range(2))
    assert [r.loss for r in first] == [0.0, 0.0]
    assert not any(torch.equal(first[0].weights[n], t) for n, t in again[0].weights.items())


def test_absences_last_for_their_period_also_where_chance_is_secret():
    loop = conformance.loop_for(registry.parse("dpsgd"), availability="persistent:0.5x20")
    loop.chance = SystemSource()  # as over a network
    assert len({tuple(loop.attendance(t).answered.tolist()) for t in range(1, 21)}) == 1
    loop.availability = Availability.parse("poisson:0.5")  # on which a guarantee may rest
    assert len({tuple(loop.attendance(t).answered.tolist()) for t in range(1, 21)}) > 1
    assert len({tuple(loop.attendance(1).answered.tolist()) for _ in range(20)}) > 1


READS = {
    "sum": lambda c: c.counts.sum(),
    "item": lambda c: c.counts[0],
    "under": lambda c: (c.n / c.counts).sum(),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("hook", ["loss", "grad"])
def test_a_part_that_reads_class_counts_beside_it_is_refused(hook, read):
    """Zeros would make another method of a balanced loss, and a gradient would tell the true counts."""

    @dataclass(frozen=True)
    class Curious(Part):
        name = "curious"
        alone = True

    if hook == "loss":
        Curious.loss = lambda self, w, out, b, c: 0 * READS[read](c)
    else:
        Curious.grad = lambda self, g, w, c: {n: t + 0 * READS[read](c) for n, t in g.items()}
    with pytest.raises(UsageError, match="E108 a hook reads the client's class counts, which no noise"):
        conformance.train_run(Method(Curious(), DPSGD()), rounds=1)


@dataclass(frozen=True)
class Tenfold(Part):
    """Ten times every gradient, as a Part of a user's own may have it."""

    name = "tenfold"

    def grad(self, g, w, c):
        return {n: 10 * t for n, t in g.items()}


def test_noise_is_added_before_any_other_part_changes_the_sum():
    """`tenfold+dpsgd` multiplied a clipped sum by ten before it got the noise of its epsilon."""
    orders = (Tenfold(), DPSGD()), (DPSGD(), Tenfold())
    first, second = (conformance.train_run(Method(*parts), rounds=1).digest for parts in orders)
    assert first == second


@pytest.mark.parametrize(("method", "refused"), [("dpsgd", True), ("fedavg", False)])
def test_a_sample_reaches_no_other_through_what_fills_empty_cells(tmp_path, method, refused):
    """One row more moved the median of its column, and with it every row that it filled: the clipped sum
    moved by five times the clip."""
    rows = [f"{'' if i < 4 else i},{i % 3},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["lab,age,label", *rows]))
    settings = {
        "data": f"{tmp_path / 't.csv'}(missing=median)",
        "clients": 2,
        "skew": "iid",
        "method": method,
    }
    with (
        pytest.raises(UsageError, match=r"E108 .* the median in the empty cells of 'lab'")
        if refused
        else nullcontext()
    ):
        resolve(build(settings))
    resolve(build(settings | {"data": f"{tmp_path / 't.csv'}(missing=median,drop=lab)"}))


@pytest.mark.parametrize("parts", ["clients", "train and test"])
def test_filled_cells_are_known_wherever_tables_are_joined(tmp_path, parts):
    """Tables that were given as parts had forgotten that their cells were filled."""
    rows = [f"{'' if i < 4 else i},{i % 3},{'ab'[i % 2]}" for i in range(40)]
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("\n".join(["lab,age,label", *rows]))
    names = ("a", "b") if parts == "clients" else ("train", "test")
    data = {n: f"{tmp_path / f}.csv(missing=median)" for n, f in zip(names, "ab")}
    skew = {} if parts == "clients" else {"clients": 2, "skew": "iid"}
    with pytest.raises(UsageError, match=r"E108 .* the median in the empty cells of 'lab'"):
        unskew.run("dpsgd", data, rounds=1, progress=False, **skew)


@pytest.mark.parametrize(
    ("hospital", "skew", "refused"),
    [("hospital", "iid", True), ("hospital", "column:hospital", False), ("weight", "iid", True)],
)
def test_a_client_reaches_no_other_through_what_fills_empty_cells(tmp_path, hospital, skew, refused):
    """With `dp` a client counts apart, so a median over all is refused, and one of its own site is not."""
    pytest.importorskip("dp_accounting")
    rows = [f"{'' if i < 4 else i},{i % 3},{i // 2 % 2},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join([f"lab,age,{hospital},label", *rows]))
    file = f"{tmp_path / 't.csv'}(missing=median)"
    settings = build({"data": file, "clients": 2, "skew": skew, "method": "dp(noise_multiplier=1.0)"})
    told = r"E108 'dp' .* the median over several clients in the empty cells of 'lab'"
    with pytest.raises(UsageError, match=told) if refused else nullcontext():
        resolve(settings)


@pytest.mark.parametrize(("method", "scaled"), [("dpsgd", False), ("fedavg", True)])
def test_a_site_scales_by_no_constants_of_its_own_samples(method, scaled):
    data = replace(read("digits"), mean=None, std=None).with_notes().with_constants()
    assert (prepare(data, build({"method": method})).applied is not None) == scaled
