"""Tickets, keys and who is admitted; sites come and go."""

from __future__ import annotations

import datetime as dt
import json
import stat
from dataclasses import replace

import pytest

from tests.cli.calling import call
from unskew.errors import UsageError
from unskew.federation import tickets
from unskew.federation import tickets as admission
from unskew.federation.front.access import Members
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


@pytest.fixture
def later(monkeypatch):
    """Moves the clock by so many days."""

    real = dt.datetime

    def move(days: float) -> None:
        class Clock(real):
            @classmethod
            def now(cls, tz=None):
                return real.now(tz) + dt.timedelta(days=days)

        monkeypatch.setattr(dt, "datetime", Clock)

    return move


def sent_back(tmp_path, given: Ticket, name: str = "site") -> str:
    """The text of the public key that comes back from whoever has joined with this ticket."""
    return (SiteFolder.make(tmp_path / name, given).folder / f"{given.site}.pub").read_text()


def refusal(call) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_key_made_with_the_ticket_is_admitted_once_and_for_all(tmp_path, home):
    text = sent_back(tmp_path, Ticket.read(home.ticket_file("a")))
    assert admission.admit(home, "a", text).text == home.admitted()["a"].text
    assert not home.ticket_file("a").exists()
    admission.admit(home, "a", text)  # the same key, for example with another bound on its samples
    assert tickets.PROOF not in home.key_file("a").read_text()


def test_a_ticket_is_good_for_one_key(tmp_path, home):
    given = Ticket.read(home.ticket_file("a"))
    first, second = sent_back(tmp_path, given), sent_back(tmp_path, given, "again")
    admission.admit(home, "a", first)
    assert refusal(lambda: admission.admit(home, "a", second)).startswith(
        "E161 a was admitted with another key"
    )
    admission.revoke(home, "a")
    for text in (first, second):
        assert "E503 the ticket of a has been used already" in refusal(
            lambda text=text: admission.admit(home, "a", text)
        )
    assert not home.admitted()
    third = sent_back(tmp_path, admission.invite(home, "a"), "third")
    assert "was not created with the ticket of a" in refusal(lambda: admission.admit(home, "a", first))
    admission.admit(home, "a", third)


def test_an_expired_ticket_is_refused_at_both_ends(tmp_path, home, later):
    given = Ticket.read(home.ticket_file("a"))
    text = sent_back(tmp_path, given)
    later(13.9)
    sent_back(tmp_path, given, "in time")
    later(14.1)
    assert "E503 this ticket expired on" in refusal(lambda: sent_back(tmp_path, given, "late"))
    assert not (tmp_path / "late").exists()
    assert "E503 the ticket of a expired on" in refusal(lambda: admission.admit(home, "a", text))


@pytest.mark.parametrize(
    "change",
    [
        {"host": "198.51.100.7"},
        {"expires": "2999-01-01T00:00:00Z"},
    ],
)
def test_a_ticket_that_was_altered_on_its_way_is_refused_when_a_site_joins(tmp_path, home, change):
    altered = replace(Ticket.read(home.ticket_file("a")), **change)
    assert "E503 this ticket was altered" in refusal(lambda: sent_back(tmp_path, altered))
    assert not (tmp_path / "site").exists()
    for taken in ("signature", "secret", "expires"):
        bare = replace(altered, **{taken: ""})
        assert "E503 this ticket has no secret" in refusal(lambda bare=bare: sent_back(tmp_path, bare))


def test_a_ticket_that_somebody_signed_anew_is_refused_when_its_key_comes_back(tmp_path, home):
    """Whoever reads the mail knows the secret: they can put their own coordinator in, but not keep the
    proof."""
    theirs = PrivateKey.make()
    given = replace(Ticket.read(home.ticket_file("a")), host="198.51.100.7", coordinator=theirs.public.text)
    text = sent_back(tmp_path, given.signed(theirs))
    assert "E503 this key was not created with the ticket of a" in refusal(
        lambda: admission.admit(home, "a", text)
    )
    assert not home.admitted()


def test_a_key_without_a_proof_or_with_that_of_another_site_is_refused(tmp_path, home):
    text = sent_back(tmp_path, Ticket.read(home.ticket_file("a")))
    bare = " ".join(text.split()[:2])
    assert "E503 this public key carries no proof" in refusal(lambda: admission.admit(home, "a", bare))
    assert "E503 this key was not created" in refusal(lambda: admission.admit(home, "b", text))
    other = PrivateKey.make().public.text
    assert "E503 this key was not created" in refusal(
        lambda: admission.admit(home, "a", f"{other} {text.split()[2]}")
    )
    assert "E503 this key was not" in refusal(lambda: admission.admit(home, "a", f"{bare} {tickets.PROOF}é"))
    assert "E503 lung has no site 'z'" in refusal(lambda: admission.admit(home, "z", text))
    assert not home.admitted()


