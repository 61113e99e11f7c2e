"""`unskew watch`: show the progress of a run or a comparison from its files, which it does not change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from unskew.scores import MAIN, OVER_CLIENTS, kind

LOOK_S = 0.5
"""Seconds between two updates."""
SHOWN_ROUNDS = {**{("global", main): "global" for main in MAIN.values()}, **OVER_CLIENTS}
"""Maps (scope, metric) of each displayed score to its name on the screen."""
MOST_NAMES = 6
"""Maximum number of absent clients that a line names."""


def watch(
    run: Annotated[Path, "the folder of a run, here or over a network, or of a comparison"],
    once: Annotated[bool, "print the progress once and exit"] = False,
) -> None:
    """Follow a run: its scores, and which clients answered, were late or were dropped. Ctrl-C does not stop
    the run itself."""
    from unskew.comparison.plan import planned_cells, read_plan
    from unskew.system.disk import no_run

    if (run / "compare.yaml").exists():
        _watch_many(planned_cells(run, read_plan(run)), run / "report.html", once)
    elif (run / "config.yaml").exists() or (run / "deploy.json").exists():
        _watch_one(run, once)
    else:
        raise no_run(run, "config.yaml")


def _watch_one(run: Path, once: bool) -> None:
    from unskew.config import load

    history, rounds, shown = _History(run), 0, -1
    while True:
        over = (run / "model.safetensors").exists() or _ending(run) is not None
        rounds = rounds or (load(run / "config.yaml").rounds if (run / "config.yaml").exists() else 0)
        for text in history.read():
            print(f"  {text}", flush=True)
        for t in sorted(t for t in history.complete if t > shown):
            shown = t
            print(history.line(t, rounds), flush=True)
        if over or once:
            break
        time.sleep(LOOK_S)
    ending = _ending(run)
    if ending and ending["state"] != "done":
        print(ending["text"])
    elif (run / "model.safetensors").exists():
        print(f"done    {run / 'model.safetensors'}")


def _watch_many(runs: list[Any], report: Path, once: bool) -> None:
    """Show the same table as the command that trains the runs; in a pipe, print a line for each finished
    run."""
    from rich.console import Console

    from unskew.cli.plain_output import raw_output
    from unskew.cli.screen import Progress

    with Progress(runs, quiet=once) as progress:
        while True:
            for cell in runs:
                cell.look()
                cell.code = 0 if cell.ended else None
            progress.look(runs)
            if once or all(cell.done for cell in runs):
                break
            time.sleep(LOOK_S)
    if once:
        Console(file=raw_output()).print(progress.table())
    elif report.exists():
        print(f"report  {report}")


class _History:
    """The records of a run so far. complete: the last complete round; 0 before the first."""

    def __init__(self, run: Path):
        from unskew.records.rows import Tail  # loads NumPy

        self.complete: set[int] = set()
        self._run, self._sites = run, list[str]()
        self._metrics, self._events = Tail(run / "metrics.jsonl"), Tail(run / "events.jsonl")
        self._scores: dict[int, dict[str, float]] = {}
        self._attendance: dict[int, str] = {}
        self._main = kind("accuracy")

    def read(self) -> Iterator[str]:
        """Read new records. Yields a sentence for each event that concerns a site or a reply."""
        from unskew.records.client_lists import clients_in

        for row in self._metrics.read():  # before the events: a round's events are written before its scores
            if row["metric"] in MAIN.values():
                self._main = kind(row["metric"])
            if row["client"] is None and (name := SHOWN_ROUNDS.get((row["scope"], row["metric"]))):
                self._scores.setdefault(row["t"], {})[name] = row["value"]
            if row["t"] == 0 or (row["scope"], row["metric"]) == ("train", "seconds"):
                self.complete.add(row["t"])
        if not self._sites:  # of a run over a network, in the order of client numbers
            self._sites = [hello["site"] for hello in _content(self._run, "sites.json").get("sites", [])]
        for event in self._events.read():
            if event["code"] == "round":
                self._attendance[event["t"]] = self._answered(
                    *map(clients_in, (event["asked"], event["answered"]))
                )
            else:
                yield f"{event['code']} {event['text']}"

    def line(self, t: int, rounds: int) -> str:
        """A line about one round: its scores, and the clients that answered."""
        scores = [f"{name} {self._main.written(value):>6}" for name, value in self._scores.get(t, {}).items()]
        return "  ".join([f"round {t:>4}/{rounds}", *scores, *filter(None, [self._attendance.get(t, "")])])

    def _answered(self, asked: list[int], answered: list[int]) -> str:
        there = set(answered)
        absent = [self._sites[k] if k < len(self._sites) else str(k) for k in asked if k not in there]
        without = f"  without {', '.join(absent[:MOST_NAMES])}" if absent else ""
        more = f" and {len(absent) - MOST_NAMES} more" if len(absent) > MOST_NAMES else ""
        return f"{len(answered)}/{len(asked)} answered{without}{more}"


def _ending(run: Path) -> dict[str, Any] | None:
    """How a run over a network ended; None while it is running, and for a simulation."""
    return _content(run, "ending.json") or None


def _content(run: Path, name: str) -> dict[str, Any]:
    from unskew.report.analysis.runs import read_json

    return read_json(run / name)
