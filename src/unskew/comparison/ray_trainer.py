"""A single run's clients on a node: the run built there from its settings, and chunks of its clients trained.

Trees of tensors are exchanged. Each tensor is copied first, because a view would be sent with its whole base.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from unskew import config
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.errors import StateError
from unskew.formats import documents
from unskew.round.clients import Broadcast
from unskew.round.schedule import Chunk
from unskew.runs.assemble import trainer_of
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import fingerprint

ClientMessages = dict[int, tuple[Weights, dict[str, Tree]]]
"""The messages of a Part to single clients, by client."""


class ChunkTrainer:
    """The run of these settings (YAML), ready to train. data: the required fingerprint of its data.

    Raises StateError (E172) for other data, and the errors of `resolve`.
    """

    def __init__(self, settings: str, data: str):
        run = resolve(config.build(documents.load(settings, "the settings", "E111")))
        if fingerprint(run.federation) != data:
            here = f"on {platform.node()} the data '{run.settings.data}' are not those that the driver reads"
            raise StateError(
                "E172", f"{here}; every node must see the same files, with UNSKEW_DATA as the driver's."
            )
        self.trainer = trainer_of(run)

    def replies(
        self, start: Broadcast, chunk: Chunk, own: ClientMessages, private: Mapping[int, Tree]
    ) -> list[Reply]:
        """One local update of the clients of a chunk, with the same bits on every node. own: messages to
        single clients, or {}."""
        if own:
            start = replace(start, own=own.__getitem__)
        [trained] = self.trainer.each(lambda one: self.trainer.update(one, start, private), [chunk])
        return [copy_reply(reply) for reply in trained]


def copy_reply(reply: Reply) -> Reply:
    """The reply with copies of its tensors."""
    return Reply(
        reply.client,
        reply.size,
        clone_tree(reply.weights),
        {name: clone_tree(tree) for name, tree in reply.shares.items()},
        clone_tree(reply.private),
        reply.loss.clone() if isinstance(reply.loss, Tensor) else reply.loss,
    )


def clone_tree(tree: Tree) -> Tree:
    """A tree with copies of its tensors."""
    return tree_map(Tensor.clone, tree)
