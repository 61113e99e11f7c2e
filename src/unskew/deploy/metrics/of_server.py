"""The figures of `unskew serve`."""

from __future__ import annotations

from unskew.deploy import certificates
from unskew.deploy.metrics.exposition import Metric, counter, gauge
from unskew.deploy.metrics.runs import Runs
from unskew.deploy.serving import Server
from unskew.version import __version__


class OfServer:
    """What a server and its runs have done since it started."""

    def __init__(self, server: Server):
        self.server, self.runs = server, Runs()

    def tend(self) -> None:
        """Read what the runs have written."""
        self.runs.tend(self.server.conductors.active)

    def metrics(self) -> list[Metric]:
        server, home = self.server, self.server.home.now()
        restarts = {
            "front": server.front.restarts,
            "superlink": server.program.restarts,
            "run": server.conductors.restarts,
        }
        figures = [
            gauge("build_info", "The version of unskew.", {__version__: 1}, "version"),
            gauge("sites", "Sites of the federation.", len(home.sites)),
            gauge("sites_admitted", "Sites whose key is admitted.", len(home.admitted())),
            counter("refusals", "Attempts that the front has refused.", server.refused),
            counter("restarts", "Programs that were started again, by program.", restarts, "program"),
            *self.runs.metrics(),
        ]
        if home.tls:
            until = certificates.read(home.folder / "server.crt").not_valid_after_utc.timestamp()
            figures.append(gauge("certificate_expiry_timestamp_seconds", "When the server's certificate ends.", until))
        return figures

    def problem(self) -> str:
        """Which program does not run; "" if all do."""
        stopped = [p.name for p in (self.server.front, self.server.program) if not p.is_running]
        return f"not running: {', '.join(stopped)}" if stopped else ""
