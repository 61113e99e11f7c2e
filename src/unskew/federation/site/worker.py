"""A site's warm process: it builds data, model and method once, and answers requests through a local socket.

`unskew site run` starts it: python -m unskew.federation.site.worker FOLDER DATA [--classes a,b]
    [--model FILE.py:FUNCTION] [--device cuda] [--approve all]

A request that exceeds its time ends the process, and a new one is started, so that a hang cannot block the
site.
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

from unskew.errors import UnskewError
from unskew.federation.programs import configure_malloc
from unskew.federation.protocol.signed_messages import BUDGET, SOCKET, SignedMessage, read_exactly
from unskew.federation.site.site import Site, SiteIdentity
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site_data import load
from unskew.formats.specs import split_names
from unskew.system import python_files

OVERDUE = 70
"""Exit code of a worker after a request that took too long."""
READING_S = 60.0


def serve(site: Site, path: Path) -> None:
    """Answer requests without end. Only this user can open the socket: its folder has mode 0700."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        while True:
            line, _ = listener.accept()
            with line:
                _answer_one(site, line)


def _answer_one(site: Site, line: socket.socket) -> None:
    line.settimeout(READING_S)
    try:
        (budget_s,) = BUDGET.unpack(read_exactly(line, BUDGET.size))
        requests = [SignedMessage.receive(line)]
    except (OSError, UnicodeDecodeError):
        return
    watchdog = threading.Timer(max(1.0, budget_s), os._exit, (OVERDUE,))
    watchdog.daemon = True
    watchdog.start()
    try:
        site.answer(requests.pop()).send(line)  # not held here, so that its bytes can be freed
    except OSError:
        site.say("nobody waited for the answer any more")
    finally:
        watchdog.cancel()


def main() -> None:
    """Load the data of a site and serve. Raises UnskewError if the folder or the data cannot be used."""
    configure_malloc()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    for option, default in (("classes", ""), ("model", None), ("device", "cpu"), ("approve", "ask")):
        parser.add_argument(f"--{option}", default=default)
    options = parser.parse_args()
    os.umask(0o077)  # private state and what has left are for this user only
    joined = SiteFolder.open(options.folder)
    classes = split_names(options.classes)

    def say(text: str) -> None:
        with suppress(OSError):  # a full disk under the log must not cost an answer
            print(time.strftime("%H:%M:%S"), text, flush=True)

    # even if a coordinator or a file names others
    with python_files.restrict(options.data, options.model or ""):
        dataset = load(options.data, classes)
        member = SiteIdentity.of(joined)
        site = Site(member, lambda: dataset, options.model, options.device, say, options.approve)
        sizes = f"{len(dataset.y)} training samples, {len(dataset.y_test)} test samples"
        say(f"site {member.name}: {sizes}, ready")
        serve(site, Path(os.environ[SOCKET]))


if __name__ == "__main__":
    try:
        main()
    except UnskewError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
