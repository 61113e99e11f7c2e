"""Metrics for Prometheus: its text format (version 0.0.4), and the endpoint of a program with `/metrics` and
`/healthz`.

The endpoint listens on loopback by default. There is no password, so any other address should be reachable
by the monitoring only. Nothing can be changed through it. Metrics are counts, seconds and bytes; none
describes a site's data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from unskew.errors import UsageError
from unskew.federation.addresses import LOOPBACK, family, host_port, is_local

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """name: with its unit, ending in `_total` for a counter. values: by value of the label.

    label: "" for a metric with one value, which then has the key "".
    """

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    values: Mapping[str, float]
    label: str = ""


def counter(name: str, meaning: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """A number that only grows, and begins at 0 with its process."""
    by_label = dict(values) if isinstance(values, Mapping) else {"": values}
    return Metric(f"unskew_{name}_total", "counter", meaning, by_label, label)


def gauge(name: str, meaning: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """A number that may rise and fall."""
    by_label = dict(values) if isinstance(values, Mapping) else {"": values}
    return Metric(f"unskew_{name}", "gauge", meaning, by_label, label)


def exposition(metrics: Iterable[Metric]) -> str:
    """The text of a scrape."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
        for value, number in metric.values.items():
            escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
            label = f'{{{metric.label}="{escaped}"}}' if metric.label else ""
            lines.append(f"{metric.name}{label} {float(number)!r}")
    return "\n".join(lines) + "\n"


MOST_S = 5.0
"""A connection that is silent for so many seconds is closed."""


class Figures(Protocol):
    """The state of a program. metrics: current figures. problem: what has failed; "" if nothing has."""

    def metrics(self) -> Iterable[Metric]:
        """The present values of all metrics."""
        ...

    def problem(self) -> str:
        """Why the program does not work properly, as a sentence; "" if it does."""
        ...


class _Server(ThreadingHTTPServer):
    """An HTTP server of either address family, which does not wait for open connections at its end."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]):
        self.address_family = family(host)
        super().__init__((host, port), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that end early."""


class Endpoint:
    """The server of a program's metrics.

    where: PORT, HOST:PORT or [HOST]:PORT. Raises UsageError (E109) for an address that is not available.
    """

    def __init__(self, where: str, figures: Figures):
        self.host, port = parse_endpoint(where)
        try:
            self._server = _Server(self.host, port, _handler(figures, is_local(self.host)))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError("E109", f"--metrics {where} cannot be used on this machine: {reason}.") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{host_port(self.host, self.port)}/metrics"
        warning = "; without a password: let only the monitoring reach this address"
        self.warning = "" if is_local(self.host) else warning
        """A warning to the operator about an address that other machines can reach; else ""."""

    def start(self) -> None:
        """Answer in daemon threads."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop; only after `start`."""
        self._server.shutdown()
        self._server.server_close()


def parse_endpoint(where: str) -> tuple[str, int]:
    """(host, port) of PORT, HOST:PORT or [HOST]:PORT; default host: loopback. Raises UsageError (E109)."""
    host, _, port = where.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not (port.isascii() and port.isdecimal() and int(port) < 65536) or (":" in host and "[" not in where):
        raise UsageError("E109", f"--metrics takes PORT, HOST:PORT or [HOST]:PORT; got '{where}'.")
    return host or LOOPBACK, int(port)


def _handler(figures: Figures, local: bool) -> type[BaseHTTPRequestHandler]:
    """The handler of requests. local: only this machine can reach the address; a request must then name it as
    its host, which a web site with a redirected name (DNS rebinding) does not.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "unskew", "", MOST_S

        def do_GET(self) -> None:
            port, host = self.connection.getsockname()[1], self.headers.get("Host", "")
            if local and host not in (f"{LOOPBACK}:{port}", f"localhost:{port}", f"[::1]:{port}"):
                return self._answer(HTTPStatus.MISDIRECTED_REQUEST, "Use the address as it was printed.\n")
            path = urlsplit(self.path).path
            if path == "/healthz":
                problem = figures.problem()
                return self._answer(
                    HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, f"{problem or 'ok'}\n"
                )
            if path != "/metrics":
                return self._answer(HTTPStatus.NOT_FOUND, "Here are /metrics and /healthz.\n")
            try:
                page = exposition(figures.metrics())
            except Exception as error:  # a file that is just being written must not end the endpoint
                return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}\n")
            return self._answer(HTTPStatus.OK, page)

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because scrapes are frequent."""

    return Handler
