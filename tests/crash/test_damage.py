"""What a resumed run reads is what was written: its files are damaged here, and the data changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import unskew
from unskew.errors import StateError, UnskewError
from unskew.records import checkpoints
from unskew.runs import run_folder

SETTINGS = {"clients": 5, "rounds": 4, "epochs": 1, "model": "mlp(hidden=(8,))", "workers": 1}
METHOD = "scaffold"


def run(folder: Path, data="digits", **changes) -> unskew.Result:
    return unskew.run(METHOD, data, folder=folder, name="r", **{**SETTINGS, **changes})


def unfinished(path: Path) -> None:
    """As if the run had been killed after its third round."""
    (path / checkpoints.LATEST).unlink()
    (path / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    return folder / "r", run(folder).digest


@pytest.fixture
def copy(done, tmp_path):
    path, digest = done
    shutil.copytree(path, tmp_path / "r")
    return tmp_path / "r", digest


def flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    file.write_bytes(content)


def private(path: Path) -> list[Path]:
    return sorted((path / "private").glob("*.safetensors"))


@pytest.mark.parametrize("place", [0.0, 0.2, 1.0])
def test_a_flipped_bit_in_the_last_private_state_falls_back_to_the_checkpoint_before(copy, place):
    """R1: other weights with exit code 0 before; now E201, and the round is done again to the same bits."""
    path, digest = copy
    (path / "model.safetensors").unlink()
    flip(private(path)[-1], place)
    said: list[str] = []
    assert unskew.resume(path, say=said.append).digest == digest
    assert any(text.startswith("E201 private state of round 4") for text in said)
    assert (path / "state.bad").exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "swap"])
def test_private_state_that_no_checkpoint_can_do_without_is_refused(copy, damage):
    """R1: truncated and garbled files were a traceback. Nothing is set aside, so the file can be put back."""
    path, digest = copy
    unfinished(path)
    before, file = path / checkpoints.PREVIOUS, private(path)[0]
    content = file.read_bytes()
    if damage == "flip":
        flip(file, 0.7)
    if damage == "swap":
        shutil.copy(private(path)[-1], file)
    if damage == "remove":
        file.unlink()
    if damage == "cut":
        file.write_bytes(content[:-9])
    with pytest.raises(StateError, match=r"E201 no checkpoint in .* private state of round 3 is missing"):
        unskew.resume(path)
    assert before.exists()
    file.write_bytes(content)
    assert unskew.resume(path).digest == digest


@pytest.mark.parametrize("edit", [{"lr": 0.5}, {"method": "fedprox(mu=1.0)"}])
def test_an_edited_config_is_not_resumed(copy, edit):
    """R2: the settings in the checkpoint count, and what differs is named."""
    path, _ = copy
    unfinished(path)
    file = path / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **edit}))
    with pytest.raises(StateError, match=f"E112 .*{next(iter(edit))} was "):
        unskew.resume(path)


def test_an_ended_run_does_not_continue_by_an_edited_number_of_rounds(copy):
    """What was done in its last round would stay in the longer run; `resume --rounds` goes back before it."""
    path, _ = copy
    file = path / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "rounds": 9}))
    with pytest.raises(StateError, match=r"E112 .*rounds was "):
        unskew.resume(path)


@pytest.mark.parametrize("lines", [0, 5])
def test_a_config_that_is_cut_is_not_resumed_with_defaults(copy, lines):
    """R2: what a cut file lacks would be read as a default."""
    path, _ = copy
    unfinished(path)
    file = path / "config.yaml"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(UnskewError, match="E112"):
        unskew.resume(path)


def arrays(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.random((300, 1, 6, 6), dtype=np.float32),
        np.arange(300) % 3,
        rng.random((60, 1, 6, 6), dtype=np.float32),
        np.arange(60) % 3,
    ]


@pytest.mark.parametrize(("array", "row"), [(0, 299), (2, 33)])
def test_one_changed_sample_is_noticed(tmp_path, array, row):
    """R3: 536 of 600 rows, or all test inputs, could be zeroed: only 64 rows of x counted."""
    data = arrays()
    run(tmp_path, tuple(data), rounds=2)
    unfinished(tmp_path / "r")
    data[array] = data[array].copy()
    data[array][row] = 0
    with pytest.raises(StateError, match="E112 the data of"):
        run(tmp_path, tuple(data), rounds=2)


def test_a_changed_trace_is_noticed(tmp_path):
    """R3: a trace determines who answers."""
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n1,0\n1,1\n2,1\n2,3\n3,0\n")
    run(tmp_path, rounds=3, availability=f"trace:{trace}")
    unfinished(tmp_path / "r")
    (tmp_path / "r" / "env.json").unlink()  # the checkpoint knows it, too
    trace.write_text("round,client\n1,0\n1,1\n2,1\n2,3\n3,0\n3,2\n")
    with pytest.raises(StateError, match=r"E112 .*trace.csv has changed since"):
        run(tmp_path, rounds=3, availability=f"trace:{trace}")


def test_a_change_in_a_large_array_is_noticed_wherever_it_is(tmp_path):
    """R3: above the limit only some blocks were read, so that other data could go unnoticed."""
    data = arrays()
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (3000, 400))
    file[:] = 1
    federation = run(tmp_path, tuple(data), rounds=1).federation
    federation.__dict__["x"] = file
    whole = run_folder.fingerprint(federation)
    for row in (0, 1234, 2999):
        file[row] = 2
        assert run_folder.fingerprint(federation) != whole
        file[row] = 1
    assert run_folder.fingerprint(federation) == whole


@pytest.mark.parametrize("kind", ["metrics", "ledger", "events"])
def test_a_damaged_record_is_noticed_and_never_continued(copy, kind):
    """R6: damage in a record was a traceback, and a changed digit was reported."""
    path, digest = copy
    unfinished(path)
    file = path / f"{kind}.jsonl"
    content = file.read_text()
    file.write_text(content.replace(":1", ":2", 1))
    with pytest.raises(StateError, match=f"E201 no checkpoint .*{kind}.jsonl is missing, or not as the run"):
        unskew.resume(path)
    file.write_text(content)
    assert unskew.resume(path).digest == digest


def test_damage_in_the_last_round_of_a_record_costs_that_round(copy):
    """R6: the checkpoint before does not refer to it."""
    path, digest = copy
    (path / "model.safetensors").unlink()
    file = path / "metrics.jsonl"
    flip(file, 0.999)
    said: list[str] = []
    assert unskew.resume(path, say=said.append).digest == digest
    assert any(text.startswith("E201 metrics.jsonl") for text in said)
    assert len({json.loads(line)["t"] for line in file.read_text().splitlines()}) == 5


def test_a_lost_checkpoint_is_told_and_two_are_not_begun_anew(copy):
    """R7: one was replaced without a word by the one before it, and without both the run began anew."""
    path, digest = copy
    (path / checkpoints.LATEST).unlink()
    said: list[str] = []
    assert unskew.resume(path, say=said.append).digest == digest
    assert any(text.startswith("E201 state.safetensors is missing.") for text in said)
    (path / checkpoints.LATEST).unlink()
    (path / checkpoints.PREVIOUS).unlink()
    with pytest.raises(StateError, match=r"E201 .* its checkpoints are gone"):
        unskew.resume(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(StateError, match=r"E201 .* its checkpoints are gone"):
        unskew.resume(path)


def test_a_damaged_description_of_the_environment_is_one_sentence(copy):
    """R6: env.json was a traceback."""
    path, digest = copy
    (path / "env.json").write_text("{")
    with pytest.raises(StateError, match=r"E111 .*env.json is damaged .*remove it"):
        unskew.resume(path)
    (path / "env.json").unlink()
    (path / "federation.json").write_text("{")
    assert unskew.resume(path).digest == digest
    assert json.loads((path / "federation.json").read_text())["clients"] == 5
