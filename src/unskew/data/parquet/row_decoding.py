"""How rows of Parquet become samples: columns of a table as numbers, lists of numbers, or a file in each row.

The samples of a table are decoded in one pass and kept in memory; if they do not fit, they go to a scratch
file or are decoded again whenever they are needed. Columns of a table are encoded as in any table, but not
kept in memory. A column of files, {bytes, path}, is how the hub stores images and sounds. `raw_lists` and
`raw_inputs` return columns before any scaling.
Letters: N samples, n rows that are unpacked at once.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from unskew.data.files import cells
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.features import (
    LARGEST_FLOAT32,
    Encoding,
    Kinds,
    encode_as,
    encode_column,
    encodings_of,
    names_rows,
)
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
from unskew.data.parquet.row_groups import ROWS_AT_ONCE, RowForm, RowGroups
from unskew.data.parquet.shard import files_of, lists_of, values_of, widen
from unskew.data.parquet.table import RowNames, ShardTable
from unskew.data.samples.conversion import DEPTHS, AxisOrder, channels_first
from unskew.data.samples.intake import Note, prefix_notes
from unskew.data.samples.memory_budget import fits_memory, float32_bytes, streaming_note
from unskew.data.storage.sample_rows import Survey, as_rows, checksums
from unskew.data.storage.scratch import ScratchFile
from unskew.errors import DataError, excerpt

FILES_AT_ONCE = 32
"""Maximal number of files that are unpacked at once; their sizes are known only then."""


class TableForm(RowForm):
    """Feature columns, encoded as the whole table defines. used: see `encode_as`."""

    at_once = ROWS_AT_ONCE

    def __init__(self, table: ShardTable, used: Kinds):
        self.table, self.used, self.columns = table, used, tuple(used)
        width = sum(1 if len(kinds) in (0, 2) else len(kinds) for kinds in used.values())
        self.shape, self.row_bytes = (width,), 4 * width

    def unpack(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        values = {
            name: widen(self.table.convert_part(values_of, array, begin)) for name, array in columns.items()
        }
        return encode_as(Sheet(self.table.name, values, RowNames(self.table, begin)), self.used)

    def samples(self, unpacked: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        return unpacked[rows]


class ListForm(RowForm):
    """A column of lists as samples. Unsigned whole numbers are scaled like arrays
    (unskew.data.samples.conversion), unless `as_they_are`.

    Raises DataError (E403) if the first row is no list of numbers.
    """

    at_once = ROWS_AT_ONCE

    def __init__(self, table: ShardTable, column: str, layout: AxisOrder, as_they_are: bool = False):
        self.table, self.columns, self.layout = table, (column,), layout
        first = next((batch for _, batch in table.batches([column], 1)), None)
        if first is None:
            raise DataError("E403", f"{table.name} has no rows.")
        values = table.convert_part(lists_of, first.column(table.columns[column].name), 0)
        if values is None or not values.size:
            raise DataError("E403", f"{table.name}: column '{column}' holds no numbers in {table.where(0)}.")
        self.inner, self.kind = values.shape[1:], values.dtype
        self.shape = self.channels_first(values).shape[1:]
        bits = DEPTHS.get(self.kind) if len(self.shape) > 1 and not as_they_are else None
        self.source_dtype = self.kind if as_they_are else RowForm.source_dtype
        self.full = (1 << bits) - 1 if bits else None
        self.row_bytes = values[0].nbytes

    def unpack(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        array = columns[self.columns[0]]
        values = self.table.convert_part(lists_of, array, begin)
        if values is None or values.shape[1:] != self.inner:
            row = next((i for i in range(len(array)) if self._differs(array, i)), 0)
            odd = lists_of(array.slice(row, 1))
            fault = "lacks a value" if odd is None else f"is {list(odd.shape[1:])}"
            raise DataError(
                "E403",
                f"{self.table.name}: column '{self.columns[0]}' is {list(self.inner)} in"
                f" {self.table.where(0)} and {fault} in {self.table.where(begin + row)}; cut or pad lists to"
                " one shape.",
            )
        return values

    def _differs(self, array: Any, row: int) -> bool:
        values = lists_of(array.slice(row, 1))
        return values is None or values.shape[1:] != self.inner

    def samples(self, unpacked: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
            x = self.channels_first(unpacked[rows]).astype(np.float32)
        return x if self.full is None else x / np.float32(self.full)

    def channels_first(self, x: np.ndarray) -> np.ndarray:
        """Lists with their channels first; columns of single numbers remain."""
        return channels_first(x, self.layout, self.table.name) if x.ndim > 2 else x


Decode = Callable[[io.BytesIO, str], tuple[np.ndarray, Any]]
"""A function from a file's content to its sample and what else was noticed about it. Raises DataError if
it cannot read the file."""


class FileForm(RowForm):
    """A column with a file in each row. shape: shape of a sample from `decode`."""

    at_once = FILES_AT_ONCE

    def __init__(self, table: ShardTable, column: str, shape: tuple[int, ...], decode: Decode):
        self.table, self.columns, self.shape, self.decode = table, (column,), shape, decode
        self.row_bytes = table.row_bytes

    def unpack(self, columns: dict[str, Any], begin: int) -> np.ndarray:
        return self.table.convert_part(files_of, columns[self.columns[0]], begin)

    def samples(self, unpacked: np.ndarray, rows: np.ndarray, begin: int) -> np.ndarray:
        x = np.empty((len(rows), *self.shape), np.float32)
        for place, row in enumerate(rows.tolist()):
            content: Any = unpacked[row]
            x[place], _ = self.decode_row(content, begin + row)
        return x

    def decode_row(self, content: bytes | None, row: int) -> tuple[np.ndarray, Any]:
        """The sample in a file, and what else was noticed about it. row: row of the table. Raises
        DataError (E401) for a row without a file."""
        place = self.table.where(row)
        if content is None:
            raise DataError("E401", f"{place} holds no file of its own in column '{self.columns[0]}'.")
        return self.decode(io.BytesIO(content), f"{place[0].upper()}{place[1:]}")


class _SampleSink:
    """The destination of the samples of a pass: memory, or a scratch file and a survey."""

    def __init__(self, source: RowGroups, in_memory: bool | None):
        self.source, rows = source, len(source.table)
        in_memory = fits_memory(rows, source.form.shape) if in_memory is None else in_memory
        self.x = np.empty(source.shape, np.float32) if in_memory else None
        self.scratch = ScratchFile(source.shape) if self.x is None else None
        self.crc, self.low_high = np.empty(rows, np.uint32), np.empty((2, rows), np.float32)

    def put(self, begin: int, x: np.ndarray) -> None:
        """Samples [n, ...] from this row on."""
        rows = slice(begin, begin + len(x))
        if self.scratch is None:
            assert self.x is not None
            self.x[rows] = x
            return
        self.scratch.put(begin, x)
        flat = x.reshape(len(x), -1)
        self.crc[rows], self.low_high[:, rows] = checksums(x), (flat.min(1), flat.max(1))

    def samples(self, notes: list[Note]) -> np.ndarray:
        """All samples in memory, or as rows on disk, with a note."""
        if self.scratch is None:
            assert self.x is not None
            return self.x
        notes.append(
            streaming_note(len(self.crc), self.source.form.shape, self.scratch.place_text("unpacked"))
        )
        self.source.record_survey(Survey(self.crc, *self.low_high))
        self.source.clear_cache()
        return as_rows(self.scratch.samples(self.source))


def read_samples(
    table: ShardTable, form: RowForm, notes: list[Note], in_memory: bool | None = None
) -> np.ndarray:
    """The samples of a table, float32 [N, ...], read in one pass; adds to the notes.

    in_memory: whether to keep them in memory; None decides by their size. Raises the DataError of `form`.
    """
    source = RowGroups(table, form)
    sink = _SampleSink(source, in_memory)
    for begin, unpacked in source.unpacked_pieces():
        sink.put(begin, form.samples(unpacked, np.arange(len(unpacked)), begin))
    return sink.samples(notes)


def read_files(
    table: ShardTable, form: FileForm, notes: list[Note], in_memory: bool | None = None
) -> tuple[np.ndarray, list[Any]]:
    """(the samples of files, what else was noticed about each). Raises DataError (E401), with all files
    that cannot be read."""
    source = RowGroups(table, form)
    sink = _SampleSink(source, in_memory)

    def decode(row: int) -> Any:
        sample, info = form.decode_row(source.row(row), row)
        sink.put(row, sample[None])
        return info

    infos = read_each(RowNames(table), decode)
    return sink.samples(notes), infos


@dataclass
class ColumnExtent:
    """The extent of a column of numbers. whole: whether they are whole numbers. plain: whether none is
    missing or too large."""

    whole: bool = True
    plain: bool = True
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Extend by further values, in the column's type, or objects if some are missing."""
        if values.dtype.kind == "O":
            self.plain = False
        if not self.plain or not len(values):
            return
        self.whole = self.whole and values.dtype.kind in "iu"
        low, high = values.min(), values.max()
        self.plain = bool(
            np.isfinite(low)
            and np.isfinite(high)
            and max(abs(float(low)), abs(float(high))) <= LARGEST_FLOAT32
        )
        self.low = min(self.low, int(low) if self.whole else float(low))
        self.high = max(self.high, int(high) if self.whole else float(high))

    def counts(self, rows: int) -> bool:
        """Whether these may be `rows` consecutive whole numbers."""
        return self.whole and self.high - self.low == rows - 1


