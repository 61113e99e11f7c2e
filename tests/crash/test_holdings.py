"""The index of private state: cut to what a checkpoint vouches for, and never read when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

import unskew
from tests.crash.harness import Stop
from unskew.errors import StateError
from unskew.records.private_state import INDEX_FILE, INDEX_MARK, DiskStore
from unskew.runs.run_folder import RunFolder
from unskew.system import disk

SETTINGS = {
    "clients": 5, "rounds": 4, "epochs": 1, "samples": 12, "model": "mlp(hidden=(4,))", "workers": 1,
    "availability": "sample:2",
}  # fmt: skip


def stop_after_three(_, summary) -> None:
    if summary.t == 3:
        raise Stop


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run that was stopped after its third round, and the digest with which it must end."""
    folder = tmp_path_factory.mktemp("holdings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "saved_every_s", 0.0)
        with pytest.raises(Stop):
            unskew.run("scaffold", folder=folder, name="stopped", shown=stop_after_three, **SETTINGS)
    return folder / "stopped", unskew.run("scaffold", folder=folder, name="whole", **SETTINGS).digest


@pytest.fixture
def stopped(runs, tmp_path) -> tuple[Path, str]:
    shutil.copytree(runs[0], tmp_path / "r")
    return tmp_path / "r", runs[1]


def tree(value: float):
    return {"p": {"x": torch.tensor([value])}}


def test_what_a_killed_round_added_is_cut_off(stopped):
    path, digest = stopped
    with open(path / "private" / INDEX_FILE, "ab") as file:
        file.write(b'{"t":4,"sha256":"00","clients":[0,1')
    assert unskew.resume(path, say=lambda _: None).digest == digest
    assert [json.loads(line)["t"] for line in (path / "private" / INDEX_FILE).open()] == [1, 2, 3, 4]


def test_a_damaged_last_row_goes_back_to_the_checkpoint_before(stopped):
    path, digest = stopped
    content = bytearray((path / "private" / INDEX_FILE).read_bytes())
    content[content.rindex(b"sha256") + 9] ^= 1  # still a row
    (path / "private" / INDEX_FILE).write_bytes(content)
    said: list[str] = []
    assert unskew.resume(path, say=said.append).digest == digest
    assert any(text.startswith("E201") and "not as the run wrote it" in text for text in said)


@pytest.mark.parametrize("damage", ["first row", "removed", "emptied"])
def test_a_damaged_beginning_is_refused_in_a_sentence(stopped, damage):
    file = stopped[0] / "private" / INDEX_FILE
    content = bytearray(file.read_bytes())
    content[content.index(b"sha256") + 9] ^= 1  # still a row
    file.unlink()
    if damage != "removed":
        file.write_bytes(content if damage == "first row" else b"")
    with pytest.raises(StateError, match=r"E201 .*which file holds whose private state"):
        unskew.resume(stopped[0], say=lambda _: None)


@pytest.mark.parametrize("row", ["[]", "7", '{"t":1}', '{"t":"../x","sha256":"","clients":[]}', "[" * 99_000])
def test_rows_of_a_stranger_that_are_no_rows_are_refused(tmp_path, row):
    """A folder may come from anybody, with checkpoints that vouch for anything."""
    (tmp_path / INDEX_FILE).write_text(row)
    facts = {INDEX_MARK: (len(row), hashlib.sha256(row.encode()).hexdigest())}
    with pytest.raises(StateError, match="E201"):
        DiskStore(tmp_path, facts)


def test_what_a_checkpoint_says_does_not_grow_with_the_clients(tmp_path):
    sizes = []
    for name, clients in (("few", 10), ("many", 2000)):
        store = DiskStore(tmp_path / name)
        for t in range(1, 11):
            store.put(t, {k: tree(k) for k in range(t, clients, 10)})
        sizes.append(len(json.dumps(store.facts())))
        store.close()
    assert sizes[1] <= sizes[0] + 4  # digits of the file's length


def test_files_stay_while_this_checkpoint_or_the_one_before_refers_to_them(tmp_path):
    rng, before, store = random.Random(3), {}, DiskStore(tmp_path)
    for t in range(1, 60):
        # a resumed run knows what the checkpoint says, and what a killed round left is removed
        if t % 7 == 0:
            facts = store.facts()
            store.close()
            (tmp_path / "r000099.safetensors").write_bytes(b"")
            store = DiskStore(tmp_path, facts)
        store.put(t, {k: tree(t) for k in rng.sample(range(9), rng.randrange(4))})
        store.sweep()
        expected = {*store.index.values(), *before.values()}
        assert {int(p.stem[1:]) for p in tmp_path.glob("r*.safetensors")} == expected
        assert set(store.files) == expected
        before = dict(store.index)
    store.check()
    store.close()


def test_an_interruption_at_any_step_of_a_save_loses_nothing(tmp_path, runs, monkeypatch):
    """Every operation of a save on the disk fails once, of a run that goes on from there each time."""
    for step in range(1, 60, 7):
        done = 0

        def failing(real, step=step):
            def call(*args, **kwargs):
                nonlocal done
                done += 1
                if done == step:
                    raise KeyboardInterrupt
                return real(*args, **kwargs)

            return call

        name = f"r{step % 3}"  # so that it also meets runs that were interrupted before
        with monkeypatch.context() as patch:
            for operation in ("fsync", "replace", "link", "unlink"):
                patch.setattr(os, operation, failing(getattr(os, operation)))
            try:
                unskew.run("scaffold", folder=tmp_path, name=name, **SETTINGS)
            except KeyboardInterrupt:
                continue
    for n in range(3):
        assert unskew.run("scaffold", folder=tmp_path, name=f"r{n}", **SETTINGS).digest == runs[1]


def test_state_is_on_the_disk_before_a_checkpoint_refers_to_it(tmp_path, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_files", lambda paths: synced.extend(path.name for path in paths))
    store = DiskStore(tmp_path)
    store.put(1, {0: tree(1.0)})
    written = {path.name for path in tmp_path.glob("*.safetensors")}
    assert not synced
    store.sync()
    assert set(synced) == written != set()
    store.close()