@pytest.fixture
def joined(tmp_path, home):
    return SiteFolder.make(tmp_path / "site", Ticket.read(home.folder / "tickets" / "a.ticket"))


def test_private_keys_are_for_their_owner_alone(home, joined):
    for path in (home.folder / "coordinator.key", home.folder / "server.key", joined.folder / "site.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(home.folder.glob("ca.key"))
    folders = (
        home.folder,
        joined.folder,
        *(home.folder / name for name in ("tickets", "admitted", "flower")),
    )
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    for mode in (0o640, 0o604):
        (joined.folder / "site.key").chmod(mode)
        with pytest.raises(UsageError, match=r"E521 .* chmod 600"):
            _ = joined.key


def test_what_cannot_be_a_federation_is_refused(tmp_path, home):
    for host, sites, code in (
        ("bad host", ["a"], "E503"),
        ("h:99999", ["a"], "E503"),
        ("h", ["a", "a"], "E503"),
        ("h", [], "E503"),
        ("h", ["../a"], "E109"),
    ):
        with pytest.raises(UsageError, match=code):
            Coordinator.make(tmp_path / "other", "x", host, sites)
    with pytest.raises(UsageError, match="E109"):
        Coordinator.make(tmp_path / "other", "../x", "h", ["a"])
    assert not (tmp_path / "other").exists()
    with pytest.raises(UsageError, match="E161"):
        Coordinator.make(home.folder, "lung", "h", ["a"])
    with pytest.raises(UsageError, match="E161 there is no federation"):
        Coordinator.open(tmp_path / "none")


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("federation", "lung\x1b[8m", "E109"),  # hides the text after it, such as the fingerprints
        ("federation", "lung\n", "E109"),
        ("port", -1, "E503"),
        ("port", 0, "E503"),
        ("port", 65536, "E503"),
        ("port", "8123", "E503"),
        ("secret", 7, "E503"),
    ],
)
def test_a_ticket_with_an_invalid_field_is_refused_where_it_is_read(tmp_path, home, field, value, code):
    facts = json.loads(home.ticket_file("a").read_text())
    (tmp_path / "t").write_text(json.dumps({**facts, field: value}))
    with pytest.raises(UsageError, match=code):
        Ticket.read(tmp_path / "t")


@pytest.fixture
def lung(tmp_path):
    return Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:8123", ["a", "b", "c"])


def admit(home, site, folder):
    joined = SiteFolder.make(folder / f"site-{site}", Ticket.read(home.ticket_file(site)))
    (folder / f"{site}.pub").write_text((joined.folder / f"{site}.pub").read_text())
    done = call("federation", "admit", home.name, "--compared", f"{site}.pub", cwd=folder)
    assert done.code == 0, done.err
    return joined


def test_a_fourth_site_needs_no_new_federation(tmp_path, lung):
    front = Members(lung)
    admit(lung, "a", tmp_path)
    done = call("federation", "add", "lung", "d", cwd=tmp_path)
    assert (done.code, "lung, which has 4 sites now" in done.out) == (0, True), done.text
    joined = admit(lung, "d", tmp_path)
    assert Coordinator.open(lung.folder).sites == ("a", "b", "c", "d")
    assert list(lung.admitted()) == ["a", "d"]
    assert front.read()
    assert front.site(joined.key.public.fingerprint) == "d"
    journal = [json.loads(line) for line in (lung.folder / "audit.jsonl").read_text().splitlines()]
    assert [e["what"] for e in journal] == ["admitted", "added", "ticket", "admitted"]
    assert call("federation", "audit", "lung", cwd=tmp_path).code == 0
    for name, code in (("d", "E161"), ("../d", "E109")):
        assert call("federation", "add", "lung", name, cwd=tmp_path).err.startswith(code)


def test_a_site_can_be_removed_with_its_key(tmp_path, lung):
    joined = admit(lung, "b", tmp_path)
    front = Members(lung)
    assert front.site(joined.key.public.fingerprint) == "b"
    assert "left: a, c" in call("federation", "remove", "lung", "b", cwd=tmp_path).out
    assert front.read()
    assert front.site(joined.key.public.fingerprint) == ""
    assert Coordinator.open(lung.folder).admitted() == {}
    assert not lung.ticket_file("b").exists()
    admission.remove_site(lung.now(), "a")
    for name in ("b", "c"):
        with pytest.raises(UsageError, match="E503"):
            admission.remove_site(lung.now(), name)
