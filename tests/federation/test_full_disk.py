"""A full disk at either end is one sentence at both: which file, how many bytes are free, and the run goes on
or pauses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.federation import fake
from tests.federation.test_site_exchange import sites_of, told
from unskew.errors import Paused
from unskew.records.checkpoints import digest


class Full:
    """Lets the disk below a folder be full while `on`, for files whose names hold a word."""

    def __init__(self, monkeypatch, folder: Path, word: str = ""):
        self.on, self.folder, self.word, self.fsync = True, folder.resolve(), word, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if self.on and self.folder in path.parents and self.word in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(handle)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_site_with_a_full_disk_says_so_at_both_ends_and_the_others_go_on(tmp_path, monkeypatch, name):
    sites, said = sites_of(tmp_path), []
    sites[998].say = said.append
    full = Full(monkeypatch, tmp_path / "sites/s2")
    full.on = False

    def shown(state, done):
        full.on = done.t == 1  # full in round 2, and free again in round 3

    loop, _, _ = fake.run(tmp_path / "run", fake.Direct(sites), fake.small(name), shown=shown)
    ((t, text),) = told(tmp_path / "run", "E203")
    assert t == 2
    assert text.startswith("s2: disk full: cannot write ")
    assert text.endswith(" free). Reply dropped.")
    assert any("disk full: cannot write" in line for line in said)
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("word", ["audit", "state", "events", "sites"])
def test_a_coordinator_with_a_full_disk_pauses_and_ends_with_the_same_bits(tmp_path, monkeypatch, word):
    full = Full(monkeypatch, tmp_path / "run", word)
    full.on = word == "sites"

    def shown(state, done):
        full.on = done.t == 1

    with pytest.raises(Paused, match=rf"E203 disk full: cannot write .*{word}"):
        fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"), shown=shown)
    full.on = False
    _, state, _ = fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"))
    whole = fake.run(tmp_path / "whole", fake.Direct(sites_of(tmp_path, "others")), fake.small("scaffold"))[1]
    assert digest(state.weights) == digest(whole.weights)
