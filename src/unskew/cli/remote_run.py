"""`unskew run --on`, and `unskew resume` for such a run: conduct a run over a network."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.errors import StateError, Terminated, UsageError, suggestion
from unskew.system import disk

if TYPE_CHECKING:
    from unskew.federation.coordinator.network_run import Order, Terms
    from unskew.federation.tickets import Coordinator

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
    from unskew.federation.coordinator.network_run import Order, Terms
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
    order.write()
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
    """Raises StateError (E110), which explains how to follow the run, if another process conducts it."""
    from unskew.records.run_lock import RunLock

    try:
        with RunLock(path):
            pass
    except StateError as error:
        raise StateError(error.code, f"{error.text} To follow it: unskew watch {path}") from None


@disk.private_files()
def conduct(path: Path, as_json: bool, without: tuple[str, ...] = (), wait: str = "") -> None:
    """Begin or continue the run in this folder, and show it until it ends. A finished run is only shown.

    without: further sites to leave out. wait: how long to wait for missing sites; "" keeps the earlier value.
    """
    from unskew import config
    from unskew.federation.coordinator.network_run import ENDING, conduct_order
    from unskew.federation.tickets import Coordinator

    _check_free(path)
    say = print_nothing if as_json else print_text
    if (path / ENDING).exists() and json.loads((path / ENDING).read_text())["state"] == "done":
        say(f"run     {path}  is done; nothing is asked of any site")
        return _show_result(path, as_json)
    order = _moved_order(path, read_order(path, without, wait))
    config.build(order.settings).check_code()
    home = Coordinator.open(order.federation)

    from unskew.federation.coordinator.mailbox import run_mailbox  # needs Flower

    (path / ENDING).unlink(missing_ok=True)
    try:
        with run_mailbox(home) as mailbox:
            terms = f"at least {order.terms.min_sites} sites, {_duration_text(order.terms.deadline_s)}"
            wait_text = f"missing sites are waited for {_duration_text(order.terms.wait_s)} at most"
            say(f"run     {path}  on {home.name}, {terms} an exchange; {wait_text}")
            conduct_order(mailbox, order, say)
    except (KeyboardInterrupt, Terminated):
        again = config.resume_command(path, config.build(order.settings))
        text = f"\nStopped; every finished round is saved. Resume with: {again}"
        print(text, file=sys.stderr if as_json else sys.stdout)
        raise
    _show_result(path, as_json)


@disk.private_files()
def read_order(path: Path, without: tuple[str, ...] = (), wait: str = "") -> Order:
    """The order of the run in this folder. Further sites to leave out and another `wait` are checked and
    saved in it."""
    from unskew.federation.coordinator.network_run import Order
    from unskew.federation.tickets import Coordinator

    order = Order.read(path)
    if without or wait:
        both = tuple(dict.fromkeys((*order.terms.without, *without)))
        wait_s = seconds(wait) if wait else order.terms.wait_s
        order = replace(order, terms=replace(order.terms, without=both, wait_s=wait_s))
        _check_sites(Coordinator.open(order.federation), order.terms)
        replace(order, path=path.resolve()).write()  # here, although the run may have begun elsewhere
    return order


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
    order.write()
    return order


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
