"""What a user's own files are read as, worked by hand: values of masks, columns of labels, folders, sites."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.test_folders import disc, paint, pictures
from tests.data.test_intake import blurred
from tests.data.test_intake import notes as notes_of
from tests.data.test_masks import two_sites
from unskew import data
from unskew.data import data_overview, data_warnings
from unskew.data.kinds.column_roles import site_column_in
from unskew.data.kinds.masks import are_black_and_white
from unskew.errors import DataError

N = 40


def test_a_site_whose_masks_are_all_foreground_keeps_them():
    """Beside a site with 0 and 255, masks that hold 1 everywhere are class numbers, too."""
    x, y, site = two_sites((1, 1), (0, 255))
    d = data.arrays(x, y, columns={"site": site}, test=0)
    assert np.array_equal(d.y, y > 0)


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
        ((1, 255), r"hold class numbers \(1\) and 255"),
        ((-1, 40), "hold values up to 40"),
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
    with pytest.raises(DataError, match=r"E404 .*lyon hold 40 and 255 .*which of these values mean the same"):
        data.arrays(x, y, columns={"site": site})


def test_the_share_of_grey_pixels_is_told():
    y = blurred()
    x = np.zeros((6, 1, 32, 32), np.float32)
    share = 100 * ((y > 0) & (y < 255)).mean()
    assert 0 < share < 100 * (y > 0).mean()
    assert f"but {share:.1f} % of the pixels are grey" in notes_of(data.arrays(x, y, x, y), "labels")


def test_a_pixel_of_two_classes_is_refused():
    """One-hot masks of which a pixel has two ones, or none, have no class there."""
    x = np.zeros((4, 1, 8, 8), np.float32)
    y = np.zeros((4, 3, 8, 8), np.int64)
    y[:, 0] = 1
    for other in (np.array([1, 1, 0]), np.array([0, 0, 0])):
        spoilt = y.copy()
        spoilt[2, :, 3, 3] = other
        with pytest.raises(DataError, match=r"E404 .*not one class per pixel"):
            data.arrays(x, spoilt)


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


def test_a_finer_column_beside_the_labels_is_no_copy_of_them(tmp_path):
    """Each of four `class` values has one label of two; only columns that name the same both ways are
    copies."""
    fine = {"class": lambda i: "abcd"[i % 4], "label": lambda i: "xy"[i % 2]}
    assert data.read(table(tmp_path / "t.csv", **fine)).classes == ("x", "y")
    with pytest.raises(DataError, match=r"E404 .*both hold the labels"):
        data.read(table(tmp_path / "t.csv", **{**fine, "class": lambda i: "cd"[i % 2]}))


def test_named_classes_do_not_make_other_words_labels(tmp_path):
    """Of classes `None` and `mild`, `None` is a class, and `NA` is still a missing label."""
    words = {"status": lambda i: "NA" if i == 7 else ("None", "mild")[i % 2]}
    with pytest.raises(
        DataError, match=r"E404 .*column 'status' has no label at line 9, only 'NA' \(1 are missing\)"
    ):
        data.read(table(tmp_path / "t.csv", **words), label="status", classes=["None", "mild"])


def test_the_last_column_may_have_as_many_values_as_half_the_rows(tmp_path):
    """More are no labels. Numbers in several spellings count once."""
    assert len(data.read(table(tmp_path / "t.csv", kind=lambda i: f"k{i // 2}")).classes) == N // 2
    with pytest.raises(DataError, match=r"E404 .*has 21 different values in 40 rows"):
        data.read(
            table(tmp_path / "t.csv", kind=lambda i: f"k{min(i // 2, 18)}{'*' * (i > 37)}{'+' * (i > 38)}")
        )
    spelt = data.read(table(tmp_path / "t.csv", kind=lambda i: f"{i % 7}{('', '.', '.0')[i % 3]}"))
    assert spelt.classes == tuple("0123456")


def test_labels_with_decimal_commas_are_fractions(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age;score\n" + "".join(f"{20 + i};{i % 5},5\n" for i in range(N)))
    with pytest.raises(
        DataError, match=r"E404 .*column 'score', is '0\.5'; numbers with fractions ask for regression"
    ):
        data.read(path, label="score")


def test_flags_are_one_hot_only_if_every_row_has_a_single_one(tmp_path):
    """Also behind the first hundred rows, and not where a row has none."""

    def flags(rows, odd, **odd_row):
        given = {f"is_{c}": lambda i, k=k: int(i % 3 == k) for k, c in enumerate("abc")}
        return {
            name: lambda i, v=v, name=name: odd_row.get(name, v(i)) if i == odd else v(i)
            for name, v in given.items()
        }

    with pytest.raises(DataError, match=r"E404 .*one of 3 columns"):
        data.read(table(tmp_path / "t.csv", 150, **flags(150, -1)), label="is_c")
    for odd_row in ({"is_a": 1, "is_b": 1, "is_c": 1}, {"is_a": 0, "is_b": 0, "is_c": 0}):
        d = data.read(table(tmp_path / "t.csv", 150, **flags(150, 120, **odd_row)), label="is_c")
        assert d.classes == ("0", "1")


def test_a_label_that_never_changes_is_no_part_of_a_one_hot_group(tmp_path):
    """A 1 in every row of it, beside a column of zeros, was called a group of two."""
    assert data.read(table(tmp_path / "t.csv", none=lambda i: 0, label=lambda i: 1)).classes == ("1",)


def pairs_of(root, *names, kinds=("images", "masks")):
    """An image and its mask for each name `FOLDER/*/FILE`, the star standing for images/ or masks/."""
    for n, name in enumerate(names):
        for kind, value in zip(kinds, (0, 255)):
            disc(root / name.replace("*", kind), n, value)


def fits(d) -> bool:
    """Whether every mask is that of its image, as `disc` draws them."""
    return all(np.array_equal(x[:, 0] * 255 >= 100, y == 1) for x, y in ((d.x, d.y), (d.x_test, d.y_test)))


def test_an_image_may_be_called_as_the_mask_of_another(tmp_path):
    pairs_of(tmp_path, "*/a.png", "*/a_seg.png", "*/b.png", "*/c.png")
    d = data.folder(tmp_path, size=16)
    assert len(d.y) + len(d.y_test) == 4
    assert fits(d)


def test_the_innermost_folder_says_what_is_an_image(tmp_path):
    """A site may be called `scans`."""
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("scans", "lyon") for n in range(4)))
    d = data.folder(tmp_path, size=16)
    assert d.labels["site"] == ("lyon", "scans")
    assert fits(d)


def test_sites_of_one_name_in_two_countries_are_two(tmp_path):
    pairs_of(tmp_path, *(f"{site}/*/{n}.png" for site in ("eu/a", "us/a") for n in range(4)))
    assert data.folder(tmp_path, size=16).labels["site"] == ("eu/a", "us/a")


def test_only_the_first_name_below_images_is_a_site(tmp_path):
    """What follows it may be the patient's."""
    pairs_of(tmp_path, *(f"*/{site}/patient{n}/slice.png" for site in ("berlin", "lyon") for n in range(4)))
    d = data.folder(tmp_path, size=16)
    assert d.labels["site"] == ("berlin", "lyon")
    assert fits(d)


