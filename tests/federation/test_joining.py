"""A site joins and runs with one command, several keys are admitted with one, and people still compare what
they must."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.cli import admit
from unskew.cli.join import fingerprint_source
from unskew.errors import UsageError
from unskew.federation import admission
from unskew.federation.site import processes, site_checks, terminal
from unskew.federation.site.handshake import Finding
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

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
    return home.fingerprints["coordinator"]


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


def test_a_folder_of_another_ticket_is_left_as_it_is(tmp_path, home, began):
    run(tmp_path, "--coordinator", fingerprint(home))
    before = (tmp_path / "site/ticket.json").read_text()
    done = run(tmp_path, "--ticket", "federations/lung/tickets/b.ticket")
    assert (done.code, done.err[:4]) == (2, "E161")
    assert "belongs to site a of lung" in done.err
    assert ((tmp_path / "site/ticket.json").read_text(), len(began)) == (before, 1)
    done = run(tmp_path, "--ticket", "nowhere", "--folder", "new", "--coordinator", fingerprint(home))
    assert (done.code, done.err[:4]) == (2, "E111")


def test_a_ticket_that_was_replaced_on_its_way_makes_no_key_and_connects_to_nobody(tmp_path, home, began):
    """N9: it is signed, by a key and for an address of the attacker's own."""
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
def test_what_is_no_fingerprint_or_too_little_of_one_lets_nobody_join(
    tmp_path, home, began, given, monkeypatch
):
    short = fingerprint(home)[:20]
    monkeypatch.setattr(terminal, "has_terminal", lambda: False)
    for text in (given, short):
        done = run(tmp_path, *(("--coordinator", text) if text else ()))
        assert (done.code, done.err[:4]) == (2, "E503"), text
    assert not (tmp_path / "site").exists()
    assert not began


def test_somebody_at_a_terminal_types_the_fingerprint_which_is_not_shown_before(
    tmp_path, home, began, monkeypatch
):
    asked = []
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda text: asked.append(text) or fingerprint(home))
    monkeypatch.setattr(terminal, "decide_at_terminal", lambda *_: None)
    done = run(tmp_path)
    assert (done.code, len(asked)) == (0, 1), done.err
    assert fingerprint(home) not in done.out.split("joined")[0]
    assert "new ones are asked about here" in done.out


def test_a_site_that_joined_unseen_is_held_against_the_fingerprint_too(tmp_path, home, began):
    other = Coordinator.make(tmp_path / "other", "lung", "127.0.0.1:9", ["a"])
    SiteFolder.make(tmp_path / "site", Ticket.read(other.ticket_file("a")))
    again = ("--ticket", str(other.ticket_file("a")), "--coordinator", fingerprint(home))
    for more in (again, ("--ticket", "gone", "--coordinator", fingerprint(home))):
        assert run(tmp_path, *more).err.startswith("E503")
    assert not began


@pytest.mark.parametrize(("what", "code"), [("data", 3), ("policy", 2), ("certificate", 2), ("clock", 2)])
def test_a_check_that_cannot_come_right_by_waiting_ends_the_command(
    tmp_path, home, began, monkeypatch, what, code
):
    monkeypatch.setattr(
        site_checks, "check_site", lambda *_, **__: [*FINE[:1], Finding(what, False, "wrong")]
    )
    done = run(tmp_path, "--coordinator", fingerprint(home))
    assert done.code == code
    assert f"FAIL  {what}" in done.out
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
    done = admitted(tmp_path, "a.pub", "b.pub", "c.pub", "--samples", "a=6000, c=800")
    assert done.code == 0, done.err
    shown, _, rest = done.out.partition("admitted")
    assert all(f"{site:<20} fingerprint {key}" in shown for site, key in keys.items())
    assert "next      unskew run STUDY.yaml --on lung" in rest
    assert {site: key.fingerprint for site, key in home.admitted().items()} == keys
    assert admission.read_bounds(home) == {"a": 6000, "c": 800}
    lines = [json.loads(line) for line in (home.folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["what"], line["site"], line["key"]) for line in lines] == [
        ("admitted", *k) for k in keys.items()
    ]
    assert not list((home.folder / "tickets").iterdir())  # each was for one admission


def test_a_person_at_a_terminal_sees_every_fingerprint_before_anybody_is_admitted(
    tmp_path, home, keys, monkeypatch
):
    monkeypatch.setattr(admit.sys.stdin, "isatty", lambda: True, raising=False)
    answers, asked = iter([False, True]), []
    monkeypatch.setattr("typer.confirm", lambda text: asked.append(text) or next(answers))
    no = call("federation", "admit", "lung", "a.pub", "b.pub", cwd=tmp_path)
    assert (no.code, no.err[:4], home.admitted()) == (2, "E503", {})
    assert all(keys[site] in no.out for site in "ab")
    assert call("federation", "admit", "lung", "a.pub", cwd=tmp_path).code == 0
    assert admitted(tmp_path, "b.pub").code == 0
    assert list(home.admitted()) == ["a", "b"]
    assert asked == [
        f"Has {who} read out this fingerprint, over the telephone or in person?"
        for who in ("every site", "a")
    ]


