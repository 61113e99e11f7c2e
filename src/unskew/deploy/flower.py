"""The two Flower apps. They carry sealed messages between the server and the sites, and know nothing else.

Flower starts a process for every message it brings to a site, so the client app is light: it hands the message to the
site's worker, which has the data and the model ready, through a socket that only the site's own user can open.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unskew.deploy.sealed import BUDGET, SOCKET, Sealed
from unskew.errors import UsageError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:  # the extra is not installed
    raise UsageError("E501", "a deployment needs Flower and cryptography: pip install 'unskew[flower]'.") from error

_KINDS = {"hello": "query", "setup": "query", "train": "train", "visit": "train", "score": "evaluate"}
_POLL_S = 0.1


def packed(sealed: Sealed) -> RecordDict:
    head = ConfigRecord({"text": sealed.text, "signature": sealed.signature})
    return RecordDict(
        {"head": head, "blob": ArrayRecord({"blob": Array("uint8", (len(sealed.blob),), "unskew", sealed.blob)})}
    )


def unpacked(content: RecordDict) -> Sealed:
    """Raises ValueError for a message that is none of ours."""
    try:
        head, array = content.config_records["head"], content.array_records["blob"]["blob"]
        text, signature = head["text"], head["signature"]
    except KeyError as error:
        raise ValueError(f"a message without {error}") from None
    if not (isinstance(text, str) and isinstance(signature, bytes) and isinstance(array.data, bytes)):
        raise ValueError("a message of other types")
    return Sealed(text, signature, array.data)


class FlowerChannel:
    """A Channel over Flower's Grid: its push and pull, with a deadline of our own."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def nodes(self) -> list[int]:
        return sorted(self.grid.get_node_ids())

    def ask(self, asked: Mapping[int, Sealed], kind: str, t: int, deadline_s: float) -> dict[int, Sealed | str]:
        """ttl is the deadline, so that a site which was away does not work off rounds that are over."""
        until = time.monotonic() + deadline_s
        messages = [
            Message(packed(m), node, _KINDS[kind], group_id=str(t), ttl=deadline_s) for node, m in asked.items()
        ]
        ids = self.grid.push_messages(messages)
        waiting = {i: m.metadata.dst_node_id for i, m in zip(ids, messages) if i}
        found: dict[int, Sealed | str] = {}
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    found[node] = _content(reply)
            if waiting:
                time.sleep(_POLL_S)
        return found


def _content(reply: Message) -> Sealed | str:
    if reply.has_error():
        return f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
    try:
        return unpacked(reply.content)
    except ValueError as error:
        return str(error)


def through_socket(asked: Sealed, budget_s: float) -> Sealed:
    """The worker's answer. Raises OSError if there is none within the budget; a node must not be held up for ever."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(budget_s)
        line.connect(os.environ[SOCKET])
        line.sendall(BUDGET.pack(budget_s))
        asked.send(line)
        return Sealed.receive(line)


def carry(app: ClientApp, answer: Callable[[Sealed, float], Sealed]) -> ClientApp:
    """Let `answer(request, seconds left)` answer every message that comes to this app."""

    def on(message: Message, _: Context) -> Message:
        return Message(packed(answer(unpacked(message.content), message.metadata.ttl)), reply_to=message)

    for category in ("train", "evaluate", "query"):
        getattr(app, category)()(on)
    return app


client_app = ClientApp()
carry(client_app, through_socket)

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """A run, as `unskew run --on` has described it in one JSON string; its end is told in the run's folder."""
    conduct(grid, json.loads(str(context.run_config["run"])))


def conduct(grid: Grid, told: dict[str, Any], say: Callable[[str], None] = print) -> None:
    """The whole run. Every ending is written to `ending.json`; Flower itself calls a failed run completed."""
    from unskew import config, disk
    from unskew.deploy import server, tickets
    from unskew.engine.leaves import leaves
    from unskew.errors import UnskewError

    path, began = Path(told["path"]), time.time()
    path.mkdir(parents=True, exist_ok=True)
    ending: dict[str, Any] = {"state": "done", "code": 0}
    log = open(path / "server.log", "a")  # noqa: SIM115

    def heard(text: str) -> None:
        say(text)
        print(time.strftime("%H:%M:%S"), text, file=log, flush=True)

    try:
        home = tickets.Coordinator.open(Path(told["federation"]))
        terms = server.Terms(tuple(home.sites), told["min_sites"], told["deadline_s"], told["wait_s"], told["test"])
        server.conduct(
            path,
            config.build(told["settings"]),
            FlowerChannel(grid),
            home.key,
            home.admitted(),
            terms,
            heard,
            lambda state, round_: heard(
                f"round {round_.t}: {round_.answered}/{round_.asked} sites, {round_.seconds:.1f} s"
            ),
            lambda loop: heard("\n".join(leaves(loop))),
        )
    except UnskewError as error:
        ending = {"state": "stopped", "code": error.exit_code, "text": str(error)}
    except SystemExit:  # how Flower ends the app where the SuperLink is gone, or the run was stopped
        text = f"E507 Flower ended the run's process; every finished round is saved. Resume with: unskew resume {path}"
        ending = {"state": "stopped", "code": 2, "text": text}
        raise
    except BaseException as error:
        ending = {"state": "failed", "code": 1, "text": f"{type(error).__name__}: {error}"}
        raise
    finally:
        heard(ending.get("text", "done"))
        log.close()
        if not ending.get("text", "").startswith("E110"):  # another conducts this run and will tell how it ends
            disk.replace(path / "ending.json", json.dumps({**ending, "began": began}))
