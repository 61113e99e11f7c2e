"""The option `--on` of simulations: train on this machine, or on the nodes of a Ray cluster.

here                       this machine, one process for each core
ray                        the cluster of this machine or of RAY_ADDRESS, otherwise a Ray started here
ray:HOST:PORT              the cluster with this head, from one of its nodes (default port of Ray: 6379)
ray://HOST:PORT            the cluster with this client server (port 10001), from outside the cluster
ray...,cpus=4,gpus=0.25    the share of a node that each run takes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from unskew.errors import UsageError, excerpt
from unskew.formats import specs

HERE = "here"
_ADDRESS = re.compile(r"(//)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources that each run takes."""

    name: ClassVar[str] = "ray"
    value: ClassVar[tuple[str, ...]] = ("address",)
    example: ClassVar[str] = "ray, ray:HOST:6379 or ray://HOST:10001,cpus=2,gpus=0.5"
    address: Annotated[str, "HOST:PORT of the head, //HOST:PORT of its client server, or empty"] = ""
    cpus: Annotated[int, Ge(1), "cores a run, each with a thread"] = 1
    gpus: Annotated[
        float | None,
        Ge(0),
        "GPUs a run, such as 0.25; one where runs use a GPU and the cluster has any, if left out",
    ] = None

    @property
    def host_and_port(self) -> tuple[str, int] | None:
        """Host and port of the cluster; None where Ray itself finds the cluster."""
        match = _ADDRESS.fullmatch(self.address)
        return (match[2].strip("[]"), int(match[3])) if match else None

    @property
    def url(self) -> str:
        """The address as `ray.init` takes it; empty where Ray itself finds the cluster."""
        return f"ray:{self.address}" if self.address.startswith("//") else self.address

    def share_of_gpus(self, device: str, cluster_has: float) -> float:
        """The number of GPUs that a run takes. device: the setting. cluster_has: the cluster's GPUs."""
        if self.gpus is not None:
            return self.gpus
        return 1.0 if device.startswith("cuda") or (device == "auto" and cluster_has > 0) else 0.0


def check_named(objects: Sequence[str]) -> None:
    """Raises UsageError (E109) for objects of this process, which no node can build. objects: their names."""
    if objects:
        text = f"nodes build a run from its settings, and {objects[0]} was given in Python as an object"
        raise UsageError("E109", f"{text}; name it (a path, or file.py:name), or leave on='{HERE}'.")


def parse(text: str) -> Cluster | None:
    """The cluster that a text names; None for this machine. Raises UsageError (E172) for a text that names
    neither."""
    if text in ("", HERE):
        return None
    spec = specs.parse(text, "--on", "E172")
    if spec.kind != Cluster.name:
        raise UsageError("E172", f"--on takes {HERE}, {Cluster.example}; got {excerpt(text)}.")
    cluster = specs.read(spec, {spec.kind: Cluster}, "place", "E172")
    match = _ADDRESS.fullmatch(cluster.address)
    if cluster.address and not (match and 0 < int(match[3]) < 65536):
        raise UsageError(
            "E172", f"--on {excerpt(text)} has no host and port; write it like {Cluster.example}."
        )
    if cluster.gpus and cluster.gpus > 1 and cluster.gpus != int(cluster.gpus):
        raise UsageError(
            "E172", f"--on {excerpt(text)}: gpus is a part of one GPU or a whole number of them."
        )
    return cluster