def test_names_of_parts_are_names_of_classes_where_nothing_is_for_training(tmp_path):
    """`test` beside `control` is a class; below train/ and test/ it is one, too."""
    pictures(tmp_path / "plain", "control", "test")
    d = data.folder(tmp_path / "plain", size=8)
    assert d.classes == ("control", "test")
    assert len(d.y) + len(d.y_test) == 10
    pictures(tmp_path / "parts", "train/control", "train/test", "test/control", "test/test")
    d = data.folder(tmp_path / "parts", size=8)
    assert d.classes == ("control", "test")
    assert (len(d.y), len(d.y_test)) == (10, 10)


def test_folders_in_two_unicode_forms_are_one(tmp_path):
    """Systems write accents differently, so a class had two names."""
    pictures(tmp_path, "berlin/\u00e9", "berlin/a", "lyon/e\u0301", "lyon/a")
    d = data.folder(tmp_path, size=8)
    assert d.classes == ("a", "\u00e9")
    assert d.labels["site"] == ("berlin", "lyon")


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


def test_the_likeliest_name_says_what_a_site_is():
    """Not the first of the table's columns."""
    assert site_column_in({"patient": 0, "Hospital": 0, "site": 0}) == "site"
    assert site_column_in({"patient": 0, "Hospital": 0}) == "Hospital"


