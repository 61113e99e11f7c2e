"""Pictures and table as files for a paper: nothing of the page is needed to see them as the page shows
them."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

from tests.cli.calling import call
from tests.report.fake_runs import fake_comparison
from unskew.errors import UsageError
from unskew.report import page, paper_figures
from unskew.report.analysis import runs
from unskew.report.paper_figures import NAMESPACE, Style
from unskew.results import Comparison

SVG = f"{{{NAMESPACE}}}"
EVIL = "<b>&\"'"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("figures")
    path = fake_comparison(root / "c", ["fedavg", "flea", "local"], 2, clients=6, rounds=12)
    return paper_figures.write_figures([path], root / "out", "svg", 1, "Times New Roman")


def trees(written):
    return {path.stem: ElementTree.parse(path).getroot() for path, _ in written if path.suffix == ".svg"}


def test_every_picture_of_the_page_and_the_table_are_written(written):
    names = [path.name for path, _ in written]
    assert names[:2] == ["table.tex", "table.csv"]
    assert {"rounds-1.svg", "clients-1.svg", "bytes-1.svg", "partition.svg"} <= set(names)
    assert all(path.stat().st_size for path, _ in written)
    assert "\\toprule" in written[0][0].read_text()
    assert all(len(label) <= paper_figures.MOST_LABEL and label for _, label in written)


def test_a_picture_carries_its_looks_and_needs_nothing_of_the_page(written):
    for root in trees(written).values():
        assert (root.tag, root.get("width"), root.get("font-family")) == (
            f"{SVG}svg",
            "85mm",
            "Times New Roman",
        )
        assert root.get("viewBox").startswith("0 0 380 ")
        assert root[0].tag == f"{SVG}title"
        for element in root.iter():
            assert not [
                n for n in element.attrib if n in ("class", "role") or n.startswith(("data-", "--", "aria-"))
            ]
            assert not [v for v in element.attrib.values() if "var(" in v]
        assert not root.findall(f".//{SVG}text//{SVG}title")
        assert all(
            text.get("fill", "").startswith("#") and text.get("font-size") for text in root.iter(f"{SVG}text")
        )


def test_shapes_have_the_colours_that_the_page_has_for_paper(written):
    style, curves = Style.of_page(), trees(written)["rounds-1"]
    lines = {
        e.get("stroke") for e in curves.iter() if e.get("fill") == "none" and e.get("stroke-width") == "2"
    }
    assert {style.colours["--c0"], style.colours["--c1"]} <= lines
    assert style.colours["--ink"] == "#16202c", (
        "of the light page, and not of the dark one or the printed one"
    )
    grid = [e for e in curves.iter() if e.get("stroke") == style.colours["--hair"]]
    assert grid
    assert all(e.get("fill") == "none" for e in grid)


def test_names_from_outside_stay_text(tmp_path):
    path = fake_comparison(tmp_path / "c", [EVIL, "fedavg"], 1, clients=3, rounds=4)
    root = trees(paper_figures.write_figures([path], tmp_path))["rounds-1"]
    assert EVIL in {"".join(t.itertext()).rpartition(" ")[0] for t in root.iter(f"{SVG}text")}


def test_the_command_says_what_it_wrote_and_pdf_without_its_library_is_one_sentence(tmp_path, monkeypatch):
    path = fake_comparison(tmp_path / "c", ["fedavg"], 1, clients=3, rounds=4)
    assert re.search(r"c/figures/table\.tex  the table for LaTeX", call("figures", str(path)).out)
    assert (path / "figures" / "partition.svg").exists()
    written = Comparison(path).figures(tmp_path / "of-python", columns=1)
    assert tmp_path / "of-python" / "partition.svg" in written
    assert 'width="85mm"' in (tmp_path / "of-python" / "partition.svg").read_text()
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    refused = call("figures", str(path), "--format", "pdf", "--out", str(tmp_path / "none"))
    assert refused.code == 2
    assert re.search(r"E133 .*pip install 'unskew\[figures\]'", refused.text)
    assert not (tmp_path / "none").exists()


def test_pdf_files_are_pdf(tmp_path):
    pytest.importorskip(
        "cairosvg",
        reason="CairoSVG is not installed: pip install 'unskew[figures]'",
        exc_type=(ImportError, OSError),
    )
    path = fake_comparison(tmp_path / "c", ["fedavg"], 1, clients=3, rounds=4)
    written = paper_figures.write_figures([path], tmp_path / "out", "pdf")
    assert all(p.read_bytes().startswith(b"%PDF") for p, _ in written if p.suffix == ".pdf")


def test_a_comparisons_own_target_stays_its_target(tmp_path):
    """The table on the terminal had it, and the page, figures and LaTeX that were made afterwards had 95 % of
    the best."""
    path = fake_comparison(tmp_path / "c", ["fedavg", "flea"], 2, clients=4, rounds=12)
    plan = path / "compare.yaml"
    plan.write_text(plan.read_text() + "target: 0.375\n")
    paper_figures.write_figures([path], tmp_path / "out")
    assert r"MB to 37.5~\%" in (tmp_path / "out/table.tex").read_text()
    assert "MB to 37.5\u00a0%" in page.write_report(path, tmp_path / "c.html").read_text()
    assert {row.target for row in Comparison(path).rows()} == {0.375}
    assert "--target 0.375" in (tmp_path / "c.html").read_text()
    other = fake_comparison(tmp_path / "d", ["rebafl"], 2, clients=4, rounds=12)
    assert runs.requested_target([path, other]) is None
    assert runs.requested_target([path, path]) == 0.375
    assert "MB to 37.5" not in page.write_report([path, other], tmp_path / "both.html").read_text()


def test_figures_are_drawn_through_no_link(tmp_path, monkeypatch):
    path = fake_comparison(tmp_path / "c", ["fedavg"], 1, clients=3, rounds=4)
    (tmp_path / "elsewhere").mkdir()
    (path / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"E161 .*figures is a link"):
        Comparison(path).figures()
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Comparison(path).figures("~/out")[0] == tmp_path / "out/table.tex"


def test_another_format_is_refused(tmp_path):
    """Of Python, `format="png"` wrote SVG into files that ended with .png."""
    with pytest.raises(UsageError, match="E109 format must be 'svg' or 'pdf'; got 'png'"):
        paper_figures.write_figures([tmp_path], tmp_path / "out", "png")  # type: ignore[arg-type]
