"""The two Flower apps. They carry sealed messages between the server and the sites and cannot read them.

Flower starts a process for every message it brings to a site, so the client app is light: it hands the message to the
site's worker, which holds the data and the model, through a socket that only the site's own user can open.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping

from unskew.deploy.sealed import BUDGET, SOCKET, Sealed
from unskew.errors import UsageError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:  # the extra is not installed
    raise UsageError("E501", "a deployment needs Flower and cryptography: pip install 'unskew[flower]'.") from error

_KINDS = {"hello": "query", "setup": "query", "train": "train", "visit": "train", "score": "evaluate"}
"""Flower's category for each kind of request."""
_POLL_S = 0.1


def packed(sealed: Sealed) -> RecordDict:
    """A sealed message as the content of one of Flower's."""
    head = ConfigRecord({"text": sealed.text, "signature": sealed.signature})
    blob = Array("uint8", (len(sealed.blob),), "unskew", sealed.blob)
    return RecordDict({"head": head, "blob": ArrayRecord({"blob": blob})})


def unpacked(content: RecordDict) -> Sealed:
    """The inverse of `packed`. Raises ValueError for content that `packed` has not made."""
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

    def ask(self, requests: Mapping[int, Sealed], kind: str, t: int, deadline_s: float) -> dict[int, Sealed | str]:
        """The deadline is also the messages' time to live: a site that was away does not work off rounds that are over."""
        until = time.monotonic() + deadline_s
        messages = [
            Message(packed(sealed), node, _KINDS[kind], group_id=str(t), ttl=deadline_s)
            for node, sealed in requests.items()
        ]
        ids = self.grid.push_messages(messages)
        waiting = {i: m.metadata.dst_node_id for i, m in zip(ids, messages) if i}
        replies: dict[int, Sealed | str] = {}
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = _content(reply)
            if waiting:
                time.sleep(_POLL_S)
        return replies


def _content(reply: Message) -> Sealed | str:
    if reply.has_error():
        return f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
    try:
        return unpacked(reply.content)
    except ValueError as error:
        return str(error)


def through_socket(request: Sealed, budget_s: float) -> Sealed:
    """The worker's answer. Raises OSError if there is none within the budget, so that a node is never blocked for good."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(budget_s)
        line.connect(os.environ[SOCKET])
        line.sendall(BUDGET.pack(budget_s))
        request.send(line)
        return Sealed.receive(line)


def carry(app: ClientApp, answer: Callable[[Sealed, float], Sealed]) -> ClientApp:
    """Let `answer(request, seconds left)` answer every message that comes to this app."""

    def reply(message: Message, _: Context) -> Message:
        return Message(packed(answer(unpacked(message.content), message.metadata.ttl)), reply_to=message)

    for category in ("train", "evaluate", "query"):
        getattr(app, category)()(reply)
    return app


client_app = ClientApp()
carry(client_app, through_socket)

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run that `unskew run --on` has described as JSON."""
    from unskew.deploy.conducting import conduct_order  # which imports torch, as the client app must not
    from unskew.deploy.orders import Order

    conduct_order(FlowerChannel(grid), Order.read(json.loads(str(context.run_config["run"]))))
