"""Addresses of IPv4 and IPv6: read from what people write, and counted by who has them."""

from __future__ import annotations

import socket

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation import addresses
from unskew.federation.addresses import (
    default_bind,
    free_port,
    host_port,
    is_address,
    is_local,
    listen,
    origin,
    parse_address,
)
from unskew.federation.certificates import read
from unskew.federation.tickets import Coordinator, Ticket


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


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


@pytest.mark.parametrize(
    "text",
    [
        "::1:99999",
        "[::1",
        "::1]:9092",
        "[::1]9092",
        "[fl.example.org]:1",
        "[127.0.0.1]:1",
        "[fe80::1%eth0]:1",
        "a:b:c",
        "h:",
        "h:0",
        "h:65536",
        "h:+1",
        "",
        ":9092",
        "[]:1",
        "h/x",
    ],
)
def test_what_is_no_host_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="E503 --host takes"):
        parse_address(text, 8000)


def test_only_this_machines_own_addresses_are_local():
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "2001:db8::1", "127.example.org")))
    assert not is_address("1.2.3")


def test_whoever_has_a_network_of_ipv6_is_counted_once():
    """Or each of its addresses could hold as many unproven connections as one of IPv4."""
    assert origin("2001:db8:1:2::3") == origin("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert origin("2001:db8:1:3::3") != origin("2001:db8:1:2::3")
    assert origin("::ffff:10.0.0.7") == origin("10.0.0.7") == "10.0.0.7"
    assert origin("::ffff:127.0.0.1") == "127.0.0.1"
    assert origin("::1") == "::1"


def test_a_federation_at_an_ipv6_address_has_tickets_and_a_certificate_for_it(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "[2001:db8::7]:9092", ["a"])
    ticket = Ticket.read(home.folder / "tickets/a.ticket")
    assert (ticket.host, ticket.port, ticket.place) == ("2001:db8::7", 9092, "[2001:db8::7]:9092")
    assert b"\x20\x01\x0d\xb8" + bytes(11) + b"\x07" in read(home.folder / "server.crt").public_bytes(
        fake_encoding()
    )
    assert default_bind(home.host) == "2001:db8::7"


def fake_encoding():
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_a_socket_for_all_addresses_takes_both_kinds(monkeypatch):
    with listen("::", 0) as door:
        port = door.getsockname()[1]
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, port), 5).close()
            line, address = door.accept()
            line.close()
            assert origin(address[0]) == host
    with (
        listen("::1", 0) as door,
        pytest.raises(UsageError, match=r"E507 the server cannot listen at \[::1\]:"),
    ):
        addresses.check_free("::1", door.getsockname()[1])


def test_a_free_port_is_none_that_a_connection_may_have_meanwhile_nor_one_where_somebody_listens(monkeypatch):
    """A connection to somewhere may have had the port when the server behind the front, which never started,
    was to listen."""
    assert all(20_000 <= free_port() < 30_000 for _ in range(20))
    with listen("127.0.0.1", free_port()) as door:
        taken, other = door.getsockname()[1], free_port()
        drawn = iter([taken, taken, other])
        monkeypatch.setattr(addresses.secrets, "choice", lambda ports: next(drawn))
        assert free_port() == other
    assert next(drawn, None) is None
