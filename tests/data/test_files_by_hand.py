"""What a user's own files are read as, worked by hand: values of masks, columns of labels, folders, sites."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_folders import disc, pictures
from tests.data.test_masks import two_sites
from tests.data.test_reading_notes import notes as notes_of
from unskew import data
from unskew.errors import DataError

N = 40


def test_named_classes_decide_whether_values_are_numbers():
    """Two names are background and foreground, whatever their values; of three, which value means which is
    not guessed."""
    x, y, _ = two_sites((0, 255), (0, 255))
    d = data.arrays(x, y, classes=["background", "vessel"], test=0)
    assert d.classes == ("background", "vessel")
    assert np.array_equal(d.y, y > 0)
    with pytest.raises(DataError, match=r"E404 .* is 255; 3 classes"):
        data.arrays(x, y, classes=["background", "vessel", "disc"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((1, 255), "hold 1 and 255"),
        ((-1, 40), "hold -1 and 40"),
        ((0, np.inf), "they must be whole numbers from 0"),
    ],
)
def test_values_that_may_mean_other_things_are_refused(values, told):
    """Class 1 and 255 for 'void', or -1 for 'void', are no background and foreground."""
    x, y, _ = two_sites(values, values)
    with pytest.raises(DataError, match=rf"E404 .*{told}"):
        data.arrays(x, y)


def test_sites_whose_backgrounds_differ_are_refused():
    x, y, site = two_sites((40, 255), (0, 255))
    with pytest.raises(DataError, match=r"E404 .*lyon hold 40 and 255 .*which of them mean the same"):
        data.arrays(x, y, columns={"site": site})


def table(path, rows=N, **columns):
    """A CSV of `age` and these columns, each a function of the row, in their order."""
    columns = {"age": lambda i: 20 + i * 7 % 45, **columns}
    lines = [",".join(columns), *(",".join(str(v(i)) for v in columns.values()) for i in range(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_of_several_columns_of_labels_the_likeliest_is_taken(tmp_path):
    """Not the one that stands first: `label` comes before `class`."""
    d = data.read(
        table(tmp_path / "t.csv", **{"class": lambda i: "xyz"[i % 3], "label": lambda i: "ab"[i // 3 % 2]})
    )
    assert d.classes == ("a", "b")
    assert "from the column 'label'; 'class' counts as a feature, label=class chooses it" in notes_of(d)


def pairs_of(root, *names, kinds=("images", "masks")):
    """An image and its mask for each name `FOLDER/*/FILE`, the star standing for images/ or masks/."""
    for n, name in enumerate(names):
        for kind, value in zip(kinds, (0, 255)):
            disc(root / name.replace("*", kind), n, value)


def fits(d) -> bool:
    """Whether every mask is that of its image, as `disc` draws them."""
    return all(np.array_equal(x[:, 0] * 255 >= 100, y == 1) for x, y in ((d.x, d.y), (d.x_test, d.y_test)))


def test_the_innermost_folder_says_what_is_an_image(tmp_path):
    """A site may be called `scans`."""
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("scans", "lyon") for n in range(4)))
    d = data.folder(tmp_path, size=16)
    assert d.labels["site"] == ("lyon", "scans")
    assert fits(d)


def test_sites_of_one_name_in_two_countries_are_two(tmp_path):
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("eu/a", "us/a") for n in range(4)))
    assert data.folder(tmp_path, size=16).labels["site"] == ("eu/a", "us/a")


def test_inner_folders_are_classes_only_if_their_names_recur(tmp_path):
    """One name that two classes have in common is a site of both; below a single folder the inner ones are
    classes."""
    pictures(
        tmp_path / "class", *(f"{c}/{site}" for c, sites in (("a", "xyz"), ("b", "zwv")) for site in sites)
    )
    d = data.folder(tmp_path / "class", size=8)
    assert d.classes == ("a", "b")
    assert d.labels["site"] == ("v", "w", "x", "y", "z")
    pictures(tmp_path / "one", "lyon/a", "lyon/b")
    d = data.folder(tmp_path / "one", size=8)
    assert (d.classes, d.labels["site"]) == (("a", "b"), ("lyon",))


def test_a_class_without_samples_is_a_class(tmp_path):
    """Its folder is there, so its number is taken, as at sites that have such samples."""
    pictures(tmp_path, "a", "c")
    (tmp_path / "b").mkdir()
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("a", "b", "c")
    assert sorted(set(d.y.tolist())) == [0, 2]


def test_words_of_columns_have_one_numbering_for_training_and_test():
    x, y = np.zeros((4, 2)), ["a", "b"] * 2
    given = {"site": ["oslo", "lyon", "lyon", "oslo"]}, {"site": ["porto", "lyon", "oslo", "porto"]}
    d = data.arrays(x, y, x, y, columns=given[0], test_columns=given[1])
    assert d.labels["site"] == ("lyon", "oslo", "porto")
    assert d.columns["site"].tolist() == [1, 0, 0, 1]
    assert d.test_columns["site"].tolist() == [2, 0, 1, 2]
