"""The messages of one run at the SuperLink: sent to nodes, and fetched when they have answered.

`FlowerChannel` asks nodes and collects their answers until a deadline; `Mailbox` sends and fetches single
messages. Flower's own Grid waits a second and more for pieces of a message in transit, and up to three
minutes for those of a node that has stopped sending. Here a message counts once it has arrived completely.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from unskew.errors import MissingPackage, Paused, UnskewError
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.signals import IDLE_FOLDER, REPLIES, REQUESTS, Bell, IdleNodes

try:
    import httpx
    from flwr.app import Array, Message
    from flwr.app.error import Error
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.app.metadata import Metadata
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.common.serde import message_to_proto
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable import inflatable_object, inflatable_utils
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
    from flwr.supercore.runtime import RuntimeHttpClient
    from httpx import HTTPStatusError

    from unskew.federation.protocol.flower_messages import (
        MOST_BYTES,
        Arrival,
        MessageTooLarge,
        Pull,
        pack_message,
        payload,
        send_all,
        set_answered,
        set_number,
        unpack_message,
    )
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

T = TypeVar("T")

_KINDS = {"hello": "query", "setup": "query", "train": "train", "visit": "train", "score": "evaluate"}
_KINDS |= dict.fromkeys(("share", "mask", "agree", "open"), "query")
"""Flower's category for each kind of request."""
_BUSY_S = 0.1
"""Seconds until a busy or absent SuperLink is asked again."""
_LOOK_S = 1.0
"""Seconds between requests for answers without a signal."""
MOST_AGAIN = 5
"""How often a request of an exchange that was lost on its way is sent again to a node, which may only say
that it has none."""
_NODES_S = 0.25
"""Seconds for which the list of nodes is cached; a round begins with several requests for it."""


class Grid(Protocol):
    """Carries Flower's messages, as `Mailbox` does. most: most bytes of tensors in an answer."""

    most: int

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Sequence[str]) -> Iterable[Message]: ...

    def rest(self, seconds: float) -> None:
        """Wait until an answer may be there, at most so many seconds."""
        ...

    def lost(self, message_ids: Sequence[str]) -> Iterable[str]:
        """The messages that never reached their nodes."""
        ...


