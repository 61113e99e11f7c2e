"""The connection to a Ray cluster and its nodes. Only this folder imports Ray, and only on request.

Ray runs and unpickles what its peers send, so a cluster is as trusted as the machine itself. Nothing that a
site of a federation sends may come here.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

from unskew.comparison import ray_actor
from unskew.comparison.cluster import Cluster, parse
from unskew.errors import MissingPackage, Paused, UsageError, excerpt
from unskew.runs.hardware import core_count
from unskew.version import revision

PROBE_S = 5.0
"""The longest time for the answer of an address; Ray itself would wait for minutes."""
STORE_BYTES = 256 << 20
"""The size of the object store of a Ray that is started here."""
SERVER_FAILED = "Starting Ray client server failed"
PORTS = "ports are 6379 for ray:HOST and 10001 for ray://HOST, unless `ray start` was given others"
CONNECTION_LOST = (
    "the connection to the Ray cluster was lost; runs are saved as they train, and `unskew resume` goes on."
)


def probe_address(cluster: Cluster) -> None:
    """Check that something listens at the address. Raises UsageError (E172) if nothing does."""
    if cluster.host_and_port is None:
        return
    try:
        socket.create_connection(cluster.host_and_port, PROBE_S).close()
    except OSError as error:
        remedy = "Start the cluster (ray start --head), or mend the address."
        text = f"nobody answers at {cluster.url} ({error.strerror or error}). {remedy}"
        raise UsageError("E172", text) from None


@contextmanager
def connection(cluster: Cluster, cores: int) -> Iterator[Any]:
    """The module `ray`, connected; disconnected at the end unless the caller's own program had connected
    before.

    cores: of a Ray that is started here because there is none. Raises UsageError: E133 where Ray is not
    installed, E172 where no cluster can be joined at the address.
    """
    ray = ray_package()
    if ray.is_initialized():
        if cluster.address:
            text = "this program is connected to a Ray cluster already; write on='ray' to use it."
            raise UsageError("E172", text)
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, cluster, cores)
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in this one's place
    try:
        yield ray
    finally:
        with suppress(Exception):
            ray.shutdown()


def ray_package() -> Any:
    """The module `ray`. Raises UsageError (E133) if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingPackage(f"training on a cluster ({error})", "Ray", "ray") from None


def _connect(ray: Any, cluster: Cluster, cores: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    named = cluster if cluster.address else _environment_cluster(os.environ.get("RAY_ADDRESS", ""))
    if not named.address:
        with suppress(ConnectionError):
            ray.init("auto", **quiet)
            return
        ray.init("local", num_cpus=cores, object_store_memory=STORE_BYTES, include_dashboard=False, **quiet)
        return
    probe_address(named)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it
            try:
                ray.init(named.url, **quiet)
            except (OSError, RuntimeError) as error:
                if SERVER_FAILED not in str(error):  # the process that it forks for a driver may die at once
                    raise
                ray.init(named.url, **quiet)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        said = str(error).strip()
        said = said.splitlines()[-1] if "Traceback" in said else " ".join(said.split())
        text = f"{named.url} is no Ray cluster that this Ray can join: {excerpt(said, 300)}; {PORTS}."
        raise UsageError("E172", text) from None
    # of a single run whose clients keep much: it is sent once a round, which is not the many small tasks that
    # this means
    warnings.filterwarnings("ignore", "More than 10MB of messages", UserWarning)


def _environment_cluster(address: str) -> Cluster:
    """The cluster of RAY_ADDRESS. Raises UsageError (E172) for an invalid address."""
    where = address.strip()
    if where in ("", "auto", "local"):
        return Cluster()
    return parse(where if where.startswith("ray://") else f"ray:{where}") or Cluster()


class Nodes:
    """The connection to a cluster until `close`. share: the resources of an actor. device: the setting of the
    runs.

    Raises UsageError: E133 without Ray, E172 for a cluster that cannot be reached or lacks a node
    with the share.
    """

    def __init__(self, cluster: Cluster, device: str):
        self.cluster = cluster
        self._session = connection(cluster, core_count())
        self.ray = self._session.__enter__()
        try:
            self.share = self._share(device)
            # a node may lack unskew or have another one
            self.ray.cloudpickle.register_pickle_by_value(ray_actor)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reached(self) -> Iterator[Any]:
        """The module `ray`, for a call to the cluster. Raises Paused (E172) if the connection is lost.

        Ray itself would then look for another cluster on this machine, or start one.
        """
        if not self.ray.is_initialized():
            raise Paused("E172", CONNECTION_LOST)
        try:
            yield self.ray
        except ConnectionError:
            raise Paused("E172", CONNECTION_LOST) from None

    def places(self) -> int:
        """The number of further actors that fit now."""
        return actor_places(self._resources(), self.share)

    def hired(self, kind: type[ray_actor.RunActor]) -> Any:
        """A new actor."""
        with self.reached() as ray:
            actor = ray.remote(kind).options(num_cpus=self.share["CPU"], num_gpus=self.share["GPU"])
            return actor.remote(actor_order(self.share["GPU"] > 0))

    def let_go(self, actor: Any) -> None:
        """End an actor, if it and the cluster still exist."""
        if self.ray.is_initialized():
            with suppress(Exception):
                self.ray.kill(actor)

    def close(self) -> None:
        self._session.__exit__(None, None, None)

    def _resources(self) -> list[dict[str, float]]:
        """The resources of each living node."""
        with self.reached() as ray:
            return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def _share(self, device: str) -> dict[str, float]:
        nodes = self._resources()
        gpus = self.cluster.share_of_gpus(device, sum(node.get("GPU", 0) for node in nodes))
        share = {"CPU": float(self.cluster.cpus), "GPU": gpus}
        if not actor_places(nodes, share):
            most = ", ".join(f"{max((n.get(kind, 0) for n in nodes), default=0):g} {kind}" for kind in share)
            text = f"a run takes {share['CPU']:g} CPU and {gpus:g} GPU, and no node of the cluster has that"
            raise UsageError("E172", f"{text} (at most {most}); say less: --on ray,cpus=1,gpus=0.")
        return share


def actor_places(nodes: Sequence[Mapping[str, float]], share: Mapping[str, float]) -> int:
    """The number of actors that fit. nodes: the resources of each. share: the resources of an actor."""
    return sum(
        min(int(node.get(kind, 0) / part + 1e-9) for kind, part in share.items() if part) for node in nodes
    )


def actor_order(gpus: bool) -> dict[str, Any]:
    """The order of an actor: the driver's folder and versions, and the environment of the runs.

    gpus: whether runs have a share of a GPU; otherwise no GPU is visible to them.
    """
    env = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
    if "UNSKEW_DATA" in os.environ:
        env["UNSKEW_DATA"] = os.path.abspath(os.environ["UNSKEW_DATA"])
    return {"folder": os.getcwd(), "env": env, "versions": [revision(), version("torch")]}
