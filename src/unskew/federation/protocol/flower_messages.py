"""Signed messages in Flower's form, sent and received in pieces.

These functions resume interrupted transfers, and bound what they fetch, which Flower's own do not. A message
can be fetched while its sender is still sending it.

The private names of Flower's messages are used in this file only; those of its SuperLink in
`flower_patches.py`.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unskew.errors import MissingPackage
from unskew.federation.protocol.signed_messages import SignedMessage, aligned_buffer

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.app.message import remove_content_from_message
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import (
        InflatableObject,
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        ObjectUnavailableError,
        inflatable_class_registry,
    )
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

SMALL = 1 << 22
"""Up to this many bytes of tensors travel with the text; more travel as an array, in Flower's pieces of 5 MB.
"""
MOST_BYTES = 8 << 30
"""Most bytes of tensors in one message; Flower's own form does not contain their size."""
MOST_PIECES = 4096
"""Pieces of one array: a list of them may name one piece millions of times, or pieces that hold nothing."""
MOST_TEXT = 16 << 20
"""Bytes of a message without large tensors, which are held in memory."""
BACK_OFF_S, MOST_BACK_OFF_S = 0.05, 0.5
"""First and longest pause before a missing piece is requested again."""
STALLED_S = 15.0
"""A message is given up after this many seconds without a piece."""
HEAD = "head"
"""The name of a message's record with everything except large tensors."""
Pull = Callable[[str], bytes]
"""A piece by its number. Raises ObjectUnavailableError while it is on its way."""


def array(content: bytes | memoryview) -> Array:
    """An array of these bytes, of which Flower's constructor would take `bytes` alone."""
    one = Array("uint8", (len(content),), "unskew", b"")
    one.data = content
    return one


def record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """A record of these arrays by name; Flower's constructor would convert them."""
    filled = ArrayRecord()
    for name, one in arrays.items():
        filled[name] = one
    return filled


def set_number(message: Message, number: str) -> None:
    """Set a message's number, which Flower's code would compute from another form."""
    message.metadata.__dict__["_message_id"] = number


def payload(message: Message) -> InflatableObject:
    """The object to send for a message: for a small one its record alone, as each object takes calls."""
    if message.has_content() and list(message.content) == [HEAD]:
        return message.content[HEAD]
    return message


def send(client: Any, request: Callable[..., Any], messages: Sequence[Message], node: Node, run: int) -> Any:
    """Announce messages, and push those of their pieces that the other side lacks. Returns its response.

    client: Flower's. request: makes the announcement. node: the sender. The lists of pieces are sent first,
    because a receiver needs them to fetch the rest meanwhile.
    """
    with no_object_id_recompute():
        payloads = [payload(message) for message in messages]
        for message, one in zip(messages, payloads, strict=True):
            set_number(message, one.object_id)
        heads = [message_to_proto(remove_content_from_message(message)) for message in messages]
        trees = [get_object_tree(one) for one in payloads]
        response = client.PushMessages(request(messages_list=heads, message_object_trees=trees))
        push = make_push_object_fn_protobuf(client.PushObject, node, run, response.session_id)
        objects = {n: o for one in payloads for n, o in get_all_nested_objects(one).items()}
        missing = set(response.objects_to_push)
        for number in sorted(objects.keys() & missing, key=lambda n: isinstance(objects[n], ArrayChunk)):
            push(number, objects[number].deflate())
    return response


class MessageTooLarge(ValueError):
    """A message is larger than any honest one. The text is the end of a sentence."""


