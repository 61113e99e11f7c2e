"""Rows of several inputs that are not in memory together: each input stays where it lies, and rows are put together when they
are wanted.

Letters: N samples, D numbers of a row, n rows that are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unskew.data.layout import Layout
from unskew.data.rows import Rows, Source


class Beside(Source):
    """The samples [N, D] of these inputs. inputs: [N, ...] each by name, in memory or not, as they were given."""

    def __init__(self, name: str, layout: Layout, inputs: Mapping[str, np.ndarray]):
        self.name, self.layout, self.inputs = name, layout, inputs
        self.shape = (len(next(iter(inputs.values()))), layout.width)
        asked = [x.source.together for x in inputs.values() if isinstance(x, Rows)]
        self.together = max((most for most in asked if most), default=None)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return put_together(self.layout, {name: x[rows] for name, x in self.inputs.items()}, len(rows))

    def coming(self, rows: np.ndarray) -> None:
        for x in self.inputs.values():
            if isinstance(x, Rows):
                x.coming(rows)


def put_together(layout: Layout, inputs: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """So many samples whose inputs [n, ...] are in memory as rows, float32 [n, D]; whole numbers of images are scaled."""
    x = np.empty((count, layout.width), np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        for each, start, end in layout.places:
            flat = inputs[each.name].reshape(count, each.size)
            x[:, start:end] = flat if each.divided_by == 1 else flat / np.float32(each.divided_by)
    return x
