"""Whether an address is a Ray cluster's, and of the kind that it was written as; Ray itself would wait for minutes.

A head listens at two ports, both of which speak gRPC: one for the cluster's own nodes (6379), and its client server, for
machines outside (10001). Each is asked for something that only it answers, by the names that the installed Ray has for it.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unskew.cluster.place import Cluster
from unskew.errors import UsageError

KNOCK_S = 5.0
"""How long an address may take to answer."""


def knock(cluster: Cluster) -> None:
    """Look whether somebody answers as Ray does. Raises UsageError (E172), which names who answers instead."""
    where = cluster.host_and_port
    if where is None:
        return
    try:
        socket.create_connection(where, KNOCK_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        text = f"nobody answers at {cluster.url} ({why}). Start the cluster (ray start --head), or mend the address."
        raise UsageError("E172", text) from None
    try:
        grpc = importlib.import_module("grpc")
    except ImportError:
        return
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        _check_kind(grpc, cluster, *where)


def _check_kind(grpc: Any, cluster: Cluster, host: str, port: int) -> None:
    """Raises UsageError (E172) unless what listens there is what the address says."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    outside = cluster.address.startswith("//")
    nobody = f"what listens at {cluster.url} is not Ray: ports are 6379 for ray:HOST and 10001 for ray://HOST, unless"
    with _channel(grpc, address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=KNOCK_S)
        except grpc.FutureTimeoutError:
            raise UsageError("E172", f"{nobody} `ray start` was told others.") from None
        asked = (_client_server, _head) if outside else (_head, _client_server)
        if _answers(grpc, asked[0], channel, cluster) is not False:
            return
        if not _answers(grpc, asked[1], channel, cluster):
            raise UsageError("E172", f"{nobody} `ray start` was told others.")
    if outside:
        text = f"{cluster.url} is the port of the cluster's own nodes: write ray:{address} on one of them, or give the port"
        raise UsageError("E172", f"{text} of its client server, which is 10001 unless `ray start` was told another.")
    raise UsageError("E172", f"{address} is the client server of a Ray cluster: write ray://{address}.")


def _answers(grpc: Any, ask: Any, channel: Any, cluster: Cluster) -> bool | None:
    """Whether this service is there; None where that cannot be told. Raises UsageError (E172) where a token is asked for."""
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
    service.RayletDriverStub(channel).ClusterInfo(ping, timeout=KNOCK_S)


def _head(channel: Any) -> None:
    messages = importlib.import_module("ray.core.generated.gcs_service_pb2")
    service = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    service.NodeInfoGcsServiceStub(channel).CheckAlive(messages.CheckAliveRequest(), timeout=KNOCK_S)


@contextmanager
def _channel(grpc: Any, address: str) -> Iterator[Any]:
    """A channel of gRPC, with this machine's token where Ray has tokens."""
    try:
        channel = importlib.import_module("ray._private.grpc_utils").init_grpc_channel(address, asynchronous=False)
    except (ImportError, AttributeError, TypeError):
        channel = grpc.insecure_channel(address)
    try:
        yield channel
    finally:
        channel.close()
