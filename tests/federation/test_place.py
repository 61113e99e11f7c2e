"""A key that is used in two places: a copied folder of a site, or a cloned machine."""

from __future__ import annotations

import shutil
import socket
import uuid

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation import certificates
from unskew.federation.front.access import SILENT_S, SiteHolders
from unskew.federation.site.site_folder import BITS, SiteFolder, place_of
from unskew.federation.tickets import Coordinator, Ticket


@pytest.fixture
def joined(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:9", ["a"])
    return SiteFolder.make(tmp_path / "site", Ticket.read(home.ticket_file("a")))


def test_a_place_is_the_same_after_a_restart_or_a_move_and_another_for_a_copy_or_a_clone(
    joined, tmp_path, monkeypatch
):
    here = place_of(joined.folder)
    assert 0 < here < 1 << (BITS + 1)
    assert place_of(joined.folder) == here
    shutil.copytree(joined.folder, tmp_path / "copy")
    assert place_of(tmp_path / "copy") != here
    joined.folder.rename(tmp_path / "moved")
    assert place_of(tmp_path / "moved") == here
    with monkeypatch.context() as clone:
        clone.setattr(socket, "gethostname", lambda: "another")
        assert place_of(tmp_path / "moved") != here
    with monkeypatch.context() as clone:
        clone.setattr(uuid, "getnode", lambda: uuid.UUID(int=7).node)
        assert place_of(tmp_path / "moved") != here


def test_a_number_that_python_has_made_up_for_a_missing_network_card_does_not_count(joined, monkeypatch):
    places = set()
    for made_up in (1 << 40 | 5, 1 << 40 | 6):
        monkeypatch.setattr(uuid, "getnode", lambda made_up=made_up: made_up)
        places.add(place_of(joined.folder))
    assert len(places) == 1


def test_a_sites_certificate_says_from_where_its_key_is_used(joined, monkeypatch):
    made = []
    monkeypatch.setattr(certificates, "_load", lambda context, chain: made.append(chain))
    joined.tls()
    certificate = certificates.x509.load_pem_x509_certificate(made[0])
    der = certificate.public_bytes(certificates.serialization.Encoding.DER)
    assert certificates.place_in(der) == place_of(joined.folder)
    assert certificates.certified_fingerprint(der) == joined.key.public.fingerprint


def test_one_place_speaks_for_a_site_until_nothing_was_heard_of_it_for_a_while():
    now = [100.0]
    holding = SiteHolders(lambda: now[0])
    assert holding.may_speak("a", 1)
    assert not holding.may_speak("a", 2)
    assert holding.may_speak("b", 2), "another site is another matter"
    now[0] += SILENT_S - 1
    assert holding.may_speak("a", 1)
    now[0] += SILENT_S - 1
    assert not holding.may_speak("a", 2), "it was heard of meanwhile"
    now[0] += 1
    assert holding.may_speak("a", 2)
    assert not holding.may_speak("a", 1), "whoever was silent so long has lost the name"
