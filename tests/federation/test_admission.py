"""From a ticket to an admitted key, and what must not get there. Each refusal is one sentence."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation import admission, tickets
from unskew.federation.protocol.identity import PrivateKey
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
    """N9: the second who joins with it is refused, and so is a third once the first has been revoked."""
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
    """N9: a ticket was good for ever."""
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
        {"port": 9},
        {"site": "b"},
        {"expires": "2999-01-01T00:00:00Z"},
        {"secret": "x"},
    ],
)
def test_a_ticket_that_was_altered_on_its_way_is_refused_when_a_site_joins(tmp_path, home, change):
    """N9: whatever was altered."""
    altered = replace(Ticket.read(home.ticket_file("a")), **change)
    assert "E503 this ticket was altered" in refusal(lambda: sent_back(tmp_path, altered))
    assert not (tmp_path / "site").exists()
    for taken in ("signature", "secret", "expires"):
        bare = replace(altered, **{taken: ""})
        assert "E503 this ticket has no secret" in refusal(lambda bare=bare: sent_back(tmp_path, bare))


def test_a_ticket_that_somebody_signed_anew_is_refused_when_its_key_comes_back(tmp_path, home):
    """N9: whoever reads the mail knows the secret: they can put their own coordinator in, but not keep the
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


def test_new_tickets_and_revocations_of_the_wrong_site_are_refused(tmp_path, home):
    admission.admit(home, "a", sent_back(tmp_path, Ticket.read(home.ticket_file("a"))))
    assert "E161 a is admitted" in refusal(lambda: admission.invite(home, "a"))
    assert "E503 lung has no site 'z'" in refusal(lambda: admission.invite(home, "z"))
    assert "E109 --days takes 1 to 365" in refusal(lambda: admission.invite(home, "b", 0))
    assert "E161 b is not admitted" in refusal(lambda: admission.revoke(home, "b"))


@pytest.mark.parametrize(
    "change",
    [
        {"signature": "zz"},
        {"expires": "soon"},
        {"expires": "2026-01-01T00:00:00"},
        {"host": "bad host"},
        {"host": "h/../x"},
        {"port": "8123"},
    ],
)
def test_a_ticket_with_fields_that_are_not_what_they_should_be_is_no_ticket(tmp_path, home, change):
    facts = json.loads(home.ticket_file("a").read_text())
    (tmp_path / "t").write_text(json.dumps(facts | change))
    assert "E503" in refusal(lambda: Ticket.read(tmp_path / "t"))


def test_a_ticket_for_a_site_that_could_be_a_path_is_refused(tmp_path, home):
    """Files at the site are called after it."""
    (tmp_path / "t").write_text(json.dumps(json.loads(home.ticket_file("a").read_text()) | {"site": "../x"}))
    assert "E109" in refusal(lambda: Ticket.read(tmp_path / "t"))
