"""Whatever goes wrong ends in one sentence with a code, and with a log where it needs one."""

from __future__ import annotations

import builtins
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import unskew
from tests.cli.calling import call
from unskew.comparison import plan, workers
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.errors import UsageError, printable

FAST = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--model", "mlp", "--workers", "1"]


def refused(*arguments: str, cwd: Path, code: str, exit_code: int = 2) -> str:
    """The one sentence, after checking that it is one."""
    called = call(*arguments, cwd=cwd)
    lines = [line for line in called.err.splitlines() if line.strip()]
    assert called.code == exit_code, called.text
    assert re.match(rf"{code} \S", lines[-1]), called.text
    assert "Traceback" not in called.text
    return lines[-1]


def test_the_folder_for_runs_is_a_file(tmp_path):
    """R6: `--folder` that is a file was a traceback."""
    (tmp_path / "runs").write_text("")
    text = refused("run", *FAST, "--name", "r", cwd=tmp_path, code="E111")
    assert "runs" in text
    assert "Not a directory" in text or "exists" in text
    log = re.search(r"The details are in (\S+)\.$", text)
    assert log
    assert "Traceback" in Path(log[1]).read_text()
    os.unlink(log[1])


def test_a_read_only_folder_and_one_that_vanished(tmp_path, monkeypatch):
    """R6: no permission, and a folder deleted while the run goes on, were tracebacks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "runs"))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", denied)
        assert "Permission denied" in refused("run", *FAST, "--name", "r", cwd=tmp_path, code="E111")
    real = os.replace
    gone: list[Path] = []

    def vanish(source: Path, target: Path) -> None:
        if Path(target).name == "state.safetensors" and not gone:
            gone.append(target)
            Path(source).unlink()
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", vanish)
        assert "No such file" in refused("run", *FAST, "--name", "s", cwd=tmp_path, code="E111")


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (MemoryError("Unable to allocate 4.00 TiB for an array"), "E142", 2),
        (torch.OutOfMemoryError("CUDA out of memory"), "E142", 2),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "E142", 2),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "E142", 2),
        (OSError(errno.ENOSPC, "No space left", "a/b"), "E203", 75),
        (RecursionError("maximum recursion depth exceeded"), "E111", 2),
        (ZeroDivisionError("\x1b[2Jdivision\nby zero"), "E143", 1),
        (UsageError("E109", "x."), "E109", 2),
    ],
)
def test_any_exception_has_a_sentence(monkeypatch, tmp_path, error, code, exit_code):
    """R6: `main` catches OSError, MemoryError and at last any Exception."""
    from unskew.runs import resolve

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(resolve, "resolve", fails)
    text = refused("run", *FAST, cwd=tmp_path, code=code, exit_code=exit_code)
    assert "\x1b" not in text
    logs = list(tmp_path.glob("unskew-error-*.log"))
    assert len(logs) == (code in ("E111", "E142", "E143"))


@pytest.mark.parametrize("device", ["gpu", "", "cuda:99999"])
def test_an_unknown_device_is_one_sentence(tmp_path, device):
    """R6: `--device gpu` and `--device mps` were torch's tracebacks."""
    refused("run", *FAST, "--device", device, cwd=tmp_path, code="E109")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fedprox", "--set", "fedprox.mu=["], "E102"),
        ([f"fedprox(mu={'-' * 3000}1)"], "E102"),
        (["--lr", "nan"], "E109"),
        (["--model", "mlp(hidden=(0,))"], "E104"),
        (["--availability", "sample:inf"], "E124"),
        (["--availability", "full,quorum:inf"], "E124"),
        (["--availability", "trace:/etc"], "E111"),
    ],
)
def test_texts_that_were_tracebacks(tmp_path, arguments, code):
    """R6: each of these ended in a traceback."""
    refused("run", *arguments, "--dry-run", cwd=tmp_path, code=code)


@pytest.mark.own_process
def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    """R4: a `random.py` in the current folder was imported by the workers of compare and reproduce."""
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    started: list[list[str]] = []
    real = workers.subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        started.append(command)
        code = "import random, sys; print(random.__file__); print('' in sys.path or sys.path[0])"
        return real([*command[: command.index("-m")], "-c", code], **options)

    monkeypatch.setattr(workers.subprocess, "Popen", popen)
    worker = workers.WorkerProcess(tmp_path / "log.txt")
    worker.process.wait()
    assert (tmp_path / "log.txt").read_text() == ""
    out = worker.process.stdout.read()
    assert str(tmp_path) not in out
    assert out.startswith(sys.base_prefix)
    worker.stop()


