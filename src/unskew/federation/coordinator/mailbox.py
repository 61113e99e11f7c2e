"""The messages of one run at the SuperLink: sent to nodes, and fetched when they have answered.

Flower's own Grid waits a second and more for pieces of a message in transit, and up to three minutes for
those of a node that has stopped sending. Here a message counts once it has arrived completely.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

from unskew.errors import MissingPackage, UnskewError, UsageError
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.signals import IDLE_FOLDER, REPLIES, REQUESTS, Bell, IdleNodes
from unskew.federation.tickets import Coordinator
from unskew.system.disk import lock, refuse_link

try:
    import httpx
    from flwr.app import Array, Message
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from httpx import HTTPStatusError

    from unskew.federation.coordinator.superlink import (
        Refused,
        SuperLink,
        Task,
        Unavailable,
        runtime_client,
    )
    from unskew.federation.protocol.flower_messages import (
        MOST_BYTES,
        Arrival,
        MessageTooLarge,
        pack_message,
        send,
        unpack_message,
    )
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

_KINDS = {"train": "train", "visit": "train", "score": "evaluate"}
"""Flower's category of a request by its kind; "query" for all others."""
_BUSY_S = 0.1
"""Seconds until a busy or absent SuperLink is asked again."""
_LOOK_S = 1.0
"""Seconds between requests for answers without a signal."""
_REST_S = 0.025
"""Seconds between two checks of the signal, and the shortest time between requests for answers."""
_NODES_S = 0.25
"""Seconds for which the list of nodes is cached; a round begins with several requests for it."""
MOST_AGAIN = 5
"""How often a lost request is sent again to a node, which may wrongly say that it received none."""
FETCHERS = 16
"""Messages that are fetched in parallel. Slow nodes delay others only if there are more of them."""
MOST_REASON = 200
"""Characters of the reason for a failed fetch."""


