"""Whole runs on pretended GPUs (`pretended`): devices never mix, steps wait for nothing, and runs resume."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.round.pretended import Pretend, Stopped, gone, gpus, rounds_of, run_of, weights  # noqa: F401
from tests.samples import EVERYTHING, a_part_of
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import StateError, UsageError
from unskew.methods import registry
from unskew.methods.flea import FLea
from unskew.round.trainer import Trainer

LONG = {"feddpms", "fedgen", "fedgen_images", "fedah"}
"""Methods that take more than a thousand kernels at the server, or before the first round."""
ILL = {"ccvr", "feddecorr"}
"""Methods that make much of last bits: one lane on a CPU comes out as far from four."""
ALWAYS = ("fedavg", "scaffold", "flea", "fedbn", "apple")


@pytest.mark.parametrize("method", a_part_of(sorted(set(registry.names()) - LONG), 24, ALWAYS))
def test_a_run_on_a_gpu_has_the_weights_of_one_on_a_cpu(method, tmp_path, gpus: Pretend):  # noqa: F811
    """All of it: what comes before round 1, steps, gate, merge, trips, scores, private state on a disk."""
    gone(run_of(method, device="cpu"), tmp_path / "cpu")
    notes = gpus(1)
    loop = gone(run_of(method), tmp_path / "gpu")
    assert notes.used == {0}
    assert not notes.unpinned
    expected, there = weights(tmp_path / "cpu"), weights(tmp_path / "gpu")
    apart = max(float((t - there[n]).abs().max()) for n, t in expected.items())
    assert apart < (0.1 if method in ILL else 1e-3)
    assert not loop.trainer.remarks(), "a step waits for the GPU"


@pytest.mark.parametrize(
    "method", sorted(set(registry.names()) - LONG) if EVERYTHING else ["scaffold", "flea"]
)
def test_a_run_that_was_killed_goes_on_where_it_lay(method, tmp_path, gpus: Pretend):  # noqa: F811
    """Weights, slices and private state come from a disk, so from the CPU: the first step mixed devices."""
    gpus(1)
    gone(run_of(method), tmp_path / "whole")
    with pytest.raises(Stopped):
        gone(run_of(method), tmp_path / "killed", until=1)
    gone(run_of(method), tmp_path / "killed")
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(t, killed[n]) for n, t in whole.items())


@dataclass(frozen=True)
class OnTheCpu(Part):
    name = "onthecpu"

    def grad(self, g, w, c):
        return {n: t * torch.ones(t.shape) for n, t in g.items()}


@dataclass(frozen=True)
class Reads(Part):
    name = "reads"

    def grad(self, g, w, c):
        return {n: t * float(c.lr * torch.ones((), device=t.device)) for n, t in g.items()}


@dataclass(frozen=True)
class SentFromTheCpu(Part):
    name = "sentfromthecpu"
    hands_on = "nothing"

    def dispatch(self, w, s, k, fed):
        return {n: t.cpu() for n, t in w.items()}, {"k": torch.full((2,), float(k))}

    def loss(self, w, out, batch, c):
        return 0.0 * c.down["k"].sum()


def test_a_part_that_mixes_devices_is_found_out(tmp_path, gpus: Pretend):  # noqa: F811
    gpus(1)
    with pytest.raises(UsageError, match=r"E127 the hook `grad` of 'onthecpu' failed .*found cpu, cuda:0"):
        gone(run_of(Method(OnTheCpu())), tmp_path / "gpu")


def test_what_a_part_dispatches_from_the_cpu_is_brought(tmp_path, gpus: Pretend):  # noqa: F811
    gpus(1)
    assert not gone(run_of(Method(SentFromTheCpu())), tmp_path / "gpu").trainer.remarks()


def test_a_part_that_reads_a_value_is_named_and_trains_all_the_same(tmp_path, gpus: Pretend):  # noqa: F811
    gone(run_of(Method(Reads()), device="cpu", lanes="1"), tmp_path / "cpu")
    gpus(1)
    remarks = gone(run_of(Method(Reads()), lanes="1"), tmp_path / "gpu").trainer.remarks()
    assert [code for code, _ in remarks] == ["E128"]
    assert "_local_scalar_dense" in remarks[0][1]
    expected, there = weights(tmp_path / "cpu"), weights(tmp_path / "gpu")
    assert all(torch.allclose(t, there[n], atol=1e-5) for n, t in expected.items())


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_any_gpu_records_its_own_steps(device, tmp_path, gpus: Pretend):  # noqa: F811
    """Recordings were made of the stream of the current GPU, which was the first one whatever the setting."""
    notes = gpus(2)
    loop = gone(run_of("fedavg", device=device), tmp_path / "gpu")
    assert notes.used == {int(device[-1])}
    assert loop.trainer.replays.recorder.replayed > loop.trainer.replays.recorder.recorded > 0
    assert not loop.trainer.remarks()


def test_a_gpu_that_is_full_ends_the_run_and_says_what_to_do(tmp_path, gpus: Pretend, monkeypatch):  # noqa: F811
    gpus(1)
    update, full = Trainer.update, [2]

    def limited(trainer, chunk, start, private):
        if start.t in full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return update(trainer, chunk, start, private)

    monkeypatch.setattr(Trainer, "update", limited)
    with pytest.raises(StateError, match=r"E142 round 2: the GPU has not enough memory .*resume.*lanes=2"):
        gone(run_of("fedavg", clients=4, lanes="4"), tmp_path / "run")
    full.clear()
    assert gone(run_of("fedavg", clients=4, lanes="4"), tmp_path / "run").trainer.lanes == 4


def test_a_buffer_of_changing_length_is_recorded_once(monkeypatch, gpus: Pretend):  # noqa: F811
    """FLea's had another length in every round, and steps were recorded for every length."""
    gpus(1)
    given = {"lanes": "1", "clients": 6, "rounds": 4, "samples": 10, "availability": "bernoulli:0.5"}
    lengths = []
    server = FLea.collect
    monkeypatch.setattr(
        FLea,
        "collect",
        lambda p, w, s, ups, fed: lengths.append(sum(map(len, ups["labels"]))) or server(p, w, s, ups, fed),
    )
    recorded, loop = rounds_of(run_of("flea(alpha=0.1)", **given), 4)
    assert len(set(lengths)) > 1
    (stages,) = loop.trainer.replays.stages.values()
    assert len(stages) == 2  # without a buffer in the first round, and with room for any of these
    monkeypatch.setattr("unskew.round.trainer.StepRecordings", lambda *_: None)
    direct, _ = rounds_of(run_of("flea(alpha=0.1)", **given), 4)
    assert all(torch.equal(t, recorded[n]) for n, t in direct.items())
