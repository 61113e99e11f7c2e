"""`unskew run --on`, and `unskew resume` for such a run: start a run over a network and follow it;
`unskew attach`: follow a run that another command has started."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unskew.cli.options import Json
from unskew.errors import StateError, Terminated, UsageError, suggestion
from unskew.system import disk

if TYPE_CHECKING:
    from unskew.federation.coordinator.orders import Order, RunStart, Terms
    from unskew.federation.tickets import Coordinator

ENDING_S = 3.0
"""Seconds that the process of an interrupted run may take to release its folder."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """The number of seconds in `30s`, `10m`, `2h` or a bare number. Raises UsageError (E109)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or not float(match[1]):
        raise UsageError("E109", f"a duration is written 30s, 10m or 2h; got '{text}'.")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _duration_text(seconds: float) -> str:
    """A duration as text, in a convenient unit."""
    unit, length_s = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
    return f"{seconds / length_s:.4g} {unit}"


@disk.private_files()
def run_on(federation: Path, path: Path, settings: Any, terms: Mapping[str, Any], as_json: bool) -> None:
    """Start a new run, or continue a stopped one. terms: min_sites, deadline, wait, test, without.

    Before anything is sent or written, raises UsageError for a run that cannot work over a network, and
    StateError for a folder with another run or with a run in progress.
    """
    from unskew.config import check_same, load
    from unskew.federation.coordinator.orders import Order, Terms
    from unskew.federation.protocol.study_rules import study_settings
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(federation)
    settings = study_settings(settings)
    settings.check_code()
    test = str(Path(terms["test"]).resolve()) if terms["test"] else None
    agreed = Terms(
        terms["min_sites"], seconds(terms["deadline"]), seconds(terms["wait"]), test, terms["without"]
    )
    _check_sites(home, agreed)
    order = Order(path.resolve(), federation.resolve(), settings.as_dict(), agreed)
    path.mkdir(parents=True, exist_ok=True)
    _check_free(path)
    if (path / "config.yaml").exists():
        before = load(path / "config.yaml")
        check_same(before, settings.replace(clients=before.clients), path)
    _write_order(path, order)
    conduct(path, as_json)


def _check_sites(home: Coordinator, terms: Terms) -> None:
    """Raises UsageError (E109) if too few sites are admitted, or if --without names an unknown site."""
    for site in terms.without:
        if site not in home.sites:
            near = suggestion(site, home.sites)
            raise UsageError("E109", f"--without names '{site}', which is no site of {home.name}.{near}")
    admitted = [site for site in home.admitted() if site not in terms.without]
    if not 1 <= terms.min_sites <= len(admitted):
        text = f"min-sites is {terms.min_sites}, but {len(admitted)} sites of {home.name} are admitted"
        less = f" without {', '.join(terms.without)}" if terms.without else ""
        raise UsageError("E109", f"{text}{less}: {', '.join(admitted) or 'none'}.")


def _check_free(path: Path) -> None:
    """Raises StateError (E110) if another process conducts this run and does not end within ENDING_S
    seconds."""
    from unskew.federation.coordinator.orders import check_alone

    until = time.monotonic() + ENDING_S
    while True:
        try:
            return check_alone(path)
        except StateError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.3)


@disk.private_files()
def conduct(path: Path, as_json: bool, without: tuple[str, ...] = (), wait: str = "") -> None:
    """Begin or continue the run in this folder, and show it until it ends. A finished run is only shown.

    without: further sites to leave out. wait: how long to wait for missing sites; "" keeps the earlier value.
    """
    from unskew import config
    from unskew.federation.coordinator.orders import ENDING
    from unskew.federation.tickets import Coordinator

    _check_free(path)
    say = print_nothing if as_json else print_text
    if (path / ENDING).exists() and json.loads((path / ENDING).read_text())["state"] == "done":
        say(f"run     {path}  is done; nothing is asked of any site")
        return _show_result(path, as_json)
    order = _moved_order(path, read_order(path, without, wait))
    config.build(order.settings).check_code()  # the run's process imports this code
    home = Coordinator.open(order.federation)

    from unskew.federation.coordinator import superlink  # needs Flower
    from unskew.federation.coordinator.orders import RunStart

    (path / ENDING).unlink(missing_ok=True)
    log = path / "server.log"
    started = RunStart(superlink.submit(home, order), log.stat().st_size if log.exists() else 0)
    started.write(path)
    terms = f"at least {order.terms.min_sites} sites, {_duration_text(order.terms.deadline_s)} an exchange"
    say(
        f"run     {path}  on {home.name}, {terms}; missing sites are waited for"
        f" {_duration_text(order.terms.wait_s)} at most"
    )
    try:
        show(home, path, started, as_json)
    except (KeyboardInterrupt, Terminated):
        superlink.stop(home, started.number)
        say(f"\nStopped by you; every finished round is saved. Resume with: {_resume(path)}")
        raise


