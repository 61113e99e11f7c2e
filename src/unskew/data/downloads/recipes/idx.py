"""MNIST, Fashion-MNIST and EMNIST in the IDX format.

A file: two zero bytes, 8 for bytes, the number of axes; the length of each axis as a big-endian 32-bit
number; the bytes.
"""

from __future__ import annotations

import struct

import numpy as np

from unskew.data.downloads.original_files import Files, OriginalFiles, OriginalSamples, Recipe
from unskew.errors import DataError

UNSIGNED_BYTES = 8
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
EMNIST = ("balanced", "letters", "digits", "byclass")


def idx(content: bytes, axes: int, place: str) -> np.ndarray:
    """The bytes of an IDX file, uint8, with `axes` axes. Raises DataError (E401) for another kind or
    length of file."""
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTES, axes)):
        raise DataError("E401", f"{place} is no IDX file of bytes with {axes} axes. Download it again.")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) - header != int(np.prod(shape, dtype=object)):
        length = f"{len(content) - header:,} bytes after its header"
        text = f"{place} says it holds {' x '.join(map(str, shape))} and has {length}"
        raise DataError("E401", f"{text}. Download it again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _pair(files: Files, begins: str) -> tuple[np.ndarray, np.ndarray]:
    """(images [n, rows, columns], labels) of the two files with this prefix; some copies have a dot in
    place of the hyphen."""
    read = []
    for kind, axes in (("images", 3), ("labels", 1)):
        names = (f"{begins}-{kind}-idx{axes}-ubyte", f"{begins}-{kind}.idx{axes}-ubyte")
        name = next((n for n in names if files.named(n)), names[0])
        read.append(idx(files.read(name), axes, f"{files.place}: {name}"))
    if len(read[0]) != len(read[1]):
        text = f"{files.place} holds {len(read[0]):,} images and {len(read[1]):,} labels of {begins}"
        raise DataError("E401", f"{text}. Download it again.")
    return read[0], read[1].astype(np.int64)


def mnist(origin: OriginalFiles) -> OriginalSamples:
    """28x28 grey images of ten classes."""
    files = origin.files
    (x, y), (x_test, y_test) = _pair(files, "train"), _pair(files, "t10k")
    classes = FASHION if origin.name == "fashion_mnist" else tuple(map(str, range(10)))
    return OriginalSamples(x[:, None], y, x_test[:, None], y_test, classes)


def emnist(origin: OriginalFiles) -> OriginalSamples:
    """28x28 grey images of characters; the files hold them with rows and columns exchanged."""
    files, split = origin.files, origin.name.removeprefix("emnist_")
    (x, y), (x_test, y_test) = (_pair(files, f"emnist-{split}-{part}") for part in ("train", "test"))
    numbers, classes = _mapping(files, f"emnist-{split}-mapping.txt")
    for labels in (y, y_test):
        if unknown := sorted(set(np.unique(labels).tolist()) - set(numbers)):
            text = f"label {unknown[0]} is not in emnist-{split}-mapping.txt"
            raise DataError("E401", f"{files.place}: {text}. Download it again.")
    place = np.zeros(max(numbers) + 1, np.int64)
    place[numbers] = np.arange(len(numbers))
    x, x_test = (np.ascontiguousarray(part.transpose(0, 2, 1))[:, None] for part in (x, x_test))
    return OriginalSamples(x, place[y], x_test, place[y_test], classes)


def _mapping(files: Files, name: str) -> tuple[list[int], tuple[str, ...]]:
    """(the label numbers, their characters), from lines such as `10 65`, or `1 65 97` for either case."""
    try:
        text = files.read(name).decode("ascii")
        lines = [[int(v) for v in line.split()] for line in text.splitlines() if line.strip()]
        numbers, classes = [line[0] for line in lines], tuple("/".join(map(chr, line[1:])) for line in lines)
        if not 0 <= min(numbers) <= max(numbers) <= 255 or len(set(numbers)) < len(lines) or not all(classes):
            raise ValueError("a label is beyond 255, repeated or without a character")
    except (ValueError, IndexError, OverflowError) as error:
        text = f"{files.place}: {name} is no table of labels and characters ({error})"
        raise DataError("E401", f"{text}. Download it again.") from error
    return numbers, classes


_IDX = "the folder with train-images-idx3-ubyte.gz and the three files beside it"
_DIGITS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_CLOTHES = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
SETS = {
    "mnist": Recipe(
        "70,000 handwritten digits, 28x28 (LeCun et al., 1998)",
        "yann.lecun.com/exdb/mnist",
        "",
        _IDX,
        mnist,
        _DIGITS,
        addresses=tuple(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}" for name in _DIGITS),
    ),
    "fashion_mnist": Recipe(
        "70,000 grey images of clothing, 28x28 (Xiao et al., 2017)",
        "github.com/zalandoresearch/fashion-mnist",
        "MIT",
        _IDX,
        mnist,
        _CLOTHES,
        addresses=tuple(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{n}" for n in _CLOTHES),
    ),
    **{
        f"emnist_{split}": Recipe(
            f"handwritten characters, 28x28, the split {split} (EMNIST, Cohen et al., 2017)",
            "www.nist.gov/itl/products-and-services/emnist-dataset",
            "",
            "gzip.zip, or the folder it unpacks to",
            emnist,
            {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
            addresses=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        )
        for split in EMNIST
    },
}
