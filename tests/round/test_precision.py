"""`precision`: what is computed with fewer bits, where it is refused, and that a run says so."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unskew
from unskew.errors import UsageError
from unskew.round.layers import Kernels
from unskew.round.precision import has_bf16
from unskew.runs import hardware

NEEDED = pytest.mark.skipif(not has_bf16(), reason="this processor does not compute with bfloat16")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 3))


def trained(precision: str, method: str = "fedavg", **options) -> unskew.Result:
    x = np.random.default_rng(0).random((24, 1, 8, 8)).astype(np.float32)
    data = unskew.data.arrays(x, np.arange(24) % 3, x, np.arange(24) % 3)
    settings = {
        "clients": 2,
        "rounds": 1,
        "batch": 12,
        "epochs": 1,
        "skew": "iid",
        "normalise": "none",
        "device": "cpu",
    }
    return unskew.run(method, data, model=network(), precision=precision, **settings | options)


@NEEDED
@pytest.mark.parametrize("lanes", ["1", "4"])
def test_bf16_trains_near_float32_to_the_same_bits_each_time(lanes):
    ours, again, plain = (trained(p, lanes=lanes) for p in ("bf16", "bf16", "float32"))
    assert ours.digest == again.digest != plain.digest
    start, bf16, float32 = (m.state_dict() for m in (network(), ours.model, plain.model))
    moved = sum(float((float32[n] - start[n]).square().sum()) for n in start)
    apart = sum(float((float32[n] - bf16[n]).square().sum()) for n in start)
    assert 0 < apart < 0.1**2 * moved
    assert all(t.dtype == torch.float32 for t in bf16.values())


@NEEDED
def test_only_convolutions_of_several_channels_are_rounded():
    x, kernels = torch.randn(2, 8, 6, 6), Kernels(folded=False, rounded=True)
    for w, groups, rounded in ((torch.randn(4, 8, 3, 3), 1, True), (torch.randn(8, 1, 3, 3), 8, False)):
        with kernels:
            y = F.conv2d(x, w, groups=groups)
        expected = F.conv2d(x, w, groups=groups)
        assert y.dtype == torch.float32
        assert torch.equal(y, y.bfloat16().float()) == rounded
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.1)


def test_a_model_trained_with_bf16_is_opened_on_a_processor_without(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "has_bf16", lambda: True)
    trained("bf16", folder=tmp_path, name="run")
    monkeypatch.setattr(hardware, "has_bf16", lambda: False)
    x = np.zeros((2, 1, 8, 8), np.float32)
    assert len(unskew.load(tmp_path / "run", model=network()).predict(x)) == 2


@pytest.mark.parametrize(
    ("precision", "has", "text"),
    [
        ("bf16", False, "needs a processor that computes with bfloat16"),
        ("tf32", True, "is for GPUs"),
        ("half", True, ""),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_trains(precision, has, text, monkeypatch):
    monkeypatch.setattr(hardware, "has_bf16", lambda: has)
    with pytest.raises(UsageError, match=f"E109.*{text}"):
        trained(precision)


NEWER_SWITCHES = """
import torch
from unskew.round.precision import device_mode, is_tf32
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
def now():
    return [switch.fp32_precision for switch in (torch.backends, matmul, cudnn.conv, cudnn.rnn)]
SETTING
before = now()
with device_mode(torch.device("cuda"), "float32"):
    assert now()[1:] == ["ieee"] * 3, now()
    assert not is_tf32()
with device_mode(torch.device("cuda"), "tf32"):
    assert now()[1:] == ["tf32"] * 3, now()
    assert is_tf32()
assert now() == before, (now(), before)
"""


@pytest.mark.parametrize(
    "setting",
    [
        "pass",
        "torch.backends.fp32_precision = 'tf32'",
        "matmul.allow_tf32 = True; matmul.allow_tf32 = False; torch.backends.fp32_precision = 'tf32'",
    ],
)
def test_neither_of_torchs_two_sets_of_switches_rounds_a_float32_run(setting):
    """The newer switches made the older ones raise, or convolutions round to TF32 in spite of them. Switches
    outlive a test, hence another process."""
    program = NEWER_SWITCHES.replace("SETTING", setting)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
