"""Where a reproduction is kept: its result as JSON, the pages made from it, and an index of all results in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from unskew import disk
from unskew.errors import DataError, UsageError, excerpt
from unskew.experiments import html, markdown, tables
from unskew.experiments.result import REQUIRED, TableResult


def keep(folder: Path, result: TableResult) -> Path:
    """Write a result as .json, .md, .html, .csv and .tex, and the folder's index. Returns the HTML page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{result['page']}.json", _as_json(result))
    page = write_pages(folder, result)
    write_index(folder, results_in(folder))
    return page


def document(folder: Path, result: TableResult) -> None:
    """Write what belongs in documentation: .json and .md, and a README.md that links to all results in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{result['page']}.json", _as_json(result))
    disk.replace(folder / f"{result['page']}.md", markdown.page(result))
    disk.replace(folder / "README.md", markdown.index(results_in(folder), folder.as_posix(), written_in(folder)))


def written_in(folder: Path) -> dict[str, str]:
    """The pages in a folder that no result made, which somebody wrote: their titles by their file names."""
    pages = [p for p in sorted(folder.glob("*.md")) if p.name != "README.md" and not p.with_suffix(".json").exists()]
    return {page.name: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in pages}


def write_pages(folder: Path, result: TableResult) -> Path:
    """Write the pages of one result: .md, .csv, .tex and .html. Returns the HTML page's path."""
    for ending, write in (
        ("md", markdown.page),
        ("csv", tables.as_csv),
        ("tex", tables.latex),
        ("html", html.document),
    ):
        disk.replace(folder / f"{result['page']}.{ending}", write(result))
    return folder / f"{result['page']}.html"


def write_index(folder: Path, results: Sequence[TableResult]) -> Path:
    """Write `index.html`, which links to the pages beside it. Returns its path."""
    disk.replace(folder / "index.html", html.index(results))
    return folder / "index.html"


def results_in(folder: Path) -> list[TableResult]:
    """Every result in a folder, ordered by name. Raises DataError (E401) for a damaged file."""
    results: list[TableResult] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError("E401", f"{path} is not a result of `unskew reproduce`: {error}.") from error
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            _check_page(path, content["page"])
            results.append(content)  # type: ignore[arg-type]
    return results


def _check_page(path: Path, page: object) -> None:
    """Raises DataError (E401) for a page that would be written elsewhere: the file may be somebody else's."""
    try:
        disk.check_name(str(page))
    except UsageError:
        text = f"{path} names its page {excerpt(page)}, which no file in this folder could be called"
        raise DataError("E401", f"{text}; name it as `unskew reproduce --page` would.") from None


def _as_json(result: TableResult) -> str:
    """Indented, but each curve on one line instead of one line for each number."""
    text = json.dumps({key: value for key, value in result.items() if key != "curves"}, indent=1)
    lines = [
        f"  {json.dumps(row)}: {{\n"
        + ",\n".join(f"   {json.dumps(m)}: {json.dumps(s, separators=(',', ':'))}" for m, s in methods.items())
        + "\n  }"
        for row, methods in result["curves"].items()
    ]
    return text[:-2] + ',\n "curves": {\n' + ",\n".join(lines) + "\n }\n}\n"
