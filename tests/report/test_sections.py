"""The page is the list of the sections in their folder."""

from __future__ import annotations

import re
import sys

import pytest

from tests.report.fake_runs import fake_comparison, fake_run
from tests.report.test_page import Tags
from unskew.report import sections
from unskew.report.page import write_report

NEW = '''
"""How many runs there are."""

from unskew.report.sections import render
from unskew.report.sections import Section

ORDER = 35


def build(context):
    if len(context.runs) < 2:
        return None
    html = render("how_many.html.j2", n=len(context.runs), name="<i>" + context.name)
    return Section("How many runs", "how-many", html, lead="<b>", note="That is all.", link="Count")
'''
TEMPLATE = '<p>{{ n }} runs of {{ name }}</p>\n{% include "how_many_more.html.j2" %}'


@pytest.fixture
def a_new_section(tmp_path, monkeypatch):
    folder = tmp_path / "more sections"
    folder.mkdir()
    (folder / "how_many.py").write_text(NEW)
    (folder / "how_many.html.j2").write_text(TEMPLATE)
    (folder / "how_many_more.html.j2").write_text("<p>more</p>")
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(folder)])
    yield
    sys.modules.pop("unskew.report.sections.how_many", None)
    if hasattr(sections, "how_many"):
        del sections.how_many


def anchors(text):
    orders = [module.ORDER for module in sections.section_modules()]
    assert orders == sorted(set(orders))
    return re.findall(r'<section id="([\w-]+)"', text)


def test_a_new_section_is_one_file_and_its_template(tmp_path, a_new_section):
    runs = fake_comparison(tmp_path / "c", ["fedavg", "flea"], 2, clients=5, rounds=6)
    text = write_report(runs, tmp_path / "c.html").read_text()
    assert anchors(text)[2:5] == ["clients", "how-many", "leaves"]  # ORDER is 35
    assert "<p>4 runs of &lt;i&gt;c</p>" in text
    assert '<h2 id="h-how-many">How many runs</h2>\n<p class="why">&lt;b&gt;</p>\n' in text
    assert '<p>more</p><p class="note">That is all.</p>' in text.replace("\n<p class", "<p class")
    assert '<a href="#how-many">Count</a>' in text
    assert not Tags(text).wrong
    alone = write_report(fake_run(tmp_path / "r", clients=5, rounds=6), tmp_path / "r.html").read_text()
    assert "how-many" not in alone  # it returned None


def test_without_the_file_there_is_no_such_section(tmp_path):
    runs = fake_comparison(tmp_path / "c", ["fedavg", "flea"], 2, clients=5, rounds=6)
    text = write_report(runs, tmp_path / "c.html").read_text()
    named = "table rounds clients leaves partition attendance measured repeat"
    assert anchors(text) == named.split()
    assert re.findall(r'<a href="#([\w-]+)">', text) == anchors(text)
