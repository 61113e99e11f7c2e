"""A data set from Parquet files.

The columns of a table are features; or one column of lists or files holds the samples, and others the labels
and facts. A column of files, {bytes, path}, is how the hub stores images and sounds. Samples are decoded in
one pass, into memory or a scratch file.
Letters: N samples, n rows that are decoded at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unskew.data.files.parquet import (
    LazyColumns,
    RowNames,
    ShardTable,
    files_of,
    lists_of,
    read_table,
    values_of,
)
from unskew.data.files.sheets import Sheet
from unskew.data.kinds.column_roles import (
    INDEPENDENT,
    column_named,
    group_setting,
    is_id_name,
    label_column_in,
    site_column_of,
)
from unskew.data.kinds.features import (
    Kinds,
    MissingSetting,
    column_width,
    encode_as,
    is_row_number,
)
from unskew.data.kinds.images import (
    BitsSetting,
    FitSetting,
    ImageSettings,
    SizeSetting,
    read_each,
)
from unskew.data.kinds.media_files import Conversion, Decode, decode_files
from unskew.data.kinds.sounds import RIFF, format_of, length_of
from unskew.data.readers.from_items import INPUT_KEYS
from unskew.data.readers.from_tables import (
    ColumnChoice,
    Roles,
    apply_split,
    check_sites,
    group_question,
    names_in,
    read_groups,
    read_label_columns,
    sheet_set,
    target_of,
)
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.conversion import DEPTHS, AxisOrder, channels_first, check_axes
from unskew.data.samples.dataset import Constants, Dataset, Target
from unskew.data.samples.reading_notes import Intake, Note, abbreviate
from unskew.data.storage.rows_on_disk import SampleSink, fits_memory, float32_bytes
from unskew.errors import DataError, excerpt
from unskew.formats.specs import split_names

TABLE_KINDS = ("number", "text", "value")
SAMPLE_KINDS = ("list", "packed")
LONGEST_WORD = 100
"""Maximal number of characters in a word by which clients can be formed."""


def parquet(
    path: str | Path,
    label: Annotated[str, "the column of labels"] = "",
    site: Annotated[str, "the column of sites"] = "",
    x: Annotated[
        str | Sequence[str],
        "the column of samples, if several hold lists or files; of a table, the columns to train on",
    ] = "",
    layout: Annotated[
        AxisOrder, "for lists in lists: 'channels last' for images, 'time first' for series"
    ] = "auto",
    size: SizeSetting = 64,
    *,
    fit: FitSetting = "pad",
    bits: BitsSetting = 16,
    target: str = "",
    center: Constants | None = None,
    scale: Constants | None = None,
    group: str = "",
    drop: str | Sequence[str] = "",
    missing: MissingSetting = "refuse",
    weight: str = "",
) -> Dataset:
    """The set in Parquet files. path: a file, a folder with any number of them, or a pattern such as
    shards/part-*.parquet.

    A column of lists of numbers, or of files {bytes, path} as the hub keeps images and sounds, holds the
    samples, and the other columns facts about them. Without such a column, or if x names others, columns are
    features, see `read_table`; x and missing are then as for a CSV, and filled columns are kept in memory.
    weight: the column of weights of samples in the loss.
    Files or folders called train and test hold the training and test rows. Samples that would take more than
    a quarter of the memory are read during training.
    Raises DataError: E401 for files that cannot be read, or without pyarrow, E402 if there are none, E403 for
    columns and for shapes that differ, E404 for labels, E405 for missing values, E142 for anything that does
    not fit into memory.
    """
    aim, images = target_of(target, label, center, scale), ImageSettings(size, fit, bits)
    path, choice = Path(path), ColumnChoice(names_in(x), names_in(drop), missing, weight)
    return dataset_of_table(read_table(path), (label, site, group), layout, images, aim, choice)


def dataset_of_table(
    table: ShardTable,
    roles: Roles,
    layout: AxisOrder,
    images: ImageSettings,
    aim: Target | None,
    choice: ColumnChoice,
) -> Dataset:
    """The set in a table, as `parquet` describes it. Raises DataError (E403) for missing values that are to
    be filled where lists or files are the samples."""
    kept, target = choice.kept(table.columns, table.name), split_names(aim.name if aim else "")
    column = _sample_column(table, kept, choice.x, {roles[0], *target})
    names = [n for n in kept if n != column and table.columns[n].kind in TABLE_KINDS]
    packed = column if column and table.columns[column].kind == "packed" else ""
    facts, paths = LazyColumns(table, names), table.paths(packed)
    sheet = Sheet(table.name, facts, RowNames(table), test=table.test(), paths=paths)
    left_out, choice = list(table.omissions), replace(choice, drop=())
    if not column:
        left_out += [f"column '{n}' of {table.columns[n].form}" for n in kept if n not in names]
    notes: list[Note] = [("left out", abbreviate(left_out))] if left_out else []
    if not column:
        encode = partial(encode_table, table, notes) if choice.missing == "refuse" else encode_as
        return sheet_set(sheet, roles, None, aim, choice=choice, encode=encode).with_notes(*notes)
    if choice.missing != "refuse":
        fault = f"the samples are in {excerpt(column, 40)}"
        raise DataError(
            "E403", f"{table.name}: {fault}; leave out missing, which is for columns of features."
        )
    sheet, weights = choice.split_weights(sheet)
    raw, sheet = _read_facts(table, sheet, column, roles, aim, notes)
    if packed:
        form = file_settings(table, column, images)
        samples, dtype = read_file_column(table, column, form, notes), ""
        if form["kind"] == "sounds":
            notes.append(("scaled", "spectrograms were standardised"))
    else:
        lists = ListColumn(table, column, layout)
        samples, form, dtype = lists.samples(notes), {"kind": "arrays", "layout": layout}, str(lists.kind)
        if layout == "auto":
            check_axes(f"{table.name}, column '{column}'", samples)
        if lists.full:
            kind = f"{lists.kind.itemsize * 8}-bit whole numbers"
            notes.append(("scaled", f"{kind} were divided by {lists.full:,}"))
    raw = replace(raw, x=samples, notes=tuple(notes), columns={**raw.columns, **weights})
    raw = raw.divided(sheet.test, sheet.unused)
    dataset = raw.dataset(Path(table.name).stem)
    dataset = dataset.with_constants() if form["kind"] == "sounds" else dataset
    intake = dataset.intake or Intake()
    form = {**form, "column": column}
    return replace(dataset, intake=replace(intake, dtype=dtype or intake.dtype, form=form, divided=roles[1]))


def _sample_column(table: ShardTable, kept: Sequence[str], x: Sequence[str], labels: set[str]) -> str:
    """The column of lists or files that holds the samples, among those that are not left out; "" for a table
    of features. x: the columns that the user names, () to search for one. Raises DataError (E403) for several
    columns of samples, and for one that cannot be read."""
    named = [column_named(kept, name, table.name) for name in x]
    if odd := next((n for n in named if table.columns[n].kind not in (*TABLE_KINDS, *SAMPLE_KINDS)), ""):
        fault = f"x={odd} names a column of {excerpt(table.columns[odd].form, 40)[1:-1]}"
        raise DataError("E403", f"{table.name}: {fault}, which is not read; name others.")
    label = "" if named or labels - {""} else label_column_in(kept)
    rich = [n for n in named or kept if table.columns[n].kind in SAMPLE_KINDS and n not in {*labels, label}]
    usual = [n for n in rich if n.lower() in INPUT_KEYS and not named]
    if rich and (len(named) > 1 or (len(rich) > 1 and len(usual) != 1)):
        text = f"{table.name} has several columns of samples, {abbreviate(named or rich)}"
        raise DataError("E403", f"{text}: name one, x={rich[0]}; give several inputs as arrays or a Dataset.")
    return (usual if len(rich) > 1 else [*rich, ""])[0]


def _read_facts(
    table: ShardTable, sheet: Sheet, column: str, roles: Roles, aim: Target | None, notes: list[Note]
) -> tuple[RawSamples, Sheet]:
    """(labels and facts besides the samples in `column`, the sheet with its parts); adds to the notes."""
    label, site, group = roles
    lists = label or ("" if aim else label_column_in(table.columns))
    if lists in table.columns and table.columns[lists].kind == "list":
        sheet = apply_split(sheet, lists, notes)
        labels = (lists,)
        y = np.concatenate([values for _, values in ListColumn(table, lists, "auto").parts()])
        notes.append(("labels", f"from the column '{lists}'"))
    elif not sheet.columns:
        raise DataError("E403", f"{table.name} has no column of labels beside '{column}'.")
    else:
        sheet = apply_split(sheet, label, notes)
        labels, y = read_label_columns(sheet, label, None, aim, notes)
    classes = table.classes(labels[0]) if y.dtype.kind in "iu" and y.ndim == 1 and not aim else None
    if classes and len(y) and int(y.max()) >= len(classes):
        classes = None
    remaining = [c for c in sheet.columns if c not in labels]
    asks = not group_setting(group, site)
    group, groups_N = read_groups(sheet, remaining, group_setting(group, site))
    site = site_column_of(sheet, remaining, site, group)
    known = (*labels, column)
    left_out = [n for n, c in table.columns.items() if n not in known and c.kind not in TABLE_KINDS]
    facts: dict[str, np.ndarray] = {} if groups_N is None else {group: groups_N}
    for name in remaining:
        if name in (group, site):
            facts |= {} if name == group else {name: check_sites(sheet, name)}
        elif (values := _fact_column(table, sheet, name)) is not None:
            facts[name] = values
        else:
            left_out.append(name)
    if asks:
        asked = [c for c in remaining if is_id_name(c) or (c in facts and c != site)]
        notes += group_question(sheet, asked, y)
    if left_out:
        notes.append(("left out", f"columns {abbreviate([excerpt(c, 40) for c in left_out], 5)}"))
    if site:
        notes.append(("sites", f"from the column '{site}'"))
    raw = RawSamples(
        None,
        y,
        classes=classes,
        columns=facts,
        target=aim,
        group=group or INDEPENDENT,
        layout="channels first",
    )
    return raw, sheet


def _fact_column(table: ShardTable, sheet: Sheet, name: str) -> np.ndarray | None:
    """The values of a column by which clients can be formed, [N]; None for any other column."""
    if table.columns[name].kind == "value":
        return None
    try:
        values = sheet.columns[name]
    except DataError as error:  # words that take too much memory
        if error.code != "E142":
            raise
        return None
    if values.dtype.kind not in "biuUS" or is_row_number(name, values):
        return None
    return values if values.dtype.kind in "biu" or values.dtype.itemsize <= 4 * LONGEST_WORD else None


def encode_table(
    table: ShardTable, notes: list[Note], sheet: Sheet, used: Kinds, columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """`encode_as` for the columns of a table, which are read together, batch by batch; adds to the notes."""
    sink = SampleSink(table.name, (len(table), sum(map(column_width, used.values()))))
    for begin, values in table.parts(list(used), values_of):
        sink.put(begin, encode_as(Sheet(table.name, values, RowNames(table, begin)), used))
    return sink.samples(notes)


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
        values = next(table.parts([column], lists_of, 1))[1][column]
        if values is None or not values.size:
            raise DataError("E403", f"{table.name}: column '{column}' holds no numbers in {table.where(0)}.")
        self.inner, self.kind = values.shape[1:], values.dtype
        self.shape = self._channels_first(values).shape[1:]
        bits = DEPTHS.get(self.kind) if len(self.shape) > 1 else None
        self.full = (1 << bits) - 1 if bits else None

    def parts(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, lists [n, ...] in the file's type, channels first) of all rows, in
        order. Raises DataError (E403) for lists of unequal shapes."""
        for begin, part in self.table.parts([self.column], lambda array: (array, lists_of(array))):
            array, values = part[self.column]
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

    def samples(self, notes: list[Note]) -> np.ndarray:
        """All samples, float32 [N, ...], scaled; adds to the notes."""
        sink = SampleSink(self.table.name, (len(self.table), *self.shape))
        for begin, values in self.parts():
            with np.errstate(over="ignore"):  # infinity is refused where all samples are looked at
                x = values.astype(np.float32)
            sink.put(begin, x if self.full is None else x / np.float32(self.full))
        return sink.samples(notes)

    def raw(self) -> np.ndarray:
        """All lists in the file's type. Raises DataError (E142) for more than memory holds."""
        count = len(self.table)
        if not fits_memory(count, self.shape):
            text = (
                f"column '{self.column}' takes {float32_bytes(count, self.shape) / 2**30:,.1f} GiB of memory"
            )
            raise DataError("E142", f"{self.table.name}: {text}; give fewer rows at once.")
        return np.concatenate([values for _, values in self.parts()])

    def _channels_first(self, x: np.ndarray) -> np.ndarray:
        """Lists with their channels first; columns of single numbers remain."""
        return channels_first(x, self.layout, self.table.name) if x.ndim > 2 else x


