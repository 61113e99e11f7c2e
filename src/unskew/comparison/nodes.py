"""The nodes of a Ray cluster, as a command that trains there sees them: their room, and actors that are hired on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

from unskew.cluster.place import Cluster
from unskew.cluster.session import connected
from unskew.comparison import arm
from unskew.engine.hardware import cores
from unskew.errors import Paused, UsageError
from unskew.revision import revision

LOST = "the connection to the Ray cluster was lost; every finished round is saved, and `unskew resume` goes on."


class Nodes:
    """The connection to a cluster until `close`. share: what each actor takes of a node. device: the setting of the runs.

    Raises UsageError: E171 and E172 for a cluster that cannot be reached, E173 if no node has the share.
    """

    def __init__(self, cluster: Cluster, device: str):
        self.cluster = cluster
        self._session = connected(cluster, cores())
        self.ray = self._session.__enter__()
        try:
            self.share = self._share(device)
            self.ray.cloudpickle.register_pickle_by_value(arm)  # a node may lack unskew or have another one
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reached(self) -> Iterator[Any]:
        """The module `ray`, to ask the cluster with. Raises Paused (E175) where the connection to it is lost.

        Ray would then look for another cluster on this machine, or start one, at the next question of any kind.
        """
        if not self.ray.is_initialized():
            raise Paused("E175", LOST)
        try:
            yield self.ray
        except ConnectionError:
            raise Paused("E175", LOST) from None

    def places(self) -> int:
        """How many actors there is room for now."""
        return places(self._resources(), self.share)

    def hired(self, kind: type[arm.Arm]) -> Any:
        """A new actor."""
        with self.reached() as ray:
            actor = ray.remote(kind).options(num_cpus=self.share["CPU"], num_gpus=self.share["GPU"])
            return actor.remote(order(self.share["GPU"] > 0))

    def let_go(self, actor: Any) -> None:
        """End an actor, which may be dead already, or the cluster with it."""
        if self.ray.is_initialized():
            with suppress(Exception):
                self.ray.kill(actor)

    def close(self) -> None:
        self._session.__exit__(None, None, None)

    def _resources(self) -> list[dict[str, float]]:
        """What each living node has."""
        with self.reached() as ray:
            return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def _share(self, device: str) -> dict[str, float]:
        nodes = self._resources()
        gpus = self.cluster.share_of_gpus(device, sum(node.get("GPU", 0) for node in nodes))
        share = {"CPU": float(self.cluster.cpus), "GPU": gpus}
        if not places(nodes, share):
            most = ", ".join(f"{max((n.get(kind, 0) for n in nodes), default=0):g} {kind}" for kind in share)
            text = f"a run takes {share['CPU']:g} CPU and {gpus:g} GPU, and no node of the cluster has that (at most {most})"
            raise UsageError("E173", f"{text}; say less: --on ray,cpus=1,gpus=0.")
        return share


def places(nodes: Sequence[Mapping[str, float]], share: Mapping[str, float]) -> int:
    """How many actors fit. nodes: what each has; share: what an actor takes."""
    return sum(min(int(node.get(kind, 0) / part + 1e-9) for kind, part in share.items() if part) for node in nodes)


def order(gpus: bool) -> dict[str, Any]:
    """What an actor is told: where the driver is, the environment of its runs, and the driver's versions.

    gpus: whether runs have a share of one; else none is visible to them.
    """
    env = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"UNSKEW_DATA": os.path.abspath(os.environ["UNSKEW_DATA"])} if "UNSKEW_DATA" in os.environ else {}
    return {"folder": os.getcwd(), "env": env, "versions": [revision(), version("torch")]}
