"""Addresses of IPv4 and IPv6."""

from __future__ import annotations

import pytest

from unskew.errors import UsageError
from unskew.federation.addresses import (
    default_bind,
    host_port,
    origin,
    parse_address,
)
from unskew.federation.certificates import read
from unskew.federation.tickets import Coordinator, Ticket


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
