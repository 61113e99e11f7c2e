"""A progress bar in a notebook, where nothing else shows that a long cell is alive. Elsewhere it shows nothing."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.25
"""Time between two updates at least; a notebook would queue up more."""


class Bar:
    """A bar with a line of text below the running cell. total: how many steps there are."""

    def __init__(self, total: int):
        self._total, self._display = total, _display()
        self._handle: Any = None
        self._last = 0.0

    def show(self, done: int, text: str) -> None:
        """So many steps are done. The last one is always shown; others no oftener than a notebook can take."""
        now = time.monotonic()
        if self._display is None or (done < self._total and now < self._last + PAUSE_S):
            return
        self._last = now
        bar = {"text/html": f'<progress value="{done}" max="{self._total}"></progress> {html.escape(text)}'}
        bundle = {**bar, "text/plain": text}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _display() -> Callable[..., Any] | None:
    """IPython's `display` where this code runs in a notebook's kernel; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return ipython.display.display if ipython and getattr(shell, "kernel", None) else None
