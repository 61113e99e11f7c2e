"""A connection to a federation's server, through the proxy that HTTPS_PROXY names where there is one.

`unskew site run` goes the same way, because the libraries below it read the same variables.
"""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from base64 import b64encode
from http.client import HTTPConnection
from urllib.parse import SplitResult, unquote, urlsplit


def proxy_for(host: str) -> SplitResult | None:
    """The proxy by which TLS connections to a host go; None for a direct connection (no HTTPS_PROXY, or NO_PROXY)."""
    text = urllib.request.getproxies().get("https", "")
    if not text or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(text if "://" in text else f"http://{text}")


def reach(host: str, port: int, tls: bool, timeout_s: float) -> socket.socket:
    """An open connection. Raises OSError if the server, or its proxy, cannot be reached or refuses."""
    proxy = proxy_for(host) if tls else None
    if proxy is None:
        return socket.create_connection((host, port), timeout_s)
    connection = HTTPConnection(str(proxy.hostname), proxy.port or 80, timeout=timeout_s)
    connection.set_tunnel(host, port, _credentials(proxy))
    try:
        connection.connect()
        line = connection.sock
        assert isinstance(line, socket.socket)
        return line
    except (OSError, AssertionError) as error:
        with contextlib.suppress(OSError):
            connection.close()
        raise OSError(f"by the proxy {proxy.hostname}:{proxy.port or 80}: {error}") from error


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
