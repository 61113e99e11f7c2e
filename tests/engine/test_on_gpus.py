"""Whole runs on pretended GPUs (`pretended`): devices that never mix, steps that wait for nothing, what a resumed run finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.gpu_notes import Mixed, Notes, Waits
from tests.engine.pretended import gpus  # noqa: F401
from tests.engine.taped import Taped
from tests.samples import EVERYTHING, a_part_of
from unskew import config
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.engine import assemble, resolve
from unskew.engine.chance import System
from unskew.engine.client.schedule import Chunk
from unskew.engine.client.trainer import Trainer
from unskew.engine.disk import state
from unskew.engine.disk.folder import Folder
from unskew.engine.server.loop import Loop
from unskew.errors import StateError
from unskew.methods import registry

Pretend = Callable[[int], Notes]
SHAPE = (3, 8, 8)
TINY: dict[str, Any] = {
    **{"rounds": 2, "epochs": 1, "batch": 4, "clients": 3, "samples": 10, "workers": 1, "lanes": "2"},
    **{"model": "cnn_small", "device": "cuda"},
}
LONG = {"feddpms", "fedgen", "fedgen_images", "fedah"}
"""Methods that take more than a thousand kernels at the server, or before the first round."""
ILL = {"ccvr", "feddecorr"}
"""Methods that make much of last bits: one lane on a CPU comes out as far from four."""
ALWAYS = ("fedavg", "scaffold", "flea", "fedbn", "apple")


class Stopped(Exception):
    """A run that is killed after a round."""


def run_of(method: str | Method, **given: Any) -> resolve.Run:
    rng = np.random.default_rng(3)
    y, y_test = rng.integers(0, 3, 120), rng.integers(0, 3, 12)
    arrays = rng.random((120, *SHAPE), np.float32), y, rng.random((12, *SHAPE), np.float32), y_test
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else TINY["model"]
    named = {"method": method} if isinstance(method, str) else {}
    settings = config.build({**TINY, "model": model, **named, **given})
    return resolve.resolve(settings, arrays, None if named else method)


def gone(run: resolve.Run, path: Path, until: int = 99) -> Loop:
    """The run in its folder, begun or resumed; killed after round `until`."""

    def shown(now: state.State, _: object) -> None:
        if now.t == until:
            raise Stopped

    return Folder(path, run).go(lambda _: None, shown)[0]


def weights(path: Path) -> dict[str, Tensor]:
    return state.read(path / "state.safetensors")[0]["w"]


@pytest.mark.parametrize("method", a_part_of(sorted(set(registry.names()) - LONG), 12, ALWAYS))
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


@pytest.mark.parametrize("method", sorted(set(registry.names()) - LONG) if EVERYTHING else ["scaffold", "flea"])
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
    gone(run_of(Method(OnTheCpu()), device="cpu"), tmp_path / "cpu")
    gpus(1)
    with pytest.raises(Mixed, match=r"found cpu, cuda:0 in aten.mul"):
        gone(run_of(Method(OnTheCpu())), tmp_path / "gpu")


@pytest.mark.parametrize("lanes", ["1", "2"])
def test_what_a_part_dispatches_from_the_cpu_is_brought(lanes, tmp_path, gpus: Pretend):  # noqa: F811
    gpus(1)
    assert not gone(run_of(Method(SentFromTheCpu()), lanes=lanes), tmp_path / "gpu").trainer.remarks()


def test_a_part_that_reads_a_value_is_named_and_trains_all_the_same(tmp_path, gpus: Pretend):  # noqa: F811
    gone(run_of(Method(Reads()), device="cpu", lanes="1"), tmp_path / "cpu")
    gpus(1)
    remarks = gone(run_of(Method(Reads()), lanes="1"), tmp_path / "gpu").trainer.remarks()
    assert [code for code, _ in remarks] == ["E132"]
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


def test_a_recording_of_another_gpus_stream_is_refused(gpus: Pretend):  # noqa: F811
    """That the test above can fail."""
    gpus(2)
    x = torch.ones(3, device=torch.device("cuda", 1))
    with pytest.raises(Waits, match="another GPU"):
        Taped().record(lambda: x.add_(1))


def test_a_recorded_step_reads_memory_and_runs_no_python(gpus: Pretend):  # noqa: F811
    gpus(1)
    x, y, calls = torch.ones(3, device="cuda:0"), torch.zeros(3, device="cuda:0"), []

    def step() -> None:
        calls.append(1)
        y.add_((x * 2).exp())

    replay = Taped().record(step)
    assert float(y.cpu().sum()) == 0  # recording computes nothing
    x.fill_(0.5)
    replay()
    replay()
    torch.testing.assert_close(y.cpu(), torch.full((3,), 2 * np.exp(1.0), dtype=torch.float32))
    assert len(calls) == 1


def ups_and_downs(run: resolve.Run, rounds: int = 2) -> tuple[dict[str, Tensor], Loop]:
    """(weights after some rounds in memory, the loop)."""
    loop = assemble.loop_of(run)
    now = loop.begin()
    for t in range(1, rounds + 1):
        now, _ = loop.round(now, t)
        loop.evaluate(now, None)
    loop.trainer.close()
    return {n: t.cpu() for n, t in now.weights.items()}, loop


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbn", "fedamp", "flea"])
def test_several_gpus_share_the_chunks_and_change_no_bit(method, gpus: Pretend):  # noqa: F811
    given = {"clients": 5, "lanes": "2"}
    gpus(1)
    alone, _ = ups_and_downs(run_of(method, **given))
    notes = gpus(3)
    notes.used.clear()
    together, loop = ups_and_downs(run_of(method, **given))
    assert notes.used == {0, 1, 2}
    assert not notes.unpinned
    assert not loop.trainer.remarks()
    assert all(torch.equal(t, together[n]) for n, t in alone.items())
    assert {str(t.device) for r in loop.trainer.elsewhere.twins for t in (r.samples.x, r.samples.y)} == {
        "cuda:1",
        "cuda:2",
    }


def test_twins_draw_what_protects_from_the_trainers_own_source(gpus: Pretend):  # noqa: F811
    """A site's trainer has the operating system's; a twin that kept the seed's would draw noise that anybody can draw."""
    gpus(2)
    run = run_of("dpsgd", clients=4, lanes="2")
    loop = assemble.loop_of(run)
    loop.trainer.chance = System()
    loop.trainer.train(loop.down(loop.begin(), 1), range(4), {})
    assert all(twin.chance is loop.trainer.chance for twin in loop.trainer.elsewhere.twins)
    loop.trainer.close()


