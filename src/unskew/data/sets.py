"""Named sets: the digits of scikit-learn, always there, and those found in the folder UNSKEW_DATA.

Nothing is downloaded.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew import calls
from unskew.data import archives
from unskew.data.archives import Archive
from unskew.data.dataset import Dataset
from unskew.data.own import images, split
from unskew.data.resize import smaller_images, smaller_masks
from unskew.errors import DataError, UsageError, suggestion

DIGITS_TEST = 360


def digits() -> Dataset:
    """UCI digits, in scikit-learn: 1,437 to train, a fixed stratified 360 to test, shape (1, 8, 8)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    names = tuple("0123456789")
    return split("digits", x, y.astype(np.int64), names, DIGITS_TEST / len(y), mean=(0.3053,), std=(0.3760,))


def fashion_mnist() -> Dataset:
    """Fashion-MNIST (Xiao et al., 2017): 60,000 and 10,000 grey images, shape (1, 28, 28)."""
    z = _opened("fashion_mnist")
    x, x_test = (images(z[n][:, None]) for n in ("x_train", "x_test"))
    return _made(z, x, x_test, mean=(0.2860,), std=(0.3530,))


def cifar10() -> Dataset:
    """CIFAR-10 (Krizhevsky, 2009): 50,000 and 10,000 colour images, shape (3, 32, 32)."""
    z = _opened("cifar10")
    x, x_test = (images(z.pictures(n, 32)) for n in ("train_webp", "test_webp"))
    return _made(z, x, x_test, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def cifar100_part() -> Dataset:
    """A balanced part of CIFAR-100 (Krizhevsky, 2009): 10,000 and 5,000 colour images, shape (3, 32, 32)."""
    z = _opened("cifar100_part")
    x, x_test = (images(z.pictures(n, 32)) for n in ("train_webp", "test_webp"))
    return _made(z, x, x_test, mean=(0.5067, 0.4853, 0.4390), std=(0.2682, 0.2577, 0.2774))


def uci_har(signals: int = 3) -> Dataset:
    """UCI-HAR (Anguita et al., 2013): 7,352 and 2,947 windows, the first `signals` of 9, shape (1, 128, signals)."""
    if signals not in range(1, 10):
        raise UsageError("E109", f"uci_har has 9 signals; signals={signals} does not fit.")
    z = _opened("uci_har")
    x, x_test = (z[n][:, None, :, :signals].astype(np.float32) for n in ("x_train", "x_test"))
    return _made(z, x, x_test, columns={"subject": z["subject_train"]}, test_columns={"subject": z["subject_test"]})


def office_caltech10(size: int = 64) -> Dataset:
    """Office-Caltech-10 (Gong et al., 2012): 2,533 photographs of ten objects in four domains, at 64 or 128 pixels."""
    if size not in (64, 128):
        raise UsageError("E109", f"office_caltech10 comes in size=64 and size=128, not {size}.")
    z = _opened("office_caltech10")
    x = images(z.pictures("x64_webp" if size == 64 else "x128_jpeg", size))
    domains = {"domain": ("amazon", "caltech", "dslr", "webcam")}
    return _parted(z, x, z["split"] == 1, ("domain",), labels=domains)


def urbansound8k_part() -> Dataset:
    """UrbanSound8K (Salamon et al., 2014), folds 1 to 3 to train, 10 to test: log-mel in dB, shape (1, 64, 87)."""
    z = _opened("urbansound8k_part")
    x = z["x"][:, None].astype(np.float32)
    return _parted(z, x, z["fold"] == 10, ("fold", "recording"), mean=(45.95,), std=(16.98,))


def fsdd() -> Dataset:
    """Free Spoken Digits (Jackson et al.): 2,700 and 300 clips of six speakers, log-mel in dB, shape (1, 64, 32)."""
    z = _opened("fsdd")
    x, x_test = (z[n][:, None].astype(np.float32) for n in ("x_train", "x_test"))
    columns, tests = ({"speaker": z[f"speaker_{part}"]} for part in ("train", "test"))
    speakers = {"speaker": z.words("speakers")}
    return _made(z, x, x_test, columns=columns, test_columns=tests, labels=speakers, mean=(18.61,), std=(23.46,))


def fundus_vessels(size: int = 320, channels: int = 1) -> Dataset:
    """Retinal vessels in fundus photographs of three sites, with masks: 54 to train, 34 to test, grey, in [0, 1].

    DRIVE (Staal et al., 2004), CHASE_DB1 (Fraz et al., 2012) and STARE (Hoover et al., 2000), stored at 320 pixels.
    size: smaller images are averages over areas, their masks the nearest pixels. channels: 3 repeats the grey one.
    """
    if not (isinstance(size, int) and 16 <= size <= 320) or channels not in (1, 3):
        raise UsageError("E109", f"fundus_vessels has size= 16 to 320 and channels= 1 or 3, not {size} and {channels}.")
    z = _opened("fundus_vessels")
    x = np.repeat(smaller_images(images(z["image"][:, None]), size), channels, axis=1)
    y, test = smaller_masks(z["mask"], size), z["split"] == 1
    sites = {"domain": z["site"], "site": z["site"]}
    train, tests = ({n: v[m] for n, v in sites.items()} for m in (~test, test))
    return Dataset(
        "fundus_vessels",
        *(x[~test], y[~test], x[test], y[test]),
        ("background", "vessel"),
        train,
        tests,
        dict.fromkeys(sites, ("DRIVE", "CHASE_DB1", "STARE")),
        mean=(0.3143,) * channels,
        std=(0.2442,) * channels,
        source=_SETS["fundus_vessels"].source,
    )


@dataclass(frozen=True)
class Named:
    """How a set is made, what it is, and where it comes from."""

    make: Callable[..., Dataset]
    text: str
    source: str


_SETS = {
    "digits": Named(digits, "1,797 handwritten digits, 8x8; always there", "scikit-learn (CC BY 4.0)"),
    "fashion_mnist": Named(
        fashion_mnist, "70,000 grey images of clothing, 28x28", "github.com/zalandoresearch/fashion-mnist (MIT)"
    ),
    "cifar10": Named(cifar10, "60,000 colour images, 32x32", "www.cs.toronto.edu/~kriz/cifar.html (asks to be cited)"),
    "uci_har": Named(
        uci_har,
        "10,299 movement windows, 1x128x3, with the subject of each; signals=3",
        "archive.ics.uci.edu/dataset/240 (asks to be cited)",
    ),
    "office_caltech10": Named(
        office_caltech10,
        "2,533 photographs of ten objects in four domains; size=64 or 128",
        "github.com/redhat12345/OfficeCaltechDomainAdaptation (no licence stated)",
    ),
    "cifar100_part": Named(
        cifar100_part,
        "15,000 colour images of 100 classes, 32x32",
        "www.cs.toronto.edu/~kriz/cifar.html (asks to be cited)",
    ),
    "urbansound8k_part": Named(
        urbansound8k_part,
        "2,985 street sounds, 1x64x87, with the recording of each",
        "urbansounddataset.weebly.com (CC BY-NC 3.0)",
    ),
    "fsdd": Named(
        fsdd,
        "3,000 spoken digits, 1x64x32, with the speaker of each",
        "github.com/Jakobovski/free-spoken-digit-dataset (CC BY-SA 4.0)",
    ),
    "fundus_vessels": Named(
        fundus_vessels,
        "88 grey fundus photographs of three sites with vessel masks; size=320, channels=1",
        "github.com/juntang-zhuang/LadderNet and github.com/mipple1986/data (no licence stated)",
    ),
}


def names() -> list[str]:
    return list(_SETS)


def describe() -> dict[str, str]:
    """A line on every set, with a note on those that are not at hand."""

    def where(name: str) -> str:
        return "" if name == "digits" or archives.place(name) else "  (not found: set UNSKEW_DATA)"

    return {name: found.text + where(name) for name, found in _SETS.items()}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """`office_caltech10(size=64)` as its name and arguments. Raises UsageError (E125)."""
    call = calls.parse(text, "data set", "E125")
    return call.name, call.arguments


def load(name: str, **options: Any) -> Dataset:
    """A named set. Raises UsageError (E125) for an unknown name, DataError (E401, E402) if damaged or not there."""
    _check(name, options)
    return _SETS[name].make(**options)


def check(text: str) -> None:
    """Raises UsageError (E125) for what names neither a set with its options nor a file or folder, DataError (E402) for an
    archive that is not there. A set is not looked for."""
    if os.path.exists(text):  # unlike Path.exists, it answers False for a name that is too long
        return
    if Path(text).suffix == ".npz":
        raise DataError("E402", f"there is no {text}.")
    _check(*parse(text))


def _check(name: str, options: Collection[str]) -> None:
    if name not in _SETS:
        raise UsageError(
            "E125", f"unknown data '{name}'.{suggestion(name, _SETS)} Known: {', '.join(_SETS)}; or a path."
        )
    known = inspect.signature(_SETS[name].make).parameters
    for option in options:
        if option not in known:
            has = f"its options: {', '.join(known)}" if known else "it has none"
            raise UsageError("E125", f"data '{name}' has no option '{option}'; {has}.{suggestion(option, known)}")


def _opened(name: str) -> Archive:
    return archives.named(name, _SETS[name].source)


def _made(z: Archive, x: np.ndarray, x_test: np.ndarray, **more: Any) -> Dataset:
    """A set that comes with a test part."""
    name = z.path.stem
    y, y_test = z.labels("y_train"), z.labels("y_test")
    return Dataset(name, x, y, x_test, y_test, z.words("classes"), source=_SETS[name].source, **more)


def _parted(z: Archive, x: np.ndarray, test: np.ndarray, columns: tuple[str, ...], **more: Any) -> Dataset:
    """A set in one piece, with a mask of its test rows."""
    name, y = z.path.stem, z.labels("y")
    train, tests = ({c: z[c][mask] for c in columns} for mask in (~test, test))
    parts = (x[~test], y[~test], x[test], y[test])
    return Dataset(name, *parts, z.words("classes"), train, tests, source=_SETS[name].source, **more)
