"""The data of a site: tables, folders and lines of Python."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data import arrow
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.data.storage.sample_rows import is_streamed
from unskew.errors import DataError, UsageError
from unskew.federation import site_data


def test_tables_folders_and_lines_of_python(tmp_path):
    (tmp_path / "t.csv").write_text("age,label,weight\n" + "1,sick,2\n3,well,4\n5,sick,6\n" * 10)
    found = site_data.load(str(tmp_path / "t.csv"), ["well", "sick", "unknown"])
    assert found.classes == ("well", "sick", "unknown")
    assert found.shape == (2,)
    assert set(found.y) == {0, 1}
    rows = [f"p{i // 3},{i % 7},{('well', 'sick')[i // 3 % 2]}" for i in range(60)]
    (tmp_path / "visits.csv").write_text("patient,a,label\n" + "\n".join(rows) + "\n")
    found = site_data.load(f"{tmp_path}/visits.csv(group=patient)", ["well", "sick"])
    assert len(found.y_test) == 12
    assert not set(found.columns["patient"]) & set(found.test_columns["patient"])
    (tmp_path / "bad.csv").write_text("a,b\n1\n")
    with pytest.raises(DataError, match=r"E401 .* line 2 has 1 values"):
        site_data.load(str(tmp_path / "bad.csv"))
    with pytest.raises(DataError, match=r"E404 .*'sick'"):
        site_data.load(str(tmp_path / "t.csv"), ["well", "other"])
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef load():\n    return np.zeros((10, 3), np.float32), np.arange(10) % 2\n"
    )
    assert site_data.load(f"{tmp_path / 'mine.py'}:load", ["a", "b", "c"]).classes == ("a", "b", "c")
    (tmp_path / "long.csv").write_text("a,label\n" + "1" * 200_000 + ",x\n")
    with pytest.raises(DataError, match=r"E401 .*field larger"):
        site_data.load(str(tmp_path / "long.csv"))
    for text in ("nothing", f"{tmp_path / 'mine.py'}:none", "no.py:load"):
        with pytest.raises(UsageError, match="E111"):
            site_data.load(text)


def test_parquet_is_read_when_it_is_wanted_at_a_site_too(tmp_path, monkeypatch):
    for part in "pq":
        rows = {"a": ("double", [0.5 + i for i in range(20)]), "label": ("string", ["well", "sick"] * 10)}
        arrow.write(tmp_path / "shards" / f"{part}.parquet", rows)
    wholes = [
        site_data.load(f"{tmp_path}/shards{name}", ["well", "sick", "unknown"])
        for name in ("", "/*.parquet(label=label)")
    ]
    monkeypatch.setattr("unskew.data.samples.memory_budget.usable_memory", lambda: 100)
    for name, whole in zip(("", "/*.parquet(label=label)", "/p.parquet"), [*wholes, None]):
        found = site_data.load(f"{tmp_path}/shards{name}", ["well", "sick", "unknown"])
        assert is_streamed(found.x)
        assert found.classes == ("well", "sick", "unknown")
        assert whole is None or np.array_equal(found.x[:], whole.x)
    with pytest.raises(UsageError, match="E111"):
        site_data.load(f"{tmp_path}/shards/none-*.parquet")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "def load():\n    return open('/no/such/file')\n",
            "E401 .*:load failed at line 2: FileNotFoundError: .*/file",
        ),
        ("def load(:\n", "E111 .* cannot be read as Python at line 1: SyntaxError"),
        (
            "import no_such_module\ndef load(): ...\n",
            "E111 .* cannot be read as Python at line 1: ModuleNotFoundError",
        ),
    ],
)
def test_a_loader_that_fails_is_one_sentence(tmp_path, lines, told):
    (tmp_path / "mine.py").write_text(lines)
    with pytest.raises((DataError, UsageError), match=told):
        site_data.load(f"{tmp_path / 'mine.py'}:load")


def test_a_site_of_one_class_must_name_them_all(tmp_path):
    """Else it would pass its own check and be turned away by the server."""
    np.savez(tmp_path / "one.npz", x=np.random.default_rng(0).random((20, 1, 4, 4)), y=np.zeros(20, np.int64))
    with pytest.raises(DataError, match=r"E404.*one class.*--classes a,b"):
        site_data.load(str(tmp_path / "one.npz"))
    assert site_data.load(str(tmp_path / "one.npz"), ["no", "yes"]).classes == ("no", "yes")


def test_a_site_with_images_of_one_class_names_the_others_by_empty_folders(tmp_path):
    """A site need not hold samples of each class; a folder with one was refused, and nothing said how to
    bring it."""
    for k in range(10):
        (tmp_path / "scans" / "ill").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * k, np.uint8)).save(tmp_path / "scans" / "ill" / f"{k}.png")
    for classes in ((), ("ill", "well")):
        with pytest.raises(
            DataError,
            match=r"E404 .* holds 1 class folder; .* \(an empty folder for one of which there are no",
        ):
            site_data.load(f"{tmp_path / 'scans'}(size=8)", classes)
    (tmp_path / "scans" / "well").mkdir()
    data = site_data.load(f"{tmp_path / 'scans'}(size=8)", ("well", "ill"))
    assert data.classes == ("well", "ill")
    assert {*data.y.tolist()} == {1}