def test_columns_with_fractions_keep_them():
    """Sites 0.25 and 0.5 became one site, 0."""
    d = data.arrays(
        np.zeros((4, 2)), ["a", "b"] * 2, columns={"site": np.array([0.25, 0.5, 0.25, 0.5])}, test=0
    )
    assert len(np.unique(d.columns["site"])) == 2


def striped(*stripes, side=64):
    """Masks [2, side, side], black on the left and white on the right, with vertical stripes of (grey, width)
    in the black."""
    mask = np.zeros((side, side), np.uint8)
    mask[:, side // 2 :] = 255
    at = 1
    for grey, width in stripes:
        mask[:, at : at + width] = grey
        at += width + 1
    assert at <= side // 2 + 1
    return np.stack([mask, mask])


SPREAD = tuple((grey, 1) for grey in (40, 60, 80, 170, 190, 215))


@pytest.mark.parametrize(
    ("masks", "are"),
    [
        (striped(*SPREAD, *[(128, 1)] * 4), True),  # a hump, but of lines: edges
        (striped(*SPREAD, (128, 4)), False),  # the same hump fills an area: a class
        (striped(*SPREAD, *[(128, 1)] * 8), False),  # most of the greys are one
        (striped((60, 1), (120, 1), (190, 1)), False),  # too few different greys for a blur
        (np.arange(2 * 64 * 64).reshape(2, 64, 64) % 31, False),  # nothing is white
        (255 - np.arange(2 * 64 * 64).reshape(2, 64, 64) % 31, False),  # nothing is black
    ],
)
def test_greys_are_edges_unless_they_gather_in_areas(masks, are):
    assert are_black_and_white([masks.astype(np.uint8)]) == are


def test_sites_are_apart_above_four_times_the_range():
    def of(spread):
        return data_warnings.Site("s", 1, 0.0, spread, spread, ())

    assert data_warnings.different_ranges([of(1.0), of(4.0), of(0.0)]) is None
    assert data_warnings.different_ranges([of(4.1), of(1.0), of(2.0)]) == (of(1.0), of(4.1))


def test_a_site_is_described_by_all_its_labels_and_its_typical_range():
    """Labels behind the first two hundred count, and one sample out of range does not stand for all."""
    n = 500
    x = np.tile(np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 4, 4), (n, 1, 1, 1))
    x[0] *= 90
    y = (np.arange(n) >= 450).astype(np.int64)
    (site,) = data_warnings.sites_of(data.arrays(x, y, columns={"site": np.zeros(n, np.int64)}, test=0))
    assert site.samples == n
    assert site.shares == (0.9, 0.1)
    assert (site.low, site.high, site.spread) == (0, 90, 1)


def test_tokens_without_a_label_are_no_class_of_a_site():
    x, y = np.arange(24).reshape(4, 6) % 5, np.full((4, 6), -100)
    y[:, :2], y[0, 2] = [0, 1], 1
    d = data.arrays(x, y, columns={"site": np.zeros(4, np.int64)}, classes=["a", "b"], test=0)
    assert d.tokens
    assert data_warnings.sites_of(d)[0].shares == pytest.approx((4 / 9, 5 / 9))


