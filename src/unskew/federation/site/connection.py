"""The processes of `unskew site run`: this one has the connection to the server, and a worker has the data.

The connection is Flower's fleet API, and a loop that answers the server's messages one by one. Flower's
SuperNode downloads the code of each run and starts it in processes of its own. This connection asks for
messages only: no code that a server offers is ever fetched, installed or run.
"""

# pyright: reportMissingImports=false
# Flower, which brings httpx, lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage, UnskewError, UsageError, printable
from unskew.federation import programs
from unskew.federation.programs import Program, RareSay, Say, configure_malloc, stop_at_end
from unskew.federation.protocol.signed_messages import SOCKET, SignedMessage, ask_worker
from unskew.federation.site.site_folder import SiteFolder, rejection
from unskew.system import disk

try:
    import httpx
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.serde import message_from_proto
    from flwr.proto import fleet_pb2 as fleet_api
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from unskew.federation.protocol.flower_messages import (
        Arrival,
        pack_message,
        send,
        set_number,
        unpack_message,
    )
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

CONNECTED = "connected to the server"
LIFE_S = 20.0
"""The heartbeat interval announced to the server, which counts the site as away after two intervals
without one. Long enough for a restart of the server."""
TIMEOUT_S = 30.0
"""Seconds for one call; each piece of a message takes a call of its own."""
_FAILURE_CODE = 8


class FleetError(Exception):
    """A call failed. The text is the end of a sentence."""


class ServerUnreachable(FleetError):
    """The network, a proxy or the server failed; the call may succeed later."""


class AccessDenied(FleetError):
    """The server does not know this site's key, or rejects its clock."""


class KeyInUse(AccessDenied):
    """Another process is connected with this site's key."""


class AnswerRefused(FleetError):
    """The server no longer accepts an answer, because the message's run is over."""


