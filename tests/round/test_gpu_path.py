"""What a GPU does, as far as a machine without one can tell: whole rounds on shapes alone, batched layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unskew import models
from unskew.core.network import Network
from unskew.round.chunks import Recipe, chunks
from unskew.round.precision import device_mode
from unskew.round.vmap_layers import Convolution
from unskew.runs import hardware

SHAPE = (3, 8, 8)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [
        ((5, 5), 1, 0, 1, 1),
        ((6, 1), (2, 1), (1, 0), 1, 1),
        ((3, 3), 2, 1, (2, 1), 2),
        ((1, 1), 1, 0, 1, 1),
        ((1, 1), 2, 0, 1, 1),
        ((1, 1), 1, 1, 1, 1),
    ],
)
def test_batched_convolutions_and_their_gradients_are_those_of_grouped_ones(
    kernel, stride, padding, dilation, groups
):
    G, B, C, O = 3, 2, 4, 6
    g = torch.Generator().manual_seed(1)
    x = torch.randn(B, G, C, 12, 11, generator=g, dtype=torch.float64).requires_grad_()
    w = torch.randn(G, O, C // groups, *kernel, generator=g, dtype=torch.float64).requires_grad_()
    b = torch.randn(G, O, generator=g, dtype=torch.float64).requires_grad_()
    grouped = F.conv2d(x.flatten(1, 2), w.flatten(0, 1), b.flatten(), stride, padding, dilation, G * groups)
    pairs = ((v, v) if isinstance(v, int) else v for v in (stride, padding, dilation))
    batched = Convolution(F.conv2d, *pairs).batched(x.permute(1, 2, 0, 3, 4), w, b, groups)
    expected = grouped.unflatten(1, (G, O)).permute(1, 2, 0, 3, 4)
    torch.testing.assert_close(batched, expected, rtol=1e-12, atol=1e-12)
    towards = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad(y, [x, w, b], towards) for y in (batched, expected))):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_lanes_follow_from_memory():
    net = Network(models.build("cnn_small", SHAPE, 4), SHAPE)
    each = hardware.lane_bytes(net, 16)
    assert each > 16 * 4 * 3 * 64
    assert hardware.lane_bytes(net, 32) > 1.5 * each
    assert hardware.lanes_that_fit(int(each * 41 / hardware.MEMORY_SHARE), net, 16, 256) == 32
    assert hardware.lanes_that_fit(each // 2, net, 16, 256) == 1
    assert hardware.lanes_that_fit(each * 10**6, net, 16, 256) == 256


def test_a_gpu_has_one_chunk_where_a_cpu_has_several():
    sizes, recipe = np.array([40, 33, 9, 47, 18]), Recipe(16, 1, False)
    assert len(chunks(range(5), sizes, recipe, 8)) > 1
    (whole,) = chunks(range(5), sizes, recipe, 8, gpu=True)
    assert whole.pad == 16
    assert [w.full for w in whole.work] == [2, 2, 2, 1, 0]


def test_a_gpus_arithmetic_is_exact_and_given_back():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def modes() -> tuple[bool, ...]:
        deterministic = torch.are_deterministic_algorithms_enabled()
        return cudnn.allow_tf32, cudnn.deterministic, matmul.allow_tf32, deterministic

    before = modes()
    with device_mode(torch.device("cuda")):
        assert modes() == (False, True, False, True)
        assert not torch.backends.cuda.flash_sdp_enabled()
    with device_mode(torch.device("cuda"), "tf32"):
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (True, True)
    assert modes() == before
