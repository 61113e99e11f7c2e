"""A variant seen from the driver: a process that waits, does one round when told, and is paused in between.

Pausing (SIGSTOP for the whole process tree) matters for Ray, whose daemons take about 5 % of a core when
idle. On systems without /proc nothing is paused and nothing is known of other load.
"""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

PROC = Path("/proc")
SETTLE_S = 0.5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ChildFailed(Exception):
    """The variant ended, took too long, or answered something else."""


def process_stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state (number 3 in proc(5)) on; empty if the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def process_tree(root: int) -> list[int]:
    """`root` and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid in (int(p.name) for p in PROC.iterdir() if p.name.isdigit()):
        if fields := process_stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def tree_cpu_s(pids: list[int]) -> float:
    stats = [fields for pid in pids if (fields := process_stat(pid))]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS_PER_S


def machine_cpu_s() -> float:
    """Time all cores were busy or taken away since boot: every column but idle and iowait."""
    fields = [int(f) for f in (PROC / "stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


class Child:
    def __init__(self, name: str, command: list[str], log: Path, timeout_s: float) -> None:
        self.name, self.log, self.timeout_s = name, log, timeout_s
        threads = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
        environment = {k: v for k, v in os.environ.items() if k not in threads}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=Path(__file__).parent,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def answer(self) -> dict:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.timeout_s)
        if not ready:
            raise ChildFailed(
                f"{self.name}: no answer in {self.timeout_s:.0f} s; its messages are in {self.log}"
            )
        line = self.process.stdout.readline()
        if not line:
            raise ChildFailed(f"{self.name}: ended; its messages are in {self.log}")
        return json.loads(line)

    def one_round(self) -> dict:
        """The answer, and `other_load`: how many cores something else kept busy during the round."""
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        tree = process_tree(self.process.pid) if PROC.exists() else []
        before, start = machine_cpu_s() - tree_cpu_s(tree) if tree else 0.0, time.perf_counter()
        self.process.stdin.write(b"round\n")
        self.process.stdin.flush()
        answer = self.answer()
        if tree:
            others = machine_cpu_s() - tree_cpu_s(tree) - before
            answer["other_load"] = round(max(0.0, others / (time.perf_counter() - start)), 2)
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, number: int) -> None:
        if not PROC.exists() or self.process.poll() is not None:
            return
        for pid in process_tree(self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """Let it leave by itself; what is left after 30 s is killed."""
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