class FlowerChannel:
    """A Channel that sends and fetches Flower's messages, with its own deadline."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self._nodes: list[int] = []
        self._nodes_time = -_NODES_S

    def nodes(self) -> list[int]:
        if time.monotonic() - self._nodes_time >= _NODES_S:
            self._nodes = sorted(self.grid.get_node_ids())
            self._nodes_time = time.monotonic()
        return list(self._nodes)

    def ask(
        self,
        requests: Mapping[int, SignedMessage],
        kind: str,
        t: int,
        deadline_s: float,
        most: int = MOST_BYTES,
    ) -> dict[int, SignedMessage | str]:
        """See `Channel.ask`. The deadline is also the messages' time to live, so that a site does not answer
        old rounds.
        """
        self.grid.most = most
        until = time.monotonic() + deadline_s
        waiting = self._send(requests, kind, t, until)
        replies: dict[int, SignedMessage | str] = {}
        pause_s, again = _LOOK_S, Counter[int]()
        while len(replies) < len(set(waiting.values())) and time.monotonic() < until:
            self.grid.rest(min(pause_s, until - time.monotonic()))
            asked = [number for number, node in waiting.items() if node not in replies]
            arrived = _unless_busy(self.grid.pull_messages, asked)
            pause_s = _BUSY_S if arrived is None else _LOOK_S
            for reply in arrived or ():
                node = waiting.get(reply.metadata.reply_to_message_id)
                if node is not None:
                    replies.setdefault(node, _reply_content(reply))
            if arrived is not None:
                idle = {waiting[number] for number in _unless_busy(self.grid.lost, asked) or ()} - set(
                    replies
                )
                lost = {node: requests[node] for node in idle if again[node] < MOST_AGAIN}
                again.update(lost.keys())
                waiting |= self._send(lost, kind, t, until, again.total()) if lost else {}
        return replies

    def _send(
        self, requests: Mapping[int, SignedMessage], kind: str, t: int, until: float, again: int = 0
    ) -> dict[str, int]:
        """Send requests that are useful until a time. Returns the nodes by the numbers of their messages.

        again: number of repetitions so far.
        """
        arrays: dict[int, Array] = {}
        left_s = max(0.1, until - time.monotonic())
        messages = [
            Message(pack_message(sealed, arrays, again), node, _KINDS[kind], group_id=str(t), ttl=left_s)
            for node, sealed in requests.items()
        ]
        numbers = self._push(messages, until)
        return {number: m.metadata.dst_node_id for number, m in zip(numbers, messages) if number}

    def _push(self, messages: Sequence[Message], until: float) -> Iterable[str]:
        """The numbers of the messages at the SuperLink. After its restart they are sent again.

        None if the SuperLink was away until the deadline; the run continues.
        """
        while True:
            try:
                return self.grid.push_messages(messages)
            except (ObjectPushError, HTTPStatusError) as error:
                if not _is_transient(error):
                    raise
                if time.monotonic() >= until:
                    return ()
                time.sleep(_BUSY_S)


def _unless_busy(call: Callable[[Sequence[str]], Iterable[T]], numbers: Sequence[str]) -> Iterable[T] | None:
    """The result of a call about these messages; None if the SuperLink is busy."""
    try:
        return call(numbers)
    except HTTPStatusError as error:
        if not _is_transient(error):
            raise
        return None


def _is_transient(error: Any) -> bool:
    """True if a failed call may succeed later, because the SuperLink was restarting or busy."""
    return not isinstance(error, HTTPStatusError) or error.response.is_server_error


def _reply_content(reply: Message) -> SignedMessage | str:
    if reply.has_error():
        return f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
    try:
        return unpack_message(reply.content)
    except Exception as error:  # Flower parses what a site has sent only here
        return f"its reply cannot be read ({(str(error) or type(error).__name__)[:200]})"


FETCHERS = 16
"""How many messages are fetched side by side. Nodes that send theirs slowly keep others waiting only if they
are so many."""
LOOK_S = 0.025
"""How long to rest at least between two questions for answers, and how often the bell is listened to
meanwhile."""
MOST_REASON = 200
"""Characters of the reason for a failed fetch."""
_UNAVAILABLE = 3
"""Flower's code of a message that did not arrive."""


