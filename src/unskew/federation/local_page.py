"""A page that the user of this machine can look at in a browser. It is served on loopback only, and changes
nothing.

Its address holds a secret, because other users of the machine reach loopback, too. A request must name the
page's own
host: a web site whose name was made to point at this machine (DNS rebinding) names another.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from unskew.errors import UsageError

HOST = "127.0.0.1"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
REFRESH = '<meta http-equiv="refresh" content="5">'
"""In the pages' template: the browser asks again every few seconds."""
STILL = "still"
"""What stands behind the ? of a page that does not, so that it can be read, and what was unfolded stays
so."""
MOST_WAIT_S = 10.0
"""How long a browser may take to send its request."""


def render(template: str, **values: Any) -> str:
    """A page with these values, of which no text becomes markup."""
    environment = Environment(
        loader=PackageLoader("unskew.federation"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(template).render(at=local_time(time.time()), **values)


def local_time(at: float) -> str:
    """Local time in words."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


class Page:
    """Serves what `content` returns, made anew for every request."""

    def __init__(self, content: Callable[[], str], port: int = 0):
        """port: 0 takes any that is free. Raises UsageError (E109) if it is in use."""
        self.secret = secrets.token_urlsafe(18)
        try:
            self._server = ThreadingHTTPServer((HOST, port), _handler(content, self.secret))
        except OSError as error:
            raise UsageError(
                "E109", f"--port {port} cannot be used on this machine: {error.strerror}."
            ) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/{self.secret}"

    def serve(self) -> None:
        """Answer until `close`, or until interrupted."""
        self._server.serve_forever()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(content: Callable[[], str], secret: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = MOST_WAIT_S
        server_version, sys_version = "unskew", ""

        def do_GET(self) -> None:
            port = self.connection.getsockname()[1]
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                return self._answer(HTTPStatus.MISDIRECTED_REQUEST, "Open the address as it was printed.")
            path = urlsplit(self.path).path.strip("/")
            if not hmac.compare_digest(path.encode(), secret.encode()):
                return self._answer(HTTPStatus.NOT_FOUND, "Open the address as it was printed.")
            query = urlsplit(self.path).query
            try:
                text = content() if query != STILL else content().replace(REFRESH, "")
            except Exception as error:  # a file that is just being written must not end the page
                return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}; reload.")
            return self._answer(HTTPStatus.OK, text)

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, text: str) -> None:
            body = text.encode(errors="replace")  # names of files need not be text
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the address, which is secret, would stand in the log."""

    return Handler
