"""The files of deploy/: every command line is one of ours, and every sandbox is as closed as its page
says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from unskew import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = sorted((DEPLOY / "docker").glob("*.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
ANALYZE = shutil.which("systemd-analyze") or ""
MOST_EXPOSED = 3.0
WRITTEN = re.compile(r"(?:^|[\s/])unskew ((?:serve|join|run|site|federation|attach|resume|watch) .*)")


def pods(path: Path) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "StatefulSet":
            yield document["spec"]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    pod = spec["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def filled(text: str) -> str:
    """With a value for every variable of a shell, of systemd or of compose."""
    text = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{[A-Z_]+(:\?[^}]*)?\}", "x", text).replace("%i", "lung")


def in_text(text: str) -> Iterator[list[str]]:
    """The command lines in comments, scripts and prose."""
    for line in text.splitlines():
        if match := WRITTEN.search(line):
            words = shlex.split(filled(match[1].rstrip("`)").partition(" #")[0]), comments=False)
            yield words


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every command line of ours in these files: where it stands, and its words without `unskew`."""
    for path in sorted(p for p in DEPLOY.rglob("*") if p.is_file()):
        for words in in_text(path.read_text()):
            yield path.name, words
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            yield f"{path.name}: {name}", [filled(word) for word in service["command"]]
        for match in re.finditer(r"run --rm \w+ (federation .*)", path.read_text()):
            yield path.name, shlex.split(match[1])
    for path in MANIFESTS:
        for spec in pods(path):
            for one in containers(spec):
                if "command" not in one:
                    yield f"{path.name}: {one['name']}", one["args"]


LINES = list(command_lines())


def calls(command: Any) -> Iterator[Any]:
    """This command and all below it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from calls(inner)


@pytest.mark.parametrize(("place", "words"), LINES, ids=[f"{place}-{' '.join(w[:2])}" for place, w in LINES])
def test_every_command_line_is_one_of_ours(place, words):
    """Read by our own parser, which refuses options and choices that do not exist; nothing is run."""
    read = []
    command = typer.main.get_command(cli.app())
    for one in calls(command):
        if not getattr(one, "commands", None):
            one.callback = lambda **values: read.append(values)
    command.main(list(words), prog_name="unskew", standalone_mode=False)
    assert len(read) == 1, place


@pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_systemd_itself_finds_the_units_closed_and_without_a_mistake(path, tmp_path):
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:g}", str(path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert exposure
    assert float(exposure[1]) < MOST_EXPOSED
    program = tmp_path / "unskew"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copied = tmp_path / path.name.replace("@", "@lung")
    copied.write_text(path.read_text().replace("/opt/unskew/bin/unskew", str(program)))
    checked = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copied)], capture_output=True, text=True, timeout=60
    )
    assert path.name.partition("@")[0] not in checked.stderr, checked.stderr
