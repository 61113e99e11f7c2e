"""What a recipe says of a data set, and what it makes of its original files.

Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unskew.data.getting.files import Files, files_of


@dataclass(frozen=True)
class Samples:
    """Samples as they are written to the file.

    x, y: [N, ...] and int64 [N]. x_test, y_test: the set's own test part, or None. classes: names, by number.
    columns: facts by which clients are formed, (of training, of test samples or None). notes: what was left out.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    classes: tuple[str, ...]
    columns: Mapping[str, tuple[np.ndarray, np.ndarray | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A data set. what, source, licence: for its card; licence "" where the source states none. expects: what --from takes.

    read: makes the samples of its files. sizes: published numbers of training and test samples, None where there are several.
    files: SHA-256 of original files by name, where one is published. takes_size: whether images are resized.
    """

    what: str
    source: str
    licence: str
    expects: str
    read: Callable[[Origin], Samples]
    sizes: tuple[int, int] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    takes_size: bool = False


@dataclass(frozen=True)
class Origin:
    """What the user has downloaded. name: of the set that is asked for. size: side of images that are resized, in pixels."""

    path: Path
    name: str
    size: int = 64

    @property
    def files(self) -> Files:
        """Raises DataError as `files_of` does."""
        return files_of(self.path)
