"""Pages made from the code are up to date, every error has a page, and the documented commands exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from unskew.errors import code_pages
from unskew.experiments import pages
from unskew.scores import significant

ROOT = Path(__file__).parents[1]


def test_generated_pages_are_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    made = runpy.run_path(str(ROOT / "tools" / "docs.py"))["pages"]()
    assert len(made) > 5
    assert not [path.name for path, text in made.items() if path.read_text() != text], "run tools/docs.py"


def test_the_pages_of_kept_results_say_what_is_kept():
    """A page changed by hand, or not made again, says something else than its numbers."""
    folder = ROOT / "docs" / "results"
    results = pages.results_in(folder)
    texts = {result["page"]: pages.markdown_page(result) for result in results}
    assert len(texts) > 40
    assert not [name for name, text in texts.items() if (folder / f"{name}.md").read_text() != text]
    assert (folder / "README.md").read_text() == pages.markdown_index(results, pages.other_pages(folder))


def scores_of(results):
    """(last, best, mean of ten) of methods by row, over a page's rows, and over what a Part is on top of."""
    for result in results:
        groups: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
        for entry in result["entries"]:
            scores = tuple(entry[name]["mean"] for name in ("last", "best", "mean10"))
            method, on_top = entry["method"], entry["method"].partition("+")[2]
            if None not in scores:
                for group in (("row", entry["row"], method), ("method", method), ("on top", on_top)):
                    groups.setdefault(group, []).append(scores)
        for group in groups.values():
            yield tuple(f"{sum(column) / len(column):.1f}" for column in zip(*group))


def test_scores_that_are_written_together_are_those_of_one_kept_run():
    """Best / mean of ten, and last / best / mean of ten, in what was written by hand about the results."""
    folder = ROOT / "docs" / "results"
    known = set(scores_of(pages.results_in(folder)))
    known |= {(best, mean10) for _, best, mean10 in known}
    written = [
        tuple(found.split(" / "))
        for name in ("claims.md", "untold.md")
        for found in re.findall(
            r"\d\d\.\d(?: / \d\d\.\d){1,2}", re.sub(r" ± \d+\.\d", "", (folder / name).read_text())
        )
    ]
    assert len(written) > 45
    assert set(written) <= known


def test_multiples_of_fedavg_that_are_written_are_those_of_kept_runs():
    folder = ROOT / "docs" / "results"
    known = {
        significant(entry["ours"]["mean"], 3)
        for result in pages.results_in(folder)
        if result["metric"] == "bytes"
        for entry in result["entries"]
    }
    text = (folder / "claims.md").read_text() + (folder / "untold.md").read_text()
    written = re.findall(r"([\d.]+) times FedAvg's bytes", text)
    assert len(written) >= 6
    assert set(written) <= known


def test_every_error_code_in_the_code_has_a_page():
    used = {
        c
        for p in (ROOT / "src").rglob("*.py")
        for c in re.findall(r'"(E\d{3})"', p.read_text())
        if p.name != "errors.py"
    }
    pages = set(code_pages())
    assert used <= pages
    assert pages <= used | {"E305"}
    assert len(pages) <= 60
