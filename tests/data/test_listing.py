"""Files that a CSV lists: which row belongs to which file, and what their columns become.

Likely mistakes: names that two folders share, a file in two rows, an empty label, columns named where no CSV
lists anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from unskew import data
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError

N = 24
AGES = [40 + (7 * i) % 31 for i in range(N)]


def grey(i: int) -> int:
    return 10 * i + 5


def row(i: int) -> dict[str, Any]:
    """What the table says of image i; its grey says which it is."""
    return {
        "file": f"{'ab'[i % 2]}/{i // 2:02}.png",
        "state": ("ill", "well")[i % 3 == 0],
        "ward": ("north", "south", "west")[i % 3],
        "age": AGES[i],
        "sex": ("f", "m")[i // 2 % 2],
        "dose": AGES[i] / 8,
        "fever": i % 2,
        "cough": int(i % 5 == 0),
        "patient": f"p{i // 3}",
    }


def write(root, rows=None, name="list.csv"):
    """The folder, in which every image is of one grey, and the table of these rows."""
    for i in range(N):
        place = root / "files" / "ab"[i % 2] / f"{i // 2:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), grey(i)).save(place)
    rows = [row(i) for i in range(N)] if rows is None else rows
    lines = [",".join(rows[0]), *(",".join(map(str, one.values())) for one in rows)]
    (root / name).write_text("\n".join(lines) + "\n")
    return root


def read(root, **more) -> Dataset:
    return data.folder(root, size=8, **more)


def known(d: Dataset) -> dict[int, Any]:
    """Of every sample the number of its image, and its label."""
    x = np.concatenate([d.x, d.x_test])
    greys = np.rint(x.reshape(len(x), -1)[:, 0] * 255).astype(int)
    return {(int(g) - 5) // 10: y for g, y in zip(greys, np.concatenate([d.y, d.y_test]).tolist())}


def test_equal_names_in_two_folders_are_two_files(tmp_path):
    """A row took the label of whichever file of its name came last."""
    d = read(write(tmp_path), label="state")
    assert d.classes == ("ill", "well")
    assert known(d) == {i: int(i % 3 == 0) for i in range(N)}


@pytest.mark.parametrize(
    "named",
    ["/elsewhere/files/{}", "files\\{}", "{}", "./{}"],
)
def test_a_path_counts_from_its_end(named, tmp_path):
    rows = [row(i) for i in range(N)]
    for one in rows:
        one["file"] = named.format(one["file"])
    assert known(read(write(tmp_path, rows), label="state")) == {i: int(i % 3 == 0) for i in range(N)}


def without_folders(rows):
    for one in rows:
        one["file"] = one["file"].rpartition("/")[2]


def twice(rows):
    rows.append({**rows[3], "state": "ill"})


def no_label(rows):
    rows[4]["state"] = ""


def no_site(rows):
    rows[4]["ward"] = "NA"


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        (
            without_folders,
            {},
            (
                r"E404 '00.png' at line 2 of .*list.csv may be .*a/00.png or .*b/00.png; write the path of"
                r" each file"
            ),
        ),
        (
            twice,
            {},
            r"E404 .*list.csv lists 01.png at line 5 and at line 26; keep one of them",
        ),
        (no_label, {}, r"E404 list.csv: column 'state' has no label at line 6"),
        (no_site, {"site": "ward"}, r"E403 list.csv: column 'ward' has no site at line 6"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(change, more, says, tmp_path):
    rows = [row(i) for i in range(N)]
    change(rows)
    with pytest.raises(DataError, match=says):
        read(write(tmp_path, rows), label="state", **more)


def test_a_number_and_several_labels_are_learnt(tmp_path):
    """Until then only classes were."""
    write(tmp_path)
    d = read(tmp_path, target="dose")
    assert d.target
    assert d.target.name == "dose"
    assert known(d) == {i: AGES[i] / 8 for i in range(N)}
    d = read(tmp_path, target="fever,cough")
    assert d.classes == ("fever", "cough")
    assert known(d) == {i: [bool(i % 2), i % 5 == 0] for i in range(N)}
    with pytest.raises(DataError, match="E403 label=state names classes, and target=dose a number"):
        read(tmp_path, label="state", target="dose")
