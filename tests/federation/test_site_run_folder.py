"""The folder of a run at a site: whose files are taken, old requests, and what may be removed."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.federation import fake
from tests.federation.test_site_exchange import Stop, sites_of, told, until_round
from unskew.errors import UsageError
from unskew.federation.site.local_run import SiteRunFolder


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
