"""Addresses; which keys TLS lets through, and the one place in which a key is used."""

from __future__ import annotations

import pytest

from unskew.errors import UsageError
from unskew.federation.addresses import (
    host_port,
    origin,
    parse_address,
)
from unskew.federation.tickets import Coordinator, Ticket

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)
pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

import shutil
import socket
import ssl
import uuid

from unskew.federation import certificates
from unskew.federation.front.access import SILENT_S, Members, SiteHolders
from unskew.federation.protocol.signed_messages import PrivateKey
from unskew.federation.site.site_folder import BITS, SiteFolder, place_of

A, B, STRANGER = PrivateKey.make(), PrivateKey.make(), PrivateKey.make()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lung")
    certificates.certify(folder, "lung", "127.0.0.1")
    return folder


def greeted(folder, admitted, client: ssl.SSLContext) -> str:
    """The fingerprint of the key that the server has seen proven. Raises ssl.SSLError if it refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = certificates.server_context(folder / "server.crt", folder / "server.key", admitted)
    there = context.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in (here, there):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    return certificates.certified_fingerprint(there.getpeercert(binary_form=True))


def client(folder, key: PrivateKey, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = certificates.client_context((folder / "ca.crt").read_text(), "a", key)
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_an_admitted_key_is_let_in(server, version):
    admitted = [A.public, B.public]
    for key in (A, B):
        assert greeted(server, admitted, client(server, key, version)) == key.public.fingerprint
    with pytest.raises(ssl.SSLError):
        greeted(server, admitted, client(server, STRANGER, version))
    with pytest.raises(ssl.SSLError):
        greeted(server, [], client(server, A, version))
    with pytest.raises(ssl.SSLError):
        greeted(server, [B.public], client(server, A, version))


def test_a_certificate_that_names_an_admitted_key_does_not_replace_its_proof(server, monkeypatch):
    monkeypatch.setattr(
        certificates, "_issuer", lambda _: certificates.x509_name(f"key {A.public.fingerprint}")
    )
    forged = client(server, STRANGER)
    monkeypatch.undo()
    with pytest.raises(ssl.SSLError):
        greeted(server, [A.public], forged)


def test_who_shows_no_certificate_or_one_of_another_authority_is_refused(server, tmp_path):
    bare = ssl.create_default_context(cadata=(server / "ca.crt").read_text())
    with pytest.raises(ssl.SSLError):
        greeted(server, [A.public], bare)
    certificates.certify(tmp_path, "other", "127.0.0.1")
    bare.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with pytest.raises(ssl.SSLError):
        greeted(server, [A.public], bare)


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


@pytest.fixture
def home(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", ["a", "b"])
    home.admit("a", PrivateKey.make().public)
    return home


def key_of(home, site):
    return home.admitted()[site].fingerprint


def test_every_change_makes_new_demands_of_the_next_connection(home):
    members = Members(home)
    contexts = [members.context]
    home.admit("b", PrivateKey.make().public)
    assert members.read()
    contexts.append(members.context)
    assert members.site(key_of(home, "b")) == "b"
    gone = key_of(home, "b")
    home.key_file("b").unlink()
    assert members.read()
    contexts.append(members.context)
    assert members.site(gone) == ""
    assert len(set(map(id, contexts))) == 3
    assert not members.read()


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


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fl.example.org", "fl.example.org", 8000),
        ("fl.example.org:9092", "fl.example.org", 9092),
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("[::1]:9092", "::1", 9092),
        ("[2001:db8::7]", "2001:db8::7", 8000),
        ("2001:db8::7", "2001:db8::7", 8000),
    ],
)
def test_a_host_is_read_in_every_form_in_which_people_write_it(text, host, port):
    assert parse_address(text, 8000) == (host, port)
    assert parse_address(host_port(host, port), 1) == (host, port)


NO_HOSTS = (
    "::1:99999 [::1 ::1]:9092 [::1]9092 [fl.example.org]:1 [127.0.0.1]:1 [fe80::1%eth0]:1 a:b:c h: h:0 h:65536"
    " h:+1 :9092 []:1 h/x"
)


@pytest.mark.parametrize("text", [*NO_HOSTS.split(), ""])
def test_what_is_no_host_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="E503 --host takes"):
        parse_address(text, 8000)


def test_whoever_has_a_network_of_ipv6_is_counted_once():
    """Or each of its addresses could hold as many unproven connections as one of IPv4."""
    assert origin("2001:db8:1:2::3") == origin("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert origin("2001:db8:1:3::3") != origin("2001:db8:1:2::3")
    assert origin("::ffff:10.0.0.7") == origin("10.0.0.7") == "10.0.0.7"
    assert origin("::ffff:127.0.0.1") == "127.0.0.1"
    assert origin("::1") == "::1"
