"""A site's warm process: data, model and method are built once, requests come through a local socket.

python -m unskew.deploy.worker FOLDER DATA [--classes a,b] [--model FILE.py:FUNCTION] [--device cuda]; started by `unskew site run`.
A request that takes longer than it may ends the process, which is started anew: a hang must not block the site.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from pathlib import Path

from unskew.deploy.identity import Public
from unskew.deploy.loaders import load
from unskew.deploy.sealed import BUDGET, SOCKET, Sealed, exactly
from unskew.deploy.site import Site
from unskew.deploy.tickets import Joined
from unskew.errors import UnskewError

OVERDUE = 70
"""Exit code of a worker whose request took too long."""


def serve(site: Site, path: Path) -> None:
    """Answer for ever. Only this user can open the socket: its folder has mode 0700."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        while True:
            line, _ = door.accept()
            with line:
                _one(site, line)


def _one(site: Site, line: socket.socket) -> None:
    line.settimeout(60)
    try:
        (budget_s,) = BUDGET.unpack(exactly(line, BUDGET.size))
        asked = Sealed.receive(line)
    except (OSError, UnicodeDecodeError):
        return
    watchdog = threading.Timer(max(1.0, budget_s), os._exit, (OVERDUE,))
    watchdog.daemon = True
    watchdog.start()
    try:
        site.answer(asked).send(line)
    except OSError:
        site.say("the answer was not wanted any more")
    finally:
        watchdog.cancel()


def main() -> None:
    told = argparse.ArgumentParser()
    told.add_argument("folder", type=Path)
    told.add_argument("data")
    told.add_argument("--classes", default="")
    told.add_argument("--model")
    told.add_argument("--device", default="cpu")
    given = told.parse_args()
    joined = Joined.open(given.folder)
    classes = [c.strip() for c in given.classes.split(",") if c.strip()]

    def say(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    found = load(given.data, classes)
    key, coordinator = joined.key, Public.parse(joined.ticket.coordinator)
    site = Site(joined.ticket.site, given.folder, key, coordinator, lambda: found, given.model, given.device, say)
    say(f"site {site.name}: {len(found.y)} training samples, {len(found.y_test)} to test on, ready")
    serve(site, Path(os.environ[SOCKET]))


if __name__ == "__main__":
    try:
        main()
    except UnskewError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
