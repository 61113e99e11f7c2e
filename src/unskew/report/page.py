"""One self-contained HTML page about a run, several runs, or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from unskew import disk
from unskew.report import headline, sections
from unskew.report.context import context_of
from unskew.report.read import asked_target, read_runs
from unskew.report.render import render
from unskew.report.runs import RunData
from unskew.report.verdict import pays


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str,
    target: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the page of run folders, comparison folders, or both to `out`, and return its path.

    target: the score of "bytes until the target"; default: the one that the comparison was asked for, or else 95 % of the best
    method's final score. say: is told, as the page is, of runs whose records have been changed. Raises StateError if a folder is neither a run nor a comparison (E117), or is damaged (E111).
    """
    paths = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(p) for p in paths]
    out = Path(out)
    target = asked_target(paths) if target is None else target
    runs = read_runs(paths)
    disk.write_output(out, page(runs, " and ".join(_name(p) for p in paths), target))
    for sentence in headline.altered(runs):
        say(sentence)
    return out


def _name(path: Path) -> str:
    return path.name or path.resolve().name


def page(runs: Sequence[RunData], name: str, target: float | None = None) -> str:
    """The page's text. name: what the runs are called in its head. target: as for `write_report`."""
    context = context_of(runs, name, target)
    return render(
        "page.html.j2",
        name=name,
        runs=len(context.runs),
        result=headline.result(context),
        pays=pays(context.summaries),
        cards=headline.cards(context),
        warnings=headline.warnings(context),
        sections=sections.build(context),
        version=context.first.env.get("unskew", ""),
    )