def small(**names: object) -> Federation:
    x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
    index = Index.of([np.arange(2), np.arange(2, 4)])
    given = {"classes": ("a", "b"), "name": "n", **names}
    return Federation(x=x, y=y, x_test=x, y_test=y, train=index, test=index, skew="site", **given)


def test_names_do_not_move_the_cursor():
    """R11: escape sequences in class and site names reached the terminal; names held newlines."""
    federation = small(
        classes=("\x1b[2J\x1b]0;owned\a", "b\nE000 forged"), names=("s\r\n1", "\u202emoc"), name="\x1b[1m"
    )
    assert federation.classes == (r"\x1b[2J\x1b]0;owned\x07", r"b\nE000 forged")
    assert federation.names == (r"s\r\n1", r"\u202emoc")
    text = unskew.data.data_overview.terminal(federation)
    assert all(c == "\n" or c.isprintable() for c in text)
    assert printable("Größe 5") == "Größe 5"
    assert str(UsageError("E109", "unknown '\x1b[2J\n'.")) == r"E109 unknown '\x1b[2J\n'."


def test_a_comparison_remembers_how_it_was_asked_for(tmp_path, monkeypatch):
    """R11: `resume` of a comparison forgot --processes and --target."""
    from unskew.cli import compare

    asked: list[plan.Plan] = []
    monkeypatch.setattr(compare, "finish", lambda path, of, as_json: asked.append(of))
    options = ["--seeds", "2", "--processes", "3", "--target", "0.75", "--name", "c", "--no-references"]
    called = call("compare", "fedavg", "bsm", *FAST, *options, cwd=tmp_path)
    assert called.code == 0, called.text
    assert call("resume", str(tmp_path / "runs/c")).code == 0
    first, again = asked
    assert (again.processes, again.target) == (first.processes, first.target) == (3, 0.75)
    assert (again.methods, again.seeds) == (("fedavg", "bsm"), (0, 1))


@pytest.mark.parametrize(
    "change",
    [{"methods": 3}, {"seeds": ["a"]}, {"settings": 7}, {"x": 1}],
)
def test_a_damaged_plan_is_one_sentence(tmp_path, change):
    """R6: compare.yaml with other values than it was written with."""
    plan.write_plan(tmp_path, plan.Plan(("fedavg",), (0,), {"rounds": 1}))
    file = tmp_path / "compare.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **change}))
    refused("resume", str(tmp_path), cwd=tmp_path, code="E111")
    file.write_text("seeds: [0]\n")
    refused("resume", str(tmp_path), cwd=tmp_path, code="E111")


def test_a_pipe_that_nobody_reads_ends_a_command_quietly_and_is_no_success():
    code = "import sys; sys.argv = ['unskew', 'list', 'errors']\nfrom unskew import cli\ncli.main()"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "redirection", "code"),
    [
        (["data", "check", "nothing.npz"], "<&- >&- 2>&-", 2),
        (["list", "errors"], ">/dev/full 2>/dev/full", 75),
        (["run", *FAST], ">&-", 0),
    ],
)
def test_a_closed_or_full_stream_changes_no_exit_code(tmp_path, arguments, redirection, code):
    """Without a stream `run` ended in E143, and every refusal in a traceback and 1."""
    done = subprocess.run(
        ["sh", "-c", f'{sys.executable} -m unskew "$@" {redirection}', "sh", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == code, done.stderr


def test_files_that_may_not_be_read_are_said_to_be_such(tmp_path, monkeypatch):
    """They were taken for damaged or for missing: 'not a whole NumPy archive: [Errno 13]', 'it has no
    state.safetensors'."""
    assert call("run", *FAST, "--name", "r", "--set", "keep_best=true", cwd=tmp_path).code == 0
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 2), np.float32), y=np.arange(9) % 3)
    (tmp_path / "d.csv").write_text("a,label\n1,2\n")
    (tmp_path / "s.yaml").write_text("rounds: 1\n")
    real = builtins.open
    closed: list[str] = []

    def denied(file: object, *rest: object, **options: object) -> object:
        if str(file).endswith(tuple(closed)):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return real(file, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, arguments, code in (
        ("d.npz", ["data", "check", "d.npz"], "E111"),
        ("d.csv", ["data", "check", "d.csv"], "E111"),
        ("s.yaml", ["run", "s.yaml", "--dry-run"], "E111"),
        ("state.safetensors", ["predict", "runs/r", "d.npz"], "E111"),
        ("best.safetensors", ["predict", "runs/r", "d.npz", "--best"], "E111"),
    ):
        closed[:] = [name]
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", denied)
            patch.setattr("io.open", denied)
            text = refused(*arguments, cwd=tmp_path, code=code)
        assert name in text
        assert "Permission denied" in text
