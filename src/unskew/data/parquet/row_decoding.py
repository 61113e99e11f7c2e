"""How rows of Parquet become samples: columns of a table as numbers, lists of numbers, or a file in each row.

The samples of a table are decoded in one pass, into memory or a scratch file. A column of files, {bytes,
path}, is how the hub stores images and sounds. `raw_lists` and `raw_inputs` return columns before any
scaling.
Letters: N samples, n rows that are decoded at once.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.features import Encoding, Kinds, encode_as, encode_column, encodings_of
from unskew.data.kinds.images import Fit, decode_image, depth_warnings, read_each, size_notes
from unskew.data.kinds.sounds import (
    RIFF,
    AudioInfo,
    SoundFormat,
    format_for,
    read_sound,
    sound_notes,
    spectrogram_shape,
    waveform,
)
from unskew.data.parquet.shard import files_of, lists_of, values_of, widen
from unskew.data.parquet.table import RowNames, ShardTable
from unskew.data.samples.conversion import DEPTHS, AxisOrder, channels_first
from unskew.data.samples.reading_notes import Note, prefix_notes
from unskew.data.storage.sample_rows import Source
from unskew.data.storage.scratch import ScratchFile, fits_memory, float32_bytes, scratch_note
from unskew.errors import DataError, excerpt

FILES_AT_ONCE = 32
"""Maximal number of files that are in memory at once."""


class SampleSink:
    """The destination of the samples of a pass, float32 [N, ...]: memory, or a scratch file.

    in_memory: whether to keep them in memory; None decides by their size. source_dtype: as in `Source`.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        in_memory: bool | None,
        source_dtype: np.dtype[Any] = Source.source_dtype,
    ):
        self.shape = shape
        if in_memory or (in_memory is None and fits_memory(shape[0], shape[1:])):
            self._target: np.ndarray | ScratchFile = np.empty(shape, np.float32)
        else:
            self._target = ScratchFile(name, shape, source_dtype)

    def put(self, begin: int, x: np.ndarray) -> None:
        """Samples [n, ...] from this row on."""
        if isinstance(self._target, ScratchFile):
            self._target.put(begin, x)
        else:
            self._target[begin : begin + len(x)] = x

    def samples(self, notes: list[Note]) -> np.ndarray:
        """All samples in memory, or as rows on disk, with a note."""
        if not isinstance(self._target, ScratchFile):
            return self._target
        notes.append(scratch_note(self.shape))
        return self._target.samples()


