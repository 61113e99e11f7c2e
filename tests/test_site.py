"""The documentation's pages hang together: navigation, links, anchors, nothing from other hosts."""

from __future__ import annotations

from collections import Counter

import pytest

from tools import pages
from tools.docstrings import itemised
from unskew.formats import documents

SITE = documents.load((pages.ROOT / "mkdocs.yml").read_text(), "mkdocs.yml", "E111")
WRITTEN = pages.kept_pages()


def test_every_page_is_in_the_navigation_once():
    names = Counter(pages.named(pages.expanded(SITE["nav"], pages.all_pages())))
    assert set(names) == set(pages.all_pages())
    assert set(names.values()) == {1}


def test_a_folder_in_the_navigation_stands_for_its_pages_that_are_named_nowhere_else():
    nav = [{"A": ["a/one.md", "a/*"]}, "b.md"]
    assert pages.expanded(nav, ["a/one.md", "a/two.md", "b.md", "c.md"]) == [
        {"A": ["a/one.md", "a/two.md"]},
        "b.md",
    ]


def test_every_link_leads_somewhere():
    every = [pages.in_repository(page) for page in WRITTEN]
    assert not [wrong for page in ["README.md", *every] for wrong in pages.wrong_links(page)]


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/b.md").write_text("# B\n\n## What `x` is: 2, and [why](a.md)\n")
    links = (
        "[](b.md#what-x-is-2-and-why) [](#a) [](https://c) [`x`](c.md) [](b.md#gone) [](#gone) [](../../b.md)"
    )
    (tmp_path / "docs/a.md").write_text(f"# A\n\n{links}\n```sh\n[](d.md)\n```\n")
    says = [wrong.removeprefix("docs/a.md: ") for wrong in pages.wrong_links("docs/a.md", tmp_path)]
    assert says == [
        "c.md leads to no file",
        "b.md#gone leads to no heading",
        "#gone leads to no heading",
        "../../b.md leads to no file",
    ]


def test_every_page_is_reached_from_the_first_one_by_links():
    """Also on a code host, which shows no navigation."""
    reached, ahead = set(), ["docs/README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        found = {
            pages.target(page, link)
            for link in pages.links((pages.ROOT / page).read_text())
            if pages.is_local(link)
        }
        ahead += [path for path in found if path.endswith(".md") and (pages.ROOT / path).is_file()]
    assert {pages.in_repository(page) for page in WRITTEN} - reached == set()


@pytest.mark.parametrize(
    ("html", "fetched"),
    [
        ('<a href="https://b.org">b</a><script src="a.js"></script><p>https://b.org</p>', 0),
        ('<script src="https://b.org/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//b.org/x.css">', 1),
        ('<img alt="" src="http://b.org/x.png"><iframe src="https://b.org"></iframe>', 2),
        ("<style>@import 'https://b.org/x.css'; p { background: url(//b.org/x.png) }</style>", 2),
        ('<p style="background: url(https://b.org/x.png)">', 1),
    ],
)
def test_what_a_page_would_fetch_from_another_host_is_found(html, fetched):
    assert len(pages.foreign(html)) == fetched


def test_the_site_asks_for_nothing_from_other_hosts():
    """`make docs` looks at every page that it has built; browsers may fetch nothing from elsewhere."""
    assert SITE["theme"]["font"] is False
    theme = pages.ROOT / SITE["theme"]["custom_dir"]
    assert all((theme / script).is_file() for script in SITE["extra"]["polyfills"])
    assert "default-src 'self' file: data: blob: 'unsafe-inline'" in (theme / "main.html").read_text()


def test_what_a_docstring_says_of_arguments_becomes_a_list():
    text = (
        "Deal rows out.\n\nx, y: samples; z: more. n: how many,\nin all. other: no argument. Raises"
        " DataError: E403."
    )
    assert (
        itemised(text, ["x", "y", "z", "n"])
        == "Deal rows out.\n\n- `x`, `y`: samples;\n- `z`: more.\n- `n`: how many,\nin all. other: no"
        " argument.\n\nRaises DataError: E403."
    )
    assert itemised("Nothing: as it is.", []) == "Nothing: as it is."
