"""A single run whose clients train on the nodes of a Ray cluster: chunks of a round's cohort go to actors,
one at a time.

Chunks are those of one machine, and each is a function of what it is handed; so where it is computed, and how
often, changes no bit. The driver keeps the clients' private state, merges, scores and writes the run's
folder.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unskew import config
from unskew.comparison import ray_actor
from unskew.comparison.cluster import HERE, Cluster
from unskew.comparison.ray_cluster import Nodes
from unskew.comparison.ray_trainer import ClientMessages, clone_tree
from unskew.comparison.workers import MOST_LOSSES
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.errors import StateError, UsageError
from unskew.round.clients import Broadcast
from unskew.round.run import Run
from unskew.round.schedule import Chunk
from unskew.runs.run_folder import fingerprint
from unskew.scores import NONE
from unskew.system.python_files import GIVEN_OBJECT


def train_clients_on(run: Run, cluster: Cluster) -> Run:
    """The run with its clients trained on the cluster. Raises UsageError (E109) for a run on a GPU, which
    trains in one process."""
    if run.device != "cpu":
        text = f"--on spreads the clients of one run over CPUs, and this run computes on {run.device}"
        raise UsageError("E109", f"{text}; set device=cpu, or leave --on out.")
    given = [*(name for name in ("data", "model") if getattr(run.settings, name) == GIVEN_OBJECT), *run.given]
    if given:
        text = f"nodes build a run from its settings, and {given[0]} was given in Python as an object"
        raise UsageError("E109", f"{text}; name it (a path, or file.py:name), or leave on='{HERE}'.")
    settings = run.settings.replace(
        device="cpu", workers=1, lanes=str(run.lanes), metrics=NONE
    )  # the driver scores
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
        self._nodes = self._nodes or Nodes(self.cluster, "cpu")
        with self._nodes.reached() as ray:
            sent = ray.put(Broadcast(start.t, start.lr, clone_tree(start.weights), clone_tree(start.down)))  # type: ignore[arg-type]
            replies = self._trained(ray, plan, sent, start, private)
        return [replies[i] for i in range(len(plan))]

    def _trained(
        self, ray: Any, plan: Sequence[Chunk], sent: Any, start: Broadcast, private: Mapping[int, Tree]
    ) -> dict[int, list[Reply]]:
        """The replies of each chunk of the plan, by its number. sent: where the cluster keeps what the round
        starts from."""
        waiting, busy = deque(range(len(plan))), dict[Any, tuple[int, Any]]()
        replies: dict[int, list[Reply]] = {}
        losses = Counter[int]()
        try:
            while waiting or busy:
                while waiting and (actor := self._free(len(busy))) is not None:
                    i = waiting.popleft()
                    busy[self._begun(actor, plan[i], sent, start, private)] = i, actor
                done, _ = ray.wait(list(busy), num_returns=1, timeout=None)
                i, actor = busy.pop(done[0])
                try:
                    replies[i] = _replies(ray.get(done[0]), start.t)
                    self._idle.append(actor)
                except ray.exceptions.RayTaskError as error:
                    raise StateError(
                        "E120", f"round {start.t} failed on the cluster: {_last_line(error)}."
                    ) from None
                except ray.exceptions.RayError as error:
                    losses[i] += 1
                    if losses[i] >= MOST_LOSSES:
                        text = (
                            f"round {start.t}: the process that trains {len(plan[i].work)} of its clients"
                            " died"
                        )
                        raise StateError("E120", f"{text} {losses[i]} times ({_last_line(error)}).") from None
                    waiting.appendleft(i)
        finally:
            for _, actor in busy.values():
                self._let_go(actor)
        return replies

    def close(self) -> None:
        """End all actors and disconnect from the cluster."""
        for actor in self._idle:
            self._let_go(actor)
        self._idle = []
        if self._nodes:
            self._nodes.close()
            self._nodes = None

    def _free(self, busy: int) -> Any:
        """An idle actor, or a new one if there is room; None if all are busy."""
        assert self._nodes
        if self._idle:
            return self._idle.pop()
        if busy and busy >= self._nodes.places():
            return None
        actor = self._nodes.hired(ray_actor.ClientActor)
        actor.open.remote(self.settings, self.data)  # what comes of it is asked with the first chunk
        return actor

    def _begun(
        self, actor: Any, chunk: Chunk, sent: Any, start: Broadcast, private: Mapping[int, Tree]
    ) -> Any:
        """Start a chunk on an actor, and return the future of its answer."""
        ids = [work.client for work in chunk.work]
        own: ClientMessages = {}
        for k in ids if start.own else ():
            weights, down = start.to(k).weights, start.to(k).down
            own[k] = clone_tree(weights), clone_tree(down)  # type: ignore[assignment]
        return actor.chunk.remote(sent, chunk, own, {k: clone_tree(private[k]) for k in ids if k in private})

    def _let_go(self, actor: Any) -> None:
        assert self._nodes
        self._nodes.let_go(actor)


def _replies(answer: dict[str, Any], t: int) -> list[Reply]:
    """The replies in an answer. Raises UsageError (E172) if the node cannot train."""
    if "unfit" in answer:
        raise UsageError("E172", f"round {t}: node {answer['node']} {answer['unfit']}.")
    return answer["replies"]


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
