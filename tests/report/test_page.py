"""The page is one file that loads nothing, says the result in a sentence, and shows names as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
import yaml

from tests.report.fake_runs import fake_comparison, fake_run
from unskew.report import page, sections
from unskew.report.analysis import results_table
from unskew.report.analysis.runs import read_runs
from unskew.report.page import write_report
from unskew.report.sections import context_of

EVIL = "\"><img src=x onerror='alert(1)'><script>alert(2)</script>{{7*7}}"
VOID = {"meta", "input", "br", "hr", "img", "link"}


class Tags(HTMLParser):
    """Every tag, and whether they close in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.ids, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "label-skew"
    return fake_comparison(path, ["fedavg", "flea", "local", "centralised"], 3, clients=12, rounds=25)


@pytest.fixture(scope="module")
def text(comparison):
    return write_report(comparison, comparison / "report.html").read_text()


def test_it_is_whole_html_that_loads_nothing(text, comparison):
    tags = Tags(text)
    assert not tags.wrong
    assert not tags.open
    assert len(tags.ids) == len(set(tags.ids))
    assert not {t for t, _ in tags.seen} & {"link", "img", "iframe", "object", "base", "form"}
    assert not re.search(r"https?://|url\(|@import", text)
    jumps = [a["href"] for t, a in tags.seen if t == "a" and "download" not in a]
    assert jumps
    assert all(j[0] == "#" and j[1:] in tags.ids for j in jumps)
    assert not list(comparison.glob("*.part"))


def test_it_can_be_heard_as_well_as_seen(text):
    tags = Tags(text).seen
    assert all(a.get("aria-label") for t, a in tags if t == "svg")
    assert all(a.get("scope") for t, a in tags if t == "th")
    assert next(a for t, a in tags if t == "html")["lang"] == "en"
    labelled = [a["for"] for t, a in tags if t == "label"]
    assert labelled == [a["id"] for t, a in tags if t == "input"]


def test_it_says_the_result_and_its_certainty(text, comparison):
    sentence = page.result_sentence(context_of(read_runs([comparison]), "label-skew"))
    assert re.fullmatch(
        r"flea reaches \d\d\.\d ± \d\.\d % global accuracy after 25 rounds on digits \(dirichlet:0\.1\), "
        r"\d+\.\d points ahead of fedavg \(in 3 of 3 seeds\)",
        sentence.replace("\u00a0", " "),
    )
    title = re.search(r"<h1>(.*?)</h1>", text)[1]
    assert title.startswith("flea reaches")


def test_colours_follow_the_method_everywhere(text):
    by_colour = {}
    for name, hue in re.findall(r'"n":"([^"]+)","c":"(m\d|ref)[^"]*"', text):
        by_colour.setdefault(name, set()).add(hue)
    assert by_colour["fedavg"] == {"m0"}
    assert by_colour["flea"] == {"m1"}
    assert by_colour["centralised"] == {"ref"}


def test_one_legend_names_what_each_picture_can_hide(text):
    tags = Tags(text).seen
    boxes = {a["id"]: a.get("data-name") for t, a in tags if t == "input" and a["type"] == "checkbox"}
    methods = ["fedavg", "flea", "centralised", "local"]
    assert sorted(filter(None, boxes.values())) == sorted(methods)
    assert [b for b, name in boxes.items() if not name] == ["seed-0", "seed-1", "seed-2"]
    assert "hidden" in next(a for t, a in tags if a.get("id") == "legend"), "without a script it does nothing"
    drawn = {name: key for key, name in boxes.items() if name}
    for kind, name in re.findall(r'<polyline class="([^"]*)".*?<title>(\w+):', text):
        assert name not in drawn or drawn[name] in kind.split()
    for row, label in re.findall(r'<g class="([^"]*)"><text class="label"[^>]*>(\w+)<', text):
        assert drawn[label] in row.split()
    dots = re.findall(r'<path class="dots [^"]*seed-(\d)" d="([^"]*)"', text.split('id="clients"')[1])
    assert {seed for seed, _ in dots} == {"0", "1", "2"}


