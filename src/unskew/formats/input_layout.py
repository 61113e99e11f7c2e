"""How the several inputs of a sample lie in one row of numbers: the name, the shape and the type of each.

Letters: N samples, D numbers of a row.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unskew.errors import excerpt, printable

MOST_INPUTS, MOST_AXES, MOST_NUMBERS, LONGEST_NAME = 100, 8, 1 << 28, 60
"""What the layout in a file may hold at most, which may come from anybody."""

Kind = Literal["float32", "int64", "bool"]
KINDS: Mapping[str, Kind] = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
"""What the model receives, by NumPy's letter for the type that was given."""


@dataclass(frozen=True)
class Input:
    """One input. name: of the keyword, or "1", "2" ... by place. shape: in one sample, () for a single
    number.

    kind: as which the model receives it. divided_by: what whole numbers of an image were divided by, 1 for
    all else.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "float32"
    divided_by: int = 1

    @property
    def size(self) -> int:
        """The number of values in a row."""
        return math.prod(self.shape)

    @property
    def channels(self) -> int:
        """The length of the first axis, 1 for a scalar. Each channel has scaling constants of its own."""
        return self.shape[0] if self.shape else 1

    @property
    def is_image(self) -> bool:
        """Whether it is an image of floats, [channels, H, W]."""
        return self.kind == "float32" and len(self.shape) == 3

    def __str__(self) -> str:
        came = {255: "uint8", 65_535: "uint16"}.get(self.divided_by, self.kind)
        return f"{self.name} {came} {list(self.shape) if self.shape else 'number'}"


@dataclass(frozen=True)
class Layout:
    """The inputs of a sample in the order in which they lie in its row. named: by keyword, in alphabetical
    order."""

    inputs: tuple[Input, ...]
    named: bool

    @property
    def width(self) -> int:
        """D."""
        return sum(each.size for each in self.inputs)

    @property
    def places(self) -> Iterator[tuple[Input, int, int]]:
        """(input, where it begins in a row, where it ends)."""
        start = 0
        for each in self.inputs:
            yield each, start, start + each.size
            start += each.size

    @property
    def images(self) -> list[tuple[Input, int, int]]:
        """`places` of the images alone."""
        return [(each, start, end) for each, start, end in self.places if each.is_image]

    @property
    def channels(self) -> int:
        """How many channels all inputs have together."""
        return sum(each.channels for each in self.inputs)

    @property
    def channel_of(self) -> np.ndarray:
        """int64 [D], which of all channels every number of a row belongs to."""
        sizes = [each.size // each.channels for each in self.inputs for _ in range(each.channels)]
        return np.repeat(np.arange(self.channels), sizes)

    def called(self, channel: int) -> str:
        """The name of a channel of the row: its input, and its number if the input has several."""
        owners = [(e, c) for e in self.inputs for c in range(e.channels)]
        each, c = owners[channel]
        return f"input {each.name}" + (f", channel {c}," if each.channels > 1 else "")

    def scalable(self, inputs: Sequence[str] | None = None) -> np.ndarray:
        """Which channels can be scaled, bool [channels]: those of floating-point inputs. inputs: the names of
        the inputs that may be scaled; None for all."""
        counts = [e.kind == "float32" and (inputs is None or e.name in inputs) for e in self.inputs]
        return np.repeat(counts, [e.channels for e in self.inputs])

    @property
    def whole(self) -> bool:
        """Whether whole numbers or truth values are among the inputs, which can be neither scaled nor
        averaged."""
        return any(each.kind != "float32" for each in self.inputs)

    @property
    def lengths(self) -> set[int]:
        """How many places the inputs have that are sequences: [places] or [places, numbers of each]."""
        return {each.shape[0] for each in self.inputs if len(each.shape) in (1, 2)}

    @property
    def shapes(self) -> Any:
        """The shape of every input: by name, or a tuple of shapes."""
        if self.named:
            return {each.name: each.shape for each in self.inputs}
        return tuple(each.shape for each in self.inputs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))

    def as_json(self) -> dict[str, Any]:
        """The layout as JSON values, for files."""
        inputs = [[each.name, list(each.shape), each.kind, each.divided_by] for each in self.inputs]
        return {"named": self.named, "inputs": inputs}

    @staticmethod
    def from_json(facts: Mapping[str, Any], width: int) -> Layout:
        """From a file, which may be anybody's. width: the D that it must have.

        Raises KeyError, TypeError or ValueError for anything that `as_json` does not write.
        """
        given, named = facts["inputs"], facts["named"]
        if not (isinstance(given, list) and 0 < len(given) <= MOST_INPUTS and isinstance(named, bool)):
            raise ValueError("no list of inputs")
        inputs = tuple(_read_input(*each) for each in given)
        layout = Layout(inputs, named)
        names = [each.name for each in inputs]
        expected = sorted(set(names)) if named else [str(i + 1) for i in range(len(names))]
        if names != expected or (named and any(is_misnamed(n) for n in names)):
            raise ValueError("names of inputs that no model takes")
        if layout.width > MOST_NUMBERS:
            raise ValueError(
                f"inputs of {excerpt(layout.width)} numbers, of which a sample has at most {MOST_NUMBERS:,}"
            )
        if layout.width != width:
            raise ValueError(f"inputs of {layout.width} numbers in rows of {width}")
        return layout


def is_misnamed(key: str) -> bool:
    """Whether no function could take an input of this name as a keyword."""
    return (
        not key.isidentifier() or keyword.iskeyword(key) or len(key) > LONGEST_NAME or printable(key) != key
    )


def _read_input(name: Any, shape: Sequence[Any], kind: Any, divided_by: Any) -> Input:
    """One input of a file. Raises ValueError for anything that `Layout.as_json` does not write."""
    if not (isinstance(name, str) and isinstance(shape, list) and len(shape) <= MOST_AXES):
        raise ValueError("an input without a name or shape")
    if any(type(size) is not int or not 0 < size <= MOST_NUMBERS for size in shape):
        raise ValueError(f"an input of shape {excerpt(shape)}")
    if kind not in KINDS.values() or divided_by not in (1, 255, 65_535) or type(divided_by) is not int:
        raise ValueError("an input of a type that nobody writes")
    return Input(name, tuple(shape), kind, divided_by)
