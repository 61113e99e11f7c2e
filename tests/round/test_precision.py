"""`precision`: what a GPU computes with fewer bits, and where it is refused."""

from __future__ import annotations

import pytest
import torch

import unskew
from tests.crash.harness import in_a_child
from unskew.errors import UsageError
from unskew.round.precision import device_mode, is_tf32


@pytest.mark.parametrize(("precision", "text"), [("tf32", "is for GPUs"), ("half", "")])
def test_what_cannot_be_had_is_refused_before_anything_trains(precision, text):
    with pytest.raises(UsageError, match=f"E109.*{text}"):
        unskew.run("fedavg", "digits", precision=precision, device="cpu")


def switches() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def now() -> list[str]:
        return [switch.fp32_precision for switch in (torch.backends, matmul, cudnn.conv, cudnn.rnn)]

    matmul.allow_tf32 = True
    matmul.allow_tf32 = False
    torch.backends.fp32_precision = "tf32"
    before = now()
    for precision, kept in (("float32", "ieee"), ("tf32", "tf32")):
        with device_mode(torch.device("cuda"), precision):
            assert now()[1:] == [kept] * 3, now()
            assert is_tf32() == (precision == "tf32")
    assert now() == before, (now(), before)


def test_neither_of_torchs_two_sets_of_switches_rounds_a_float32_run():
    """The newer ones made the older ones raise, or convolutions round to TF32. In a fork: switches stay."""
    assert in_a_child(switches)
