"""The connection to a Ray cluster and its nodes. Only this folder imports Ray, and only on request.

Ray runs and unpickles what its peers send, so a cluster is as trusted as the machine itself. Nothing that a
site of a federation sends may come here.

Before Ray connects, which would wait for minutes, the address is probed: whether a Ray cluster answers there,
and of the kind as which the address was written. A head listens at two ports, both of which speak gRPC: one
for the cluster's own nodes (6379), and its client server, for machines outside (10001). Each is asked for
something that only it answers, by the names that the installed Ray has for it.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
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
"""The longest time for the answer of an address."""


def probe_address(cluster: Cluster) -> None:
    """Check that a Ray cluster answers at the address. Raises UsageError (E172) with the service found."""
    where = cluster.host_and_port
    if where is None:
        return
    try:
        socket.create_connection(where, PROBE_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        text = (
            f"nobody answers at {cluster.url} ({why}). Start the cluster (ray start --head), or mend the"
            " address."
        )
        raise UsageError("E172", text) from None
    try:
        grpc = importlib.import_module("grpc")
    except ImportError:
        return
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        _check_kind(grpc, cluster, *where)


def _check_kind(grpc: Any, cluster: Cluster, host: str, port: int) -> None:
    """Raises UsageError (E172) unless the address has the service that its form names."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    outside = cluster.address.startswith("//")
    nobody = (
        f"what listens at {cluster.url} is not Ray: ports are 6379 for ray:HOST and 10001 for ray://HOST,"
        " unless"
    )
    with _channel(grpc, address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=PROBE_S)
        except grpc.FutureTimeoutError:
            raise UsageError("E172", f"{nobody} `ray start` was told others.") from None
        asked = (_client_server, _head) if outside else (_head, _client_server)
        if _answers(grpc, asked[0], channel, cluster) is not False:
            return
        if not _answers(grpc, asked[1], channel, cluster):
            raise UsageError("E172", f"{nobody} `ray start` was told others.")
    if outside:
        text = (
            f"{cluster.url} is the port of the cluster's own nodes: write ray:{address} on one of them, or"
            " give the port"
        )
        raise UsageError(
            "E172", f"{text} of its client server, which is 10001 unless `ray start` was told another."
        )
    raise UsageError("E172", f"{address} is the client server of a Ray cluster: write ray://{address}.")


def _answers(grpc: Any, ask: Any, channel: Any, cluster: Cluster) -> bool | None:
    """Whether this service is there; None if that is unknown. Raises UsageError (E172) if it requires a
    token."""
    try:
        ask(channel)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            text = f"the Ray cluster at {cluster.url} asks for a token that this machine does not hold"
            remedy = "copy the head's ~/.ray/auth_token here, and set RAY_AUTH_MODE=token."
            raise UsageError("E172", f"{text}: {remedy}") from None
        return False if error.code() == grpc.StatusCode.UNIMPLEMENTED else None
    except (ImportError, AttributeError):  # another Ray, whose names for it are not known here
        return None
    return True


def _client_server(channel: Any) -> None:
    messages = importlib.import_module("ray.core.generated.ray_client_pb2")
    service = importlib.import_module("ray.core.generated.ray_client_pb2_grpc")
    ping = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    service.RayletDriverStub(channel).ClusterInfo(ping, timeout=PROBE_S)


def _head(channel: Any) -> None:
    messages = importlib.import_module("ray.core.generated.gcs_service_pb2")
    service = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    service.NodeInfoGcsServiceStub(channel).CheckAlive(messages.CheckAliveRequest(), timeout=PROBE_S)


@contextmanager
def _channel(grpc: Any, address: str) -> Iterator[Any]:
    """A gRPC channel, with this machine's token if Ray uses tokens."""
    try:
        channel = importlib.import_module("ray._private.grpc_utils").init_grpc_channel(
            address, asynchronous=False
        )
    except (ImportError, AttributeError, TypeError):
        channel = grpc.insecure_channel(address)
    try:
        yield channel
    finally:
        channel.close()


STORE_BYTES = 256 << 20
"""The size of the object store of a Ray that is started here."""
_VERSIONS_PATTERN = re.compile(r"Ray: (\S+) Python: (\S+)")
_SERVER_FAILED = "Starting Ray client server failed"


@contextmanager
def connection(cluster: Cluster, cores: int) -> Iterator[Any]:
    """The module `ray`, connected; disconnected at the end unless the caller's own program had connected
    before.

    cores: of a Ray that is started here because there is none. Raises UsageError: E133 where Ray is not
    installed, E172 where nobody answers at the address.
    """
    ray = ray_package()
    if ray.is_initialized():
        if cluster.address:
            raise UsageError(
                "E172", "this program is connected to a Ray cluster already; write on='ray' to use it."
            )
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
        _join(ray, named.url, quiet)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        raise UsageError("E172", _why_not(named, error)) from None


def _join(ray: Any, url: str, quiet: dict[str, Any]) -> None:
    """Join the cluster at this address, with a second attempt if needed: a client server with threads forks
    a process for each driver, which occasionally dies at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller reports the error
        try:
            ray.init(url, **quiet)
        except (OSError, RuntimeError) as error:
            if _SERVER_FAILED not in str(error):
                raise
            ray.init(url, **quiet)
    # of a single run whose clients keep much: it is sent once a round, which is not the many small tasks that
    # this means
    warnings.filterwarnings("ignore", "More than 10MB of messages", UserWarning)


def _why_not(cluster: Cluster, error: Exception) -> str:
    """A sentence about Ray's error on joining a cluster."""
    said = " ".join(str(error).split()) or type(error).__name__
    if len(versions := _VERSIONS_PATTERN.findall(said)) == 2:  # the cluster's, then this machine's
        there, here = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return f"the cluster at {cluster.url} runs {there}, and this machine has {here}: install the same."
    if "Traceback" in said:  # of the head's own
        said = str(error).strip().splitlines()[-1]
    return f"{cluster.url} is no Ray cluster that this Ray can join: {excerpt(said, 200)}."


def _environment_cluster(address: str) -> Cluster:
    """The cluster of RAY_ADDRESS. Raises UsageError (E172) for an invalid address."""
    where = address.strip()
    if where in ("", "auto", "local"):
        return Cluster()
    return parse(where if where.startswith("ray://") else f"ray:{where}") or Cluster()


CONNECTION_LOST = (
    "the connection to the Ray cluster was lost; every finished round is saved, and `unskew resume` goes on."
)


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
            self.ray.cloudpickle.register_pickle_by_value(
                ray_actor
            )  # a node may lack unskew or have another one
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
            text = (
                f"a run takes {share['CPU']:g} CPU and {gpus:g} GPU, and no node of the cluster has that (at"
                f" most {most})"
            )
            raise UsageError("E172", f"{text}; say less: --on ray,cpus=1,gpus=0.")
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
    env |= {"UNSKEW_DATA": os.path.abspath(os.environ["UNSKEW_DATA"])} if "UNSKEW_DATA" in os.environ else {}
    return {"folder": os.getcwd(), "env": env, "versions": [revision(), version("torch")]}
