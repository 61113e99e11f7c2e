"""`unskew watch`: how a run, a comparison or a table is doing, from what it has written, without touching it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

LOOK_S = 0.5


def command(
    run: Annotated[
        Path, typer.Argument(help="the folder of a run, here or over a network, of a comparison, or runs/reproduce")
    ],
    once: Annotated[bool, typer.Option("--once", help="show what there is, then stop")] = False,
) -> None:
    """Follow a run: its scores, who answered, who was late or dropped. Ctrl-C stops the watching, not the run."""
    from unskew.comparison import cells
    from unskew.config import load
    from unskew.errors import UsageError

    if (run / "compare.yaml").exists():
        _many(cells.described(run), run / "report.html", once)
        return
    if (run / "now.json").exists():
        _many(cells.announced(run), run / "pages" / "index.html", once)
        return
    if not (run / "config.yaml").exists() and not (run / "deploy.json").exists():
        raise UsageError("E117", f"{run} holds no run: there is no config.yaml in it.")
    seen, rounds, shown = _Seen(run), 0, -1
    while True:
        over = (run / "model.safetensors").exists() or _ending(run) is not None
        rounds = rounds or (load(run / "config.yaml").rounds if (run / "config.yaml").exists() else 0)
        for text in seen.look():
            print(f"  {text}", flush=True)
        for t in sorted(t for t in seen.over if t > shown):
            shown = t
            print(seen.line(t, rounds), flush=True)
        if over or once:
            break
        time.sleep(LOOK_S)
    ending = _ending(run)
    if ending and ending["state"] != "done":
        print(ending["text"] if ending["code"] != 75 else f"{ending['text']} Resume with: unskew resume {run}")
    elif (run / "model.safetensors").exists():
        print(f"done    {run / 'model.safetensors'}")


def _many(plan: list[Any], report: Path, once: bool) -> None:
    """The table that is shown where they train; when piped a line per finished run."""
    from rich.console import Console

    from unskew.cli.progress import Progress

    with Progress(plan, quiet=once) as progress:
        while True:
            for cell in plan:
                cell.look()
                cell.code = 0 if cell.ended else None
            progress.look(plan)
            if once or all(c.done for c in plan):
                break
            time.sleep(LOOK_S)
    if once:
        Console().print(progress.table())
    elif report.exists():
        print(f"report  {report}")


_SHOWN = {
    ("global", "accuracy"): "global",
    ("global", "dice"): "global",
    ("global@client", "mean"): "clients",
    ("global@client", "worst"): "worst",
}


class _Tail:
    """New whole lines of a file that grows, and is cut back when a run resumes."""

    def __init__(self, path: Path):
        self.path, self.at = path, 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        self.at = min(self.at, self.path.stat().st_size)
        with open(self.path, "rb") as file:
            file.seek(self.at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.at += len(line)
                yield json.loads(line)


class _Seen:
    """What a run has written so far. over: rounds of which everything is written; 0 stands for before the first."""

    def __init__(self, run: Path):
        self.run, self.names, self.over = run, [], set()
        self.metrics, self.events = _Tail(run / "metrics.jsonl"), _Tail(run / "events.jsonl")
        self.scores: dict[int, dict[str, float]] = {}
        self.who: dict[int, str] = {}

    def look(self) -> Iterator[str]:
        """Reads on; sentences about sites and replies, as they come."""
        self.names = self.names or _names(self.run)
        for event in self.events.new():
            if event["code"] == "round":
                self.who[event["t"]] = self._answered(event["asked"], event["answered"])
            else:
                yield f"{event['code']} {event['text']}"
        for row in self.metrics.new():
            if row["client"] is None and (shown := _SHOWN.get((row["scope"], row["metric"]))):
                self.scores.setdefault(row["t"], {})[shown] = row["value"]
            if row["t"] == 0 or (row["scope"], row["metric"]) == ("train", "seconds"):
                self.over.add(row["t"])

    def line(self, t: int, rounds: int) -> str:
        scores = [f"{n} {v:6.1%}" for n, v in self.scores.get(t, {}).items()]
        return "  ".join([f"round {t:>4}/{rounds}", *scores, *filter(None, [self.who.get(t, "")])])

    def _answered(self, asked: list[int], answered: list[int]) -> str:
        away = [self.names[k] if k < len(self.names) else str(k) for k in asked if k not in answered]
        without = f"  without {', '.join(away[:6])}" if away else ""
        more = f" and {len(away) - 6} more" if len(away) > 6 else ""
        return f"{len(answered)}/{len(asked)} answered{without}{more}"


def _names(run: Path) -> list[str]:
    """Of the sites, in the order of client numbers; none in a simulation."""
    path = run / "sites.json"
    return [h["site"] for h in json.loads(path.read_text())["sites"]] if path.exists() else []


def _ending(run: Path) -> dict[str, Any] | None:
    path = run / "ending.json"
    return json.loads(path.read_text()) if path.exists() else None
