"""Parquet files for tests: written by pyarrow where it is installed, or by a stand-in for the little of it
that is used.

The stand-in keeps columns as JSON between the two marks of a Parquet file. A column is (type, values), the
type as Arrow writes it.
"""

import base64
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np

MARK = b"PAR1"
LIST = re.compile(r"(?:fixed_size_)?list<element: (.*)>(?:\[\d+\])?")


class Array:
    def __init__(self, type, values):
        self.type, self._values = type, list(values)

    @property
    def null_count(self):
        return sum(value is None for value in self._values)

    @property
    def nbytes(self):
        return sum(map(_size, self._values))

    @property
    def dictionary(self):
        return Array("string", sorted({value for value in self._values if value is not None}))

    @property
    def indices(self):
        known = self.dictionary.to_pylist()
        return Array("int32", [None if value is None else known.index(value) for value in self._values])

    def fill_null(self, value):
        return Array(self.type, [value if one is None else one for one in self._values])

    def to_pylist(self):
        return self._values

    def to_numpy(self, zero_copy_only=True):
        kind = {"float": "f4", "double": "f8", "halffloat": "f2", "bool": "?"}.get(self.type, self.type)
        return np.array(self._values, kind)

    def flatten(self):
        return Array(LIST.fullmatch(self.type)[1], [value for one in self._values for value in one])

    def value_lengths(self):
        return Array("int32", map(len, self._values))

    def slice(self, begin, count):
        return Array(self.type, self._values[begin : begin + count])

    def field(self, name):
        return Array("binary", [(one or {}).get(name) for one in self._values])

    def __len__(self):
        return len(self._values)


def _size(value):
    value = value["bytes"] if isinstance(value, dict) else value
    return len(value) if isinstance(value, str | bytes) else 8


class Batch:
    def __init__(self, columns):
        self._columns = columns
        self.num_rows = len(next(iter(columns.values())))
        self.nbytes = sum(column.nbytes for column in columns.values())

    def column(self, name):
        return self._columns[name]


class ParquetFile:
    opened = 0

    def __init__(self, path, metadata=None, read_dictionary=(), **_):
        content = path.read_bytes()
        if content[:4] != MARK or content[-4:] != MARK:
            raise ValueError("Parquet magic bytes not found in footer.")
        self._said = json.loads(content[4:-4], object_hook=_bytes)
        self._columns = {n: Array(t, v) for n, (t, v) in self._said["columns"].items()}
        self._dictionaries = read_dictionary
        self.metadata = SimpleNamespace(
            num_rows=self._said["rows"], num_row_groups=len(self._said["groups"]), row_group=self._group
        )
        notes = {b"huggingface": json.dumps(self._said["notes"]).encode()} if self._said["notes"] else None
        self.schema_arrow = Schema([SimpleNamespace(name=n, type=a.type) for n, a in self._columns.items()])
        self.schema_arrow.metadata = notes

    def _group(self, i):
        rows = self._said["groups"][i]
        size = sum(array.nbytes for array in self._columns.values()) // len(self._said["groups"])
        return SimpleNamespace(
            num_rows=rows, total_byte_size=size if self._said["size"] is None else self._said["size"]
        )

    def iter_batches(self, batch_size, row_groups, columns, use_threads):
        ParquetFile.opened += 1
        begin = sum(self._said["groups"][: row_groups[0]])
        end = min(begin + self._said["groups"][row_groups[0]], len(next(iter(self._columns.values()))))
        sizes = itertools.cycle(
            (max(1, 2 * batch_size // 3), batch_size)
        )  # fewer rows than asked for are allowed
        while begin < end:
            count = min(next(sizes), end - begin)
            part = {n: self._columns[n].slice(begin, count) for n in columns}
            begin += count
            for name in self._dictionaries:
                part[name].type = "dictionary<values=string, indices=int32, ordered=0>"
            yield Batch(part)

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Schema(list):
    metadata = None


def _bytes(value):
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value


def write(path, columns, group=7, notes=None, **lies):
    """A file of the stand-in's. group: rows of a row group. notes: of the hub. lies: what its footer says
    otherwise."""
    rows = len(next(iter(columns.values()))[1])
    groups = [min(group, rows - begin) for begin in range(0, rows, group)]
    said = {"rows": rows, "groups": groups, "size": None, "notes": notes, "columns": columns, **lies}
    text = json.dumps(said, default=lambda value: {"b64": base64.b64encode(value).decode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MARK + text.encode() + MARK)


def write_real(path, columns, group=7, notes=None):
    """The same file by pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values, _type(pa, form)) for name, (form, values) in columns.items()})
    if notes:
        table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)


def _type(pa, form):
    if match := re.fullmatch(r"fixed_size_list<element: (.*)>\[(\d+)\]", form):
        return pa.list_(_type(pa, match[1]), int(match[2]))
    if match := LIST.fullmatch(form):
        return pa.list_(_type(pa, match[1]))
    if form.startswith("struct"):
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return {
        "double": pa.float64(),
        "float": pa.float32(),
        "bool": pa.bool_(),
        "date32[day]": pa.date32(),
    }.get(form) or getattr(pa, form)()
