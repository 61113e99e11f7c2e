"""What the documentation's pages say of each other: navigation, links and anchors, read without building
anything.

A page is named by its path in docs/, such as guides/compare.md. Files of the repository outside docs/ that
the site shows as pages are in PROJECT; files that pages link to and the site has no page for become pages of
their source (SOURCE).
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROJECT = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "deploy/README.md",
    "benchmarks/README.md",
    "tests/README.md",
)
"""Pages whose files lie outside docs/."""
MADE = (
    "python.md",
    "hooks.md",
    "notebooks/gallery.md",
    *(f"notebooks/{path.stem}.md" for path in sorted(DOCS.glob("notebooks/*.py"))),
)
"""Pages that have no file: the site makes them from docstrings, and of the notebooks."""
SOURCE = "source/"
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"Its code is `(.+?)`")


def prose(text: str) -> str:
    """A page's text without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures, as they are written."""
    return LINK.findall(FENCE.sub("", text))


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as code hosts form it: lower case, no punctuation, a hyphen for every
    space."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", separator)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)}


def target(page: str, link: str) -> str:
    """The path in the repository that a link of a page leads to. page: its path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))


def is_local(link: str) -> bool:
    """Whether a link leads to a file, and not to a host or within its own page."""
    return not link.startswith("#") and not urlsplit(link).scheme


@functools.cache
def method_pages() -> dict[str, str]:
    """The pages of methods that `tools/docs.py --site` has written, by the files of the methods' code."""
    written = {page: (DOCS / page).read_text() for page in _in_docs() if page.startswith("methods/")}
    return {code[1]: page for page, text in written.items() if (code := CODE.search(text))}


def on_site(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in method_pages():
        return method_pages()[path]
    return path if path in PROJECT else f"{SOURCE}{path}.md"


def in_repository(page: str) -> str:
    """The file of a page of the site."""
    return page if page in PROJECT else f"docs/{page}"


def all_pages() -> list[str]:
    """Every page of the site but those of source, in alphabetical order."""
    return sorted([*_in_docs(), *PROJECT, *MADE])


def kept_pages() -> list[str]:
    """Every page that has a file in the repository, in alphabetical order."""
    return [page for page in all_pages() if page not in MADE and not page.startswith("methods/")]


def _in_docs() -> list[str]:
    return [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]


def named(nav: Any) -> list[str]:
    """The pages of a navigation, in order, `methods/*` left as it is."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in named(item)]


def expanded(nav: Any, pages: Iterable[str]) -> Any:
    """The navigation with every line such as methods/* replaced by the pages of that folder that it does not
    name elsewhere."""
    known = set(named(nav))
    rest = [page for page in pages if page not in known]
    return _expanded(nav, rest)


def _expanded(nav: Any, rest: list[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(inner, rest) for title, inner in nav.items()}
    if not isinstance(nav, list):
        return nav
    items: list[Any] = []
    for item in nav:
        folder = isinstance(item, str) and item.endswith("/*")
        items += fnmatch.filter(rest, item) if folder else [_expanded(item, rest)]
    return items


class _Foreign(HTMLParser):
    """Collects what a page would fetch by itself from another host; what a reader may click on is no such
    thing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            fetched = name in ("src", "srcset", "data", "poster", "action") or (
                name == "href" and tag not in ("a", "area")
            )
            if fetched and re.match(r"\s*(https?:)?//", value or ""):
                self.found.append(f"{tag} {name}={value}")
            if name == "style":
                self.handle_data(value or "")

    def handle_data(self, data: str) -> None:
        self.found += re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", data)


def foreign(html: str) -> list[str]:
    """What a page of the built site would fetch from another host."""
    parser = _Foreign()
    parser.feed(html)
    return parser.found


def wrong_links(page: str, root: Path = ROOT) -> Iterator[str]:
    """The links of a page that lead to no file or to no heading of one. page: its path in the repository,
    which is at `root`."""
    for link in links((root / page).read_text()):
        if not (link.startswith("#") or is_local(link)):
            continue
        path = page if link.startswith("#") else target(page, link)
        anchor = link.partition("#")[2]
        if path.startswith("..") or not (root / path).exists():
            yield f"{page}: {link} leads to no file"
        elif anchor and path.endswith(".md") and anchor not in anchors((root / path).read_text()):
            yield f"{page}: {link} leads to no heading"