@disk.private_files()
def read_order(path: Path, without: tuple[str, ...] = (), wait: str = "") -> Order:
    """The order of the run in this folder. Further sites to leave out and another `wait` are checked and
    saved in it."""
    from unskew.federation.coordinator.orders import ORDER_FILE, Order
    from unskew.federation.tickets import Coordinator

    order = Order.read(json.loads((path / ORDER_FILE).read_text()))
    if without or wait:
        both = tuple(dict.fromkeys((*order.terms.without, *without)))
        wait_s = seconds(wait) if wait else order.terms.wait_s
        order = replace(order, terms=replace(order.terms, without=both, wait_s=wait_s))
        _check_sites(Coordinator.open(order.federation), order.terms)
        _write_order(path, order)
    return order


def _resume(path: Path) -> str:
    """The command that resumes the run in this folder."""
    from unskew.config import build, resume_command

    return resume_command(path, build(read_order(path).settings))


def _moved_order(path: Path, order: Order) -> Order:
    """The order of a run, with the path of the folder that contains it now.

    With the old path, the run would begin again there. Raises StateError (E112) for a copy of a folder that
    still exists, because both would continue the same run.
    """
    from unskew.federation.coordinator.network_run import ROSTER

    here = path.resolve()
    if order.path == here:
        return order
    rosters = [folder / ROSTER for folder in (here, order.path)]
    numbers = [json.loads(roster.read_text())["run"] for roster in rosters if roster.exists()]
    if len(numbers) == 2 and numbers[0] == numbers[1]:
        text = f"{path} is a copy of {order.path}, and sites take both for one run"
        raise StateError("E112", f"{text}; resume that one, or begin a new run with another --name.")
    order = replace(order, path=here)
    _write_order(path, order)
    return order


def _write_order(path: Path, order: Order) -> None:
    from unskew.federation.coordinator.orders import ORDER_FILE

    disk.replace(path / ORDER_FILE, json.dumps(order.as_json(), indent=1))


@disk.private_files()
def show(home: Coordinator, path: Path, started: RunStart, as_json: bool) -> None:
    """Print the messages of a run until it ends, then its result.

    Raises SystemExit with the run's exit code if it failed.
    """
    from unskew.federation.coordinator import superlink
    from unskew.federation.coordinator.orders import follow

    shown = [""]

    def say(line: str) -> None:
        shown[0] = line
        print_text(line)

    ending = follow(
        path, started, lambda: superlink.status(home, started.number), print_nothing if as_json else say
    )
    if ending["state"] != "done":
        out = sys.stderr if as_json else sys.stdout  # with --json, standard output contains only JSON
        if not shown[0].endswith(ending["text"]):  # otherwise the run has already printed it
            print(ending["text"], file=out)
        if ending["code"] == 75:
            print(f"Resume with: {_resume(path)}", file=out)
        raise SystemExit(ending["code"])
    _show_result(path, as_json)


def print_text(text: str) -> None:
    """Print a text at once, also into a pipe."""
    print(text, flush=True)


def print_nothing(text: str) -> None:
    """Print nothing, in place of `print_text` if only JSON is to be printed."""


def _show_result(path: Path, as_json: bool) -> None:
    """Write the report of a finished run, and print its last scores."""
    from unskew.cli.screen import json_of, next_steps
    from unskew.records import checkpoints
    from unskew.report import page
    from unskew.report.analysis import runs
    from unskew.scores import kind

    page.write_report([path], path / "report.html")
    run = runs.read_run(path)
    weights = checkpoints.read(path / "model.safetensors")[0]
    series = {
        scope: run.series(scope, run.metric if scope == "global" else "mean")[1]
        for scope in ("global", "global@client", "personal@client")
    }
    last = {scope: float(values[-1]) for scope, values in series.items() if len(values)}
    if as_json:
        facts = {"run": str(path), "method": run.method, "scores": last}
        print(json_of({**facts, "sha256": checkpoints.digest(weights)}))
        return
    print("\n" + "  ".join(f"{scope} {kind(run.metric).written(value)}" for scope, value in last.items()))
    print(next_steps(path).splitlines()[0])


def attach(
    run: Annotated[Path, "the folder of a run over a network"],
    stop: Annotated[bool, "end the run; every finished round is saved"] = False,
    as_json: Json = False,
) -> None:
    """Follow a run until it ends, and show its result. Ctrl-C detaches from the run without ending it."""
    from unskew.federation.coordinator.orders import RunStart
    from unskew.federation.tickets import Coordinator

    started = RunStart.read(run)
    home = Coordinator.open(read_order(run).federation)
    if stop:
        from unskew.federation.coordinator import superlink  # needs Flower

        superlink.stop(home, started.number)
    try:
        show(home, run, started, as_json)
    except (KeyboardInterrupt, Terminated):
        if not as_json:
            again = f"Follow it again: unskew attach {run}   End it: add --stop"
            print_text(f"\nDetached; the run goes on. {again}")
        raise
