"""The sections of a report, one file each.

A section's module has ORDER, its place on the page (any number that no other section has), and `build(context)`, which
returns a Section, or None if the runs have nothing to show in it. Every module in this folder is a section; its template,
if it needs one, lies beside it.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from unskew.report.context import Context
from unskew.report.section import Section


def modules() -> list[ModuleType]:
    """The modules of all sections, in the order of the page."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return sorted((importlib.import_module(f"{__name__}.{name}") for name in names), key=lambda module: module.ORDER)


def build(context: Context) -> list[Section]:
    """What the page of these runs shows, in order."""
    built = (module.build(context) for module in modules())
    return [section for section in built if section is not None]
