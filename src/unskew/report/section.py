"""What a report's page shows under one heading."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """anchor: the section's id in the page. html: its tables and pictures. lead: sentences under the title, which answer
    the reader's question. note: sentences in small print at the end. link: the section's name in the page's navigation,
    where a section without one is not listed. Plain strings are escaped by the page; only Markup is not."""

    title: str
    anchor: str
    html: Markup
    lead: str = ""
    note: str = ""
    link: str = ""