class ListColumn:
    """A column of lists of numbers of one shape.

    kind: type of the numbers. shape: shape of a sample, channels first. full: divisor of unsigned whole
    numbers of images, as of arrays (unskew.data.samples.conversion), None for other numbers. Raises DataError
    (E403) if the first row is no list of numbers.
    """

    def __init__(self, table: ShardTable, column: str, layout: AxisOrder):
        self.table, self.column = table, column
        self.layout: AxisOrder = layout
        if not len(table):
            raise DataError("E403", f"{table.name} has no rows.")
        _, first = next(_column_parts(table, column, 1))
        values = table.convert_part(lists_of, first, 0)
        if values is None or not values.size:
            raise DataError("E403", f"{table.name}: column '{column}' holds no numbers in {table.where(0)}.")
        self.inner, self.kind = values.shape[1:], values.dtype
        self.shape = self._channels_first(values).shape[1:]
        bits = DEPTHS.get(self.kind) if len(self.shape) > 1 else None
        self.full = (1 << bits) - 1 if bits else None

    def parts(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, lists [n, ...] in the file's type, channels first) of all rows, in
        order. Raises DataError (E403) for lists of unequal shapes."""
        for begin, array in _column_parts(self.table, self.column):
            values = self.table.convert_part(lists_of, array, begin)
            if values is None or values.shape[1:] != self.inner:
                raise self._shape_error(array, begin)
            yield begin, self._channels_first(values)

    def _shape_error(self, array: Any, begin: int) -> DataError:
        lists = (lists_of(array.slice(row, 1)) for row in range(len(array)))
        row, odd = next((i, x) for i, x in enumerate(lists) if x is None or x.shape[1:] != self.inner)
        fault = "lacks a value" if odd is None else f"is {list(odd.shape[1:])}"
        text = f"column '{self.column}' is {list(self.inner)} in {self.table.where(0)}"
        place = self.table.where(begin + row)
        return DataError(
            "E403", f"{self.table.name}: {text} and {fault} in {place}; cut or pad lists to one shape."
        )

    def samples(self, notes: list[Note], in_memory: bool | None = None, scale: bool = True) -> np.ndarray:
        """All samples, float32 [N, ...], scaled by default; adds to the notes."""
        full = self.full if scale else None
        dtype = Source.source_dtype if scale else self.kind
        sink = SampleSink(self.table.name, (len(self.table), *self.shape), in_memory, dtype)
        for begin, values in self.parts():
            with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
                x = values.astype(np.float32)
            sink.put(begin, x if full is None else x / np.float32(full))
        return sink.samples(notes)

    def _channels_first(self, x: np.ndarray) -> np.ndarray:
        """Lists with their channels first; columns of single numbers remain."""
        return channels_first(x, self.layout, self.table.name) if x.ndim > 2 else x


def _column_parts(table: ShardTable, column: str, at_once: int = 1 << 12) -> Iterator[tuple[int, Any]]:
    """(number of the first row, Arrow array) of the parts of a column, in order."""
    for begin, batch in table.batches([column], at_once):
        yield begin, batch.column(table.columns[column].name)


Decode = Callable[[io.BytesIO, str], tuple[np.ndarray, Any]]
"""A function from a file's content to its sample and what else was noticed about it. Raises DataError if
it cannot read the file."""


def read_column_files(
    table: ShardTable, column: str, decode: Callable[[io.BytesIO, str], Any], rows: int | None = None
) -> list[Any]:
    """The results of `decode` for the files of a column, of the first `rows` rows.

    Raises DataError (E401), with all files that cannot be read and rows without a file.
    """
    damage = list[DataError]()

    def files() -> Iterator[bytes | None]:
        try:
            for begin, array in _column_parts(table, column, FILES_AT_ONCE):
                yield from table.convert_part(files_of, array, begin)
        except DataError as error:
            damage.append(error)

    contents = files()

    def read(row: int) -> Any:
        content, place = next(contents, None), table.where(row)
        if content is None:
            raise DataError("E401", f"{place} holds no file of its own in column '{column}'.")
        return decode(io.BytesIO(content), f"{place[0].upper()}{place[1:]}")

    try:
        return read_each(RowNames(table) if rows is None else range(rows), read)
    except DataError as error:
        raise (damage or [error])[0] from None


def encode_table(
    table: ShardTable, sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]
) -> tuple[np.ndarray, Kinds]:
    """`encode_features` for the columns of a table, which are read one after another to find their encodings
    and then together, batch by batch."""

    def judge(column: str) -> Encoding:
        return encode_column(sheet, column, columns[column])[0]

    readable = [c for c in columns if table.columns[c].kind in ("number", "text", "value")]
    if unreadable := [c for c in columns if c not in readable]:
        notes.append(("left out", f"column '{unreadable[0]}' of {table.columns[unreadable[0]].form}"))
    used = encodings_of(sheet, readable, judge, notes)
    width = sum(1 if len(kinds) in (0, 2) else len(kinds) for kinds in used.values())
    sink = SampleSink(table.name, (len(table), width), None)
    for begin, batch in table.batches(list(used)):
        values = {
            name: widen(table.convert_part(values_of, batch.column(table.columns[name].name), begin))
            for name in used
        }
        sink.put(begin, encode_as(Sheet(table.name, values, RowNames(table, begin)), used))
    return sink.samples(notes), used


SOUND_MARKS = (*RIFF, b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3", b"FORM")
"""The first bytes of sound files."""
FileSettings = Mapping[str, Any]
"""The conversion of files, as JSON: `kind`, "images" or "sounds", and the fields of `ImageSettings` or
`SoundFormat`."""


@dataclass(frozen=True)
class ImageSettings:
    """The conversion of images, with the arguments of `folder`."""

    size: int
    fit: Fit
    bits: int


def file_settings(table: ShardTable, column: str, images: ImageSettings) -> FileSettings:
    """The conversion of the files of a column. images: settings of images. Raises DataError (E401) for
    sounds that cannot be read."""
    first = next((files_of(array)[0] for _, array in _column_parts(table, column, 1)), None)
    if first is not None and first.startswith(SOUND_MARKS):
        return {"kind": "sounds", **asdict(_sound_format(table, column))}
    return {"kind": "images", **asdict(images)}


def _file_decoder(into: FileSettings) -> tuple[tuple[int, ...], Decode]:
    """(shape of a sample, function from a file to one): [3, size, size] for an image, [1, 64, T] for a
    sound."""
    settings = {name: value for name, value in into.items() if name != "kind"}
    if into["kind"] == "images":
        return (3, settings["size"], settings["size"]), partial(decode_image, **settings)
    format = SoundFormat(**settings)

    def decode_sound(file: io.BytesIO, name: str) -> tuple[np.ndarray, AudioInfo]:
        pixels, info = read_sound(file, format, name)
        return pixels[None], info

    return (1, *spectrogram_shape(format)), decode_sound


def read_file_column(
    table: ShardTable, column: str, into: FileSettings, notes: list[Note], in_memory: bool | None = None
) -> np.ndarray:
    """The samples of a column of files, in memory or as rows; adds to the notes.

    in_memory: whether to keep them in memory; None decides by their size. Raises DataError (E401), with all
    files that cannot be read.
    """
    shape, decode = _file_decoder(into)
    sink, rows = SampleSink(table.name, (len(table), *shape), in_memory), iter(range(len(table)))

    def decode_row(file: io.BytesIO, place: str) -> Any:
        sample, info = decode(file, place)
        sink.put(next(rows), sample[None])
        return info

    infos = read_column_files(table, column, decode_row)
    if into["kind"] == "images":
        notes += size_notes(infos, into["size"], into["fit"], into["bits"])
        notes += depth_warnings(infos, None, into["bits"])
    else:
        notes += sound_notes(infos, SoundFormat(into["rate"], into["seconds"], into["window"]))
    return sink.samples(notes)


def _sound_format(table: ShardTable, column: str) -> SoundFormat:
    """The format of all sounds, from those of the training rows. Raises DataError (E401) for sounds that
    cannot be read."""

    def look(file: io.BytesIO, place: str) -> tuple[int, int]:
        wave, rate = waveform(file, place)
        return len(wave), rate

    return format_for(read_column_files(table, column, look, table.train_rows))


def raw_lists(table: ShardTable, column: str, layout: AxisOrder) -> np.ndarray:
    """A column of lists, in the file's type, with channels first.

    Raises DataError: E142 for more than memory holds, E403 for lists of unequal length.
    """
    form = ListColumn(table, column, layout)
    if not fits_memory(len(table), form.shape):
        raise _memory_error(table, f"column '{column}'", form.shape)
    return np.concatenate([values for _, values in form.parts()])


def raw_inputs(
    table: ShardTable,
    columns: Sequence[str],
    layout: AxisOrder,
    files: Mapping[str, FileSettings],
    notes: list[Note] | None = None,
) -> dict[str, np.ndarray]:
    """Several inputs, each a column of lists, numbers or files, by the columns' names.

    files: the conversion of every column of files. notes: receives the notes; with None, inputs that do not
    fit into memory together are refused instead of being read from disk.
    Raises DataError: E403 for a column of another kind, E405 for missing numbers, E401 for files that cannot
    be read, E142 for more than memory holds.
    """
    shapes = {column: _input_shape(table, column, layout, files) for column in columns}
    width = sum(map(math.prod, shapes.values()))
    in_memory = fits_memory(len(table), (width,))
    if not in_memory and notes is None:
        raise _memory_error(table, "the inputs", (width,))
    values = dict[str, np.ndarray]()
    for column in columns:
        remarks, kind = list[Note](), table.columns[column].kind
        if kind == "number":
            values[column] = _number_column(table, column)
        elif kind == "packed":
            values[column] = read_file_column(table, column, files[column], remarks, in_memory)
        elif in_memory:
            values[column] = raw_lists(table, column, layout)
        else:
            values[column] = ListColumn(table, column, layout).samples(remarks, False, scale=False)
        if notes is not None:
            notes += prefix_notes(f"column '{column}'", remarks)
    return values


def _memory_error(table: ShardTable, what: str, shape: tuple[int, ...]) -> DataError:
    gigabytes = float32_bytes(len(table), shape) / 2**30
    text = f"{what} would take {gigabytes:,.1f} GiB of memory"
    return DataError("E142", f"{table.name}: {text}; give fewer rows at once.")


def _input_shape(
    table: ShardTable, column: str, layout: AxisOrder, files: Mapping[str, FileSettings]
) -> tuple[int, ...]:
    """The shape of an input in one sample. Raises DataError (E403) for a column that holds none."""
    kind, form = table.columns[column].kind, excerpt(table.columns[column].form, 40)[1:-1]
    if kind == "number":
        return ()
    if kind == "list":
        return ListColumn(table, column, layout).shape
    if kind == "packed" and column in files:
        return _file_decoder(files[column])[0]
    if kind == "packed":
        text = f"column '{column}' holds files, and held numbers where the model was trained"
        raise DataError("E403", f"{table.name}: {text}; give it as it was there.")
    text = f"column '{column}' is of {form}, and inputs are numbers, lists of numbers or files"
    raise DataError("E403", f"{table.name}: {text}; leave it out of x.")


def _number_column(table: ShardTable, column: str) -> np.ndarray:
    """A column of numbers. Raises DataError (E405) for missing ones."""
    values = table.whole_column(column)
    if (missing := cells.missing(values)).any():
        place = table.where(int(np.argmax(missing)))
        text = f"column '{column}' has no value in {place}"
        raise DataError("E405", f"{table.name}: {text}; fill it or leave the row out.")
    return values