def test_the_table_is_a_file_on_the_page_itself(text, comparison):
    links = {a["download"]: a["href"].partition(",") for _, a in Tags(text).seen if "download" in a}
    rows = context_of(read_runs([comparison]), "label-skew").summaries
    assert {head for head, _, _ in links.values()} == {"data:text/plain;charset=utf-8"}
    assert {name: unquote(content) for name, (_, _, content) in links.items()} == {
        "table.csv": results_table.as_csv(rows),
        "table.tex": results_table.latex(rows),
    }


def test_local_alone_has_a_page_without_a_global_score(tmp_path):
    text = write_report(
        fake_run(tmp_path / "r", "local", clients=5, rounds=8), tmp_path / "r.html"
    ).read_text()
    assert "without a global accuracy" in text
    assert "Nothing leaves a client" in text


def test_nothing_a_user_wrote_becomes_markup(tmp_path):
    path = fake_run(tmp_path / "x <img src=x>", "fedavg", clients=3, rounds=4, histograms=True)
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(
        yaml.safe_dump({**config, "method": EVIL, "data": EVIL, "skew": EVIL, "availability": EVIL})
    )
    fed = json.loads((path / "federation.json").read_text())
    fed |= {"name": EVIL, "skew": EVIL, "classes": [EVIL] * 10, "names": [EVIL] * 3}
    (path / "federation.json").write_text(json.dumps(fed))
    (path / "env.json").write_text(json.dumps({EVIL: EVIL}))
    (path / "events.jsonl").write_text(json.dumps({"t": 1, "code": EVIL, "text": EVIL}) + "\n")
    ledger = {
        "t": 1,
        "way": "up",
        "share": EVIL,
        "clients": [0],
        "bytes": 8,
        "reads": EVIL,
        "guarantee": EVIL,
        "kind": EVIL,
        "samples": EVIL,
        "shape": [EVIL],
    }
    (path / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    text = write_report([path], tmp_path / "r.html").read_text()
    tags = Tags(text)
    assert not tags.wrong
    assert sum(t == "script" for t, _ in tags.seen) == 1
    assert not any(t == "img" for t, _ in tags.seen)
    assert not any(k.startswith("on") for _, a in tags.seen for k in a)
    assert "{{7*7}}" in text
    assert "&lt;script&gt;alert(2)" in text


def test_a_page_has_foreign_texts_on_one_line(tmp_path):
    path = fake_run(tmp_path / "r", clients=3, rounds=4)
    evil = "x\nssh-ed25519 AAAA\x1b[2J\ny"
    (path / "events.jsonl").write_text(json.dumps({"t": 1, "code": "E303", "text": evil}) + "\n")
    settings = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump({**settings, "method": evil}))
    (path / "env.json").write_text(json.dumps({"command": [evil]}))
    write_report(path, path / "report.html")
    page = (path / "report.html").read_text()
    assert not any(line.startswith("ssh-ed25519") for line in page.splitlines())
    assert "\x1b" not in page
    assert r"E303 x\nssh-ed25519 AAAA\x1b[2J\ny" in page


def test_a_large_comparison_stays_small(tmp_path):
    methods = ["fedavg", "fedprox(mu=0.01)", "fedproto", "flea", "rebafl"]
    path = fake_comparison(tmp_path / "big", methods, 2, clients=150, rounds=200, per_client=False)
    assert write_report(path, tmp_path / "r.html").stat().st_size < 1_000_000


def test_the_sections_stand_in_their_order_and_are_linked(text):
    orders = [module.ORDER for module in sections.section_modules()]
    assert orders == sorted(set(orders))
    anchors = re.findall(r'<section id="([\w-]+)"', text)
    assert anchors == [
        "table",
        "rounds",
        "clients",
        "leaves",
        "partition",
        "attendance",
        "measured",
        "repeat",
    ]
    assert re.findall(r'<a href="#([\w-]+)">', text) == anchors
