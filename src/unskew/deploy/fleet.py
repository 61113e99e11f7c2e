"""A site's node at the server: Flower's fleet API, spoken by the site's own process.

Flower's SuperNode asks the server for the code of each run and starts it in processes of its own. This asks for
messages only: no code that a server offers is ever fetched, installed or run.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from unskew import disk
from unskew.deploy.flower import packed
from unskew.deploy.sealed import Sealed
from unskew.deploy.tickets import Joined
from unskew.errors import Paused, UnskewError, UsageError

try:
    import httpx
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto import fleet_pb2 as fleet_api
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.inflatable import inflatable_object, inflatable_utils
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from google.protobuf.message import DecodeError

    from unskew.deploy.pieces import Arrival, carried, send
    from unskew.deploy.swallowing import bounded
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise UsageError("E501", f"a deployment needs Flower 1.41: pip install 'unskew[flower]' ({error}).") from error

LIFE_S = 20.0
"""The interval of heartbeats that the server is told; after two without any it counts the site as away. Long enough for
the server to be restarted meanwhile."""
TIMEOUT_S = 30.0
"""How long one call may take; a message's tensors travel in pieces, each in a call of its own."""
_FAILED = 8
"""Flower's code of an answer that says why there is none."""


class FleetError(Exception):
    """A call that failed. Its text is the end of a sentence."""


class Unreachable(FleetError):
    """The network, a proxy or the server failed, so that the call may succeed later."""


class TurnedAway(FleetError):
    """The server does not know this site's key, or takes its clock to be wrong."""


class InUse(TurnedAway):
    """The server knows this site's key, but somebody else is connected with it."""


class Unwanted(FleetError):
    """The server does not want this message any more: its run is over."""


class Unkept(Exception):
    """A message that this machine's disk has no room for. message: all but its content."""

    def __init__(self, message: Message):
        super().__init__()
        self.message = message


