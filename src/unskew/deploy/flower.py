"""Sealed messages as the content of Flower's, which carries them and cannot read them; and the server's Channel."""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from unskew.deploy.bulk import SMALL, Stored, Views, whole
from unskew.deploy.sealed import Sealed
from unskew.errors import UsageError

try:
    from flwr.app import Array, ConfigRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
    from httpx import HTTPStatusError

    from unskew.deploy.pieces import HEAD, MOST_BYTES, array, record
except ImportError as error:  # the extra is not installed
    raise UsageError("E501", "a deployment needs Flower and cryptography: pip install 'unskew[flower]'.") from error

T = TypeVar("T")

_KINDS = {"hello": "query", "setup": "query", "train": "train", "visit": "train", "score": "evaluate"}
_KINDS |= dict.fromkeys(("share", "mask", "agree", "open"), "query")
"""Flower's category for each kind of request."""
_BUSY_S = 0.1
"""How long to wait before a SuperLink is asked again that was too busy or away."""
_LOOK_S = 1.0
"""How often answers are asked for although none was announced."""
MOST_AGAIN = 5
"""How often a request of an exchange that was lost on its way is sent again to a node, which may only say that it has none."""
_NODES_S = 0.25
"""How long it is remembered which nodes are there: a round asks several times as it begins."""


def packed(sealed: Sealed, arrays: dict[int, Array] | None = None, again: int = 0) -> RecordDict:
    """A sealed message as the content of one of Flower's. A small one is a single piece, as each takes calls of its own.

    arrays: those made so far, by the identity of their bytes, as several messages may have the same. again: how often the
    same was sent before; Flower numbers a message by its content, and hands out none whose number it knows.
    """
    head: dict[str, str | bytes | int] = {"text": sealed.text, "signature": sealed.signature}
    head |= {"again": again} if again else {}
    if len(sealed.blob) <= SMALL:
        return RecordDict({HEAD: ConfigRecord(head | {"blob": whole(sealed.blob)})})
    arrays = {} if arrays is None else arrays
    if id(sealed.blob) not in arrays:
        bulk = Views([memoryview(sealed.blob)]) if isinstance(sealed.blob, bytes) else sealed.blob
        arrays[id(sealed.blob)] = array(bulk)
    return RecordDict({HEAD: ConfigRecord(head), "blob": record({"blob": arrays[id(sealed.blob)]})})


def unpacked(content: RecordDict) -> Sealed:
    """The inverse of `packed`. Raises ValueError for content that `packed` has not made."""
    try:
        head = content.config_records[HEAD]
        text, signature = head["text"], head["signature"]
        blob = head["blob"] if "blob" in head else content.array_records["blob"]["blob"].data
    except KeyError as error:
        raise ValueError(f"a message without {error}") from None
    if not (isinstance(text, str) and isinstance(signature, bytes) and isinstance(blob, bytes | Stored | Views)):
        raise ValueError("a message of other types")
    return Sealed(text, signature, blob)


class Grid(Protocol):
    """What carries Flower's messages: `Mailbox`. most: bytes of tensors that an answer to what is sent has at most."""

    most: int

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Sequence[str]) -> Iterable[Message]: ...

    def rest(self, seconds: float) -> None:
        """Wait until an answer may be there, at most so long."""
        ...

    def lost(self, message_ids: Sequence[str]) -> Iterable[str]:
        """Those of these messages that never reached their nodes."""
        ...


class FlowerChannel:
    """A Channel that sends and fetches Flower's messages, with a deadline of our own."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self._nodes: list[int] = []
        self._looked = -_NODES_S

    def nodes(self) -> list[int]:
        if time.monotonic() - self._looked >= _NODES_S:
            self._nodes = sorted(self.grid.get_node_ids())
            self._looked = time.monotonic()
        return list(self._nodes)

    def ask(
        self, requests: Mapping[int, Sealed], kind: str, t: int, deadline_s: float, most: int = MOST_BYTES
    ) -> dict[int, Sealed | str]:
        """The deadline is also the messages' time to live: a site that was away does not work off rounds that are over."""
        self.grid.most = most
        until = time.monotonic() + deadline_s
        waiting = self._sent(requests, kind, t, until)
        replies: dict[int, Sealed | str] = {}
        pause_s, again = _LOOK_S, Counter[int]()
        while len(replies) < len(set(waiting.values())) and time.monotonic() < until:
            self.grid.rest(min(pause_s, until - time.monotonic()))
            asked = [number for number, node in waiting.items() if node not in replies]
            arrived = _unless_busy(self.grid.pull_messages, asked)
            pause_s = _BUSY_S if arrived is None else _LOOK_S
            for reply in arrived or ():
                node = waiting.get(reply.metadata.reply_to_message_id)
                if node is not None:
                    replies.setdefault(node, _content(reply))
            if arrived is not None:
                idle = {waiting[number] for number in _unless_busy(self.grid.lost, asked) or ()} - set(replies)
                lost = {node: requests[node] for node in idle if again[node] < MOST_AGAIN}
                again.update(lost.keys())
                waiting |= self._sent(lost, kind, t, until, again.total()) if lost else {}
        return replies

    def _sent(self, requests: Mapping[int, Sealed], kind: str, t: int, until: float, again: int = 0) -> dict[str, int]:
        """Send requests, which are of use until then. Returns the nodes by the numbers of their messages.

        again: how often this was done before.
        """
        arrays: dict[int, Array] = {}
        left_s = max(0.1, until - time.monotonic())
        messages = [
            Message(packed(sealed, arrays, again), node, _KINDS[kind], group_id=str(t), ttl=left_s)
            for node, sealed in requests.items()
        ]
        numbers = self._pushed(messages, until)
        return {number: m.metadata.dst_node_id for number, m in zip(numbers, messages) if number}

    def _pushed(self, messages: Sequence[Message], until: float) -> Iterable[str]:
        """The numbers of these messages at the SuperLink; if it was restarted meanwhile, it takes what it still lacks.

        None of them if it was away until the deadline: then nobody was reached, which is no reason to end a run.
        """
        while True:
            try:
                return self.grid.push_messages(messages)
            except (ObjectPushError, HTTPStatusError) as error:
                if not _may_pass(error):
                    raise
                if time.monotonic() >= until:
                    return ()
                time.sleep(_BUSY_S)


def _unless_busy(call: Callable[[Sequence[str]], Iterable[T]], numbers: Sequence[str]) -> Iterable[T] | None:
    """What the SuperLink says of these messages; None if it is too busy to say."""
    try:
        return call(numbers)
    except HTTPStatusError as error:
        if not _may_pass(error):
            raise
        return None


def _may_pass(error: Any) -> bool:
    """Whether a call that failed may succeed later: the SuperLink was restarted, or waited too long for its database."""
    return not isinstance(error, HTTPStatusError) or error.response.is_server_error


def _content(reply: Message) -> Sealed | str:
    if reply.has_error():
        return f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
    try:
        return unpacked(reply.content)
    except Exception as error:  # Flower parses what a site has sent only here
        return f"its reply cannot be read ({(str(error) or type(error).__name__)[:200]})"
