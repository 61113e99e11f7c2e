"""Image and sound files as samples: each file is decoded once, into memory or a scratch file."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from unskew.data.kinds.images import ImageSettings, decode_image, read_each, size_notes
from unskew.data.kinds.sounds import SoundFormat, read_sound, sound_notes, spectrogram_shape
from unskew.data.samples.reading_notes import Note
from unskew.data.storage.rows_on_disk import SampleSink

Conversion: TypeAlias = Mapping[str, Any]
"""How files become samples, as JSON: `kind`, "images" or "sounds", and the fields of `ImageSettings` or
`SoundFormat`."""
Decode: TypeAlias = Callable[[Path | io.BytesIO, str], Any]
"""Called with a file and its name for messages."""


def decode_files(
    name: str,
    number: int,
    each: Callable[[Decode], list[Any]],
    into: Conversion,
    notes: list[Note],
    in_memory: bool | None = None,
) -> tuple[np.ndarray, list[Any]]:
    """(the samples of files, float32 [number, ...], or rows that are read from disk; the properties of each
    file); adds to the notes.

    name: name of the set. each: calls a function for every file, in order, and returns the results.
    in_memory: whether to keep the samples in memory; None decides by their size.
    Raises DataError (E401), with all files that cannot be read.
    """
    images = into["kind"] == "images"
    settings: Any  # of one kind or the other
    decode: Decode
    if images:
        settings = ImageSettings(into["size"], into["fit"], into["bits"])
        shape, decode = (3, settings.size, settings.size), partial(decode_image, settings=settings)
    else:
        settings = SoundFormat(into["rate"], into["seconds"], into["window"])
        shape, decode = spectrogram_shape(settings), partial(read_sound, format=settings)
    sink, rows = SampleSink(name, (number, *shape), in_memory), count()

    def read(file: Path | io.BytesIO, place: str) -> Any:
        sample, info = decode(file, place)
        sink.put(next(rows), sample[None])
        return info

    infos = each(read)
    if images:
        notes += size_notes(infos, *astuple(settings))
    else:
        notes += sound_notes(infos, settings)
    return sink.samples(notes), infos


def decode_paths(
    name: str,
    paths: Sequence[Path],
    into: Conversion,
    notes: list[Note],
    in_memory: bool | None = None,
) -> tuple[np.ndarray, list[Any]]:
    """`decode_files` for files on a disk."""

    def each(read: Decode) -> list[Any]:
        return read_each(paths, lambda i: read(paths[i], str(paths[i])))

    return decode_files(name, len(paths), each, into, notes, in_memory)
