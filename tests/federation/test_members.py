"""Whom the front lets in: what the folder of a federation says at each look, and what TLS then demands."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

from unskew.federation import certificates
from unskew.federation.front.access import Members
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.tickets import Coordinator


@pytest.fixture
def home(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", ["a", "b"])
    home.admit("a", PrivateKey.make().public)
    return home


def key_of(home, site):
    return home.admitted()[site].fingerprint


def test_a_look_at_what_has_not_changed_makes_nothing_new(home):
    members = Members(home)
    context = members.context
    assert not members.read()
    assert members.context is context
    assert members.site(key_of(home, "a")) == "a"
    assert members.site("") == members.site("b") == ""


def test_every_change_makes_new_demands_of_the_next_connection(home):
    members = Members(home)
    contexts = [members.context]
    home.admit("b", PrivateKey.make().public)
    assert members.read()
    contexts.append(members.context)
    assert members.site(key_of(home, "b")) == "b"
    certificates.renew(home.folder)
    assert members.read()
    contexts.append(members.context)
    gone = key_of(home, "b")
    home.key_file("b").unlink()
    assert members.read()
    contexts.append(members.context)
    assert members.site(gone) == ""
    assert len(set(map(id, contexts))) == 4
    assert not members.read()


def test_a_key_that_is_replaced_is_out_and_the_new_one_in(home):
    members, old, new = Members(home), key_of(home, "a"), PrivateKey.make().public
    home.key_file("a").write_text(new.text)
    assert members.read()
    assert (members.site(old), members.site(new.fingerprint)) == ("", "a")


@pytest.mark.parametrize("damage", [b"", b"ecdsa nonsense", b"\xff\xfe"])
def test_a_damaged_key_lets_nobody_in_and_keeps_nobody_else_out(home, damage):
    home.admit("b", PrivateKey.make().public)
    members, lost = Members(home), key_of(home, "b")
    home.key_file("b").write_bytes(damage)
    assert members.read()
    assert members.site(lost) == ""
    assert members.site(Coordinator.open(home.folder).key.public.fingerprint) == ""
    home.key_file("b").unlink()
    assert members.site(key_of(home, "a")) == "a"


def test_a_change_that_could_not_be_taken_is_taken_at_the_next_look(home, monkeypatch):
    """While the certificate is renewed its key may not be there yet."""
    members = Members(home)
    home.admit("b", PrivateKey.make().public)
    real = certificates.server_context

    def not_yet(*given):
        raise OSError("no key yet")

    monkeypatch.setattr(certificates, "server_context", not_yet)
    for _ in range(2):
        with pytest.raises(OSError, match="no key yet"):
            members.read()
    assert members.site(key_of(home, "b")) == ""
    monkeypatch.setattr(certificates, "server_context", real)
    assert members.read()
    assert members.site(key_of(home, "b")) == "b"


def test_without_tls_nothing_is_demanded_and_no_certificate_is_read(tmp_path):
    home = Coordinator.make(tmp_path / "open", "lung", "127.0.0.1:1", ["a"], tls=False)
    home.admit("a", PrivateKey.make().public)
    members = Members(home)
    assert members.context is None
    assert members.site(key_of(home, "a")) == "a"
    assert not (home.folder / "server.crt").exists()
