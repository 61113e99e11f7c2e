"""`unskew run --on` and the resuming of such runs: the coordinator's screen of a real federation."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.engine.disk.lock import Lock
from unskew.errors import StateError, Terminated, UsageError

TOLD = "deploy.json"
CLIP = "clip_median"
ENDING_S = 3.0
"""So long may the process of a run that was interrupted take to let go of its folder."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """`30s`, `10m`, `2h` or a bare number of seconds. Raises UsageError (E109)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or not float(match[1]):
        raise UsageError("E109", f"a duration is written 30s, 10m or 2h; got '{text}'.")
    return float(match[1]) * _UNITS[match[2] or "s"]


def clipped(method: str) -> str:
    """The same with updates clipped to their median norm, unless it merges in its own way or sends no weights."""
    from unskew.methods import registry

    made = registry.parse(method)
    if any(part.merges or part.name == "local" for part in made.parts):
        return str(made)
    return str(registry.parse(f"{made}+{CLIP}"))


def run_on(federation: Path, path: Path, settings: Any, terms: Mapping[str, Any], as_json: bool) -> None:
    """A new run, or one that was stopped. terms: min_sites, deadline, wait, test.

    Raises UsageError for what cannot run over a network, StateError for a folder that holds another run or one that is
    going on, before anything is sent or written.
    """
    from unskew.config import check_same, load
    from unskew.deploy.server import study
    from unskew.deploy.tickets import Coordinator

    home = Coordinator.open(federation)
    settings = study(settings)
    admitted = home.admitted()
    if not 1 <= terms["min_sites"] <= len(admitted):
        text = f"min-sites is {terms['min_sites']}, and {len(admitted)} sites of {home.name} are admitted"
        raise UsageError("E109", f"{text}: {', '.join(admitted) or 'none'}.")
    told = {
        "path": str(path.resolve()),
        "federation": str(federation.resolve()),
        "settings": settings.as_dict(),
        "min_sites": terms["min_sites"],
        "deadline_s": seconds(terms["deadline"]),
        "wait_s": seconds(terms["wait"]),
        "test": str(Path(terms["test"]).resolve()) if terms["test"] else None,
    }
    path.mkdir(parents=True, exist_ok=True)
    _check_free(path)
    if (path / "config.yaml").exists():
        before = load(path / "config.yaml")
        check_same(before, settings.replace(clients=before.clients), path)
    disk.replace(path / TOLD, json.dumps(told, indent=1))
    go(path, as_json)


def _check_free(path: Path) -> None:
    """Raises StateError (E110) if a process conducts this run, and goes on doing so for a while: one may be ending."""
    until = time.monotonic() + ENDING_S
    while True:
        try:
            with Lock(path):
                return
        except StateError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.3)


def go(path: Path, as_json: bool) -> None:
    """Begin or go on, and show it to the end."""
    from unskew.deploy import processes
    from unskew.deploy.tickets import Coordinator

    _check_free(path)
    told = json.loads((path / TOLD).read_text())
    home = Coordinator.open(Path(told["federation"]))

    def say(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    (path / "ending.json").unlink(missing_ok=True)
    began = time.time() - 1
    number = processes.submit(home, told)
    say(f"run     {path}  on {home.name}, at least {told['min_sites']} sites, {told['deadline_s']:g} s an exchange")
    try:
        ending = processes.follow(home, path, number, began, say)
    except (KeyboardInterrupt, Terminated):
        processes.flwr(home, "stop", number, processes.LINK)
        say(f"\nStopped by you; every finished round is saved. Resume with: unskew resume {path}")
        raise
    if ending["state"] != "done":
        print(ending["text"] if ending["code"] != 75 else f"{ending['text']} Resume with: unskew resume {path}")
        raise SystemExit(ending["code"])
    _finished(path, as_json)


def _finished(path: Path, as_json: bool) -> None:
    from unskew.cli.screen import next_steps
    from unskew.engine.disk import state
    from unskew.report import page, read

    page.write_report([path], path / "report.html")
    run = read.read_run(path)
    weights = state.read(path / "model.safetensors")[0]
    scopes = {
        s: run.series(s, run.metric if s == "global" else "mean")
        for s in ("global", "global@client", "personal@client")
    }
    last = {scope: float(values[-1]) for scope, (_, values) in scopes.items() if len(values)}
    if as_json:
        print(json.dumps({"run": str(path), "method": run.method, "scores": last, "sha256": state.digest(weights)}))
        return
    print("\n" + "  ".join(f"{scope} {value:.1%}" for scope, value in last.items()))
    print(next_steps(path).splitlines()[0])