@contextlib.contextmanager
def _while_running() -> Iterator[None]:
    """Raises UnskewError (E507) instead of an HTTP error if the run has been ended at the SuperLink."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise
        raise UnskewError(
            "E507", "the run was ended at the server; every finished round is saved."
        ) from error


class Mailbox:
    """The part of Flower's Grid that `FlowerChannel` needs."""

    most: int = MOST_BYTES
    """Most bytes of tensors in an answer."""

    def __init__(self, client: RuntimeHttpClient, run: int, folder: Path):
        """client: connection of the run; run: its number. folder: for signals, and for large replies while
        they are needed.
        """
        self._client, self._run, self._folder = client, run, folder
        self._node, self._fetchers = Node(node_id=SUPERLINK_NODE_ID), ThreadPoolExecutor(FETCHERS)
        self._requests, self._replies = Bell(folder / REQUESTS), Bell(folder / REPLIES)
        self._arriving: dict[str, Future[Message]] = {}
        """Answers being fetched, by the number of the request."""
        self._until: dict[str, float] = {}
        """Time until which an answer is useful, by number of the message."""
        self._idle, self._sent = IdleNodes(folder / IDLE_FOLDER), dict[str, tuple[int, float]]()
        """(node, time of sending) by number of the message."""

    def get_node_ids(self) -> list[int]:
        with _while_running():
            return [node.node_id for node in self._client.GetNodes(runtime.GetNodesRequest()).nodes]

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        """Send messages. Returns their numbers, "" for absent nodes."""
        with _while_running(), inflatable_object.no_object_id_recompute():
            payloads = [payload(message) for message in messages]
            for message, one in zip(messages, payloads, strict=True):
                set_number(message, one.object_id)
            request = runtime.PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(m)) for m in messages],
                message_object_trees=[inflatable_object.get_object_tree(one) for one in payloads],
            )
            response = self._client.PushMessages(request)
            objects = {
                n: o for one in payloads for n, o in inflatable_object.get_all_nested_objects(one).items()
            }
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, self._run, response.session_id
            )
            send_all(objects, response.objects_to_push, push)
        numbers, now = list(response.message_ids), IdleNodes.now()
        nodes = [message.metadata.dst_node_id for message in messages]
        over = time.monotonic()
        self._until = {number: until for number, until in self._until.items() if until > over}
        self._until |= {n: over + m.metadata.ttl for n, m in zip(numbers, messages, strict=True) if n}
        self._sent |= {number: (node, now) for number, node in zip(numbers, nodes, strict=True) if number}
        self._requests.ring()
        return numbers

    def rest(self, seconds: float) -> None:
        """Wait until an answer may be there, at most so many seconds."""
        end = time.monotonic() + seconds
        time.sleep(min(LOOK_S, max(0.0, seconds)))
        while not self._replies.rang() and time.monotonic() < end:
            if not self._arriving:
                time.sleep(LOOK_S)
            elif wait(self._arriving.values(), LOOK_S, FIRST_COMPLETED).done:
                return

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages that have arrived since. Raises Paused (E203) if the disk is full."""
        self._look(message_ids)
        there = [number for number, future in self._arriving.items() if future.done()]
        for number in there:
            self._sent.pop(number, None)
        return [self._arriving.pop(number).result() for number in there]

    def lost(self, message_ids: Iterable[str]) -> list[str]:
        """The messages that will never be answered, each once: their nodes have since found no message and
        sent no answer.
        """
        idle = [
            n for n in message_ids if n in self._sent and self._idle.last(self._sent[n][0]) > self._sent[n][1]
        ]
        self._look(idle)  # an answer that was sent before such a question is there by now
        lost = [number for number in idle if number not in self._arriving]
        for number in lost:
            del self._sent[number]
        return lost

    def _look(self, message_ids: Iterable[str]) -> None:
        """Begin to fetch the available answers to these messages."""
        waiting = [number for number in message_ids if number not in self._arriving]
        if not waiting:
            return
        with _while_running():
            response = self._client.PullMessages(runtime.PullAppMessagesRequest(message_ids=waiting))
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            answered = head.metadata.reply_to_message_id
            self._arriving[answered] = self._fetchers.submit(
                self._fetch, head, tree, self._until.get(answered, math.inf)
            )

    def _fetch(self, head: MessageProto, tree: ObjectTree, until: float) -> Message:
        """A message with its content, or with an error if its sender does not send it or it is unreadable.

        The number of the answered request is the server's, not the sender's.
        """
        answered = head.metadata.reply_to_message_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, self._run)
        try:
            message = Arrival(head, tree, self._folder, self.most).go_on(_with_deadline(until, pull))
            set_answered(message, answered)
            return message
        except Paused:
            raise  # this machine's disk is full, which is no fault of the site's
        except Exception as error:  # an error in Flower's parsers concerns one reply only
            reason = (
                ("E303 " if isinstance(error, MessageTooLarge) else "") + (str(error) or type(error).__name__)
            )[:MOST_REASON]
            facts = Metadata(
                self._run, "", head.metadata.src_node_id, SUPERLINK_NODE_ID, answered, "", 0.0, 0.0, "train"
            )
            return make_message(metadata=facts, error=Error(_UNAVAILABLE, reason))
        finally:
            self._fetchers.submit(self._confirm, tree.object_id)  # the deletion may take place later

    def _confirm(self, number: str) -> None:
        """Let the SuperLink delete a received message. If that fails it is deleted with its run."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run, message_object_id=number)
        with contextlib.suppress(httpx.HTTPError):
            self._client.ConfirmMessageReceived(request)


def _with_deadline(end: float, pull: Pull) -> Pull:
    """A pull with a deadline, so that a slow node does not occupy a fetcher forever."""

    def timely(number: str) -> bytes:
        if time.monotonic() > end:
            raise inflatable_utils.ObjectPullError(number, "it came too late to be of use")
        return pull(number)

    return timely
