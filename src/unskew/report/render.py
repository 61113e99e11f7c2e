"""Templates and pictures as markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup

from unskew.report import sections
from unskew.report.figures.svg import NARROW, WIDE
from unskew.report.numbers import begun


def render(template: str, **values: Any) -> Markup:
    """A template of the report, or one beside its section, with these values.

    Everything is escaped but Markup; a value that the template reads and is not given raises jinja2.UndefinedError.
    """
    loader = ChoiceLoader([PackageLoader("unskew.report"), FileSystemLoader(list(sections.__path__))])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["begun"] = begun
    return Markup(environment.get_template(template).render(**values))


def both_widths(draw: Callable[..., str]) -> Markup:
    """The desktop and the mobile version of one picture; the style sheet shows one of them.

    draw: takes the keyword `width` and returns SVG text in which it has escaped every string from outside.
    """
    return Markup(draw(width=WIDE) + draw(width=NARROW))


def figure(draw: Callable[..., str]) -> Markup:
    """Both versions of a picture as a figure; empty if there is nothing to draw."""
    picture = both_widths(draw)
    return Markup("<figure>{}</figure>").format(picture) if picture else Markup()