class Fleet:
    """The connection of one site.

    Its node number at the server is stored in the site's folder, so that a process that takes over after a
    crash is the same node at once. The request during which its predecessor died is then sent again.
    """

    def __init__(self, joined: SiteFolder):
        ticket, key = joined.ticket, joined.key.key
        context = joined.tls()
        url = f"https://{ticket.place}"
        interceptors = [NodeAuthHttpInterceptor(key, key.public_key())]
        self._client = FleetHttpClient(url, interceptors=interceptors, verify=context, timeout=TIMEOUT_S)
        self._key = public_key_to_bytes(key.public_key())
        self._number = joined.folder / "node"
        self._node = Node(node_id=int(self._number.read_text())) if self._number.exists() else None
        self._pulling: tuple[MessageProto, Arrival] | None = None
        """An incomplete message without its content, and its received pieces."""

    def connect(self) -> None:
        """Connect to the server."""
        try:
            with _map_errors():
                self._activate()
        except ServerUnreachable as error:
            if isinstance(error.__cause__, (httpx.RemoteProtocolError, httpx.ReadError)):
                text = "it closes the connection without an answer, as it does with a key that is not"
                raise AccessDenied(f"{text} admitted") from error
            raise

    def _activate(self) -> None:
        if self._known():
            return
        request = fleet_api.ActivateNodeRequest(public_key=self._key, heartbeat_interval=LIFE_S)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        disk.replace(self._number, str(self._node.node_id))

    def _known(self) -> bool:
        """True if the server takes this site back under its stored number."""
        try:
            return self._node is not None and self._beat()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.UNAUTHORIZED:
                raise
            return False  # the server has lost its database, or given the key another number

    def _beat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LIFE_S)
        return self._client.SendNodeHeartbeat(request).success

    def beat(self) -> None:
        """Send a heartbeat; needed at least every 2 LIFE_S."""
        with _map_errors():
            self._beat()

    def receive(self) -> Message | None:
        """The next message with its content, if there is one.

        After a failure the transfer continues. A message with unreadable pieces comes without content.
        """
        with _map_errors():
            if self._pulling is None:
                response = self._client.PullMessages(fleet_api.PullMessagesRequest(node=self._node))
                if not response.messages_list:
                    return None
                head, tree = response.messages_list[0], response.message_object_trees[0]
                self._pulling = head, Arrival(head, tree)
            head, arrival = self._pulling
            try:
                message = self._receive_content(head.metadata.run_id, arrival)
            except (FleetError, httpx.HTTPError, inflatable_utils.ObjectPullError):
                raise
            except Exception:  # an error in Flower's parsers concerns one message only
                message = message_from_proto(head)
            self._pulling = None
            return message

    def _receive_content(self, run: int, arrival: Arrival) -> Message:
        message = arrival.go_on(make_pull_object_fn_protobuf(self._pull_object, self._node, run))
        number = arrival.tree.object_id
        # the work need not wait for it
        threading.Thread(target=self._confirm, args=(run, number), daemon=True).start()
        set_number(message, number)
        return message

    def _confirm(self, run: int, number: str) -> None:
        """Let the server delete a received message. If that fails it is deleted with its run."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=number)
        with contextlib.suppress(FleetError), _map_errors():
            self._client.ConfirmMessageReceived(request)

    def _pull_object(self, request: PullObjectRequest) -> PullObjectResponse:
        with _map_errors():  # a proxy that answers in the server's place says nothing about the message
            return self._client.PullObject(request)

    def reply(self, message: Message, answer: SignedMessage | str) -> None:
        """Send the answer to a message, or a text with the reason why there is none."""
        content = Error(_FAILURE_CODE, answer) if isinstance(answer, str) else pack_message(answer)
        try:
            reply = Message(content, reply_to=message)
        except Exception as error:
            raise AnswerRefused(f"the message cannot be answered ({type(error).__name__})") from error
        # as if sent at once: the server need not share this machine's clock, and a reply sent again is the
        # same one
        reply.metadata.created_at, reply.metadata.ttl = message.metadata.created_at, message.metadata.ttl
        with _map_errors():
            request = partial(fleet_api.PushMessagesRequest, node=self._node)
            send(self._client, request, [reply], self._node, message.metadata.run_id)

    def forget(self) -> None:
        """Give up an incomplete message."""
        self._pulling = None

    def leave(self) -> None:
        """Sign off at the server, if it can be reached, and close the connection."""
        with contextlib.suppress(FleetError), _map_errors():
            if self._node is not None:
                self._client.DeactivateNode(fleet_api.DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()


@contextlib.contextmanager
def _map_errors() -> Iterator[None]:
    try:
        yield
    except (FleetError, UnskewError, OSError):  # mapped already, or of this machine
        raise
    except httpx.HTTPStatusError as error:
        raise _refusal(error.response) from error
    except httpx.TransportError as error:
        raise ServerUnreachable(str(error).rstrip(".") or type(error).__name__) from error
    except inflatable_utils.ObjectPullError as error:
        raise AnswerRefused(str(error)) from error
    except inflatable_utils.ObjectPushError as error:
        raise ServerUnreachable(str(error)) from error
    except Exception as error:  # another program answers in the server's place
        raise ServerUnreachable(f"the answer is not the server's ({type(error).__name__})") from error


def _refusal(response: httpx.Response) -> FleetError:
    error = FlowerError.from_json(response.text)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        text = "it does not know this site's key, or the clocks differ by more than a few seconds"
        return AccessDenied(text)
    in_use = error is not None and error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
    if in_use or response.status_code == httpx.codes.CONFLICT:
        text = "another process or machine is connected with this site's key, or was until a minute ago"
        return KeyInUse(text)
    if response.status_code == httpx.codes.FORBIDDEN:
        return AnswerRefused("the run is over")
    return ServerUnreachable(f"it answers HTTP {response.status_code}")


PAUSE_S = 0.05
"""Seconds between two requests for messages, each of which the front holds until there is news."""
RETRY_S = 5.0
"""Longest pause before a new attempt to connect; the first pause is a tenth of it."""
BEAT_S = LIFE_S / 4


@dataclass
class AnswerLoop:
    """answer: the worker's, within so many seconds; raises OSError if there is none. over: set it to end
    `run`."""

    fleet: Fleet
    answer: Callable[[SignedMessage, float], SignedMessage]
    say: Say
    site: str
    over: threading.Event = field(default_factory=threading.Event)
    _failures: int = 0
    _lost: float | None = 0.0
    """Start of the current outage: 0 before the first connection, None while connected."""
    _ready: tuple[Any, SignedMessage | str, float] | None = None
    """A message, its answer that has not been sent yet, and the time until which the answer is useful."""

    def run(self) -> None:
        """Take part until `over` is set."""
        threading.Thread(target=self._beat, daemon=True).start()
        while not self.over.is_set():
            try:
                self.fleet.connect()
                self._take_part()
            except FleetError as error:
                self._lose()
                self._explain(error)
                self._failures += 1
                longest = min(RETRY_S, RETRY_S / 10 * 2 ** (self._failures - 1))
                self.over.wait(random.uniform(longest / 2, longest))
            except Exception as error:  # no external input may end the site
                self._lose()
                self.say(f"unexpected: {_brief(error)}. The site connects again.")
                self._ready = None
                self.fleet.forget()
                self.over.wait(RETRY_S)
        self.fleet.leave()

    def _lose(self) -> None:
        self._lost = self._lost or time.monotonic()

    def _beat(self) -> None:
        while not self.over.wait(BEAT_S):
            try:
                self.fleet.beat()
            except Exception:
                continue  # `run` meets this error too and reports it

    def _take_part(self) -> None:
        """Ask for messages and answer them. Raises FleetError when the server is lost."""
        while not self.over.is_set():
            self._send()
            message = None
            try:
                message = self.fleet.receive()
            except AnswerRefused:
                self.fleet.forget()
            self._failures = 0
            if self._lost is not None:  # only now, because the server accepts nodes that it refuses later
                again = f" again after {time.monotonic() - self._lost:.0f} s" if self._lost else ""
                self.say(CONNECTED + again)
                self._lost = None
            if message is None:
                self.over.wait(PAUSE_S)
                continue
            start = time.monotonic()
            self._ready = message, self._answer_to(message), start + message.metadata.ttl

    def _answer_to(self, message: Any) -> SignedMessage | str:
        """The worker's answer, or a text with the reason why there is none."""
        try:
            request = unpack_message(message.content)
        except Exception as error:
            self.say("a message that cannot be read was refused; nobody who keeps to the protocol sends one")
            return f"the request cannot be read: {_brief(error)}"
        try:
            return self.answer(request, message.metadata.ttl)
        except TimeoutError:
            return "the site's worker did not answer in time"
        except OSError as error:
            return f"the site's worker ended while it worked on this request ({type(error).__name__})"
        except Exception as error:
            return f"the request could not be handed to the site's worker ({type(error).__name__})"

    def _send(self) -> None:
        """Send the answer that is ready. While the server is lost it stays ready as long as it is useful."""
        if self._ready is None:
            return
        message, answer, until = self._ready
        if time.monotonic() < until:
            try:
                self.fleet.reply(message, answer)
            except AnswerRefused:
                self.say("an answer was not wanted any more: its run is over")
        self._ready = None

    def _explain(self, error: FleetError) -> None:
        if isinstance(error, AccessDenied):
            question = "" if isinstance(error, KeyInUse) else f" Is {self.site}.pub admitted?"
            text = f"the server does not let this site in: {error}.{question}"
            self.say(f"{text} It is tried again until it does.")
        elif isinstance(error, ServerUnreachable):
            self.say(f"the server is not reached: {error}. It is tried again until it is.")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:200]}".strip()