def encode_table(
    table: ShardTable, sheet: Sheet, columns: Mapping[str, np.ndarray], notes: list[Note]
) -> tuple[np.ndarray, Kinds]:
    """`encode_features` for the columns of a table, which are read row group by row group."""
    numbers = [column for column in columns if table.columns[column].kind == "number"]
    extents = _column_extents(table, numbers, sheet.test)
    rows = (len(table), len(table) if sheet.test is None else int((~sheet.test).sum()))

    def judge(column: str) -> Encoding:
        if column in extents:
            every, training = extents[column]
            suspect = names_rows(column) or every.counts(rows[0]) or training.counts(rows[1])
            if every.plain and not suspect:
                return Encoding([])
        return encode_column(sheet, column, columns[column])[0]

    readable = [c for c in columns if table.columns[c].kind in ("number", "text", "value")]
    if unreadable := [c for c in columns if c not in readable]:
        notes.append(("left out", f"column '{unreadable[0]}' of {table.columns[unreadable[0]].form}"))
    used = encodings_of(sheet, readable, judge, notes)
    return read_samples(table, TableForm(table, used), notes), used


def _column_extents(
    table: ShardTable, names: Sequence[str], test: np.ndarray | None
) -> dict[str, tuple[ColumnExtent, ColumnExtent]]:
    """(extent of all rows, of the training rows) of every column of numbers, in one pass."""
    extents = {name: (ColumnExtent(), ColumnExtent()) for name in names}
    for begin, batch in table.batches(names) if names else ():
        train = None if test is None else ~test[begin : begin + batch.num_rows]
        for name, (every, training) in extents.items():
            values = table.convert_part(values_of, batch.column(table.columns[name].name), begin)
            every.add(values)
            training.add(values if train is None else values[train])
    return extents


