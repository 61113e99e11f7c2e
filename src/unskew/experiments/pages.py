"""A reproduced table as numbers, as text for a terminal and as a Markdown page, its JSON file, and the index
of a folder.

All texts are made from the stored result alone, so they can be made again at any time.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from unskew.errors import DataError, UsageError, excerpt
from unskew.experiments import wording
from unskew.experiments.result import REQUIRED, EntryRecord, TableResult
from unskew.formats import markdown
from unskew.report.analysis import frames
from unskew.report.analysis.number_formats import megabytes, whole_number
from unskew.scores import significant
from unskew.system import disk

HEAD = ("row", "method", "paper", "ours", "95 %", "without payload", "raw input", "gap", "last", "best")
HEAD += ("mean-10", "vs best other", "MB")
R = TypeVar("R", bound=TableResult | None)
EMPTY = cast(TableResult, {"entries": [], "curves": {}, "claims": []})
"""The numbers of a dry run."""


class TableNumbers(Generic[R]):
    """All numbers, verdicts and curves of a table in `result`, as stored in JSON; None after a dry run."""

    result: R

    def table(self) -> str:
        """The paper's numbers, ours and a verdict on every claim, as text; "" after a dry run."""
        return plain(cast(TableResult, self.result)) if self.result else ""

    def verdicts(self) -> dict[str, str]:
        """By claim a word of `experiments.verdicts`, such as `reproduced`, `agrees so far` or `not run`;
        empty after a dry run."""
        return {claim["text"]: claim["verdict"] for claim in (self.result or EMPTY)["claims"]}

    def to_frame(self, kind: str = "scores") -> Any:
        """Return a pandas DataFrame of one kind: "scores" (the final table, a row for each row and method,
        with columns such as ours.mean), "rounds" (the curves: row, method, seed, round t and value), or
        "claims" (a row for every margin of a claim). Scores are in the table's unit; empty after a dry run.

        Raises UsageError: E109 for another kind, E133 without pandas.
        """
        result = self.result or EMPTY
        kinds = {
            "scores": lambda: result["entries"],
            "rounds": lambda: [
                {"row": row, "method": method, "seed": seed, "t": int(t), "value": value}
                for row, methods in result["curves"].items()
                for method, seeds in methods.items()
                for seed, points in enumerate(seeds)
                for t, value in points
            ],
            "claims": lambda: [
                {
                    "claim": claim["text"],
                    "verdict": claim["verdict"],
                    "row": row,
                    "margin": claim["margins"].get(row),
                    "paper": claim["paper"].get(row),
                }
                for claim in result["claims"]
                for row in claim["paper"] | claim["margins"]
            ],
        }
        return frames.frame(kind, kinds, "result holds all numbers")

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"


@dataclass(frozen=True, repr=False)
class KeptTable(TableNumbers[TableResult]):
    """A table from the JSON file that `unskew reproduce` left. path: that file."""

    result: TableResult
    path: Path

    def __repr__(self) -> str:
        return f"<{self.result['title']}, from {self.path}>"


def load_table(path: Path) -> KeptTable:
    """The table in a JSON file. Raises DataError (E401) for another file."""
    if result := read_result(path):
        return KeptTable(result, path)
    raise DataError("E401", f"{path} is not a result of `unskew reproduce`.")


def table(result: TableResult) -> tuple[list[str], list[list[str]]]:
    """(column titles, a line of texts for each row and method), without columns in which nothing stands."""
    lines = [_line(entry, result["unit"], result["scale"] != 1) for entry in result["entries"]]
    shown = [i for i in range(len(HEAD)) if i < 2 or any(line[i] for line in lines)]
    return [HEAD[i] for i in shown], [[line[i] for i in shown] for line in lines]


def _line(entry: EntryRecord, unit: str, short: bool) -> list[str]:
    """The cells of one entry. short: whether the run has fewer rounds than the paper's, whose number then is
    in brackets and without a gap."""
    published, sent = entry["paper"], entry["megabytes"]
    paper = ""
    if published is not None:
        exact = unit == "percent" or abs(published) >= 0.1
        paper = f"{published:.2f}" if exact else significant(published, 3)
    attacked = bool(entry.get("bounds"))
    return [
        entry["row"],
        entry["method"],
        f"({paper})" if paper and short else paper,
        wording.points(entry["ours"], unit),
        *wording.bounds(entry, unit),
        "" if short else wording.with_sign(entry["gap"], unit),
        *("" if attacked else wording.points(entry[name], unit) for name in ("last", "best", "mean10")),
        wording.lead(entry, unit),
        whole_number(sent) if sent >= 0.5 else megabytes(1e6 * sent),
    ]


def plain(result: TableResult) -> str:
    """The table, what its columns mean, the verdicts and the privacy figures, as text."""
    head, lines = table(result)
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    text = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head, *lines]
    ]
    text += ["", wording.note(result), ""]
    for claim in result["claims"]:
        margins = wording.margins(claim, result["unit"])
        text.append(f"{wording.verdict(claim):<42}{claim['text']}  ({margins})")
    if rule := wording.rules(result):
        text.append(rule)
    for row, method, release, readings in wording.privacy(result):
        text += ["", f"{row}, {method}: {release}"]
        text += [f"  epsilon {epsilon:>9}  {reading}" for epsilon, reading in readings]
    return "\n".join(text)


