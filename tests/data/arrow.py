"""Parquet files for tests. A column is (type, values), the type as Arrow writes it."""

import json
import re

import pytest

LIST = re.compile(r"list<element: (.*)>")


def write(path, columns, group=7, notes=None):
    """A file. group: rows of a row group. notes: of the hub."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

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
