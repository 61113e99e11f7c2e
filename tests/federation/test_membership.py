"""Sites come and go, keys are revoked and certificates renewed, and nobody has to begin anew."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from tests.cli.calling import call
from tests.federation import fake
from tests.federation.test_absent import sites_of, told
from tests.federation.test_doctor import Listener, joined_at
from unskew.errors import UsageError
from unskew.federation import addresses as federation_addresses
from unskew.federation import admission, certificates
from unskew.federation.admission import AdmittedKeys, Renewal
from unskew.federation.front.access import Members
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.site import handshake
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:8123", ["a", "b", "c"])


def admit(home, site, folder):
    joined = SiteFolder.make(folder / f"site-{site}", Ticket.read(home.ticket_file(site)))
    (folder / f"{site}.pub").write_text((joined.folder / f"{site}.pub").read_text())
    done = call("federation", "admit", home.name, "--compared", f"{site}.pub", cwd=folder)
    assert done.code == 0, done.err
    return joined


def test_a_fourth_site_needs_no_new_federation(tmp_path, home):
    """N14: a server that runs lets it in as soon as it is admitted, and the others notice nothing."""
    running, front = AdmittedKeys(home), Members(home)
    assert len(running) == len(list(running)) == len(home.admitted()) < len(home.sites)
    admit(home, "a", tmp_path)
    done = call("federation", "add", "lung", "d", cwd=tmp_path)
    assert (done.code, "lung, which has 4 sites now" in done.out) == (0, True), done.text
    joined = admit(home, "d", tmp_path)
    assert Coordinator.open(home.folder).sites == ("a", "b", "c", "d")
    assert list(running) == ["a", "d"]
    assert front.read()
    assert front.site(joined.key.public.fingerprint) == "d"
    journal = [json.loads(line) for line in (home.folder / "audit.jsonl").read_text().splitlines()]
    assert [(e["what"], e["site"]) for e in journal] == [("admitted", "a"), ("added", "d"), ("admitted", "d")]
    assert call("federation", "audit", "lung", cwd=tmp_path).code == 0
    for name, code in (("d", "E161"), ("../d", "E109")):
        assert call("federation", "add", "lung", name, cwd=tmp_path).err.startswith(code)


def test_a_site_can_be_removed_with_its_key(tmp_path, home):
    joined = admit(home, "b", tmp_path)
    front = Members(home)
    assert front.site(joined.key.public.fingerprint) == "b"
    assert "left: a, c" in call("federation", "remove", "lung", "b", cwd=tmp_path).out
    assert front.read()
    assert front.site(joined.key.public.fingerprint) == ""
    assert Coordinator.open(home.folder).admitted() == {}
    assert not home.ticket_file("b").exists()
    admission.remove_site(home.now(), "a")
    for name in ("b", "c"):
        with pytest.raises(UsageError, match="E503"):
            admission.remove_site(home.now(), name)


def test_a_site_that_is_added_again_begins_without_a_key_or_a_bound(home):
    home.admit("b", PrivateKey.make().public)
    admission.write_bound(home, "b", 6000)
    admission.remove_site(home, "b")
    admission.add_site(home.now(), "b")
    assert Coordinator.open(home.folder).admitted() == {}
    assert admission.read_bounds(home.now()) == {}
    assert home.ticket_file("b").exists()


def test_a_key_that_is_revoked_is_out_at_once(tmp_path):
    """In the middle of a run: neither asked nor believed any more."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", list(fake.KEYS)[:5])
    for site in home.sites:
        home.admit(site, fake.KEYS[site].public)

    def shown(state, done):
        if done.t == 1:
            home.key_file("s1").unlink()

    def revoke(site, asked, honest):
        request = json.loads(asked.text)
        if (site, request["kind"], request["t"]) == ("s3", "train", 2):
            home.key_file("s3").unlink()
        return honest

    loop, _, _ = fake.run(
        tmp_path / "run",
        fake.Direct(sites_of(tmp_path), revoke),
        fake.small("fedavg"),
        shown=shown,
        keys=AdmittedKeys(home),
    )
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered == [[0, 1, 2, 3, 4], [0, 2, 4], [0, 2, 4]]
    assert told(tmp_path / "run", "E310") == [
        (2, "s1 is no longer admitted and was not asked."),
        (2, "s3: its admission was taken back meanwhile. Reply dropped."),
        (3, "s1 is no longer admitted and was not asked."),
        (3, "s3 is no longer admitted and was not asked."),
    ]


