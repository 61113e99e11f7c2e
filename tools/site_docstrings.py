"""The extension of griffe, which reads docstrings for the documentation site, that makes lists of what they
say of arguments."""

from __future__ import annotations

from typing import Any

import griffe

from tools.docstrings import itemised


class Itemise(griffe.Extension):
    """Rewrites every docstring as it is collected."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            named = (
                (p.name for p in obj.parameters) if obj.is_function else obj.members if obj.is_class else ()
            )
            obj.docstring.value = itemised(obj.docstring.value, [n for n in named if n != "self"])