class Arrival:
    """A message that arrives in pieces. After a failure `go_on` fetches the missing pieces only."""

    def __init__(self, head: MessageProto, tree: ObjectTree, most: int = MOST_BYTES):
        """head: all but the content. tree: numbers of its pieces. most: most bytes of large tensors."""
        self.head, self.tree, self.most = head, tree, most
        self._contents: dict[str, bytes] = {}
        self._inflated: dict[str, InflatableObject] = {}
        """Complete objects. One that several records name is shared, and not built for each of them."""
        self._pieces: dict[str, tuple[memoryview, int, int]] = {}
        """The buffer of each array, and how many pieces and bytes of it have come."""

    def go_on(self, pull: Pull) -> Message:
        """The complete message.

        Raises ObjectPullError if its sender stops, MessageTooLarge, and the errors of `pull` and of
        Flower's parsers.
        """
        content = self._inflate(self.tree, retry_pull(pull))
        if isinstance(content, ConfigRecord):
            message = message_from_proto(self.head)
            message.content = RecordDict({HEAD: content})
            return message
        if not isinstance(content, Message):
            raise TypeError(f"a {type(content).__name__} instead of a message")
        return content

    def _inflate(self, tree: ObjectTree, pull: Pull) -> InflatableObject:
        if tree.object_id not in self._inflated:
            self._inflated[tree.object_id] = self._build(tree, pull)
        return self._inflated[tree.object_id]

    def _build(self, tree: ObjectTree, pull: Pull) -> InflatableObject:
        number = tree.object_id
        if number not in self._contents:
            self._contents[number] = pull(number)
            if sum(map(len, self._contents.values())) > MOST_TEXT:
                raise MessageTooLarge(f"it holds more than {MOST_TEXT >> 20} MB beside its tensors")
        content = self._contents[number]
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            return self._array(number, content, children, pull)
        below = {child.object_id: child for child in tree.children}
        inflated = {child: self._inflate(below[child], pull) for child in children}
        if kind == ArrayRecord.__qualname__:
            return record(
                {
                    name: inflated[child]
                    for name, child in json.loads(get_object_body(content, ArrayRecord)).items()
                }
            )
        return inflatable_class_registry[kind].inflate(content, children=inflated)

    def _array(self, number: str, content: bytes, children: Sequence[str], pull: Pull) -> Array:
        facts = json.loads(get_object_body(content, Array))
        left = self.most - sum(len(other) for other, _, _ in self._pieces.values())
        size = max(0, min(int(facts["shape"][0]), left))  # as its sender announces it
        buffer, count, end = self._pieces.get(number) or (aligned_buffer(size), 0, 0)
        pieces = [str(children[index]) for index in facts["arraychunk_ids"]]
        if len(pieces) > MOST_PIECES:
            raise MessageTooLarge(f"its tensors are in more than {MOST_PIECES:,} pieces")
        for piece in pieces[count:]:
            body = get_object_body(pull(piece), ArrayChunk)
            if end + len(body) > len(buffer):
                raise MessageTooLarge(f"its tensors have more than the {len(buffer):,} bytes expected")
            buffer[end : end + len(body)] = body
            count, end = count + 1, end + len(body)
            self._pieces[number] = buffer, count, end
        return array(buffer[:end])


def retry_pull(pull: Pull) -> Pull:
    """A pull that waits for a piece, and fails when the sender has added none for STALLED_S."""
    last = time.monotonic()

    def pull_with_retries(object_id: str) -> bytes:
        nonlocal last
        pause_s = BACK_OFF_S
        while True:
            try:
                content = pull(object_id)
            except ObjectUnavailableError:
                if time.monotonic() - last > STALLED_S:
                    raise ObjectPullError(object_id, "its sender has stopped sending it") from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MOST_BACK_OFF_S)
                continue
            last = time.monotonic()
            return content

    return pull_with_retries


def pack_message(sealed: SignedMessage, arrays: dict[int, Array] | None = None, again: int = 0) -> RecordDict:
    """A sealed message as the content of a Flower message. A small one is a single piece, because each takes
    calls.

    arrays: arrays made so far, by the identity of their bytes, which several messages may share. again:
    number of earlier sendings; Flower numbers messages by their content, and delivers none with a known
    number.
    """
    head: dict[str, str | bytes | int] = {"text": sealed.text, "signature": sealed.signature}
    head |= {"again": again} if again else {}
    if len(sealed.blob) <= SMALL:
        return RecordDict({HEAD: ConfigRecord(head | {"blob": bytes(sealed.blob)})})
    arrays = {} if arrays is None else arrays
    if id(sealed.blob) not in arrays:
        arrays[id(sealed.blob)] = array(sealed.blob)
    return RecordDict({HEAD: ConfigRecord(head), "blob": record({"blob": arrays[id(sealed.blob)]})})


def unpack_message(content: RecordDict) -> SignedMessage:
    """The inverse of `pack_message`. Raises ValueError for other content."""
    try:
        head = content.config_records[HEAD]
        text, signature = head["text"], head["signature"]
        blob = head["blob"] if "blob" in head else content.array_records["blob"]["blob"].data
    except KeyError as error:
        raise ValueError(f"a message without {error}") from None
    if not (isinstance(text, str) and isinstance(signature, bytes) and isinstance(blob, bytes | memoryview)):
        raise ValueError("a message of other types")
    return SignedMessage(text, signature, blob)
