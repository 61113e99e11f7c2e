"""The front's process: `python -m unskew.federation.front FOLDER BIND`, run by `unskew serve`.

FOLDER: the federation's folder. BIND: the address to listen on, with the federation's port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

from unskew.federation.addresses import host_port, listen
from unskew.federation.front.proxy import flower_client, serve
from unskew.federation.programs import configure_malloc
from unskew.federation.tickets import Coordinator


def _say(text: str) -> None:
    print(text, flush=True)


async def main(home: Coordinator, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with flower_client(home) as server:
        task = asyncio.create_task(serve(home, listener, server, _say))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    configure_malloc()
    # `Refusals` reports everything that sites can cause
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    folder, bind = sys.argv[1:]
    federation = Coordinator.open(Path(folder))
    try:
        listener_socket = listen(bind, federation.port)
    except OSError as error:
        address = host_port(bind, federation.port)
        sys.exit(f"E507 the server cannot listen at {address}: {error.strerror or error}.")
    with listener_socket:
        listener_socket.setblocking(False)
        _say(f"listening at {host_port(bind, federation.port)}")
        asyncio.run(main(federation, listener_socket))