FILES_AT_ONCE = 8
"""Maximal number of files that are in memory at once."""
SOUND_MARKS = (*RIFF, b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3", b"FORM")
"""The first bytes of sound files."""


def read_column_files(table: ShardTable, column: str, decode: Decode, rows: int | None = None) -> list[Any]:
    """The results of `decode` for the files of a column, of the first `rows` rows.

    Raises DataError (E401), with all files that cannot be read and rows without a file.
    """
    damage = list[DataError]()

    def files() -> Iterator[bytes | None]:
        try:
            for _, part in table.parts([column], files_of, FILES_AT_ONCE):
                yield from part[column]
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


def file_settings(table: ShardTable, column: str, images: ImageSettings) -> Conversion:
    """The conversion of the files of a column: of images as `images` says, of sounds the format that fits the
    training rows. Raises DataError (E401) for sounds that cannot be read."""
    first = next((part[column][0] for _, part in table.parts([column], files_of, 1)), None)
    if first is None or not first.startswith(SOUND_MARKS):
        return {"kind": "images", **asdict(images)}
    lengths = read_column_files(table, column, length_of, table.train_rows)
    return {"kind": "sounds", **asdict(format_of(lengths))}


def read_file_column(
    table: ShardTable, column: str, into: Conversion, notes: list[Note], in_memory: bool | None = None
) -> np.ndarray:
    """The samples of a column of files, in memory or as rows; adds to the notes.

    in_memory: whether to keep them in memory; None decides by their size. Raises DataError (E401), with all
    files that cannot be read.
    """
    each = partial(read_column_files, table, column)
    return decode_files(table.name, len(table), each, into, notes, in_memory=in_memory)[0]
