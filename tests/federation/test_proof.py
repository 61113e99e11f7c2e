"""Which keys TLS lets through. Both ends run in this process, without a network."""

from __future__ import annotations

import builtins
import io
import os
import ssl
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)

from unskew.federation import certificates
from unskew.federation.protocol.identity import PrivateKey

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


def written_while(monkeypatch, work) -> list[str]:
    """The files below a folder of any disk that were opened for writing, by whatever way, while something
    works."""
    paths: list[str] = []

    def watched(opening):
        def opened(path, *arguments, **named):
            mode = named.get("mode", arguments[0] if arguments else "r")
            writes = mode & (os.O_WRONLY | os.O_RDWR) if isinstance(mode, int) else set(mode) & set("wax+")
            if writes and isinstance(path, str | os.PathLike):
                paths.append(os.fspath(path))
            return opening(path, *arguments, **named)

        return opened

    with monkeypatch.context() as patch:
        for module, name in ((os, "open"), (io, "open"), (builtins, "open")):
            patch.setattr(module, name, watched(getattr(module, name)))
        work()
    return [path for path in paths if not path.startswith("/proc/self/fd/")]


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_the_key_is_never_copied_to_a_disk(server, monkeypatch, tmp_path):
    """Somebody who is killed in the middle would leave it there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    authority = (server / "ca.crt").read_text()
    assert written_while(monkeypatch, lambda: certificates.client_context(authority, "a", A)) == []
    monkeypatch.setattr(certificates, "sys", SimpleNamespace(platform="another"))
    written = written_while(monkeypatch, lambda: certificates.client_context(authority, "a", A))
    assert any(Path(path).parent == tmp_path for path in written), (
        "elsewhere it is, so this test would see it here"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_admitted_site_lends_its_key_to_nobody(server):
    """Its anchor may sign certificates; the one that counts is that of the key which was used."""
    issuer = certificates.Issuer(certificates.x509_name(f"key {A.public.fingerprint}"), A.key)
    lent = issuer.certificate(certificates.x509_name("b"), STRANGER.public.key, certificates.LEAF)
    assert (
        certificates.certified_fingerprint(lent.public_bytes(certificates.serialization.Encoding.DER))
        == STRANGER.public.fingerprint
    )
    assert certificates.certified_fingerprint(None) == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_refused(server):
    assert (
        certificates.server_context(server / "server.crt", server / "server.key", []).minimum_version
        == ssl.TLSVersion.TLSv1_2
    )
    context = client(server, A)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        greeted(server, [A.public], context)
