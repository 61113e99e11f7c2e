"""What a site announces as its answer: it must be one, of this site, and its list of pieces the one that is named.

Flower's server takes more: a request that a site makes up for another site or for itself, and with one answer ever other
lists of pieces, for each of which it keeps what is sent.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from google.protobuf.message import DecodeError


def is_answer(content: bytes) -> bool:
    """Whether this announces one answer of the node that speaks."""
    try:
        request = PushMessagesRequest.FromString(content)
    except DecodeError:
        return False
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return False
    facts = request.messages_list[0].metadata
    named = facts.message_id == request.message_object_trees[0].object_id
    return bool(facts.reply_to_message_id) and named and facts.src_node_id == request.node.node_id


def asking(question: bytes) -> int:
    """Whose question for messages this is, which Flower's server has checked if it has answered; 0 if nobody's."""
    try:
        return PullMessagesRequest.FromString(question).node.node_id
    except DecodeError:
        return 0