def test_classes_and_a_target_are_not_both_given():
    with pytest.raises(DataError, match=r"E403 .*classes name labels, and target a number"):
        data.arrays(np.zeros((4, 2)), [0.5, 1, 2, 3], classes=["a", "b"], target="price")


def test_points_are_decimals_where_a_column_shows_it(tmp_path):
    """In a file with decimal commas `2.100` may be thousands; beside `2.5` it is not."""
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},5;{('2.100', '2.5')[i % 2]};{'ab'[i // 2 % 2]}\n" for i in range(N))
    path.write_text("x;z;label\n" + rows)
    d = data.read(path)
    assert sorted(set(np.concatenate([d.x, d.x_test])[:, 1].round(4).tolist())) == pytest.approx([2.1, 2.5])


def test_the_table_counts_labels_of_which_a_sample_has_several():
    x, y = np.zeros((5, 3)), np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 0, 0]])
    d = data.arrays(x, y, target="fever,cough,rash", test=0)
    assert "labels   3: fever 3, cough 2, rash 1" in data_overview.table(d)
    assert data_overview.facts(d)["shares"] == pytest.approx([3 / 6, 2 / 6, 1 / 6])


def test_the_range_of_values_is_that_of_all_samples(monkeypatch):
    """However few are looked at at once."""
    d = data.arrays(np.array([[1.0, 2], [3, 4], [-7, 5], [2, 9]]), ["a", "b"] * 2, test=0)
    monkeypatch.setattr(data_overview, "RANGE_BLOCK", 2)
    assert data_overview.value_range(d) == (-7, 9)


def test_with_masks_images_have_channels_whatever_their_shape():
    """4 x 64 would pass for rows of a signal."""
    x = np.zeros((5, 4, 64), np.float32)
    assert data.arrays(x, ["a", "b", "a", "b", "a"], test=0).shape == (4, 64)
    with pytest.raises(DataError, match=r"E403 .*images \[N, H, W\] without channels"):
        data.arrays(x, np.zeros((5, 4, 64), np.uint8))


def test_drawings_are_no_masks_of_photographs_that_they_do_not_fit(tmp_path):
    """Of another size, with few names in common, or in one grey throughout."""
    for n in range(10):
        disc(tmp_path / "size" / "photos" / f"{n}.png", n % 5)
        disc(tmp_path / "size" / "drawings" / f"{n}.png", n % 5, 255, (12, 16))
        disc(tmp_path / "names" / "photos" / f"{n + 7}.png", n % 5)
        disc(tmp_path / "names" / "drawings" / f"{n}.png", n % 5, 255)
        disc(tmp_path / "blank" / "photos" / f"{n}.png", n % 5)
        paint(tmp_path / "blank" / "drawings" / f"{n}.png", 20 * n, (16, 16))
    for way in ("size", "names", "blank"):
        assert data.folder(tmp_path / way, size=8).classes == ("drawings", "photos")


def test_masks_of_drawings_are_known_by_the_name_of_their_folder(tmp_path):
    """Images in two colours look like masks themselves."""
    for n in range(4):
        disc(tmp_path / "what" / f"{n}.png", n, 200)
        disc(tmp_path / "labels" / f"{n}.png", n, 255)
    with pytest.raises(DataError, match=r"E404 .*labels/0.png looks like the mask of .*what/0.png"):
        data.folder(tmp_path, size=8)


def test_a_label_is_named_once_and_is_there_or_not(tmp_path):
    with pytest.raises(DataError, match=r"E404 .*the target names the column 'a' twice"):
        data.read(table(tmp_path / "t.csv", a=lambda i: i % 2, b=lambda i: i // 2 % 2), target="a,b,a")
    with pytest.raises(DataError, match=r"E404 .*label 'b' of sample 1 is 2; write 1 where it is there"):
        data.arrays(np.zeros((3, 2)), np.array([[0, 1], [1, 2], [1, 1]]), target="a,b")
