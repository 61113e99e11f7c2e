"""The connection to a Ray cluster. Ray is imported in this room and nowhere else, and only when somebody asks for it.

Ray runs and unpickles what its peers send, so a cluster is as trusted as the machine itself. Nothing that a site of a
federation sends may come here.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from unskew.cluster.knocking import knock
from unskew.cluster.place import Cluster, parse
from unskew.errors import UsageError, excerpt

STORE_BYTES = 256 << 20
"""The object store of a Ray that is started here."""
_VERSIONS = re.compile(r"Ray: (\S+) Python: (\S+)")
_STILLBORN = "Starting Ray client server failed"


@contextmanager
def connected(cluster: Cluster, cores: int) -> Iterator[Any]:
    """The module `ray`, connected; disconnected at the end unless the caller's own program had connected before.

    cores: of a Ray that is started here because there is none. Raises UsageError: E171 where Ray is not installed, E172
    where nobody answers at the address.
    """
    ray = package()
    if ray.is_initialized():
        if cluster.address:
            raise UsageError("E172", "this program is connected to a Ray cluster already; write on='ray' to use it.")
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


def package() -> Any:
    """The module `ray`. Raises UsageError (E171) where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        text = f"training on a cluster needs Ray, which is not installed here ({error}): pip install 'unskew[ray]'."
        raise UsageError("E171", text) from None


def _connect(ray: Any, cluster: Cluster, cores: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    named = cluster if cluster.address else _named_by(os.environ.get("RAY_ADDRESS", ""))
    if not named.address:
        with suppress(ConnectionError):
            ray.init("auto", **quiet)
            return
        ray.init("local", num_cpus=cores, object_store_memory=STORE_BYTES, include_dashboard=False, **quiet)
        return
    knock(named)
    try:
        _join(ray, named.url, quiet)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        raise UsageError("E172", _why_not(named, error)) from None


def _join(ray: Any, url: str, quiet: dict[str, Any]) -> None:
    """Join the cluster at this address, by a second attempt if need be: a client server forks a process for each driver beside
    threads of its own, and now and then that process dies at birth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong is told once, by whoever catches it
        try:
            ray.init(url, **quiet)
        except (OSError, RuntimeError) as error:
            if _STILLBORN not in str(error):
                raise
            ray.init(url, **quiet)
    # of a single run whose clients keep much: it is sent once a round, which is not the many small tasks that this means
    warnings.filterwarnings("ignore", "More than 10MB of messages", UserWarning)


def _why_not(cluster: Cluster, error: Exception) -> str:
    """A sentence on what Ray said when it did not join a cluster."""
    said = " ".join(str(error).split()) or type(error).__name__
    if len(versions := _VERSIONS.findall(said)) == 2:  # the cluster's, then this machine's
        there, here = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return f"the cluster at {cluster.url} runs {there}, and this machine has {here}: install the same."
    if "Traceback" in said:  # of the head's own
        said = str(error).strip().splitlines()[-1]
    return f"{cluster.url} is no Ray cluster that this Ray can join: {excerpt(said, 200)}."


def _named_by(address: str) -> Cluster:
    """The cluster of RAY_ADDRESS. Raises UsageError (E170) for what is none."""
    where = address.strip()
    if where in ("", "auto", "local"):
        return Cluster()
    return parse(where if where.startswith("ray://") else f"ray:{where}") or Cluster()
