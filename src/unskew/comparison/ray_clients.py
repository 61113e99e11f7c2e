"""A single run whose clients train on the nodes of a Ray cluster: chunks of a round's cohort go to actors,
one at a time.

Chunks are those of one machine, and each is a function of what it is handed; so where it is computed, and how
often, changes no bit. The driver keeps the clients' private state, merges, scores and writes the run's
folder. Trees of tensors are exchanged. Each tensor is copied first, because a view would be sent with its
whole base.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from unskew import config
from unskew.comparison import ray_actor
from unskew.comparison.cluster import Cluster, check_named
from unskew.comparison.ray_cluster import Nodes
from unskew.comparison.workers import MOST_LOSSES, check_data_of_node
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.errors import StateError, UsageError
from unskew.formats import documents
from unskew.round.chunks import Chunk
from unskew.round.clients import Broadcast
from unskew.round.run import Run
from unskew.runs.assemble import trainer_of
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import fingerprint
from unskew.scores import NONE
from unskew.system.python_files import GIVEN_OBJECT

ClientMessages = dict[int, tuple[Weights, dict[str, Tree]]]
"""The messages of a Part to single clients, by client."""


def train_clients_on(run: Run, cluster: Cluster) -> Run:
    """The run with its clients trained on the cluster. Raises UsageError (E109) for a run on a GPU, which
    trains in one process."""
    if run.device != "cpu":
        text = f"--on spreads the clients of one run over CPUs, and this run computes on {run.device}"
        raise UsageError("E109", f"{text}; set device=cpu, or leave --on out.")
    given = [*(name for name in ("data", "model") if getattr(run.settings, name) == GIVEN_OBJECT), *run.given]
    check_named(given)
    # the driver scores
    settings = run.settings.replace(device="cpu", workers=1, lanes=str(run.lanes), metrics=NONE)
    return replace(run, remote=RayClients(cluster, config.dump(settings), fingerprint(run.federation)))


class RayClients:
    """Actors, each with the run's data; a `RemoteTraining`. settings: of the run, as YAML. data: the
    fingerprint of its data."""

    def __init__(self, cluster: Cluster, settings: str, data: str):
        self.cluster, self.settings, self.data = cluster, settings, data
        self._nodes: Nodes | None = None
        self._idle: list[Any] = []

    def train(
        self, plan: Sequence[Chunk], start: Broadcast, private: Mapping[int, Tree]
    ) -> list[list[Reply]]:
        """The replies of every chunk. Raises StateError (E120) for a chunk that repeatedly loses its process,
        and Paused (E172) if the connection is lost."""
        self._nodes = nodes = self._nodes or Nodes(self.cluster, "cpu")
        waiting, busy = deque(range(len(plan))), dict[Any, tuple[int, Any]]()
        replies: dict[int, list[Reply]] = {}
        losses = Counter[int]()
        with nodes.reached() as ray:
            sent = ray.put(Broadcast(start.t, start.lr, clone_tree(start.weights), clone_tree(start.down)))  # type: ignore[arg-type]
            try:
                while waiting or busy:
                    while waiting and (actor := self._free(nodes, len(busy))) is not None:
                        i = waiting.popleft()
                        own, kept = _of_clients(plan[i], start, private)
                        busy[actor.chunk.remote(sent, plan[i], own, kept)] = i, actor
                    done, _ = ray.wait(list(busy), num_returns=1, timeout=None)
                    i, actor = busy.pop(done[0])
                    try:
                        replies[i] = _replies(ray.get(done[0]), start.t)
                        self._idle.append(actor)
                    except ray.exceptions.RayTaskError as error:
                        text = f"round {start.t} failed on the cluster: {_last_line(error)}."
                        raise StateError("E120", text) from None
                    except ray.exceptions.RayError as error:
                        losses[i] += 1
                        if losses[i] >= MOST_LOSSES:
                            text = f"the process that trains {len(plan[i].work)} of its clients died"
                            text = f"round {start.t}: {text} {losses[i]} times ({_last_line(error)})."
                            raise StateError("E120", text) from None
                        waiting.appendleft(i)
            finally:
                for _, actor in busy.values():
                    nodes.let_go(actor)
        return [replies[i] for i in range(len(plan))]

    def close(self) -> None:
        """End all actors and disconnect from the cluster."""
        if self._nodes:
            for actor in self._idle:
                self._nodes.let_go(actor)
            self._nodes.close()
        self._nodes, self._idle = None, []

    def _free(self, nodes: Nodes, busy: int) -> Any:
        """An idle actor, or a new one if there is room; None if all are busy."""
        if self._idle:
            return self._idle.pop()
        if busy and busy >= nodes.places():
            return None
        actor = nodes.hired(ray_actor.ClientActor)
        actor.open.remote(self.settings, self.data)  # what comes of it is asked with the first chunk
        return actor


def _of_clients(
    chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]
) -> tuple[ClientMessages, dict[int, Tree]]:
    """(messages to the chunk's clients alone, their private state)."""
    ids = [work.client for work in chunk.work]
    own: ClientMessages = {}
    for k in ids if start.own else ():
        weights, down = start.to(k).weights, start.to(k).down
        own[k] = clone_tree(weights), clone_tree(down)  # type: ignore[assignment]
    return own, {k: clone_tree(private[k]) for k in ids if k in private}


def _replies(answer: dict[str, Any], t: int) -> list[Reply]:
    """The replies in an answer. Raises UsageError (E172) if the node cannot train."""
    if "unfit" in answer:
        raise UsageError("E172", f"round {t}: node {answer['node']} {answer['unfit']}.")
    return answer["replies"]


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


class ChunkTrainer:
    """On a node: the run of these settings (YAML), ready to train. data: the required fingerprint of its
    data.

    Raises StateError (E172) for other data, and the errors of `resolve`.
    """

    def __init__(self, settings: str, data: str):
        run = resolve(config.build(documents.load(settings, "the settings", "E111")))
        check_data_of_node(run.settings.data, fingerprint(run.federation), data)
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
