"""A run's holder is named with its machine, a file system without locks refused, a dead holder ignored."""

from __future__ import annotations

import errno
import fcntl
import os
import platform

import pytest

from unskew.errors import StateError
from unskew.records.run_lock import RunLock
from unskew.system import disk, machine


def test_the_holder_is_named_with_its_machine(tmp_path):
    with (
        RunLock(tmp_path),
        pytest.raises(StateError, match=rf"E110 .* in use by pid {os.getpid()} on {platform.node()} \("),
    ):
        RunLock(tmp_path).__enter__()


def test_a_lock_is_one_holders_alone_and_free_once_it_is_closed(tmp_path):
    with open(tmp_path / "l", "a") as first, open(tmp_path / "l", "a") as second:
        disk.lock(first, wait=False)
        with pytest.raises(OSError) as told:
            disk.lock(second, wait=False)
        assert told.value.errno in disk.HELD
        first.close()
        disk.lock(second, wait=True)


def test_the_lock_of_a_machine_that_has_died_locks_nobody_out(tmp_path):
    (tmp_path / "run.lock").write_text("pid 1 on node-7 (since 09:01)")
    with RunLock(tmp_path):
        assert platform.node() in (tmp_path / "run.lock").read_text()


def test_a_file_system_that_cannot_lock_is_said_to_be_that(tmp_path, monkeypatch):
    """And nobody is said to be using the run."""

    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StateError, match=r"E110 .* cannot lock files .No locks available.*put runs on"):
        RunLock(tmp_path).__enter__()


def test_a_container_has_the_memory_that_it_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    whole = machine.usable_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.usable_memory() == whole
    (tmp_path / "memory.max").write_text("1048576\n")
    assert machine.usable_memory() == 1 << 20


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/slurm/job_7/step_0", "slurm/job_7/memory.max"),
        ("4:memory:/slurm/job_7/step_0", "memory/slurm/job_7/memory.limit_in_bytes"),
        ("4:cpu,memory:/user", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_job_of_a_cluster_has_the_memory_that_it_may_use(line, file, tmp_path, monkeypatch):
    """The limit may be that of any group of processes that holds this one's; only a container's was asked."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "self")
    whole = machine.usable_memory()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"9:pids:/other\n{line}\n")
    assert machine.usable_memory() == whole
    (tmp_path / "groups" / file).parent.mkdir(parents=True)
    (tmp_path / "groups" / file).write_text(f"{1 << 20}\n")
    assert machine.usable_memory() == 1 << 20


def test_a_process_has_the_memory_that_it_may_address(monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (1 << 22, 1 << 30))
    assert machine.usable_memory() == 1 << 22
