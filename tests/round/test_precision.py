"""`precision`: what a GPU computes with fewer bits, and where it is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import unskew
from unskew.errors import UsageError


@pytest.mark.parametrize(("precision", "text"), [("tf32", "is for GPUs"), ("half", "")])
def test_what_cannot_be_had_is_refused_before_anything_trains(precision, text):
    with pytest.raises(UsageError, match=f"E109.*{text}"):
        unskew.run("fedavg", "digits", precision=precision, device="cpu")


SWITCHES = """
import torch
from unskew.round.precision import device_mode, is_tf32
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
def now():
    return [switch.fp32_precision for switch in (torch.backends, matmul, cudnn.conv, cudnn.rnn)]
matmul.allow_tf32 = True; matmul.allow_tf32 = False; torch.backends.fp32_precision = 'tf32'
before = now()
with device_mode(torch.device("cuda"), "float32"):
    assert now()[1:] == ["ieee"] * 3, now()
    assert not is_tf32()
with device_mode(torch.device("cuda"), "tf32"):
    assert now()[1:] == ["tf32"] * 3, now()
    assert is_tf32()
assert now() == before, (now(), before)
"""


def test_neither_of_torchs_two_sets_of_switches_rounds_a_float32_run():
    """The newer switches made the older ones raise, or convolutions round to TF32 in spite of them. Switches
    outlive a test, hence another process."""
    done = subprocess.run([sys.executable, "-c", SWITCHES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
