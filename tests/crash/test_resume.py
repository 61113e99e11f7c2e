"""Nothing is lost: kills at any moment, damage, a full disk, two writers, other settings."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from unskew.errors import Paused, StateError, UsageError
from unskew.records import checkpoints, schema
from unskew.records.private_state import DiskStore
from unskew.runs.run_folder import RunFolder
from unskew.version import revision

SETTINGS = {
    "clients": 6,
    "rounds": 5,
    "epochs": 1,
    "batch": 32,
    "samples": 32,
    "model": "mlp",
    "workers": 1,
    "availability": "bernoulli:0.7",
}
METHOD = "scaffold+flea+faug"


def run(folder: Path, name: str, **changes):
    return unskew.run(METHOD, folder=folder, name=name, **{**SETTINGS, **changes})


def ends(path: Path):
    """What must be equal: weights, private state, ledger, and metrics but for the seconds."""
    tree, meta = checkpoints.read(path / checkpoints.LATEST)
    metrics = [line for line in (path / "metrics.jsonl").read_text().splitlines() if '"seconds"' not in line]
    store = DiskStore(path / "private", meta)
    kept = {str(k): tree for k, tree in store.fetch(range(SETTINGS["clients"])).items()}
    return (
        checkpoints.digest(tree),
        checkpoints.digest(kept),
        metrics,
        (path / "ledger.jsonl").read_text(),
        meta["t"],
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    run(folder, "whole")
    return ends(folder / "whole")


class Crash(Exception):
    pass


@contextmanager
def crash_at(monkeypatch, step, *names):
    """Raise Crash in place of the call number `step` of these functions of `os`."""
    calls = itertools.count(1)

    def failing(real):
        def call(*args, **kwargs):
            if next(calls) == step:
                raise Crash
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


@pytest.fixture
def every_round(monkeypatch):
    monkeypatch.setattr(RunFolder, "saved_every_s", 0.0)


@pytest.fixture
def seldom(monkeypatch):
    monkeypatch.setattr(RunFolder, "saved_every_s", 1e9)


def test_short_rounds_are_saved_together_and_the_last_two_by_themselves(tmp_path, straight, seldom):
    saved, files = [], []

    def shown(now, summary):
        saved.append(checkpoints.latest_facts(tmp_path / "r")["t"])
        files.append(len(list((tmp_path / "r" / "private").glob("*.safetensors"))))

    run(tmp_path, "r", shown=shown)
    assert saved == [0, 0, 0, 4, 5]
    assert checkpoints.read(tmp_path / "r" / checkpoints.PREVIOUS)[1]["t"] == 4
    assert files[-1] < 5  # what no checkpoint refers to is removed
    assert ends(tmp_path / "r") == straight


@pytest.mark.parametrize("t", [1, 4])
def test_a_killed_run_repeats_the_rounds_that_were_not_saved(tmp_path, straight, seldom, t):
    def shown(now, summary):
        if now.t == t:
            os._exit(9)

    if not (child := os.fork()):
        run(tmp_path, "r", shown=shown)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert checkpoints.latest_facts(tmp_path / "r")["t"] == (4 if t == 4 else 0)
    run(tmp_path, "r")
    assert ends(tmp_path / "r") == straight


@pytest.mark.parametrize("hook", ["round_begun", "evaluated"])
def test_a_run_that_fails_in_a_round_keeps_all_rounds_before(tmp_path, straight, seldom, hook):
    class Failing(unskew.Callback):
        pass

    def fail(self, run, *rest):
        if run.t == 3:
            raise Crash

    setattr(Failing, hook, fail)
    with pytest.raises(StateError, match="E127"):
        run(tmp_path, "r", callbacks=[Failing()])
    assert checkpoints.read(tmp_path / "r" / checkpoints.LATEST)[1]["t"] == 2
    run(tmp_path, "r")
    assert ends(tmp_path / "r") == straight


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("step", range(1, 40, 7))
def test_every_step_of_saving_is_safe(tmp_path, straight, monkeypatch, step):
    """A crash at the n-th operation of the file system, whichever it is."""
    with crash_at(monkeypatch, step, "fsync", "replace", "link"), pytest.raises(Crash):
        run(tmp_path, "r")
    run(tmp_path, "r")
    assert ends(tmp_path / "r") == straight


@pytest.mark.parametrize("before", ["done", "interrupted"])
def test_a_run_of_fewer_rounds_continues_to_the_bits_of_more(tmp_path, straight, before):
    def stop(now, summary):
        if before == "interrupted" and now.t == 2:
            raise Crash

    with suppress(Crash):
        run(tmp_path, "r", rounds=3, eval_every=2, shown=stop)
    path = tmp_path / "r"
    with suppress(Crash):
        unskew.resume(path, shown=stop, rounds=4)
    unskew.resume(path, rounds=4)
    run(tmp_path, "other", eval_every=2, rounds=4)
    assert ends(path) == ends(tmp_path / "other")
    with pytest.raises(UsageError, match=r"E109 .*r is a run of 4 rounds; got rounds=3"):
        unskew.resume(path, rounds=3)


@pytest.mark.parametrize("step", [1, 3, 5])
def test_every_step_to_more_rounds_is_safe(tmp_path, straight, monkeypatch, step):
    run(tmp_path, "r", rounds=2)
    path = tmp_path / "r"
    schema.put_attack(path, "lira", {"auc": 0.5})
    with crash_at(monkeypatch, step, "fsync", "replace", "link", "unlink"), pytest.raises(Crash):
        unskew.resume(path, rounds=5)
    unskew.resume(path, rounds=5)
    assert ends(path) == straight
    assert schema.ATTACKS not in schema.read_privacy(path)


@pytest.mark.parametrize(
    ("method", "changes", "why"),
    [
        ("svd", {}, "'svd' has a schedule over all rounds, which 9 rounds would begin otherwise"),
        ("dp(epsilon=12,noise_multiplier=1.0)", {"availability": "poisson:0.7"}, "its privacy budget"),
        ("fedavg", {"patience": 1, "lr": 1e-9}, "it was ended after round 3, which events.jsonl explains"),
    ],
)
def test_what_more_rounds_would_train_otherwise_is_refused(tmp_path, method, changes, why):
    changed = {**SETTINGS, "folder": tmp_path, "name": "r", "rounds": 4, **changes}
    unskew.run(method, **changed)
    before = ends(tmp_path / "r")
    with pytest.raises(StateError, match=f"E112 .*r, a run of 4 rounds, cannot continue to 9: {why}"):
        unskew.run(method, **{**changed, "rounds": 9})
    unskew.run(method, **changed)
    assert ends(tmp_path / "r") == before


@pytest.mark.usefixtures("every_round")
def test_a_full_disk_pauses_and_destroys_nothing(tmp_path, straight, monkeypatch):
    real, calls = os.fsync, 0

    def full(handle):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Paused, match=rf"E203 disk full: .* unskew resume {tmp_path / 'r'}$") as caught:
            run(tmp_path, "r")
    assert caught.value.exit_code == 75
    for name in (
        "state.safetensors.0a1b.part",
        "private/r000001.safetensors.2c3d.part",
    ):  # as a killed write leaves them
        (tmp_path / "r" / name).write_bytes(b"x")
    run(tmp_path, "r")
    assert ends(tmp_path / "r") == straight
    assert not list((tmp_path / "r").rglob("*.part"))


def test_damage_is_noticed_and_the_checkpoint_before_it_is_used(tmp_path, straight):
    run(tmp_path, "r")
    path = tmp_path / "r" / checkpoints.LATEST
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(blob)
    said = []
    (tmp_path / "r" / "model.safetensors").unlink()
    unskew.resume(tmp_path / "r", say=said.append)
    assert any("E201" in s for s in said)
    assert (tmp_path / "r" / "state.bad").exists()
    assert ends(tmp_path / "r") == straight


def test_no_flipped_bit_or_cut_is_loaded(tmp_path):
    tree = {"w": {"a": torch.randn(50), "b": torch.zeros(3, dtype=torch.int64)}}
    checkpoints.write(tmp_path / "s.safetensors", tree, {"t": 3})
    blob, rng = (tmp_path / "s.safetensors").read_bytes(), random.Random(1)
    whole = checkpoints.read(tmp_path / "s.safetensors")
    assert torch.equal(whole[0]["w"]["a"], tree["w"]["a"])
    bad = tmp_path / "bad.safetensors"
    for _ in range(200):
        damaged = bytearray(blob)
        damaged[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
        bad.write_bytes(damaged)
        with pytest.raises(StateError, match="E201"):
            checkpoints.read(bad)
    for _ in range(50):
        bad.write_bytes(blob[: rng.randrange(len(blob))])
        with pytest.raises(StateError, match="E201"):
            checkpoints.read(bad)


def test_one_writer_at_a_time(tmp_path):
    seen = []

    def shown(now, told):
        if not seen:
            seen.append(now)
            with pytest.raises(StateError, match=rf"E110 .* pid {os.getpid()}"):
                unskew.run(METHOD, folder=tmp_path, name="mine", **SETTINGS)

    unskew.run(METHOD, folder=tmp_path, name="mine", shown=shown, **SETTINGS)
    assert seen


def test_other_settings_or_data_are_refused(tmp_path):
    run(tmp_path, "r")
    with pytest.raises(StateError, match=r"E112 .*lr was 0.05, is 0.1 now"):
        run(tmp_path, "r", lr=0.1)
    fed = unskew.data.build(
        unskew.data.read("digits"), "iid", 6, np.random.default_rng(9), np.random.default_rng(9)
    )
    with pytest.raises(StateError, match="E112"):
        unskew.run(METHOD, fed, folder=tmp_path, name="r", **SETTINGS)


def test_private_state_is_swept_but_never_what_a_checkpoint_needs(tmp_path):
    store = DiskStore(tmp_path / "private")
    for t, clients in enumerate(((0, 1), (1, 2), (0, 2)), 1):
        store.put(t, {k: {"p": {"x": torch.tensor([float(10 * t + k)])}} for k in clients})
    store.sweep()
    assert {int(p.stem[1:]) for p in (tmp_path / "private").glob("*.safetensors")} == {2, 3}
    found = store.fetch([0, 1, 2, 7])
    assert {k: v["p"]["x"].item() for k, v in found.items()} == {0: 30, 1: 21, 2: 32}
    store.close()


def test_a_resumed_run_that_is_done_changes_nothing(tmp_path, straight):
    run(tmp_path, "r")
    stamp = (tmp_path / "r" / checkpoints.LATEST).stat().st_mtime_ns
    said = []
    again = unskew.resume(tmp_path / "r", say=said.append)
    assert ends(tmp_path / "r") == straight
    assert (tmp_path / "r" / checkpoints.LATEST).stat().st_mtime_ns == stamp
    assert again.scores()["last"] > 0


def test_a_run_that_another_version_began_says_so_and_goes_on(tmp_path, straight):
    run(tmp_path, "r")
    env = tmp_path / "r" / "env.json"
    (tmp_path / "r" / checkpoints.LATEST).unlink()  # as if killed in the last round
    said = []
    unskew.resume(tmp_path / "r", say=said.append)
    assert any(s.endswith("from round 4 of 5.") for s in said)
    env.write_text(json.dumps({**json.loads(env.read_text()), "unskew": "0.0.9"}))
    (tmp_path / "r" / checkpoints.LATEST).unlink()
    unskew.resume(tmp_path / "r", say=said.append)
    assert any(f"It was begun by unskew 0.0.9; this is {revision()}." in s for s in said)
    assert ends(tmp_path / "r") == straight
