"""Execute the notebooks of the documentation, for `make docs` to show with what they print.

python tools/notebooks.py PYTHON    execute docs/notebooks/*.py with this interpreter, which has unskew; into
build/notebooks

A notebook is a Python file of cells: `# %%` begins one of code, `# %% [markdown]` one of text. It needs
nbclient and ipykernel, which need not be installed where PYTHON is. Reports that a notebook writes into
reports/ are shown in the gallery.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "docs" / "notebooks"
BUILT = ROOT / "build" / "notebooks"
TIMEOUT_S = 600
LONGEST = 20_000
"""Characters of one output at most."""


@dataclass
class Cell:
    """text: code, or Markdown. shown: what it printed and returned, as Markdown."""

    is_code: bool
    text: str
    shown: list[str] = field(default_factory=list)


def cells(source: str) -> list[Cell]:
    """The cells of a notebook's source."""
    found: list[Cell] = []
    for line in source.splitlines():
        if line.startswith("# %%"):
            found.append(Cell("[markdown]" not in line, ""))
        elif found:
            found[-1].text += (line if found[-1].is_code else line.removeprefix("#").removeprefix(" ")) + "\n"
    return [Cell(cell.is_code, cell.text.strip()) for cell in found if cell.text.strip()]


def page(name: str) -> str:
    """A notebook as a page: as it was executed last, or its cells alone where it was not."""
    executed = BUILT / f"{name}.md"
    if executed.is_file():
        return executed.read_text(encoding="utf-8")
    first, *rest = cells((SOURCES / f"{name}.py").read_text(encoding="utf-8"))
    note = Cell(
        False, "*Not executed in this build of the site: `make notebooks` adds what the cells print.*"
    )
    return as_markdown([first, note, *rest])


def names() -> list[str]:
    """Every notebook, in alphabetical order."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def reports() -> dict[str, str]:
    """The reports that notebooks have written, by name; {} before they were executed."""
    return {
        path.stem: path.read_text(encoding="utf-8") for path in sorted((BUILT / "reports").glob("*.html"))
    }


def gallery() -> str:
    """The page of all reports."""
    written = reports()
    head = (
        "# Gallery of reports\n\nReports as `unskew run` and `unskew compare` write them: one file each,"
        " which loads nothing.\n"
    )
    if not written:
        return f"{head}\n*Not made in this build of the site: `make notebooks` makes them.*\n"
    frames = (
        f"\n## {name.replace('_', ' ').capitalize()}\n\n[Open the report](reports/{name}.html), of the"
        " notebook "
        f'[{name}]({name}.md).\n\n<iframe src="reports/{name}.html" title="{name}" loading="lazy" '
        'style="width: 100%; height: 32rem; border: 1px solid #ccc"></iframe>\n'
        for name in written
    )
    return head + "".join(frames)


def as_markdown(all_cells: Sequence[Cell]) -> str:
    """Cells as a page."""
    blocks: list[str] = []
    for cell in all_cells:
        blocks += [f"```python\n{cell.text}\n```", *cell.shown] if cell.is_code else [cell.text]
    return "\n\n".join(blocks) + "\n"


def executed(source: str, python: str, folder: Path) -> list[Cell]:
    """The cells with what they print, run one after another in this folder by this interpreter.

    Raises what a cell raises.
    """
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    known = cells(source)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell.text) for cell in known if cell.is_code]
    kernel = folder / "jupyter" / "kernels" / "unskew"
    kernel.mkdir(parents=True)
    own = [path for path in sys.path if path.endswith("site-packages")]
    start = (
        f"import sys; sys.path += {own!r}; from ipykernel.kernelapp import launch_new_instance as go; go()"
    )
    spec = {
        "argv": [python, "-c", start, "-f", "{connection_file}"],
        "display_name": "unskew",
        "language": "python",
    }
    (kernel / "kernel.json").write_text(json.dumps(spec))
    os.environ |= {
        "JUPYTER_PATH": str(folder / "jupyter"),
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="unskew", resources=resources).execute()
    for cell, ran in zip([cell for cell in known if cell.is_code], notebook.cells, strict=True):
        cell.shown = [text for output in ran.outputs if (text := _shown(output))]
    return known


def _shown(output: Any) -> str:
    """One output as Markdown; what goes to stderr, and pictures of progress, are left out."""
    if output.output_type == "stream":
        return _block(output.text) if output.name == "stdout" else ""
    return _block(output.data.get("text/plain", "")) if output.output_type == "execute_result" else ""


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()[:LONGEST]}\n```" if text.strip() else ""


def main() -> None:
    """Execute every notebook, and write its page and its reports."""
    python = str(Path(sys.argv[1]).absolute())
    (BUILT / "reports").mkdir(parents=True, exist_ok=True)
    for name in names():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            ran = executed((SOURCES / f"{name}.py").read_text(encoding="utf-8"), python, folder)
            (BUILT / f"{name}.md").write_text(as_markdown(ran), encoding="utf-8")
            for report in folder.glob("reports/*.html"):
                (BUILT / "reports" / report.name).write_bytes(report.read_bytes())
        print(f"executed {name}", flush=True)


if __name__ == "__main__":
    main()