def test_a_script_that_does_not_say_that_fingerprints_were_compared_admits_nobody(
    tmp_path, home, keys, monkeypatch
):
    """Whoever piped something into it, or ran it without a terminal, admitted whatever key had come."""
    for stdin in (io.StringIO("y\n"), None):
        monkeypatch.setattr(admit.sys, "stdin", stdin)
        done = call("federation", "admit", "lung", "a.pub", "b.pub", cwd=tmp_path)
        assert (done.code, home.admitted()) == (2, {})
        assert "E503 nobody was admitted to lung: nobody is at a terminal" in done.err
        assert done.err.endswith("add --compared.\n")
        assert keys["a"] in done.out
    assert len(list((home.folder / "tickets").iterdir())) == 3


def test_one_key_that_is_wrong_keeps_all_out(tmp_path, home, keys):
    """Of three files one was swapped, belongs to nobody, is not there, or comes twice under two names."""
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


def test_two_sites_cannot_have_one_key_even_if_it_was_made_for_both(tmp_path, home, keys):
    """One machine joins as two sites, with both tickets and one key."""
    key = SiteFolder.open(tmp_path / "site-a").key.public
    a, b = ("".join((tmp_path / f"{s}.pub").read_text().split()[-1:]) for s in "ab")
    ticket = Ticket.read(home.ticket_file("b"))
    (tmp_path / "b.pub").write_text(f"{key.text} unskew-ticket={ticket.proof(key)}\n")
    assert a != b
    done = admitted(tmp_path, "a.pub", "b.pub")
    assert (done.code, home.admitted()) == (2, {})
    assert "two of these files hold the same key" in done.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--samples", "a=6000,d=1"), "E109 --samples names no site whose key is here: 'd'"),
        (("--samples", "a=6000,a=7000"), "E109 --samples names twice 'a'"),
        (("--samples", "a=many"), "E109 --samples takes a whole number above 0"),
        (("--samples", "-5"), "E109 --samples takes a whole number above 0"),
        (("--samples", "a=²"), "E109 --samples takes a whole number above 0"),
        (("--site", "a"), "E109 --site is for a single key"),
        (("site-a/a.pub",), "E109 two of these files are called a.pub"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_admitted(tmp_path, home, keys, more, said):
    done = admitted(tmp_path, "a.pub", "b.pub", *more)
    assert (done.code, home.admitted()) == (2, {})
    assert said in done.err


def test_one_number_bounds_every_key_of_the_command(tmp_path, home, keys):
    admitted(tmp_path, "a.pub", "b.pub", "--samples", "500")
    assert admission.read_bounds(home) == {"a": 500, "b": 500}


def test_a_ticket_signed_again_for_another_authority_is_another_ticket(tmp_path, home, began):
    """The fingerprint covers the whole ticket: whoever has not the coordinator's key cannot change its
    address."""
    ticket = Ticket.read(home.ticket_file("a"))
    replace(ticket, host="evil.example").write(tmp_path / "t")
    done = run(tmp_path, "--ticket", "t", "--coordinator", fingerprint(home))
    assert (done.code, "altered" in done.err, began) == (2, True, [])


def test_what_goes_back_is_the_public_key_and_both_fingerprints_are_told(tmp_path, home):
    """Into the folder that was asked for. Without the coordinator's fingerprint people are told what to
    compare."""
    ticket, prints = str(home.ticket_file("a")), home.fingerprints
    for folder, given in (("first place", ()), ("second", ("--coordinator", fingerprint(home)))):
        done = call("join", ticket, "--folder", folder, *given, cwd=tmp_path)
        assert done.code == 0, done.err
        assert f"send    {folder}/a.pub to the coordinator" in done.out
        key = SiteFolder.open(tmp_path / folder).key.public
        assert (tmp_path / folder / "a.pub").read_text().startswith(key.text)
        assert done.out.count(key.fingerprint) == 1
        assert ("Have the coordinator read these out" in done.out) == (not given)
    assert not (tmp_path / "site").exists()
    done = call("join", ticket, "--folder", "first place", cwd=tmp_path)
    assert done.code == 2
    done = call("join", ticket, "--folder", "a third", cwd=tmp_path)
    assert done.out.splitlines()[-1] == "next    unskew site check --data PATH --folder 'a third'"
    told = json.loads(call("join", ticket, "--folder", "fourth", "--json", cwd=tmp_path).out)
    key = SiteFolder.open(tmp_path / "fourth").key.public
    assert told == {"site": "a", "public": "fourth/a.pub", "fingerprint": key.fingerprint, **prints}


def test_nobody_is_asked_where_nobody_may_be_asked(monkeypatch):
    """A service that starts a site has perhaps a terminal, and nobody at it."""
    asked = []
    monkeypatch.setattr("typer.prompt", lambda text: asked.append(text) or "typed")
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    assert fingerprint_source("AB:CD", asks=True)() == "AB:CD"
    assert not asked
    assert fingerprint_source("", asks=True)() == "typed"
    with pytest.raises(UsageError, match=r"E503 .*add --coordinator FINGERPRINT"):
        fingerprint_source("", asks=False)()
    monkeypatch.setattr(terminal, "has_terminal", lambda: False)
    with pytest.raises(UsageError, match=r"E503 .*add --coordinator FINGERPRINT"):
        fingerprint_source("", asks=True)()
    assert len(asked) == 1
