"""How tensors of clients are laid out: one client has no axis of lanes at all, and many have two lanes at
least.

Letters: B batch, G lanes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unskew.round.lanes import LARGE_WEIGHT, ManyLanes, SingleLane, axis_for
from unskew.round.schedule import Chunk, Step, Work


def step(lanes=1, **more) -> Step:
    """Two samples a lane, of a short batch whose second is padding."""
    rows = np.arange(2 * lanes).reshape(lanes, 2)
    given = {
        "weight_GB": np.array([[1, 0]] * lanes),
        "local_G": np.arange(3, 3 + lanes),
        "drawn_G": np.ones(lanes),
    }
    return Step(lanes, 2, True, rows, **{**given, **more})


def test_two_clients_are_the_fewest_side_by_side():
    assert isinstance(axis_for(1), SingleLane)
    assert isinstance(axis_for(2), ManyLanes)


def test_one_client_alone_is_trained_twice_and_counted_once():
    """One lane would take other kernels, with other bits. The second sees what the first sees and has taken
    as many steps."""
    work = Work(7, 5, 1, 1, False)
    assert ManyLanes().work(Chunk((work,), 0, False)) == (work, work)
    assert len(ManyLanes().work(Chunk((work, work), 0, False))) == 2
    assert len(SingleLane().work(Chunk((work,), 0, False))) == 1
    alone = step()
    wide = ManyLanes().widened(alone)
    assert (wide.width, wide.active) == (2, 1)
    assert wide.weight_GB is not None
    for values in (wide.rows_GB, wide.weight_GB, wide.local_G):
        assert np.array_equal(values[0], values[1])
    assert (wide.local_G.tolist(), len(wide.drawn_G if wide.drawn_G is not None else ())) == ([3, 3], 1)
    assert ManyLanes().widened(step(weight_GB=None)).weight_GB is None
    assert ManyLanes().widened(two := step(2)) is two
    assert SingleLane().widened(alone) is alone


def test_padding_is_left_out_of_short_batches_side_by_side():
    """A client alone has no padding."""
    assert ManyLanes().padded(step(2))
    assert not ManyLanes().padded(Step(2, 2, False, step(2).rows_GB, None, step(2).local_G))
    assert not SingleLane().padded(step())


@pytest.mark.parametrize("axis", [SingleLane(), ManyLanes()])
@pytest.mark.parametrize("stack", ["stack", "stack_weights"])
def test_what_is_stacked_is_a_copy_with_the_same_numbers(axis, stack):
    """Training changes it, and must not change what others begin with; also where the layout in memory is
    another."""
    shapes = {"large": (160, 110), "small": (3, 2), "convolution": (4, 3, 2, 2), "bias": (4,)}
    assert torch.Size(shapes["large"]).numel() >= LARGE_WEIGHT
    trees = [
        {n: torch.randn(s, generator=torch.Generator().manual_seed(g)) for n, s in shapes.items()}
        for g in (0, 1)
    ]
    kept = {n: t.clone() for n, t in trees[0].items()}
    stacked = getattr(axis, stack)(trees if axis.folded else trees[:1])
    for n in shapes:
        assert torch.equal(axis.lane(stacked[n], 0), trees[0][n])
        if axis.folded:
            assert stacked[n].shape == (2, *shapes[n])
            assert torch.equal(stacked[n][1], trees[1][n])
            assert torch.equal(axis.first(stacked[n], 1), trees[0][n][None])
        stacked[n].zero_()
        assert torch.equal(trees[0][n], kept[n])


def test_large_weights_lie_as_their_gradients_come():
    weights = ManyLanes().stack_weights([{"large": torch.randn(160, 110), "small": torch.randn(3, 2)}] * 2)
    assert weights["large"].mT.is_contiguous()
    assert weights["small"].is_contiguous()


def test_every_lane_has_the_loss_of_its_own_samples():
    """Inputs come sample by sample, [B*G, ...], targets and weights lane by lane."""
    w_G, y_GB = torch.tensor([2.0, 3.0]), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    x_BG = torch.tensor([1.0, 2.0, 3.0, 4.0])  # lane 0 has the samples 1 and 3
    both = ManyLanes()

    def loss(w, x, y):
        return w * (x * y).sum()

    x, y = both.inputs(x_BG, step(2)), both.targets(y_GB.T.reshape(-1), step(2))
    assert both.loss(loss)(w_G, x, y).tolist() == [2 * (1 * 1 + 3 * 10), 3 * (2 * 100 + 4 * 1000)]
    assert both.map(lambda w: w + 1, w_G).tolist() == [3, 4]
    alone = SingleLane()
    assert alone.inputs(x_BG, step()) is x_BG
    assert float(alone.loss(loss)(w_G[0], x_BG[[0, 2]], y_GB[0])) == 62
    assert alone.fit(w_G).item() == 2
    assert (alone.rows_a_visit(9, 4), both.rows_a_visit(9, 4)) == (9, 4)
