"""The commands of coordinators and sites: a site joins and runs, keys are admitted, journals are audited."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import json

import numpy as np

from tests.cli.calling import call
from unskew.cli import federation as commands
from unskew.config import dump
from unskew.federation.journal import JOURNAL_FILE, Journal
from unskew.federation.protocol import study_rules
from unskew.federation.site import connection as processes
from unskew.federation.site import site_folder as site_checks
from unskew.federation.site.site_folder import Finding, SiteFolder
from unskew.federation.tickets import Coordinator, Ticket
from unskew.records.run_lock import RunLock
from unskew.runs import conformance
from unskew.system import disk

FINE = [Finding("network", False, "no server yet"), Finding("data", True, "40 samples")]


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:8123", ["a", "b", "c"])


@pytest.fixture
def began(monkeypatch):
    """The folders of sites that went on to connect."""
    folders = []
    monkeypatch.setattr(processes.SiteProcesses, "run", lambda self: folders.append(self.joined.folder.name))
    monkeypatch.setattr(site_checks, "check_site", lambda *_, **__: FINE)
    return folders


def run(cwd, *more):
    ticket = ("--ticket", "federations/lung/tickets/a.ticket")
    return call("site", "run", "--data", "d.npz", *(() if "--ticket" in more else ticket), *more, cwd=cwd)


def fingerprint(home) -> str:
    return home.key.public.fingerprint


def test_a_site_joins_checks_and_runs_with_one_command(tmp_path, home, began):
    done = run(tmp_path, "--coordinator", fingerprint(home))
    assert done.code == 0, done.err
    key = SiteFolder.open(tmp_path / "site").key.public.fingerprint
    assert f"send    site/a.pub to the coordinator, and read out: {key}" in done.out
    assert "wait  network" in done.out  # which is no reason to end: the server may be started after the sites
    assert began == ["site"]


def test_the_same_command_again_goes_on_with_the_same_key(tmp_path, home, began):
    """Whoever restarts a site gives the command from the notes again, perhaps without the ticket's file."""
    run(tmp_path, "--coordinator", fingerprint(home))
    key = SiteFolder.open(tmp_path / "site").key.public.text
    assert run(tmp_path).code == 0
    home.ticket_file("a").unlink()
    assert run(tmp_path).code == 0
    assert SiteFolder.open(tmp_path / "site").key.public.text == key
    assert began == ["site"] * 3


