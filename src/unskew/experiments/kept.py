"""Where a reproduction is kept: its result as JSON, from which all its pages are made, and an index of all in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.errors import DataError
from unskew.experiments import html, page

NEEDED = {"page", "experiment", "title", "entries", "claims", "curves", "rows", "unit", "command", "unskew", "made_by"}


def keep(folder: Path, result: Mapping[str, Any]) -> Path:
    """Everything about one result: .json, .md, .html, .csv, .tex, and the folder's index. Returns the HTML page's path."""
    name = result["page"]
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{name}.json", _compact(result))
    made = pages(folder, result)
    index(folder, results(folder))
    return made


def document(folder: Path, result: Mapping[str, Any]) -> None:
    """What is kept with documentation: .json and .md, and README.md, which leads to all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{result['page']}.json", _compact(result))
    disk.replace(folder / f"{result['page']}.md", page.markdown(result))
    disk.replace(folder / "README.md", page.index(results(folder), folder.as_posix()))


def pages(folder: Path, result: Mapping[str, Any]) -> Path:
    """A result's pages, anew from itself."""
    name = result["page"]
    for ending, text in (("md", page.markdown), ("csv", page.as_csv), ("tex", page.latex), ("html", html.document)):
        disk.replace(folder / f"{name}.{ending}", text(result))
    return folder / f"{name}.html"


def index(folder: Path, found: Sequence[Mapping[str, Any]]) -> Path:
    """`index.html`, which leads to the pages beside it."""
    disk.replace(folder / "index.html", html.index(found))
    return folder / "index.html"


def results(folder: Path) -> list[dict[str, Any]]:
    """Every result in a folder, by name. Raises DataError (E401) for a file that is damaged."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise DataError("E401", f"{path} is no result of `unskew reproduce`: {error}.") from error
        if isinstance(result, dict) and result.keys() >= NEEDED:
            found.append(result)
    return found


def _compact(result: Mapping[str, Any]) -> str:
    """Readable, but a curve takes one line, not one a number."""
    shallow = {k: v for k, v in result.items() if k != "curves"}
    text = json.dumps(shallow, indent=1)
    lines = [
        f"  {json.dumps(row)}: {{\n"
        + ",\n".join(f"   {json.dumps(m)}: {json.dumps(s, separators=(',', ':'))}" for m, s in methods.items())
        + "\n  }"
        for row, methods in result["curves"].items()
    ]
    return text[:-2] + ',\n "curves": {\n' + ",\n".join(lines) + "\n }\n}\n"
