"""Sites that differ, are away, are left out or have lost files, and full disks at either end."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.calling import call
from tests.federation import fake
from unskew.cli import remote_run
from unskew.errors import Paused, UsageError
from unskew.federation.coordinator.network_run import Order, Terms
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.site.local_run import SiteRunFolder
from unskew.federation.tickets import Coordinator
from unskew.records.checkpoints import digest

THREE = {"clients": 3}


def sites_of(tmp_path, name="sites", count=5):
    whole = fake.sites(tmp_path / name, fake.federation())
    return {1000 - k: whole[1000 - k] for k in range(count)}


def holding(site, **changes):
    """Let a site hold other data."""
    data = replace(site.load(), **changes)
    site.load, site._data = lambda: data, None


def other_shape(site):
    holding(site, x=site.load().x[:, :1], x_test=site.load().x_test[:, :1])


def other_classes(site):
    holding(site, classes=("a", "b", "d"))


def told(path, *codes):
    return [(e["t"], e["text"]) for e in fake.events(path) if e["code"] in codes]


@pytest.mark.parametrize(
    ("differ", "reason"),
    [
        (other_shape, "a sample's shape is [3, 8, 8] at s0 and [1, 8, 8] at s1"),
        (
            other_classes,
            "classes: 'c' is at s0 and not at s1; 'd' is at s1 and not at s0; name all classes at every site,"
            " --classes a,b,c,d",
        ),
    ],
)
def test_a_site_with_other_data_is_left_out_and_named_and_the_run_goes_on(tmp_path, differ, reason):
    sites = sites_of(tmp_path)
    differ(sites[999])
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("scaffold"), min_sites=4)
    assert told(tmp_path / "run", "E504") == [
        (0, f"sites hold different data: {reason}. s1 is left out of this run.")
    ]
    assert loop.run.federation.names == ("s0", "s2", "s3", "s4")
    others = sites_of(tmp_path, "others")
    del others[999]
    _, same, _ = fake.run(tmp_path / "run2", fake.Direct(others), fake.small("scaffold"))
    assert digest(state.weights) == digest(same.weights)


def test_a_site_that_holds_as_many_other_samples_as_before_is_not_used_until_it_holds_those_of_then(tmp_path):
    """Nobody noticed: the number of samples was the same. A process that is restarted reads what lies there
    now."""
    sites = sites_of(tmp_path, count=3)
    before = sites[999].load = sites[998].load  # s1 holds what s2 does, more than its single sample
    sites[999]._data = None

    def shown(state, done):
        if done.t == 1:
            y = before().y.copy()
            y[:2] = (y[:2] + 1) % 3  # a diagnosis that was corrected
            holding(sites[999], y=y)
        if done.t == 2:
            sites[999].load, sites[999]._data = before, None
        sites[999]._run = None  # its process was started again

    settings = fake.small("scaffold", rounds=3, **THREE)
    fake.run(tmp_path / "run", fake.Direct(sites), settings, shown=shown)
    ((t, text),) = told(tmp_path / "run", "E504")
    assert t == 2
    assert text.startswith("s1: site s1 holds other samples than when the run began; give it those of then")
    rounds = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [e["answered"] for e in rounds if e["code"] == "round"] == [[0, 1, 2], [0, 2], [0, 1, 2]]


class Stop(Exception):
    pass


def until_round(stop):
    def shown(state, done):
        if done.t == stop:
            raise Stop

    return shown


def test_a_site_whose_data_have_changed_does_not_stop_the_others_on_resuming(tmp_path):
    sites, path = sites_of(tmp_path), tmp_path / "run"
    with pytest.raises(Stop):
        fake.run(path, fake.Direct(sites), fake.small("scaffold"), shown=until_round(1))
    before, sites = sites[999].load(), sites_of(tmp_path)
    holding(sites[999], x=before.x[:1].repeat(2, 0), y=before.y[:1].repeat(2, 0))
    loop, _, _ = fake.run(path, fake.Direct(sites), fake.small("scaffold"))
    named = told(path, "E504")
    assert {t for t, _ in named} == {2, 3}
    assert all(
        text.startswith("s1: site s1 holds other samples than when the run began") for _, text in named
    )
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered[1:] == [[0, 2, 3, 4]] * 2


def test_a_site_can_be_left_out_of_a_run_and_from_any_round_on(tmp_path):
    loop, _, said = fake.run(
        tmp_path / "a", fake.Direct(sites_of(tmp_path)), fake.small("fedavg"), without=("s1",)
    )
    assert loop.run.federation.names == ("s0", "s2", "s3", "s4")
    assert "E311 s1 is left out of this run from now on, as --without asks." in said
    path = tmp_path / "b"
    with pytest.raises(Stop):
        fake.run(path, fake.Direct(sites_of(tmp_path, "s")), fake.small("fedavg"), shown=until_round(1))
    channel = fake.Direct(sites_of(tmp_path, "s"))
    loop, state, _ = fake.run(path, channel, fake.small("fedavg"), without=("s1",))
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered == [[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 2, 3, 4]]
    assert not [kind for site, kind, _ in channel.asked if site == "s1" and kind != "hello"]
    lost = fake.Direct(sites_of(tmp_path, "lost"), lose("s1", {2, 3}))
    assert digest(state.weights) == digest(fake.run(tmp_path / "c", lost, fake.small("fedavg"))[1].weights)


def lose(name, rounds):
    """Let a site be silent when it should train in these rounds."""

    def meddle(site, asked, honest):
        request = json.loads(asked.text)
        return None if (site, request["kind"]) == (name, "train") and request["t"] in rounds else honest

    return meddle


class Flaky(fake.Direct):
    """A channel whose nodes are away in some rounds. rounds: by node."""

    def __init__(self, sites, rounds):
        super().__init__(sites)
        self.rounds, self.now = rounds, 1

    def nodes(self):
        return [node for node in super().nodes() if self.now not in self.rounds.get(node, ())]


@pytest.mark.parametrize("name", ["fedavg", "flea", "scaffold"])
def test_every_absence_is_an_event_and_a_site_is_asked_again_in_the_next_round(tmp_path, name):
    channel = Flaky(sites_of(tmp_path), {998: {2, 3}})

    def shown(state, done):
        channel.now = done.t + 1

    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small(name, rounds=5, eval_every=5), shown=shown)
    named = told(tmp_path / "run", "E311")
    assert named == [
        (2, "s2 is not connected and was not asked."),
        (3, "s2 is not connected and was not asked."),
    ]
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert [2 in ids for ids in answered] == [True, False, False, True, True]
    journal = [json.loads(line) for line in (tmp_path / "run/audit.jsonl").read_text().splitlines()]
    assert [e["t"] for e in journal if e.get("code") == "E311"] == [2, 3]


@pytest.fixture
def home(tmp_path):
    home = Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:9", ["a", "b"])
    for site in ("a", "b"):
        home.admit(site, PrivateKey.make().public)
    return home


def test_resuming_without_a_site_is_checked_and_kept_in_the_order(tmp_path, home):
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    order = Order(run, home.folder, fake.small("fedavg").as_dict(), Terms(without=("a",)))
    order.write()
    for site, said in (("c", "is no site of lung"), ("b", "but 0 sites of lung are admitted without a, b")):
        with pytest.raises(UsageError, match=f"E109 .*{said}"):
            remote_run.read_order(run, (site,))
    wider = Coordinator.make(tmp_path / "federations/more", "more", "127.0.0.1:9", ["a", "b", "c"])
    for site in ("a", "b", "c"):
        wider.admit(site, PrivateKey.make().public)
    replace(order, federation=wider.folder).write()
    remote_run.read_order(run, ("c",))
    assert remote_run.read_order(run).terms.without == ("a", "c")
    (tmp_path / "runs/s").mkdir()
    refused = call("resume", "runs/s", "--without", "a", cwd=tmp_path)
    assert (refused.code, "E109 --without names sites" in refused.err) == (2, True)


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


@pytest.mark.parametrize("content", [b"", b"-1", b"1e9", b"\xff", b"12 ", b"7\n"])
def test_the_guard_against_replays_does_not_begin_anew_with_a_damaged_file(tmp_path, content):
    """An empty file was taken for "nothing answered yet", so old requests would have been answered
    again."""
    folder = SiteRunFolder(tmp_path, "s0")
    folder.check_new(5)
    for old in (4, 5, None, "6"):
        with pytest.raises(UsageError, match="E307 the request is older"):
            folder.check_new(old)
    (folder.path / "serial").write_bytes(content)
    with pytest.raises(
        UsageError, match=r"E307 which requests of the run were answered .*serial\), .*; start a new run"
    ):
        folder.check_new(6)


def only_run(site):
    (run,) = (site / "runs").iterdir()
    return run


def test_a_run_that_goes_on_after_its_files_were_removed_hears_that_the_state_is_gone(tmp_path):
    with pytest.raises(Stop):
        fake.run(
            tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"), shown=until_round(2)
        )
    folder = tmp_path / "sites/s1"
    run = only_run(folder)
    serial = (run / "serial").read_text()
    for file in run.glob("*.safetensors"):
        file.unlink()
    assert (run / "serial").read_text() == serial
    fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"))
    named = told(tmp_path / "run", "E201")
    assert set(named) == {(3, "s1: site s1 has lost its private state of round 2. Reply dropped.")}
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [e["answered"] for e in events if e["code"] == "round"][-1] == [0, 2, 3, 4]


@pytest.mark.parametrize("method", ["scaffold", "fedavg"])
def test_a_site_whose_folder_is_lost_hears_that_the_state_is_gone_if_there_was_any(tmp_path, method):
    """The folder came back from no backup, was set up anew, and went on as if the site had never taken
    part."""
    with pytest.raises(Stop):
        fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small(method), shown=until_round(2))
    shutil.rmtree(only_run(tmp_path / "sites/s1"))
    fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small(method))
    lost = {(3, "s1: site s1 has lost its private state of round 2. Reply dropped.")}
    assert set(told(tmp_path / "run", "E201")) == (lost if method == "scaffold" else set())