def test_a_ticket_that_was_replaced_on_its_way_makes_no_key_and_connects_to_nobody(tmp_path, home, began):
    other = Coordinator.make(tmp_path / "other", "lung", "127.0.0.1:9", ["a"])
    forged = ("--ticket", str(other.ticket_file("a")))
    for given in (fingerprint(home), fingerprint(home)[:23], fingerprint(home).replace(":", " ").lower()):
        done = run(tmp_path, *forged, "--coordinator", given)
        assert (done.code, done.err[:4]) == (2, "E503"), given
        assert "replaced on its way" in done.err
    done = call("join", str(other.ticket_file("a")), "--coordinator", fingerprint(home), cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E503")
    assert not (tmp_path / "site").exists()
    assert run(tmp_path, "--coordinator", fingerprint(home)[:23].replace(":", "-").lower()).code == 0
    assert began == ["site"]


@pytest.mark.parametrize("given", ["", " ", "AB:CD", "no:ti:nh:ex:aa:aa:aa:aa", "A" * 33, "ｄ" * 32])
def test_what_is_no_fingerprint_or_too_little_of_one_lets_nobody_join(tmp_path, home, began, given):
    short = fingerprint(home)[:20]
    for text in (given, short):
        done = run(tmp_path, *(("--coordinator", text) if text else ()))
        assert (done.code, done.err[:4]) == (2, "E503"), text
    assert not (tmp_path / "site").exists()
    assert not began


@pytest.fixture
def keys(tmp_path, home):
    """a.pub, b.pub and c.pub as they arrive at the coordinator, and their fingerprints."""
    prints = {}
    for site in home.sites:
        joined = SiteFolder.make(tmp_path / f"site-{site}", Ticket.read(home.ticket_file(site)))
        (tmp_path / f"{site}.pub").write_text((joined.folder / f"{site}.pub").read_text())
        prints[site] = joined.key.public.fingerprint
    return prints


def admitted(tmp_path, *more):
    return call("federation", "admit", "lung", "--compared", *more, cwd=tmp_path)


def test_several_keys_are_admitted_with_one_command(tmp_path, home, keys):
    done = admitted(tmp_path, "a.pub", "b.pub", "c.pub")
    assert done.code == 0, done.err
    shown, _, rest = done.out.partition("admitted")
    assert all(f"{site:<20} fingerprint {key}" in shown for site, key in keys.items())
    assert "next      unskew run STUDY.yaml --on lung" in rest
    assert {site: key.fingerprint for site, key in home.admitted().items()} == keys
    lines = [json.loads(line) for line in (home.folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["what"], line["site"], line["key"]) for line in lines] == [
        ("admitted", *k) for k in keys.items()
    ]
    assert not list((home.folder / "tickets").iterdir())  # each was for one admission


def test_a_script_that_does_not_say_that_fingerprints_were_compared_admits_nobody(
    tmp_path, home, keys, monkeypatch
):
    for stdin in (io.StringIO("y\n"), None):
        monkeypatch.setattr(commands.sys, "stdin", stdin)
        done = call("federation", "admit", "lung", "a.pub", "b.pub", cwd=tmp_path)
        assert (done.code, home.admitted()) == (2, {})
        assert "E503 nobody was admitted to lung: nobody is at a terminal" in done.err
        assert done.err.endswith("add --compared.\n")
        assert keys["a"] in done.out
    assert len(list((home.folder / "tickets").iterdir())) == 3


def test_one_key_that_is_wrong_keeps_all_out(tmp_path, home, keys):
    good = (tmp_path / "b.pub").read_text()
    stranger = Coordinator.make(tmp_path / "other", "lung", "127.0.0.1:9", ["b"])
    theirs = SiteFolder.make(tmp_path / "x", Ticket.read(stranger.ticket_file("b")))
    for text in (
        (theirs.folder / "b.pub").read_text(),
        (tmp_path / "a.pub").read_text(),
        "nonsense",
        good[:200],
    ):
        (tmp_path / "b.pub").write_text(text)
        done = admitted(tmp_path, "a.pub", "b.pub", "c.pub")
        assert (done.code, done.err[:4], home.admitted()) == (2, "E503", {}), text
    (tmp_path / "z.pub").write_text(good)
    for wrong in (("z.pub",), ("federations/lung/tickets/c.ticket",)):
        assert admitted(tmp_path, "a.pub", *wrong).err.startswith("E503")
    for wrong in (("none.pub",), ("site-a",)):
        assert admitted(tmp_path, "a.pub", *wrong).err.startswith("E111")
    assert not home.admitted()
    assert not (home.folder / "audit.jsonl").exists()


@pytest.fixture
def lung(tmp_path):
    done = call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b,c", cwd=tmp_path)
    assert done.code == 0, done.err
    return Coordinator.open(tmp_path / "federations/lung")


def test_an_audit_notices_files_that_were_changed_after_the_run(tmp_path, lung):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("metrics.jsonl", "model.safetensors"):
        (run / name).write_text(name)
    journal = Journal(run / JOURNAL_FILE, lung.key)
    journal.note("begun")
    journal.note(
        "done", files={name: disk.sha256(run / name) for name in ("metrics.jsonl", "model.safetensors")}
    )
    journal.close()
    told = call("federation", "audit", "lung", "run", "--json", cwd=tmp_path)
    assert (told.code, json.loads(told.out)["changed"]) == (0, [])
    (run / "metrics.jsonl").write_text("better scores")
    (run / "model.safetensors").unlink()
    for more in ((), ("--json",)):
        told = call("federation", "audit", "lung", "run", *more, cwd=tmp_path)
        assert (told.code, told.err[:4]) == (2, "E201")
        assert "have changed since the run ended: metrics.jsonl, model.safetensors" in told.err
    assert json.loads(told.out)["changed"] == ["metrics.jsonl", "model.safetensors"]


@pytest.mark.flower
def test_the_commands_of_a_federation(tmp_path):
    done = call("federation", "init", "lung", "--host", "h.example:9000", "--sites", "a,b", cwd=tmp_path)
    assert done.code == 0, done.err
    joined = call("join", "federations/lung/tickets/a.ticket", "--json", cwd=tmp_path)
    told = json.loads(joined.out)
    assert call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path).code == 2
    admitted = call("federation", "admit", "lung", "--compared", told["public"], cwd=tmp_path)
    assert told["fingerprint"] in admitted.out
    shown = json.loads(call("federation", "show", "lung", "--json", cwd=tmp_path).out)
    assert shown["sites"] == {"a": told["fingerprint"], "b": None}
    run = call("run", "fedavg", "--on", "lung", "--min-sites", "2", cwd=tmp_path)
    assert (run.code, run.err[:4]) == (2, "E109")
    assert call("run", "fedavg", "--on", "none", cwd=tmp_path).err.startswith("E161")
    assert call("serve", "none", cwd=tmp_path).code == 2
    checked = call("site", "check", "--data", "none.npz", cwd=tmp_path)
    assert checked.code == 2
    assert "FAIL  data" in checked.out


