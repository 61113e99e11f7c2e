"""What a site may ask for: the calls of Flower's fleet API that a site makes, each with the most bytes its body may have.

Everything else that Flower's server answers is for operators and for its own programs. A site fetches no code, so that
the calls that bring code (`get-fab`, `get-run`) are not here either.
"""

from __future__ import annotations

_SMALL = 64 << 10

PULL, ANSWERED, PUSHED = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"
"""The questions for messages, the calls that announce an answer with a list of its pieces, and those that each bring one."""
CALLS = {
    "/v1/fleet/activate-node": _SMALL,
    "/v1/fleet/send-node-heartbeat": _SMALL,
    PULL: _SMALL,
    "/v1/fleet/pull-object": _SMALL,
    "/v1/fleet/confirm-message-received": _SMALL,
    ANSWERED: 512 << 10,  # the list of 8 GB in pieces of 2 MB has 300 KB; Flower's database is locked while it is read
    PUSHED: 8 << 20,  # Flower cuts tensors into pieces of 5 MB
    "/v1/fleet/deactivate-node": _SMALL,
}
REGISTER = "/v1/fleet/register-node"
"""A site's first call where TLS is disabled and Flower therefore knows no keys."""
BODY = b"application/protobuf"
KEY = b"flwr-public-key"
HEADERS = {b"content-type", b"accept", b"content-length", KEY, b"flwr-timestamp", b"flwr-signature"}
HEADERS |= {b"flwr-package-name", b"flwr-package-version", b"flwr-component-name"}
"""Headers that are passed on; all others are dropped."""


def calls(tls: bool) -> dict[str, int]:
    """The most bytes of a body by path."""
    return CALLS if tls else {**CALLS, REGISTER: _SMALL}
