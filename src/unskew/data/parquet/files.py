"""A column with a file in each row, {bytes, path}, as the hub keeps images and sounds: what all of them are turned into, and the
samples that this gives.

Letters: N samples.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from unskew.data.intake.images import Fit, each, mixed_depths, opened, sizes_told
from unskew.data.intake.notes import Note
from unskew.data.parquet.forms import Packed
from unskew.data.parquet.groups import RowGroups
from unskew.data.parquet.reading import files_of
from unskew.data.parquet.several import Shards
from unskew.data.wav import RIFF, Format, Heard, format_for, heard, shape_of, sounds_told, waveform
from unskew.errors import DataError

SOUNDS = (*RIFF, b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3", b"FORM")
"""How the content of files of sounds begins."""
NOTHING = partial(opened, size=1, fit="pad", bits=16)
"""What makes samples where only the content of files is read."""
Turned = Mapping[str, Any]
"""What files are turned into, as JSON: `kind`, "images" or "sounds", and the fields of `Images` or of `wav.Format`."""


@dataclass(frozen=True)
class Images:
    """How images become samples, as `folder` has it."""

    size: int
    fit: Fit
    bits: int


def turned(table: Shards, column: str, images: Images) -> Turned:
    """What the files of a column are turned into. images: what images are. Raises DataError (E401) for sounds that cannot be read."""
    content = RowGroups(table, Packed(table, column, (), NOTHING)).one(0) if len(table) else None
    if content is not None and content.startswith(SOUNDS):
        return {"kind": "sounds", **asdict(_format(table, column))}
    return {"kind": "images", **asdict(images)}


def form_of(table: Shards, column: str, into: Turned) -> Packed:
    """How a row of the column becomes a sample: [3, size, size] of an image, [1, 64, T] of a sound."""
    settings = {name: value for name, value in into.items() if name != "kind"}
    if into["kind"] == "images":
        images = Images(**settings)
        return Packed(table, column, (3, images.size, images.size), partial(opened, **asdict(images)))
    format = Format(**settings)
    return Packed(table, column, (1, *shape_of(format)), partial(_sound, format=format))


def samples_in(
    table: Shards, column: str, into: Turned, notes: list[Note], in_memory: bool | None = None
) -> np.ndarray:
    """The samples of a column of files, or what stands in for them; adds to the notes what was done to them.

    in_memory: whether they are kept there; None where that follows from their size.
    Raises DataError (E401), with all files that cannot be read.
    """
    x, seen = files_of(table, form_of(table, column, into), notes, in_memory)
    if into["kind"] == "images":
        notes += sizes_told(seen, into["size"], into["fit"], into["bits"])
        notes += mixed_depths(seen, None, into["bits"])
    else:
        notes += sounds_told(seen, Format(into["rate"], into["seconds"], into["window"]))
    return x


def _format(table: Shards, column: str) -> Format:
    """The format of all sounds, by those of the training rows. Raises DataError (E401) for those that cannot be read."""
    source = RowGroups(table, Packed(table, column, (), NOTHING))

    def look(row: int) -> tuple[int, int]:
        content = source.one(row)
        if content is None:
            raise DataError("E401", f"{table.where(row)} holds no file of its own in column '{column}'.")
        wave, rate = waveform(io.BytesIO(content), table.where(row))
        return len(wave), rate

    return format_for(each(range(table.trained), look))


def _sound(file: io.BytesIO, name: str, format: Format) -> tuple[np.ndarray, Heard]:
    """The spectrogram of a file with a channel, [1, 64, T], and what the file was."""
    pixels, what = heard(file, format, name)
    return pixels[None], what