@pytest.mark.flower
def test_a_site_is_told_what_a_study_would_take_from_it(tmp_path):
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 4)
    (tmp_path / "study.yaml").write_text("method: feddpms(alpha=5, width=8)\nmodel: cnn_small\nrounds: 4\n")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", "--json", cwd=tmp_path)
    told = "\n".join(json.loads(done.out)["leaves"])
    assert "weights" in told
    assert "feddpms/z at most" in told
    assert "infinite  end to end" in told
    assert "infinite  against the coordinator" in told
    assert any(f["what"] == "network" and not f["ok"] for f in json.loads(done.out)["found"])
    elsewhere = ("--folder", "no-site-yet")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", *elsewhere, cwd=tmp_path)
    assert done.code == 0
    assert "feddpms/z at most" in done.out
    assert "next  unskew join TICKET" in done.out
    assert call("site", "check", "--data", "d.npz", *elsewhere, cwd=tmp_path).err.startswith("E503")
    (tmp_path / "study.yaml").write_text("method: fedavg_ft\n")
    done = call("site", "check", "--data", "d.npz", "--study", "study.yaml", cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E506")


@pytest.mark.flower
def test_a_folder_that_holds_another_run_is_left_as_it_is(tmp_path):
    """And one whose run is going on: refused before its deploy.json is written over."""
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    call("federation", "admit", "lung", "--compared", "site/a.pub", cwd=tmp_path)
    path = tmp_path / "runs/r"
    path.mkdir(parents=True)
    (path / "deploy.json").write_text("as it was")
    (path / "config.yaml").write_text(
        dump(
            study_rules.study_settings(
                conformance.short_settings(method="fedavg+clip_median", clients=1, lr=0.5)
            )
        )
    )
    on = ("run", "fedavg", "--on", "lung", "--min-sites", "1", "--name", "r", "--lr", "0.1")
    done = call(*on, cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E112"), done.err
    assert "lr was 0.5, is 0.1 now" in done.err
    with RunLock(path):
        for command in (on, ("resume", "runs/r")):
            done = call(*command, cwd=tmp_path)
            assert (done.code, done.err[:4]) == (2, "E110"), done.err
    assert (path / "deploy.json").read_text() == "as it was"


@pytest.mark.flower
def test_a_ticket_and_an_admission_can_be_taken_back(tmp_path):
    call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b", cwd=tmp_path)
    call("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    renewed = call("federation", "ticket", "lung", "a", "--days", "3", cwd=tmp_path)
    assert "for one admission, until" in renewed.out
    refused = call("federation", "admit", "lung", "--compared", "site/a.pub", cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E503")
    assert "unskew federation ticket lung a" in refused.err
    call("join", "federations/lung/tickets/a.ticket", "--folder", "again", cwd=tmp_path)
    assert call("federation", "admit", "lung", "--compared", "again/a.pub", cwd=tmp_path).code == 0
    assert "revoked  a" in call("federation", "revoke", "lung", "a", cwd=tmp_path).out
    assert json.loads(call("federation", "show", "lung", "--json", cwd=tmp_path).out)["sites"]["a"] is None
    assert call("federation", "revoke", "lung", "a", cwd=tmp_path).code == 2
