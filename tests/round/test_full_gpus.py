"""What happens where a GPU's memory is full: lanes that were predicted give way in round 1, and nothing does
silently later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.round.gpu_scene import Pretend, Stopped, gone, run_of, ups_and_downs, weights
from tests.round.pretended import gpus  # noqa: F401
from tests.round.taped import Taped
from unskew.errors import StateError
from unskew.records import checkpoints
from unskew.round.chunks import Chunk
from unskew.round.trainer import Trainer


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
AUTO: dict[str, Any] = {"clients": 6, "lanes": "auto", "rounds": 3, "batch": 64, "epochs": 2}


@pytest.fixture
def full(monkeypatch) -> Callable[..., Full]:
    def make(*given: Any) -> Full:
        gpu = Full(*given)
        monkeypatch.setattr(Trainer, "update", lambda *args: gpu.update(*args))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        return gpu

    return make


def test_lanes_give_way_in_the_first_round_and_the_run_records_it(tmp_path, gpus: Pretend, full):  # noqa: F811
    gpus(1)
    gpu = full(2)
    with pytest.raises(Stopped):
        gone(run_of("scaffold", **AUTO), tmp_path / "run", until=1)
    assert [n for _, n in gpu.tries if n != 3] == [6, 2, 2, 2]  # and three at a time, between
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    told = [e for e in events if e["code"] == "E128"]
    assert [e["t"] for e in told] == [1, 1]
    assert "at most 2 train side by side from round 1 on" in told[-1]["text"]
    assert checkpoints.read(tmp_path / "run/state.safetensors")[1]["lanes"] == 2
    gpu.tries.clear()
    loop = gone(run_of("scaffold", **AUTO), tmp_path / "run")
    assert [n for _, n in gpu.tries] == [2] * 6  # as recorded, not as predicted
    gone(run_of("scaffold", **{**AUTO, "lanes": "2"}), tmp_path / "asked")
    asked, came = weights(tmp_path / "asked"), weights(tmp_path / "run")
    assert all(torch.equal(t, came[n]) for n, t in asked.items())
    assert loop.lane_retry.lanes == 2


@pytest.mark.parametrize("at", [2, 3])
def test_a_gpu_that_is_full_later_ends_the_run(at, tmp_path, gpus: Pretend, full):  # noqa: F811
    """A number that changed between rounds would change last bits, and nobody would know."""
    gpus(1)
    gpu = full(2, at)
    with pytest.raises(
        StateError, match=rf"E142 round {at}: the GPU has not enough memory .*resume the run.*lanes="
    ):
        gone(run_of("fedavg", **AUTO), tmp_path / "run")
    assert gpu.tries[-1] == (at, 6)
    assert checkpoints.read(tmp_path / "run/state.safetensors")[1]["t"] == at - 1
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
    assert loop.lane_retry.lanes == 4
    assert not loop.trainer.remarks()
    assert loop.trainer.replays.recorder.replayed
