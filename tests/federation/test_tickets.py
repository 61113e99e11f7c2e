"""Keys, tickets and the folders that hold them."""

from __future__ import annotations

import json
import stat

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation.protocol.identity import PrivateKey, PublicKey
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


@pytest.fixture
def joined(tmp_path, home):
    return SiteFolder.make(tmp_path / "site", Ticket.read(home.folder / "tickets" / "a.ticket"))


def test_a_ticket_holds_no_key_and_is_for_its_owner_alone(home, joined):
    path = home.ticket_file("a")
    facts = json.loads(path.read_text())
    assert "PRIVATE" not in path.read_text()
    assert set(facts) == {
        *("federation", "host", "port", "site", "coordinator", "authority"),
        *("secret", "expires", "signature"),
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert facts["secret"] != json.loads(home.ticket_file("b").read_text())["secret"]
    assert (
        facts["secret"] not in (joined.folder / "ticket.json").read_text()
    )  # a site has no use for it any more


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


def test_keys_sign_and_survive_their_files(tmp_path):
    key = PrivateKey.make()
    key.save(tmp_path / "k")
    again = PrivateKey.load(tmp_path / "k")
    assert PublicKey.parse(key.public.text).signed(b"m", again.sign(b"m"))
    assert not key.public.signed(b"n", again.sign(b"m"))
    assert not key.public.signed(b"m", b"")
    with pytest.raises(UsageError, match="E161"):
        key.save(tmp_path / "k")


def test_only_sites_with_a_ticket_and_one_key_each_are_admitted(home, joined):
    home.admit("a", joined.key.public)
    home.admit("a", joined.key.public)
    assert list(home.admitted()) == ["a"]
    with pytest.raises(UsageError, match="E161 a was admitted with another key"):
        home.admit("a", PrivateKey.make().public)
    with pytest.raises(UsageError, match="E503 this key already belongs to another site"):
        home.admit("b", joined.key.public)
    with pytest.raises(UsageError, match="E503 lung has no site 'z'"):
        home.admit("z", PrivateKey.make().public)


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
    with pytest.raises(UsageError, match="E503 without TLS a federation stays on one machine"):
        Coordinator.make(tmp_path / "other", "x", "hospital.example:8123", ["a"], tls=False)
    assert not (tmp_path / "other").exists()
    with pytest.raises(UsageError, match="E161"):
        Coordinator.make(home.folder, "lung", "h", ["a"])
    with pytest.raises(UsageError, match="E161 there is no federation"):
        Coordinator.open(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"federation": "x"}', "{" * 1000])
def test_a_damaged_ticket_is_refused(tmp_path, text):
    (tmp_path / "t").write_text(text)
    with pytest.raises(UsageError, match="E503"):
        Ticket.read(tmp_path / "t")


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