def certificate(home):
    return certificates.read(home.folder / "server.crt")


def test_a_certificate_is_renewed_and_no_site_joins_again(tmp_path, home):
    """N14: certificates ended after 365 days, and with them the federation."""
    from cryptography import x509

    joined = joined_at(tmp_path, home, 8123)
    done = call("federation", "renew", "lung", "--also", "fl.example.org,10.0.0.7,fd00::7", cwd=tmp_path)
    assert (done.code, done.out) == (
        0,
        f"renewed  valid until {certificate(home).not_valid_after_utc:%Y-%m-%d}\n",
    )
    names = certificate(home).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses[:3] == ["127.0.0.1", "::1", "10.0.0.7"]
    assert "fd00::7" in addresses
    noted = json.loads((home.folder / "audit.jsonl").read_text().splitlines()[-1])
    assert (noted["what"], noted["hosts"]) == ("renewed", ["fl.example.org", "10.0.0.7", "fd00::7"])
    assert noted["certificate"] == f"{certificate(home).serial_number:x}"
    listener = Listener(home)
    again = SiteFolder.open(joined.folder)
    line = federation_addresses.connect("127.0.0.1", listener.port, True, 5)
    assert handshake.certificate_of(again, line)[0].ok
    (home.folder / certificates.AUTHORITY_KEY).unlink()
    no = call("federation", "renew", "lung", cwd=tmp_path)
    assert (no.code, "E503 the authority's key" in no.err) == (2, True)


def test_a_host_that_is_none_is_refused(tmp_path, home):
    before = certificate(home)
    assert (
        "E503 a certificate names hosts"
        in call("federation", "renew", "lung", "--also", "a b", cwd=tmp_path).err
    )
    assert certificate(home) == before


def test_another_authoritys_key_is_refused(home, tmp_path):
    other = Coordinator.make(tmp_path / "other", "other", "127.0.0.1:1", ["a"])
    (home.folder / certificates.AUTHORITY_KEY).write_bytes(
        (other.folder / certificates.AUTHORITY_KEY).read_bytes()
    )
    with pytest.raises(UsageError, match=r"E503 .*authority\.key is not the key of .*ca\.crt"):
        certificates.renew(home.folder)
    (home.folder / certificates.AUTHORITY_KEY).write_text(PrivateKey.make().public.text)
    with pytest.raises(UsageError, match="E503 the authority's key"):
        certificates.renew(home.folder)


def test_the_authoritys_key_is_for_the_coordinator_only(home):
    assert (home.folder / certificates.AUTHORITY_KEY).stat().st_mode & 0o077 == 0


def test_a_server_renews_its_certificate_by_itself(home, monkeypatch):
    """N14: 30 days in advance; its programs then take the new one."""
    said, front = [], Members(home)
    renewal = Renewal(home, said.append)
    assert not renewal.tend()
    assert not said
    real = certificates.days_left
    monkeypatch.setattr(certificates, "days_left", lambda c: real(c) - 340)
    renewal._next = 0
    before = certificate(home)
    assert renewal.tend()
    assert certificate(home) != before
    assert certificate(home).not_valid_before_utc <= dt.datetime.now(dt.UTC)
    assert "no site has to join again" in said[0]
    assert front.read()
    assert not renewal.tend()  # not again within the hour


def test_a_server_that_cannot_renew_says_so_and_goes_on(home, monkeypatch):
    said = []
    monkeypatch.setattr(certificates, "days_left", lambda c: 3)
    (home.folder / certificates.AUTHORITY_KEY).unlink()
    assert not Renewal(home, said.append).tend()
    assert said[0].startswith("E503 the authority's key")