SOUND_MARKS = (*RIFF, b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3", b"FORM")
"""The first bytes of sound files."""
ANY_IMAGE = partial(decode_image, size=1, fit="pad", bits=16)
"""A decoder for use if only the content of files matters."""
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
    content = RowGroups(table, FileForm(table, column, (), ANY_IMAGE)).row(0) if len(table) else None
    if content is not None and content.startswith(SOUND_MARKS):
        return {"kind": "sounds", **asdict(_sound_format(table, column))}
    return {"kind": "images", **asdict(images)}


def file_form(table: ShardTable, column: str, into: FileSettings) -> FileForm:
    """The form of a row of the column as a sample: [3, size, size] for an image, [1, 64, T] for a sound."""
    settings = {name: value for name, value in into.items() if name != "kind"}
    if into["kind"] == "images":
        images = ImageSettings(**settings)
        return FileForm(table, column, (3, images.size, images.size), partial(decode_image, **asdict(images)))
    format = SoundFormat(**settings)
    return FileForm(table, column, (1, *spectrogram_shape(format)), partial(_decode_sound, format=format))


def read_file_column(
    table: ShardTable, column: str, into: FileSettings, notes: list[Note], in_memory: bool | None = None
) -> np.ndarray:
    """The samples of a column of files, in memory or as rows; adds to the notes.

    in_memory: whether to keep them in memory; None decides by their size. Raises DataError (E401), with all
    files that cannot be read.
    """
    x, infos = read_files(table, file_form(table, column, into), notes, in_memory)
    if into["kind"] == "images":
        notes += size_notes(infos, into["size"], into["fit"], into["bits"])
        notes += depth_warnings(infos, None, into["bits"])
    else:
        notes += sound_notes(infos, SoundFormat(into["rate"], into["seconds"], into["window"]))
    return x


def _sound_format(table: ShardTable, column: str) -> SoundFormat:
    """The format of all sounds, from those of the training rows. Raises DataError (E401) for sounds that
    cannot be read."""
    source = RowGroups(table, FileForm(table, column, (), ANY_IMAGE))

    def look(row: int) -> tuple[int, int]:
        content = source.row(row)
        if content is None:
            raise DataError("E401", f"{table.where(row)} holds no file of its own in column '{column}'.")
        wave, rate = waveform(io.BytesIO(content), table.where(row))
        return len(wave), rate

    return format_for(read_each(range(table.train_rows), look))


def _decode_sound(file: io.BytesIO, name: str, format: SoundFormat) -> tuple[np.ndarray, AudioInfo]:
    """The spectrogram of a file with a channel axis, [1, 64, T], and the file's properties."""
    pixels, info = read_sound(file, format, name)
    return pixels[None], info


def raw_lists(table: ShardTable, column: str, layout: AxisOrder) -> np.ndarray:
    """A column of lists, in the file's type, with channels first.

    Raises DataError: E142 for more than memory holds, E403 for lists of unequal length.
    """
    form = ListForm(table, column, layout)
    if not fits_memory(len(table), form.shape):
        text = (
            f"column '{column}' would take {float32_bytes(len(table), form.shape) / 2**30:,.1f} GiB of memory"
        )
        raise DataError("E142", f"{table.name}: {text}; give fewer rows at once.")
    return np.concatenate(
        [form.channels_first(unpacked) for _, unpacked in RowGroups(table, form).unpacked_pieces()]
    )


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
        text = f"its inputs would take {float32_bytes(len(table), (width,)) / 2**30:,.1f} GiB of memory"
        raise DataError("E142", f"{table.name}: {text}; give fewer rows at once.")
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
            values[column] = read_samples(
                table, ListForm(table, column, layout, as_they_are=True), remarks, in_memory=False
            )
        if notes is not None:
            notes += prefix_notes(f"column '{column}'", remarks)
    return values


def _input_shape(
    table: ShardTable, column: str, layout: AxisOrder, files: Mapping[str, FileSettings]
) -> tuple[int, ...]:
    """The shape of an input in one sample. Raises DataError (E403) for a column that holds none."""
    kind, form = table.columns[column].kind, excerpt(table.columns[column].form, 40)[1:-1]
    if kind == "number":
        return ()
    if kind == "list":
        return ListForm(table, column, layout).shape
    if kind == "packed" and column in files:
        return file_form(table, column, files[column]).shape
    if kind == "packed":
        text = (
            f"column '{column}' holds files, and held numbers where the model was trained; give it as it was"
            " there"
        )
        raise DataError("E403", f"{table.name}: {text}.")
    text = (
        f"column '{column}' is of {form}, and an input is a column of numbers, of lists of numbers or of"
        " files"
    )
    raise DataError("E403", f"{table.name}: {text}; leave it out of x.")


def _number_column(table: ShardTable, column: str) -> np.ndarray:
    """A column of numbers. Raises DataError (E405) for missing ones."""
    values = table.whole_column(column)
    if (missing := cells.missing(values)).any():
        place = table.where(int(np.argmax(missing)))
        raise DataError(
            "E405", f"{table.name}: column '{column}' has no value in {place}; fill it or leave the row out."
        )
    return values
