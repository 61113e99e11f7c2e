"""A page in the browser for the user of this machine. It is served on loopback only, and changes nothing.

Its address contains a secret, because other users of the machine can reach loopback too. A request must
name the page's own host; a web site with a name that was redirected to this machine (DNS rebinding) names
another.
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
"""Element of the pages' template that reloads the page every few seconds."""
STILL = "still"
"""The query of a page without reloading, which keeps its state."""
MOST_WAIT_S = 10.0


def render(template: str, **values: Any) -> str:
    """The page of a template of this folder, with these values and the present time."""
    environment = Environment(
        loader=PackageLoader("unskew.federation"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(template).render(at=local_time(time.time()), **values)


def local_time(at: float) -> str:
    """A time in seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


class Page:
    """Serves the result of `content`, computed for every request."""

    def __init__(self, content: Callable[[], str], port: int = 0):
        """port: 0 takes a free one. Raises UsageError (E109) if it is in use."""
        self.secret = secrets.token_urlsafe(18)
        try:
            self._server = ThreadingHTTPServer((HOST, port), _handler(content, self.secret))
        except OSError as error:
            text = f"--port {port} cannot be used on this machine: {error.strerror}."
            raise UsageError("E109", text) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    @property
    def address(self) -> str:
        """The URL of the page, with the secret that opens it."""
        return f"http://{HOST}:{self.port}/{self.secret}"

    def serve(self) -> None:
        """Answer requests until `close`."""
        self._server.serve_forever()

    def close(self) -> None:
        """End `serve` and release the port."""
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
            """Log nothing, because the log would contain the secret address."""

    return Handler
