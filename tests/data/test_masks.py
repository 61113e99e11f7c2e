"""Sets with masks: what is accepted, how they are dealt out, shown and made smaller."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from unskew import data
from unskew.errors import DataError, UsageError


def rng(seed=0):
    return np.random.default_rng(seed)


def images(n=12, side=8, channels=1):
    x = rng().random((n, channels, side, side)).astype(np.float32)
    return x, (x[:, 0] > 0.8).astype(np.int64)


def sites(n=12):
    x, y = images(n)
    return data.arrays(x, y, columns={"site": np.arange(n) % 3}, test=0.25)


def built(d, skew="column:site", clients=3, **more):
    return data.build(d, skew, clients, rng(1), rng(2), **more)


def test_arrays_take_masks_of_several_kinds():
    x, y = images()
    d = data.arrays(x, y)
    assert d.y.dtype == np.uint8
    assert d.classes == ("background", "foreground")
    assert (len(d.y), len(d.y_test)) == (10, 2)
    for given in (y[:, None], y == 1, (y * 255).astype(np.uint8)):
        assert np.array_equal(data.arrays(x, given).y, d.y)
    assert data.arrays(x, y * 2).classes == ("0", "1", "2")


def test_a_folder_of_images_and_masks(tmp_path):
    """Equal names, another ending, black and white; a mask without its class names is 0 and 1."""
    for part, n in (("train", 3), ("test", 1)):
        for kind in ("images", "masks"):
            (tmp_path / part / kind).mkdir(parents=True)
        for i in range(n):
            inside = np.zeros((6, 10), np.uint8)
            inside[:3] = 255
            Image.fromarray(np.stack([inside // (i + 1)] * 3, -1)).save(
                tmp_path / part / "images" / f"{i}.png"
            )
            Image.fromarray(inside).save(tmp_path / part / "masks" / f"{i}.bmp")
    d = data.folder(tmp_path, size=4, fit="squash")
    assert d.x.shape == (3, 3, 4, 4)
    assert d.y.tolist() == [[[1] * 4, [1] * 4, [0] * 4, [0] * 4]] * 3
    assert len(d.y_test) == 1
    (tmp_path / "train" / "masks" / "1.bmp").unlink()
    with pytest.raises(DataError, match=r"E404 .*1\.png has no mask"):
        data.folder(tmp_path)


def test_sites_are_clients_with_their_own_pixels():
    d = sites()
    fed = built(d)
    assert fed.masks
    assert fed.natural
    assert fed.label_counts.sum() == d.y.size
    for k, rows in enumerate(fed.train):
        assert fed.label_counts[k].tolist() == [(d.y[rows] == 0).sum(), (d.y[rows] == 1).sum()]
    summary = fed.summary()
    assert summary["unit"] == "pixels"
    assert summary["sizes"]["train"] == fed.sizes.tolist()
    assert built(sites(), "iid", 4).summary()["labels"] != summary["labels"]


@pytest.mark.parametrize("skew", ["dirichlet:0.1", "classes:2", "pathological:1x2", "clustered:1-2"])
def test_dealing_by_class_is_refused(skew):
    with pytest.raises(
        DataError, match=r"E103 skew '\w+' deals by class, but .*masks; use iid or column:site\."
    ):
        built(sites(), skew)


def test_turned_images_take_their_masks_along():
    d = sites()
    plain, turned = built(d, "iid", 4), built(d, "iid+rotate90", 4)
    for k, (rows, now) in enumerate(zip(plain.train, turned.train)):
        for a, b in zip(rows, now):
            assert np.array_equal(turned.x[b, 0], np.rot90(plain.x[a, 0], k))
            assert np.array_equal(turned.y[b], np.rot90(plain.y[a], k))
    for k, rows in enumerate(turned.test):
        for r in rows:
            assert np.array_equal(turned.y_test[r], np.rot90(plain.y_test[r], k))
    assert np.array_equal(built(d, "iid+gamma:1", 4).y_test, plain.y_test)


def test_what_the_server_holds_back_stays_itself_under_feature_skew():
    x, y = rng().random((40, 1, 4, 4)).astype(np.float32), np.arange(40) % 2
    d = data.arrays(x, y, test=0)
    plain, shifted = (built(d, skew, 2, reserve=3) for skew in ("iid", "iid+gamma:1"))
    assert (
        shifted.y[shifted.reserved].tolist()
        == d.y[plain.reserved].tolist()
        == plain.y[plain.reserved].tolist()
    )
    assert np.array_equal(shifted.x[shifted.reserved], d.x[plain.reserved])
    assert np.bincount(shifted.y[shifted.reserved]).tolist() == [3, 3]


@pytest.fixture
def vessels(tmp_path, monkeypatch):
    """A file of the named set's layout: 6 invented photographs of 320 pixels."""
    image = (255 * rng().random((6, 320, 320))).astype(np.uint8)
    np.savez(
        tmp_path / "fundus_vessels.npz",
        **{"image": image, "mask": image // 200, "site": np.arange(6) % 3, "split": np.arange(6) // 3},
        name=np.array(list("abcdef")),
    )
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    return image


def test_the_named_set(vessels):
    d = data.read("fundus_vessels", size=64, channels=3)
    assert d.x.shape == (3, 3, 64, 64)
    assert d.y.shape == d.y_test.shape == (3, 64, 64)
    assert np.array_equal(d.x[:, 0], d.x[:, 2])
    np.testing.assert_allclose(d.x[:, 0].mean((1, 2)), vessels[:3].mean((1, 2)) / 255, rtol=1e-4)
    fed = built(d, "domain")
    assert fed.names == ("DRIVE", "CHASE_DB1", "STARE")
    assert [r.tolist() for r in fed.test] == [[0], [1], [2]]
    assert len(d.standardised().mean or ()) == 0
    for wrong in ({"size": 8}, {"size": 321}, {"channels": 2}, {"size": 0.5}):
        with pytest.raises(UsageError, match=f"E125 data set 'fundus_vessels': {next(iter(wrong))} must be "):
            data.read("fundus_vessels", **wrong)


def drawn(values, n=6, side=16):
    """Masks whose left third, middle and right third hold these values."""
    return (
        np.repeat(np.array(values), -(-side // len(values)))[:side][None, None].repeat(side, 1).repeat(n, 0)
    )


def two_sites(one, other):
    x = rng().random((12, 1, 16, 16)).astype(np.float32)
    return x, np.concatenate([drawn(one), drawn(other)]), np.repeat(["lyon", "oslo"], 6)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ((0, 1), (0, 255), "masks hold 0, 1 and 255"),
        ((0, 1, 2), (0, 255), "masks hold 0, 1, 2 and 255"),
        ((0, 128), (0, 255), "masks hold 0, 128 and 255"),
        ((40, 255), (0, 255), "masks hold 0, 40 and 255"),
        ((1, 255), (1, 255), "masks hold 1 and 255"),
        ((-1, 40), (-1, 40), "masks hold -1 and 40"),
        ((0, np.inf), (0, 1), "they must be whole numbers from 0"),
    ],
)
def test_values_that_may_mean_other_things_are_refused_with_an_example(one, other, says):
    """Masks of 0 and 1 beside masks of 0 and 255 were thresholded together, and a site lost its foreground; class
    1 and 255 for 'void', or -1 for 'void', are no background and foreground."""
    x, y, site = two_sites(one, other)
    with pytest.raises(DataError, match=rf"E404 .*{says}") as refused:
        data.arrays(x, y, columns={"site": site})
    first = 0 if one[-1] == max(*one, *other) else 6
    assert "whole numbers" in says or f"(training sample {first})" in str(refused.value)
    with pytest.raises(DataError, match=rf"E404 .*{says}"):
        data.take({"lyon": (x[:6], y[:6]), "oslo": (x[6:], y[6:])})


@pytest.mark.parametrize("values", [(0, 128), (0, 100), (0, 254), (30, 200), (0, 65_535)])
def test_two_values_are_background_and_foreground(values):
    """Masks of 0 and 65,535 or of 0 and 128 were refused."""
    x, y, _ = two_sites(values, values)
    d = data.arrays(x, y, test=0)
    assert np.array_equal(d.y, y == values[1])
    assert d.intake
    assert f"masks hold {values[0]} and {values[1]}, read as background and foreground" in str(d.intake.notes)


def test_named_classes_decide_whether_values_are_numbers():
    """Two names are background and foreground, whatever their values; of three, which value means which is
    not guessed."""
    x, y, _ = two_sites((0, 255), (0, 255))
    d = data.arrays(x, y, classes=["background", "vessel"], test=0)
    assert d.classes == ("background", "vessel")
    assert np.array_equal(d.y, y > 0)
    with pytest.raises(DataError, match=r"E404 .* is 255; 3 classes"):
        data.arrays(x, y, classes=["background", "vessel", "disc"])