def test_one_gpu_is_one_gpu(gpus: Pretend):  # noqa: F811
    notes = gpus(2)
    ups_and_downs(run_of("fedavg", clients=5, device="cuda:1"))
    assert notes.used == {1}


class Full:
    """A GPU that holds so many numbers of one chunk. at: the round in which it is full, None: in all."""

    def __init__(self, most: int, at: int | None = None):
        self.most, self.at, self.tries = most, at, []

    def update(self, trainer: Trainer, chunk: Chunk, start: Any, private: Any) -> Any:
        self.tries.append((start.t, len(chunk.work)))
        if len(chunk.work) > self.most and self.at in (None, start.t):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return UPDATE(trainer, chunk, start, private)


UPDATE = Trainer.update
AUTO: dict[str, Any] = {"clients": 6, "lanes": "auto", "rounds": 3, "batch": 64, "epochs": 3}


@pytest.fixture
def full(monkeypatch) -> Callable[..., Full]:
    def make(*given: Any) -> Full:
        gpu = Full(*given)
        monkeypatch.setattr(Trainer, "update", lambda *args: gpu.update(*args))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        return gpu

    return make


@pytest.mark.parametrize("count", [1, 2])
def test_lanes_give_way_in_the_first_round_and_the_run_records_it(count, tmp_path, gpus: Pretend, full):  # noqa: F811
    gpus(count)
    gpu = full(2)
    with pytest.raises(Stopped):
        gone(run_of("scaffold", **AUTO), tmp_path / "run", until=1)
    assert [n for _, n in gpu.tries if n != 3] == [6, 2, 2, 2]  # and three at a time, between
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    told = [e for e in events if e["code"] == "E328"]
    assert [e["t"] for e in told] == [1, 1]
    assert "at most 2 train side by side from round 1 on" in told[-1]["text"]
    assert state.read(tmp_path / "run/state.safetensors")[1]["lanes"] == 2
    gpu.tries.clear()
    loop = gone(run_of("scaffold", **AUTO), tmp_path / "run")
    assert [n for _, n in gpu.tries] == [2] * 6  # as recorded, not as predicted
    gone(run_of("scaffold", **{**AUTO, "lanes": "2"}), tmp_path / "asked")
    asked, came = weights(tmp_path / "asked"), weights(tmp_path / "run")
    assert all(torch.equal(t, came[n]) for n, t in asked.items())
    assert loop.fitted.lanes == 2


@pytest.mark.parametrize("at", [2, 3])
def test_a_gpu_that_is_full_later_ends_the_run(at, tmp_path, gpus: Pretend, full):  # noqa: F811
    """A number that changed between rounds would change last bits, and nobody would know."""
    gpus(1)
    gpu = full(2, at)
    with pytest.raises(StateError, match=rf"E142 round {at}: the GPU has not enough memory .*resume the run.*lanes="):
        gone(run_of("fedavg", **AUTO), tmp_path / "run")
    assert gpu.tries[-1] == (at, 6)
    assert state.read(tmp_path / "run/state.safetensors")[1]["t"] == at - 1
    gpu.most = 99
    gone(run_of("fedavg", **AUTO), tmp_path / "run")
    assert gpu.tries[-1] == (3, 6)


@pytest.mark.parametrize(("lanes", "most"), [("6", 2), ("auto", 0)])
def test_a_number_that_was_asked_for_is_not_changed_and_one_client_must_fit(lanes, most, gpus: Pretend, full):  # noqa: F811
    gpus(1)
    gpu = full(most)
    with pytest.raises(StateError, match="E142 round 1: the GPU has not enough memory"):
        ups_and_downs(run_of("fedavg", **{**AUTO, "lanes": lanes}))
    assert [n for _, n in gpu.tries][:1] == [6]
    assert (gpu.tries[-1][1] == 1) == (lanes == "auto")


def test_memory_that_is_full_while_a_step_is_recorded_is_no_step_that_waits(gpus: Pretend, monkeypatch):  # noqa: F811
    """It was taken for a step that cannot be recorded, so the run went on slowly with too many clients."""
    gpus(1)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    record, failed = Taped.record, []

    def once(tape: Taped, function: Callable[[], None]) -> Callable[[], None]:
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return record(tape, function)

    monkeypatch.setattr(Taped, "record", once)
    _, loop = ups_and_downs(run_of("fedavg", **AUTO))
    assert loop.fitted.lanes == 4
    assert not loop.trainer.remarks()
    assert loop.trainer.replays.recorder.replayed
