"""A reproduction as a Markdown page to keep with documentation, and the page that links to several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.experiments import logs, wording
from unskew.experiments.result import TableResult
from unskew.experiments.tables import table


def page(result: TableResult) -> str:
    """The page of one result."""
    head, lines = table(result)
    sections = [
        f"# {result['title']}",
        f"{result['paper']}." if result["paper"] else "",
        f"```sh\n{result['command']}\n```",
        f"Made with unskew {result['unskew']} on {result['date']}: {result['machine']}; "
        f"{result['hours']:.2f} hours of training in all runs.{wording.makers(result)}",
        _table(head, lines),
        wording.note(result),
        _claims(result),
        _logs(result),
        _privacy(result),
        _list("What differs" if result["paper"] else "Notes", wording.notes(result)),
        _list("What the paper leaves open, and our choice" if result["paper"] else "Choices", result["open"]),
        f"## What we found\n\n{result['finding']}" if result["finding"] else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def index(results: Sequence[TableResult], folder: str, written: Mapping[str, str]) -> str:
    """The page that links to the others. folder: where they are, for the command that it names.

    written: titles by file name of pages in that folder that were written by hand.
    """
    title, contents = wording.index_title(results)
    lines = [
        [
            f"[{name}]({result['page']}.md)",
            wording.rows(result),
            str(result["seeds"]),
            wording.rounds(result),
            wording.summary(result),
            f"{result['date']}, {result['unskew']}",
        ]
        for result, name in zip(results, wording.titles(results))
    ]
    sections = [
        f"# {title}",
        f"Each page has the command that made it, {contents}. The `.json` beside it has every number and curve. "
        f"`unskew report {folder}` makes HTML pages from these files.",
        f"Read first: {', '.join(f'[{title}]({name})' for name, title in written.items())}." if written else "",
        _table(["table", "rows", "seeds", "rounds", "claims", "when"], lines),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _claims(result: TableResult) -> str:
    if not result["claims"]:
        return ""
    points = " in points" if result["unit"] == "percent" else ""
    paper = " [the paper's]" if result["paper"] else ""
    head = ["the paper says" if result["paper"] else "claim", "here", f"margin{points} by row or step{paper}"]
    lines = [
        [claim["text"], claim["verdict"], wording.margins(claim, result["unit"]) or "not run"]
        for claim in result["claims"]
    ]
    rule = wording.judged(result)
    return f"## Claims\n\n{_table(head, lines)}" + (f"\n\n{rule}" if rule else "")


def _logs(result: TableResult) -> str:
    note = logs.note(result)
    return f"## Beside the published log\n\n{_table(*logs.table(result))}\n\n{note}" if note else ""


def _privacy(result: TableResult) -> str:
    lines = [
        [row, method, release, epsilon, reading]
        for row, method, release, readings in wording.privacy(result)
        for epsilon, reading in readings
    ]
    if not lines:
        return ""
    head = ["row", "method", "release", "epsilon", "reading"]
    return f"## Differential privacy of what is shared\n\n{wording.EPSILON}\n\n{_table(head, lines)}"


def _list(title: str, items: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items) if items else ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(map(_cell, line))} |" for line in lines),
    ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    """A text in one line, of which no bar ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")
