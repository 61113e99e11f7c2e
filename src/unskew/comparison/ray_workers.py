"""Runs on the nodes of a Ray cluster, each by an actor with its share of cores and GPUs.

Every node must see the folder of runs, the data and the user's own files under the driver's paths. An actor
starts the same worker process as a comparison on one machine does, so runs have the same files and bits.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from unskew.comparison import ray_actor, workers
from unskew.comparison.cluster import Cluster
from unskew.comparison.progress import Cell
from unskew.comparison.ray_cluster import Nodes
from unskew.comparison.workers import LOST
from unskew.errors import StateError, UsageError
from unskew.runs.resolve import federation_of, method_of
from unskew.runs.run_folder import fingerprint
from unskew.system.disk import refuse_link

COUNT_PERIOD_S = 5.0
"""Seconds between two counts of the cluster's nodes, which may come and go."""
SHARED_FILES_S = 10.0
"""The longest time until a finished run's files are visible here."""


class RayWorker:
    """An actor that trains one run after another; a `RunWorker`."""

    def __init__(self, nodes: Nodes, actor: Any, log: Path, threads: int):
        self.nodes, self.actor, self.log, self.threads = nodes, actor, log, threads
        self.cell: Cell | None = None
        self._compared: set[str] = set()
        self._answer: Any = None

    def begin(self, cell: Cell) -> None:
        settings, data = workers.write_order(cell, self.threads), ""
        if cell.settings.data not in self._compared:  # a node's files do not change from run to run
            self._compared.add(cell.settings.data)
            data = fingerprint(federation_of(cell.settings, method_of(cell.settings)))
        with self.nodes.reached():
            self.cell, self._answer = cell, self.actor.train.remote(str(cell.path), settings, data)

    def ended(self) -> int | None:
        """The exit code of the run, LOST, or None. Raises UsageError (E172) for a node that cannot train, and
        Paused (E172) if the connection is lost."""
        assert self.cell
        with self.nodes.reached() as ray:
            if not ray.wait([self._answer], timeout=0)[0]:
                return None
            try:
                answer = ray.get(self._answer)
            except ray.exceptions.RayTaskError as error:  # of the actor's own code
                self._say(str(error))
                raise StateError(
                    "E120", f"{self._of} failed on the cluster; the details are in {self.log}."
                ) from None
            except ray.exceptions.RayError as error:  # its node or its process is gone
                self._say(f"{self._of} was lost: {' '.join(str(error).split())}")
                return LOST
        if unfit := answer.get("unfit"):
            raise UsageError("E172", f"{self._of}: node {answer['node']} {unfit}.")
        if answer["code"] is None:
            self._say(f"{self._of} was lost: its process on {answer['node']} died\n{answer['said']}")
            return LOST
        self._say(answer["said"])
        if answer["code"] == 0 and not _files_are_here(self.cell):
            text = f"node {answer['node']} finished it, and nothing of it is in {self.cell.path} here"
            raise UsageError("E172", f"{self._of}: {text}; runs must lie in a folder that all nodes share.")
        return answer["code"]

    def stop(self) -> None:
        self.nodes.let_go(self.actor)

    @property
    def _of(self) -> str:
        assert self.cell
        return f"{self.cell.method}, seed {self.cell.seed}"

    def _say(self, text: str) -> None:
        if text:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "a", encoding="utf-8", opener=refuse_link) as log:
                log.write(f"{text}\n")


class RayPool:
    """The nodes of a cluster; a `WorkerPool`. processes: the most runs at a time; 0: as many as fit."""

    pause_s = 0.2

    def __init__(self, cluster: Cluster, processes: int, device: str):
        self.cluster, self.processes = cluster, processes
        self._nodes = Nodes(cluster, device)
        self._counted, self._places = -COUNT_PERIOD_S, 0

    def room(self, count: int) -> bool:
        if self.processes:
            return count < self.processes
        if time.monotonic() - self._counted > COUNT_PERIOD_S:
            self._counted, self._places = time.monotonic(), self._nodes.places()
        return count < self._places

    def hire(self, log: Path) -> RayWorker:
        return RayWorker(self._nodes, self._nodes.hired(ray_actor.RunActor), log, self.cluster.cpus)

    def close(self) -> None:
        self._nodes.close()


def _files_are_here(cell: Cell) -> bool:
    """Whether the files of a finished run are visible here within SHARED_FILES_S."""
    began = time.monotonic()
    while not cell.ended and time.monotonic() - began < SHARED_FILES_S:
        time.sleep(0.2)
    return cell.ended
