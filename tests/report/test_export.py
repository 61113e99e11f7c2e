"""Pictures and table as files for a paper: nothing of the page is needed to see them as the page shows
them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.cli.calling import call
from tests.report.fake_runs import fake_comparison
from unskew.errors import UsageError
from unskew.report import page, paper_figures
from unskew.report.analysis import runs
from unskew.results import Comparison

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<b>&\"'"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures") / "c"
    return fake_comparison(folder, [EVIL, "flea", "local"], 2, clients=6, rounds=12)


def test_every_picture_is_a_file_with_the_looks_of_paper_and_the_table_beside_them(study, tmp_path):
    written = paper_figures.write_figures([study], tmp_path, "Times New Roman")
    names = [path.name for path, _ in written]
    assert names[:2] == ["table.tex", "table.csv"]
    assert {"rounds-1.svg", "clients-1.svg", "bytes.svg", "partition.svg"} <= set(names)
    assert "\\toprule" in written[0][0].read_text()
    assert all(label and len(label) <= paper_figures.MOST_LABEL for _, label in written)
    for path, _ in written[2:]:
        root = ElementTree.parse(path).getroot()
        assert (root.tag, root.get("width"), root.get("font-family")) == (
            f"{SVG}svg",
            "178mm",
            "Times New Roman",
        )
        assert [child.tag for child in root[:2]] == [f"{SVG}title", f"{SVG}style"]
        assert "var(" not in root[1].text
        assert not [n for e in root.iter() for n in e.attrib if n.startswith("data-")]
    curves = ElementTree.parse(tmp_path / "rounds-1.svg").getroot()
    assert EVIL in {"".join(t.itertext()).rpartition(" ")[0] for t in curves.iter(f"{SVG}text")}
    style = curves[1].text
    # of the light page, and not of the dark one or the printed one
    assert ".curve.m0,.m0 .curve{fill: none; stroke: #1e6eff; stroke-width: 2" in style
    assert ".curve.m1" in style
    assert ".curve.m2" not in style  # no such curve
    assert ".label{fill: #16202c; font-size: 13px" in style


def test_the_command_says_what_it_wrote(study):
    assert re.search(r"c/figures/table\.tex  the table for LaTeX", call("figures", str(study)).out)
    assert (study / "figures" / "partition.svg").exists()


def test_a_comparisons_own_target_stays_its_target(tmp_path):
    path = fake_comparison(tmp_path / "c", ["fedavg", "flea"], 2, clients=4, rounds=12)
    plan = path / "compare.yaml"
    plan.write_text(plan.read_text() + "target: 0.375\n")
    paper_figures.write_figures([path], tmp_path / "out")
    assert r"MB to 37.5~\%" in (tmp_path / "out/table.tex").read_text()
    assert "MB to 37.5\u00a0%" in page.write_report(path, tmp_path / "c.html").read_text()
    assert {row.target for row in Comparison(path).rows()} == {0.375}
    other = fake_comparison(tmp_path / "d", ["rebafl"], 2, clients=4, rounds=12)
    assert runs.requested_target([path, other]) is None
    assert runs.requested_target([path, path]) == 0.375


def test_figures_are_drawn_through_no_link(tmp_path, monkeypatch):
    path = fake_comparison(tmp_path / "c", ["fedavg"], 1, clients=3, rounds=4)
    (tmp_path / "elsewhere").mkdir()
    (path / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"E161 .*figures is a link"):
        Comparison(path).figures()
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Comparison(path).figures("~/out")[0] == tmp_path / "out/table.tex"
