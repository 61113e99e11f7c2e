"""A server that answers a site with more than it can hold."""

from __future__ import annotations

import gzip

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation.site import connection
from unskew.federation.site.connection import Fleet, ServerUnreachable
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

pytestmark = pytest.mark.flower


def long():
    for _ in range(20):
        yield bytes(1 << 20)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined")
    home = Coordinator.make(folder / "fed", "lung", "127.0.0.1:8123", ["a"])
    return SiteFolder.make(folder / "a", Ticket.read(home.ticket_file("a")))


def answered(joined: SiteFolder, **answer) -> Fleet:
    """A site's connection to a server that answers everything so."""
    fleet = Fleet(joined)
    fleet._client._client._transport = httpx.MockTransport(lambda request: httpx.Response(**answer))
    return fleet


@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_that_is_too_long_is_cut_off(joined, status):
    """A site's connection read it whole before it looked at it."""
    with pytest.raises(ServerUnreachable, match=r"the answer is not the server's \(ResponseTooLarge\)"):
        answered(joined, status_code=status, content=long()).beat()


def test_nothing_is_unpacked(joined, monkeypatch):
    packed, seen = gzip.compress(bytes(50 << 20)), []
    monkeypatch.setattr(
        httpx.Response, "content", property(lambda self: seen.append(len(self.read())) or self.read())
    )
    with pytest.raises(ServerUnreachable):
        answered(joined, status_code=200, content=iter([packed]), headers={"content-encoding": "gzip"}).beat()
    assert max(seen) < connection.MOST_RESPONSE


def test_what_the_server_answers_is_read_as_before(joined):
    answered(joined, status_code=200, content=b"").beat()
    with pytest.raises(ServerUnreachable, match="it answers HTTP 503"):
        answered(joined, status_code=503, content=b"?").beat()