def markdown_page(result: TableResult) -> str:
    """The page of one result."""
    return _page(
        f"# {result['title']}",
        f"{result['paper']}." if result["paper"] else "",
        f"```sh\n{result['command']}\n```",
        f"Made with unskew {result['unskew']} on {result['date']}: {result['machine']}; "
        f"{result['hours']:.2f} hours of training in all runs.{wording.versions_text(result)}",
        _table(*table(result)),
        wording.note(result),
        _claims(result),
        _privacy(result),
        _list("Notes", wording.notes(result)),
        _list("Open questions, and our choice", result["open"]),
        f"## What we found\n\n{result['finding']}" if result["finding"] else "",
    )


def markdown_index(results: Sequence[TableResult], written: Mapping[str, str]) -> str:
    """The page that links to the others. written: the titles, by file name, of handwritten pages there."""
    lines = [
        [
            f"[{result['page']}]({result['page']}.md)",
            result["title"],
            ", ".join(dict.fromkeys(entry["row"] for entry in result["entries"])),
            str(result["seeds"]),
            wording.rounds(result),
            wording.summary(result),
            f"{result['date']}, {result['unskew']}",
        ]
        for result in results
    ]
    links = ", ".join(f"[{title}]({name})" for name, title in written.items())
    return _page(
        "# Tables, run here",
        "Each page has the command that made it, every number, the paper's beside ours where there are any,"
        " and a verdict on every claim. The `.json` beside it has every number and curve; `unskew.load` reads"
        " it.",
        f"Read first: {links}." if links else "",
        _table(["page", "table", "rows", "seeds", "rounds", "claims", "when"], lines),
    )


def _page(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section) + "\n"


def _claims(result: TableResult) -> str:
    if not result["claims"]:
        return ""
    points = " in points" if result["unit"] == "percent" else ""
    head = ["claim", "here", f"margin{points} by row or step (95 % interval) [the paper's]"]
    lines = [
        [claim["text"], wording.verdict(claim), wording.margins(claim, result["unit"])]
        for claim in result["claims"]
        if claim["verdict"] != "not run"
    ]
    absent = [claim["text"] for claim in result["claims"] if claim["verdict"] == "not run"]
    not_run = f"Not run: {'; '.join(map(_cell, absent))}." if absent else ""
    parts = ["## Claims", _table(head, lines) if lines else "", not_run, wording.rules(result)]
    return "\n\n".join(filter(None, parts))


def _privacy(result: TableResult) -> str:
    lines = [
        [row, method, release, epsilon, reading]
        for row, method, release, readings in wording.privacy(result)
        for epsilon, reading in readings
    ]
    if not lines:
        return ""
    table = _table(["row", "method", "release", "epsilon", "reading"], lines)
    return f"## Differential privacy of what is shared\n\n{wording.EPSILON}\n\n{table}"


def _list(title: str, items: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items) if items else ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return markdown.table(head, [list(map(_cell, line)) for line in lines])


def _cell(text: str) -> str:
    """The text in one line, with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def write_result(folder: Path, result: TableResult) -> Path:
    """Write a result as .json and .md, and a README.md that links to all results in the folder; return the
    path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{result['page']}.md"
    disk.replace(page.with_suffix(".json"), _as_json(result))
    disk.replace(page, markdown_page(result))
    disk.replace(folder / "README.md", markdown_index(results_in(folder), other_pages(folder)))
    return page


def other_pages(folder: Path) -> dict[str, str]:
    """The titles of handwritten pages in a folder, by file name."""
    pages = [page for page in sorted(folder.glob("*.md")) if not page.with_suffix(".json").exists()]
    return {
        page.name: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for page in pages
        if page.name != "README.md"
    }


def results_in(folder: Path) -> list[TableResult]:
    """Every result in a folder, ordered by name. Raises DataError (E401) for a damaged file, and for a page
    outside the folder, since a file may come from a stranger."""
    return [result for path in sorted(folder.glob("*.json")) if (result := read_result(path))]


def read_result(path: Path) -> TableResult | None:
    """The result in a JSON file; None for another one. Raises as `results_in` does."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("E401", f"{path} is not a result of `unskew reproduce`: {error}.") from error
    if not (isinstance(content, dict) and content.keys() >= REQUIRED):
        return None
    try:
        disk.check_name(str(content["page"]))
    except UsageError:
        text = f"{path} names its page {excerpt(content['page'])}, which can be no file in this folder"
        raise DataError("E401", f"{text}; name it as `unskew reproduce --page` would.") from None
    return cast(TableResult, content)


def _as_json(result: TableResult) -> str:
    """The result as JSON with one line for each entry, claim and curve."""
    parts = []
    for key, value in result.items():
        if key in ("entries", "claims") and value:
            lines = ",\n".join(f"  {json.dumps(item)}" for item in value)  # type: ignore[union-attr]
            parts.append(f' "{key}": [\n{lines}\n ]')
        elif key != "curves":
            text = json.dumps(value, indent=1).replace("\n", "\n ")
            parts.append(f" {json.dumps(key)}: {text}")
    rows = []
    for row, methods in result["curves"].items():
        lines = (f"   {json.dumps(m)}: {json.dumps(s, separators=(',', ':'))}" for m, s in methods.items())
        rows.append(f"  {json.dumps(row)}: {{\n" + ",\n".join(lines) + "\n  }")
    parts.append(' "curves": {\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