HOPELESS = (2, 3)
"""Exit codes of a worker with invalid arguments or data, which a restart cannot fix."""
GOODBYE_S = 5.0
"""Longest time in seconds to sign off at the server."""


@dataclass
class SiteProcesses:
    """The programs of `unskew site run`. say: prints events of the connection and of the worker.

    Heartbeats come from a thread, and the worker may hang, be killed or take minutes to load its data without
    a loss of the connection. A site that has lost the server reconnects. What the worker prints for the
    site's operator goes to its log and to this process's output.
    """

    joined: SiteFolder
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    say: Say = print
    approve: str = "ask"

    def __post_init__(self) -> None:
        self._rarely = RareSay(self.say, always=CONNECTED)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer the server's requests until stopped.

        Raises UsageError (E503) if the server will never accept this site, the worker's own UnskewError if
        it rejects its arguments or its data, which a restart cannot fix, and UnskewError (E507) if the
        connection's thread has ended.
        """
        configure_malloc()
        ticket = self.joined.ticket
        if reason := rejection(self.joined):
            raise UsageError("E503", f"{ticket.place}: {reason}")
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            path = Path(private) / "worker"
            worker = self._worker(path)
            with stop_at_end(worker):
                while not path.exists():  # the server sees this site once it has its data
                    self._tend(worker)
                    if until():
                        return
                self._take_part(path, worker, until)

    def _take_part(self, path: Path, worker: Program, until: Callable[[], bool]) -> None:
        answering = AnswerLoop(
            Fleet(self.joined), partial(ask_worker, path), self._rarely, self.joined.ticket.site
        )
        thread = threading.Thread(target=answering.run, daemon=True)
        thread.start()
        try:
            while not until():
                if not thread.is_alive():
                    text = "this site's connection ended unexpectedly; start `unskew site run` again."
                    raise UnskewError("E507", text)
                self._tend(worker)
        finally:
            answering.over.set()
            worker.stop()  # or a request that it works on would keep the connection
            thread.join(GOODBYE_S)

    def _tend(self, worker: Program) -> None:
        """Keep the worker running. Raises its own UnskewError if a restart cannot help."""
        code = worker.tend(self._rarely)
        if code in HOPELESS:
            error = UnskewError(*(programs.last_error(worker.log) or ("E507", "the worker ended.")))
            error.exit_code = code
            raise error
        time.sleep(0.2)

    def _worker(self, address: Path) -> Program:
        folder = self.joined.folder
        env = programs.environment(folder / "flower", **{SOCKET: str(address)})
        options = ["--classes", self.classes] if self.classes else []
        options += ["--model", self.model] if self.model else []
        options += ["--device", self.device, "--approve", self.approve]
        module = ["-P", "-m", "unskew.federation.site.worker"]
        command = [sys.executable, *module, str(folder), self.data, *options]

        def seen(line: str) -> None:
            if not programs.CODE.match(line):  # the worker's last words, which `_tend` raises
                programs.echo(printable(line))

        return Program("the worker", command, env, folder / "worker.log", seen, hopeless=HOPELESS)
