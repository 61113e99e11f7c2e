"""The folder of a run at a site: whose files are taken, old requests, and what may be removed."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from tests.cli.calling import call
from tests.federation import fake
from tests.federation.test_site_exchange import Stop, sites_of, told, until_round
from unskew.errors import UsageError
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_run_folder import SiteRunFolder, removable_runs
from unskew.federation.tickets import Coordinator


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


def age(run, days):
    """Let a run not have been used for so many days."""
    then = time.time() - days * 86400
    for path in run.iterdir():
        os.utime(path, (then, then))


@pytest.fixture
def site(tmp_path):
    """The folder of the site s1 after a run of which it keeps private state."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:9", ["s1"], tls=False)
    SiteFolder.make(tmp_path / "sites/s1", home.ticket("s1"))
    fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"))
    return tmp_path / "sites/s1"


def only_run(site):
    (run,) = (site / "runs").iterdir()
    return run


def test_old_runs_are_removed_and_their_record_stays(site):
    run = only_run(site)
    before = {p.name for p in run.iterdir()}
    age(run, 40)
    listed = call("site", "clean", "--folder", str(site), "--dry-run")
    assert (listed.code, listed.out.startswith(f"would remove  {run.name}")) == (0, True), listed.text
    assert {p.name for p in run.iterdir()} == before
    done = call("site", "clean", "--folder", str(site))
    assert done.out.startswith(f"removed  {run.name}  model and private state, ")
    assert done.out.endswith(" MB, last used 40 days ago\n")
    gone = before - {p.name for p in run.iterdir()}
    assert gone == {name for name in before if name.endswith(".safetensors")}
    assert {"serial", "leaves.txt"} <= {p.name for p in run.iterdir()}
    assert "nothing to remove" in call("site", "clean", "--folder", str(site)).out


def test_runs_that_may_be_going_on_are_left_alone(site):
    assert removable_runs(site, [], 0)[0] == []
    none = (
        "nothing to remove: no run was last used 30 days ago or longer; --older DAYS reaches younger ones\n"
    )
    assert (
        call("site", "clean", "--folder", str(site)).out == none
    )  # nobody has to wait an hour for what stays anyway
    kept = call("site", "clean", "--older", "0", "--folder", str(site))
    assert kept.out.startswith(f"kept  {only_run(site).name}  last used ")
    assert kept.out.endswith("so it may be going on; wait until it was quiet for an hour\n")
    busy = call("site", "clean", only_run(site).name, "--folder", str(site))
    assert (busy.code, busy.err[:4]) == (2, "E110")
    assert call("site", "clean", "r999", "--folder", str(site)).err.startswith("E111")
    assert call("site", "clean", "../x", "--folder", str(site)).err.startswith("E111")
    age(only_run(site), 1)
    assert removable_runs(site, [], 30)[0] == []
    assert len(removable_runs(site, [only_run(site).name], 30)[0]) == 1
    assert call("site", "clean", "--folder", str(site)).out == none


def test_a_run_that_goes_on_after_all_hears_that_the_state_is_gone(tmp_path):
    with pytest.raises(Stop):
        fake.run(
            tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"), shown=until_round(2)
        )
    folder = tmp_path / "sites/s1"
    run = only_run(folder)
    serial = (run / "serial").read_text()
    age(run, 40)
    for kept in removable_runs(folder, [], 30)[0]:
        kept.remove()
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