class Mailbox:
    """A Channel (see `correspondence`) through the SuperLink, with its own deadline."""

    most: int = MOST_BYTES
    """Most bytes of tensors in an answer."""

    def __init__(self, client: RuntimeHttpClient, run: int, folder: Path):
        """client: connection of the run; run: its number. folder: for signals."""
        self._client, self._run = client, run
        self._node, self._fetchers = Node(node_id=SUPERLINK_NODE_ID), ThreadPoolExecutor(FETCHERS)
        self._requests, self._replies = Bell(folder / REQUESTS), Bell(folder / REPLIES)
        self._idle = IdleNodes(folder / IDLE_FOLDER)
        self._nodes: tuple[list[int], float] = [], -_NODES_S
        """The connected nodes, and the time of the request for them."""
        self._arriving: dict[str, Future[SignedMessage | str]] = {}
        """Answers being fetched, by the number of the request."""
        self._until: dict[str, float] = {}
        """Time until which an answer is useful, by number of the message."""
        self._sent: dict[str, tuple[int, float]] = {}
        """(node, time of sending) by number of the message."""

    def nodes(self) -> list[int]:
        """See `Channel.nodes`."""
        if time.monotonic() - self._nodes[1] >= _NODES_S:
            with _while_running():
                nodes = self._client.GetNodes(runtime.GetNodesRequest()).nodes
            self._nodes = sorted(node.node_id for node in nodes), time.monotonic()
        return list(self._nodes[0])

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
        self.most, until = most, time.monotonic() + deadline_s
        waiting = self._send(requests, kind, t, until)
        replies: dict[int, SignedMessage | str] = {}
        pause_s, again = _LOOK_S, Counter[int]()
        while len(replies) < len(set(waiting.values())) and time.monotonic() < until:
            self.rest(min(pause_s, until - time.monotonic()))
            asked = [number for number, node in waiting.items() if node not in replies]
            try:
                for number, reply in self.pull_messages(asked).items():
                    if number in waiting:  # else it answers an earlier exchange
                        replies.setdefault(waiting[number], reply)
                idle = {waiting[number] for number in self.lost(asked)} - replies.keys()
            except HTTPStatusError as error:
                _raise_unless_transient(error)
                pause_s = _BUSY_S
                continue
            pause_s = _LOOK_S
            lost = {node: requests[node] for node in idle if again[node] < MOST_AGAIN}
            again.update(lost.keys())
            if lost:
                waiting |= self._send(lost, kind, t, until, again.total())
        return replies

    def _send(
        self, requests: Mapping[int, SignedMessage], kind: str, t: int, until: float, again: int = 0
    ) -> dict[str, int]:
        """Send requests that are useful until a time. Returns the nodes by the numbers of their messages:
        none if the SuperLink was away until then.

        again: number of repetitions so far.
        """
        arrays: dict[int, Array] = {}
        ttl_s, category = max(0.1, until - time.monotonic()), _KINDS.get(kind, "query")
        messages = [
            Message(pack_message(sealed, arrays, again), node, category, group_id=str(t), ttl=ttl_s)
            for node, sealed in requests.items()
        ]
        while True:
            try:
                numbers = self.push_messages(messages)
                return {number: m.metadata.dst_node_id for number, m in zip(numbers, messages) if number}
            except (ObjectPushError, HTTPStatusError) as error:
                _raise_unless_transient(error)
                if time.monotonic() >= until:
                    return {}
                time.sleep(_BUSY_S)

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        """Send messages. Returns their numbers, "" for absent nodes."""
        with _while_running():
            request = runtime.PushAppMessagesRequest
            response = send(self._client, request, messages, self._node, self._run)
        numbers, sent, now = list(response.message_ids), IdleNodes.now(), time.monotonic()
        self._until = {number: until for number, until in self._until.items() if until > now}
        for number, message in zip(numbers, messages, strict=True):
            if number:
                self._until[number] = now + message.metadata.ttl
                self._sent[number] = message.metadata.dst_node_id, sent
        self._requests.ring()
        return numbers

    def rest(self, seconds: float) -> None:
        """Wait until an answer may be there, at most so many seconds."""
        end = time.monotonic() + seconds
        time.sleep(min(_REST_S, max(0.0, seconds)))
        while not self._replies.rang() and time.monotonic() < end:
            if not self._arriving:
                time.sleep(_REST_S)
            elif wait(self._arriving.values(), _REST_S, FIRST_COMPLETED).done:
                return

    def pull_messages(self, numbers: Iterable[str]) -> dict[str, SignedMessage | str]:
        """The answers to these messages that have arrived since."""
        self._look(numbers)
        there = [number for number, future in self._arriving.items() if future.done()]
        for number in there:
            self._sent.pop(number, None)
        return {number: self._arriving.pop(number).result() for number in there}

    def lost(self, numbers: Iterable[str]) -> list[str]:
        """The messages, each once, to nodes that have since found no message and have sent no answer."""
        idle = [
            n for n in numbers if n in self._sent and self._idle.last(self._sent[n][0]) > self._sent[n][1]
        ]
        self._look(idle)  # an answer that was sent before such a question is there by now
        lost = [number for number in idle if number not in self._arriving]
        for number in lost:
            del self._sent[number]
        return lost

    def _look(self, numbers: Iterable[str]) -> None:
        """Begin to fetch the available answers to these messages."""
        waiting = [number for number in numbers if number not in self._arriving]
        if not waiting:
            return
        with _while_running():
            response = self._client.PullMessages(runtime.PullAppMessagesRequest(message_ids=waiting))
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            # the number of the answered request is the server's, not the sender's
            answered = head.metadata.reply_to_message_id
            until = self._until.get(answered, math.inf)
            self._arriving[answered] = self._fetchers.submit(self._fetch, head, tree, until)

    def _fetch(self, head: MessageProto, tree: ObjectTree, until: float) -> SignedMessage | str:
        """A message, or the reason why its sender does not send it or it is unreadable.

        A transfer that lasts beyond `until` is given up, so that a slow node does not occupy a fetcher
        forever.
        """
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, self._run)

        def timely(number: str) -> bytes:
            if time.monotonic() > until:
                raise ObjectPullError(number, "it came too late to be of use")
            return pull(number)

        try:
            reply = Arrival(head, tree, self.most).go_on(timely)
            if reply.has_error():
                return f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
            return unpack_message(reply.content)
        except Exception as error:  # an error in Flower's parsers concerns one reply only
            reason = (str(error) or type(error).__name__)[:MOST_REASON]
            return f"E303 {reason}" if isinstance(error, MessageTooLarge) else reason
        finally:
            self._fetchers.submit(self._confirm, tree.object_id)  # the deletion may take place later

    def _confirm(self, number: str) -> None:
        """Let the SuperLink delete a received message. If that fails it is deleted with its run."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run, message_object_id=number)
        with contextlib.suppress(httpx.HTTPError):
            self._client.ConfirmMessageReceived(request)


@contextlib.contextmanager
def _while_running() -> Iterator[None]:
    """Raises UnskewError (E507) instead of an HTTP error if the run has been ended at the SuperLink."""
    try:
        yield
    except HTTPStatusError as error:
        if error.response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise
        text = "the run was ended at the server; every finished round is saved."
        raise UnskewError("E507", text) from error


def _raise_unless_transient(error: ObjectPushError | HTTPStatusError) -> None:
    """Raise the error of a failed call, unless the SuperLink was restarting or busy."""
    if isinstance(error, HTTPStatusError) and not error.response.is_server_error:
        raise error


STARTING_S = 20.0
"""Seconds of attempts to start a run at a SuperLink that may still be starting."""


@contextlib.contextmanager
def run_mailbox(home: Coordinator) -> Iterator[Mailbox]:
    """The messages of a new run at the SuperLink, which this process conducts. For the main thread.

    Inside the block the end of a terminal does not end the process. Raises UsageError (E507) if the SuperLink
    does not answer, or refuses the run.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, _interrupt)
    link = SuperLink(home)
    try:
        task = _own_task(home, link)
        proof, retry = RuntimeTokenHttpInterceptor(token=task.token), make_simple_http_retry_invoker()
        beats = HeartbeatSender(make_task_heartbeat_fn_http(runtime_client(home, proof)))
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
            task.run, SUPERLINK_NODE_ID, task.number,
        )  # fmt: skip
        beats.start()
        problem = "the run's process ended early"
        try:
            yield Mailbox(runtime_client(home, proof, retry=retry), task.run, home.folder / "flower")
            problem = ""
        finally:
            if beats.is_running:
                beats.stop()
            with contextlib.suppress(Refused, Unavailable):
                link.finish(task, problem)
    finally:
        link.close()


def _own_task(home: Coordinator, link: SuperLink) -> Task:
    """The task of a new run. Tasks of other runs are ended, because no process waits for them.

    Raises UsageError (E507).
    """
    until, number = time.monotonic() + STARTING_S, 0
    with open(home.folder / "flower" / "tasks.lock", "a", opener=refuse_link) as file:
        lock(file, wait=True)  # another command could take the task
        while time.monotonic() < until:
            try:
                number = number or link.start()
                if (task := link.take()) and task.run == number:
                    link.begin(task)
                    return task
                if task:
                    link.finish(task, "no process waits for this run")
                    continue
            except Refused as error:
                raise UsageError("E507", f"the SuperLink did not accept the run: {error}") from error
            except Unavailable:
                pass
            time.sleep(_BUSY_S)
    raise UsageError("E507", "the SuperLink does not answer; is `unskew serve` running?")


def _interrupt(*_: Any) -> NoReturn:
    """End on the first interrupt; Flower's client sends one to itself whenever the run's token is refused."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