class Fleet:
    """The connection of one site. Its number at the server is kept in the site's folder, so that a process that takes
    over after a crash is the same node at once, and can say what became of the request its predecessor died with."""

    def __init__(self, joined: Joined):
        ticket, key = joined.ticket, joined.key.key
        context = joined.tls()
        where = f"{'https' if context else 'http'}://{ticket.place}"
        interceptors = [NodeAuthHttpInterceptor(key, key.public_key())]
        self._client = FleetHttpClient(where, interceptors=interceptors, verify=context or False, timeout=TIMEOUT_S)
        self._client._client.event_hooks = {"response": [bounded]}
        self._key, self._admits_itself = public_key_to_bytes(key.public_key()), context is None
        self._number, self._open = joined.folder / "node", joined.folder / "answering"
        self._node = Node(node_id=int(self._number.read_text())) if self._number.exists() else None
        self._left_open = self._open.exists()
        self._folder = joined.folder
        self._pulling: tuple[int, Arrival] | None = None
        """The run of a message that has not arrived whole, and what has arrived of it."""
        self._head = b""
        """That message without its content."""

    def connect(self) -> None:
        """Be there for the server, and excuse the request that an earlier process has left open."""
        try:
            with _sorted():
                self._activate()
        except Unreachable as error:
            if isinstance(error.__cause__, (httpx.RemoteProtocolError, httpx.ReadError)):
                text = "it closes the connection without an answer, as it does with a key that is not admitted"
                raise TurnedAway(text) from error
            raise
        if self._left_open:
            with contextlib.suppress(Unwanted, DecodeError):
                self.reply(
                    _without_content(self._open.read_bytes()), "the site was restarted while it worked on this request"
                )
            self.forget()

    def _activate(self) -> None:
        if self._known():
            return
        if self._admits_itself:  # without TLS Flower does not check keys
            with contextlib.suppress(httpx.HTTPStatusError):
                self._client.RegisterNode(fleet_api.RegisterNodeFleetRequest(public_key=self._key))
        request = fleet_api.ActivateNodeRequest(public_key=self._key, heartbeat_interval=LIFE_S)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        disk.replace(self._number, str(self._node.node_id))

    def _known(self) -> bool:
        """Whether the server takes this site back under its number, which it does even before it has missed it."""
        if self._node is None:
            return False
        try:
            return self._beat()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.UNAUTHORIZED:
                raise
            return False  # the server has lost its database, or given the key another number

    def _beat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LIFE_S)
        return self._client.SendNodeHeartbeat(request).success

    def beat(self) -> None:
        """Tell the server that this site is still there. Needed at least every 2 LIFE_S."""
        with _sorted():
            self._beat()

    def receive(self) -> Message | None:
        """The next message with its content, if there is one. Until `forget`, a crash leaves it to be excused.

        After a failure it goes on with the same message. One whose pieces nothing can read comes without content. Raises
        Unkept, caused by Paused (E203), when the disk is full.
        """
        with _sorted():
            if self._pulling is None:
                response = self._client.PullMessages(fleet_api.PullMessagesRequest(node=self._node))
                if not response.messages_list:
                    return None
                self._head = response.messages_list[0].SerializeToString()
                # the server hands a message out once, so a full disk must not lose it
                with contextlib.suppress(UnskewError, OSError):
                    disk.replace(self._open, self._head)
                run = response.messages_list[0].metadata.run_id
                self._pulling = run, Arrival(response.messages_list[0], response.message_object_trees[0], self._folder)
            try:
                message = self._pulled(*self._pulling)
            except (FleetError, httpx.HTTPError, inflatable_utils.ObjectPullError):
                raise
            except Paused as error:
                self._pulling = None
                raise Unkept(_without_content(self._head)) from error
            except Exception:  # whatever a message makes Flower's parsers raise concerns that message alone
                message = _without_content(self._head)
            self._pulling = None
            return message

    def _pulled(self, run: int, arrival: Arrival) -> Message:
        message = arrival.go_on(make_pull_object_fn_protobuf(self._pull_object, self._node, run))
        number = arrival.tree.object_id
        threading.Thread(target=self._confirm, args=(run, number), daemon=True).start()  # the work need not wait for it
        message.metadata.__dict__["_message_id"] = number
        return message

    def _confirm(self, run: int, number: str) -> None:
        """Let the server delete a message that has arrived. If that fails it is deleted with its run."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=number)
        with contextlib.suppress(FleetError), _sorted():
            self._client.ConfirmMessageReceived(request)

    def _pull_object(self, request: PullObjectRequest) -> PullObjectResponse:
        with _sorted():  # a proxy that answers in the server's place says nothing about the message
            return self._client.PullObject(request)

    def reply(self, message: Message, answer: Sealed | str) -> None:
        """Send the answer to a message, or a text that says why there is none."""
        content = Error(_FAILED, answer) if isinstance(answer, str) else packed(answer)
        try:
            reply = Message(content, reply_to=message)
        except Exception as error:
            raise Unwanted(f"the message cannot be answered ({type(error).__name__})") from error
        # as if sent at once: the server need not share this machine's clock, and a reply sent again is the same one
        reply.metadata.created_at, reply.metadata.ttl = message.metadata.created_at, message.metadata.ttl
        with _sorted(), inflatable_object.no_object_id_recompute():
            all_of_it = carried(reply)
            reply.metadata.__dict__["_message_id"] = all_of_it.object_id
            request = fleet_api.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[inflatable_object.get_object_tree(all_of_it)],
            )
            response = self._client.PushMessages(request)
            run = message.metadata.run_id
            push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, response.session_id)
            send(all_of_it, response.objects_to_push, push)

    def forget(self) -> None:
        """The last message is dealt with."""
        self._pulling, self._left_open = None, False
        self._open.unlink(missing_ok=True)

    def leave(self) -> None:
        """Tell the server that this site goes, if it can be told, and close the connection."""
        with contextlib.suppress(FleetError), _sorted():
            if self._node is not None:
                self._client.DeactivateNode(fleet_api.DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()


def _without_content(head: bytes) -> Message:
    """A message whose pieces have not arrived."""
    return message_from_proto(MessageProto.FromString(head))


@contextlib.contextmanager
def _sorted() -> Iterator[None]:
    """Turn what a call raises into one of our three errors."""
    try:
        yield
    except (FleetError, Unkept, UnskewError, OSError):  # sorted already, or this machine's own, such as a full disk
        raise
    except httpx.HTTPStatusError as error:
        raise _refusal(error.response) from error
    except httpx.TransportError as error:
        raise Unreachable(str(error).rstrip(".") or type(error).__name__) from error
    except inflatable_utils.ObjectPullError as error:
        raise Unwanted(str(error)) from error
    except inflatable_utils.ObjectPushError as error:
        raise Unreachable(str(error)) from error
    except Exception as error:  # by whatever answers in the server's place
        raise Unreachable(f"the answer is not the server's ({type(error).__name__})") from error


def _refusal(response: httpx.Response) -> FleetError:
    """What an answer that is not 200 means."""
    error = FlowerError.from_json(response.text)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return TurnedAway("it does not know this site's key, or the clocks differ by more than a few seconds")
    taken = error is not None and error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
    if taken or response.status_code == httpx.codes.CONFLICT:
        return InUse("another process or machine is connected with this site's key, or was until a minute ago")
    if response.status_code == httpx.codes.FORBIDDEN:
        return Unwanted("the run is over")
    return Unreachable(f"it answers HTTP {response.status_code}")
