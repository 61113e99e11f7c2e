"""A site's warm process: it builds data, model and method once, and takes requests through a local socket.

`unskew site run` starts it: python -m unskew.deploy.worker FOLDER DATA [--classes a,b] [--model FILE.py:FUNCTION] [--device cuda]
    [--approve all]

A request that exceeds its time ends the process, and a new one is started, so that a hang cannot block the site.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from unskew import own
from unskew.deploy.freed import return_freed
from unskew.deploy.identity import Public
from unskew.deploy.loaders import load
from unskew.deploy.sealed import BUDGET, SOCKET, NoRoom, Sealed, exactly
from unskew.deploy.site import Membership, Site
from unskew.deploy.tickets import Joined
from unskew.errors import UnskewError

OVERDUE = 70
"""Exit code of a worker whose request took too long."""
READING_S = 60.0
"""How long a request may take to arrive through the socket."""


def serve(site: Site, path: Path) -> None:
    """Answer requests, one after the other, without end. Only this user can open the socket: its folder has mode 0700."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        while True:
            line, _ = door.accept()
            with line:
                _answer_one(site, line)


def _answer_one(site: Site, line: socket.socket) -> None:
    line.settimeout(READING_S)
    try:
        (budget_s,) = BUDGET.unpack(exactly(line, BUDGET.size))
        request = Sealed.receive(line, site.member.folder)
    except NoRoom as error:
        with suppress(OSError):
            site.refusal(error.digest, error).send(line)
        return
    except (OSError, UnicodeDecodeError):
        return
    watchdog = threading.Timer(max(1.0, budget_s), os._exit, (OVERDUE,))
    watchdog.daemon = True
    watchdog.start()
    try:
        site.answer(request).send(line)
    except OSError:
        site.say("nobody waited for the answer any more")
    finally:
        watchdog.cancel()


def main() -> None:
    """Load the data of a site and serve. Raises UnskewError if the folder or the data cannot be used."""
    return_freed()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    parser.add_argument("--classes", default="")
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--approve", choices=["ask", "all"], default="ask")
    options = parser.parse_args()
    os.umask(0o077)  # private state and what has left are for this user only
    joined = Joined.open(options.folder)
    classes = [c.strip() for c in options.classes.split(",") if c.strip()]

    def say(text: str) -> None:
        with suppress(OSError):  # a full disk under the log must not cost an answer
            print(time.strftime("%H:%M:%S"), text, flush=True)

    with own.restrict(options.data, options.model or ""):  # whatever a coordinator or a file names
        dataset = load(options.data, classes)
        coordinator = Public.parse(joined.ticket.coordinator)
        member = Membership(joined.ticket.site, options.folder, joined.key, coordinator)
        site = Site(member, lambda: dataset, options.model, options.device, say, options.approve)
        say(f"site {member.name}: {len(dataset.y)} training samples, {len(dataset.y_test)} test samples, ready")
        serve(site, Path(os.environ[SOCKET]))


if __name__ == "__main__":
    try:
        main()
    except UnskewError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
