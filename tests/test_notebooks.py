"""The documentation's notebooks: cells parse, pages with and without output; `make matrix` runs them."""

from __future__ import annotations

import ast
import contextlib
import io

import pytest

from tests.samples import EVERYTHING
from tools import notebooks, pages
from tools.notebooks import Cell

SOURCE = """# %% [markdown]
# # Title
#
# Text with [a link](../tutorial.md).

# %%
a = 1  # %% no cell
if a:
    a

# %%
"""


def test_cells_of_code_and_text():
    title, code = notebooks.cells(SOURCE)
    assert title == Cell(False, "# Title\n\nText with [a link](../tutorial.md).")
    assert code == Cell(True, "a = 1  # %% no cell\nif a:\n    a")
    code.shown.append("```text\n1\n```")
    shown = notebooks.as_markdown([title, code])
    assert shown.endswith("```python\na = 1  # %% no cell\nif a:\n    a\n```\n\n```text\n1\n```\n")


@pytest.mark.parametrize("name", notebooks.names())
def test_a_notebook_parses_and_its_links_lead_somewhere(name):
    source = (notebooks.SOURCES / f"{name}.py").read_text()
    parsed = [ast.parse(cell.text) for cell in notebooks.cells(source) if cell.is_code]
    assert len(parsed) > 2
    assert notebooks.page(name).startswith("# ")
    for link in pages.links(notebooks.page(name)):
        assert (pages.ROOT / pages.target(f"docs/notebooks/{name}.md", link)).is_file(), link


def test_a_page_is_what_was_executed_and_the_gallery_shows_its_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "BUILT", tmp_path)
    assert "Not executed in this build" in notebooks.page("own_method")
    assert "Not made in this build" in notebooks.gallery()
    (tmp_path / "own_method.md").write_text("# Ran\n")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "own_method.html").write_text("<html></html>")
    assert notebooks.page("own_method") == "# Ran\n"
    assert notebooks.reports() == {"own_method": "<html></html>"}
    assert '<iframe src="reports/own_method.html"' in notebooks.gallery()
    assert pages.foreign(notebooks.gallery()) == []


@pytest.mark.skipif(not EVERYTHING, reason="minutes: make matrix")
@pytest.mark.parametrize("name", notebooks.names())
def test_every_cell_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there: dict[str, object] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in notebooks.cells((notebooks.SOURCES / f"{name}.py").read_text()):
            if cell.is_code:
                exec(compile(cell.text, name, "exec"), there)
