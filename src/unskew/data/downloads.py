"""The command `unskew data get`: the original files of the field's sets, downloaded here or by the user,
become NAME.npz.

CIFAR-10, -100       pickles of Python with `data` uint8 [n, 3072] and labels. A pickle is a program; the
                     reader here resolves only the three names of which arrays are made
MNIST, also Fashion- IDX files: two zero bytes, 8 for bytes, the number of axes; the length of each axis as a
MNIST                big-endian 32-bit number; the bytes
UCI-HAR              nine signals of a smartphone in windows of 128, as text files, with the subject of each
MedMNIST             an .npz file

Original files are in a folder, a zip or tar archive, or are a single file. They are read into memory one at a
time, and nothing is unpacked to disk. A download is resumed after a cut, and verified: `FILE.part` is what
has arrived, and the file gets its name when its digest is the published one.
Letters: N samples.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import pickle
import struct
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from unskew.data.files.archives import read_unpacked
from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.system import disk

AGAIN = "download it again"


@dataclass(frozen=True)
class Recipe:
    """The conversion of a data set.

    source: its origin, with the licence if one is stated.
    read: makes the set with this name from the files at a path; raises DataError (E401, E402). None for an
    original that is an archive as `unskew.data.npz` reads it.
    originals: the published SHA-256, or MD5, of every original file by its address.
    """

    source: str
    read: Callable[[Path, str], Dataset] | None
    originals: Mapping[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """The published digests by the names of the files."""
        return {file_of(address): digest for address, digest in self.originals.items()}


def file_of(address: str) -> str:
    """The name of the file at an address."""
    return unquote(urlsplit(address).path).rpartition("/")[2]


def damaged(problem: str) -> DataError:
    """The error (E401) for original files that are not what they should be."""
    return DataError("E401", f"{' '.join(problem.split()).rstrip('.')}. Download it again.")


@dataclass(frozen=True)
class Files:
    """Files by their names, with / between folders. place: name of the archive, for messages. reading:
    functions that return the bytes."""

    place: str
    reading: Mapping[str, Callable[[], bytes]]

    def named(self, name: str) -> str | None:
        """The file with a path that ends in this name, with or without .gz, nearest to the top; None without
        one. Raises DataError (E401) if two are equally near."""
        ending = PurePosixPath(name).parts
        matches = [
            n for n in self.reading if PurePosixPath(n.removesuffix(".gz")).parts[-len(ending) :] == ending
        ]
        matches.sort(key=lambda n: (n.count("/"), n.endswith(".gz"), n))
        nearest = {n.removesuffix(".gz") for n in matches if n.count("/") == matches[0].count("/")}
        if len(nearest) > 1:
            both = ", ".join(sorted(nearest)[:2])
            raise DataError("E401", f"{self.place} holds {name} twice: {both}; name one folder.")
        return matches[0] if matches else None

    def read(self, name: str) -> bytes:
        """The content of the file that `named` finds, decompressed if it is gzipped. Raises DataError (E401)
        if there is none or it is damaged."""
        place = self.named(name)
        if place is None:
            raise DataError("E401", f"{self.place} holds no file {name}; is it the right archive, and whole?")
        with damage_as_error(f"{self.place}: {place}", "what its name says", AGAIN):
            content = self.reading[place]()
            if not place.endswith(".gz"):
                return content
            return read_unpacked(gzip.GzipFile(fileobj=io.BytesIO(content)), place, len(content))


def open_files(path: Path) -> Files:
    """The files of a folder or an archive, or a single other file. Raises DataError: E402 for a missing path,
    E401 for a damaged archive."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return Files(str(path), {file.relative_to(path).as_posix(): file.read_bytes for file in files})
    if not path.is_file():
        raise DataError("E402", f"there is no {path}.")
    with damage_as_error(path, "what its name says", AGAIN):
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            archive = tarfile.open(path)  # noqa: SIM115  (its members are read later)
            members = {m.name: m for m in archive if m.isreg()}
            size = path.stat().st_size
            return Files(
                str(path), {n: lambda m=m: _read_member(archive, m, size) for n, m in members.items()}
            )
        if zipfile.is_zipfile(path):
            return open_zip(path.read_bytes(), str(path))
    return Files(str(path), {path.name: path.read_bytes})


def open_zip(content: bytes, place: str) -> Files:
    """The files of a zip archive. Raises DataError (E401) for a damaged one."""
    with damage_as_error(place, "a zip archive", AGAIN):
        archive = zipfile.ZipFile(io.BytesIO(content))
    members = [m for m in archive.infolist() if not m.is_dir()]
    size = len(content)
    return Files(
        place, {m.filename: lambda m=m: read_unpacked(archive.open(m), m.filename, size) for m in members}
    )


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> bytes:
    file = archive.extractfile(member)
    content = read_unpacked(file, member.name, size) if file else b""
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends after {len(content):,} of {member.size:,} bytes")
    return content


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that resolves the three names of which NumPy's arrays are made, and no other."""

    place = ""
    names = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.names:
            return self.names[name]
        asks = excerpt(f"{module}.{name}")
        raise damaged(f"{self.place}: this pickle is refused: it asks for {asks}")


def read_pickle(content: bytes, place: str) -> dict[bytes, Any]:
    """The dictionary of a pickle, with bytes as keys. place: for messages. Raises DataError (E401) for a
    pickle that requests anything else or is damaged."""
    with damage_as_error(place, "a pickle", AGAIN):
        unpickler = _PlainUnpickler(io.BytesIO(content), encoding="bytes")
        unpickler.place = place
        value = unpickler.load()
    if not isinstance(value, dict):
        raise damaged(f"{place} holds a {type(value).__name__}, not a dictionary")
    return value


def _pickled_images(files: Files, names: Sequence[str], *keys: bytes) -> tuple[np.ndarray, ...]:
    """The images of pickles, uint8 [n, 3, 32, 32], and their labels under each of these keys, int64 [n]."""
    x: list[np.ndarray] = []
    labels: list[list[np.ndarray]] = [[] for _ in keys]
    for name in names:
        place = f"{files.place}: {name}"
        batch = read_pickle(files.read(name), place)
        data = batch.get(b"data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * 32 * 32,):
            raise damaged(f"{place} holds no images: b'data' must be uint8 [n, 3,072]")
        x.append(data.reshape(-1, 3, 32, 32))
        for key, parts in zip(keys, labels):
            numbers = batch.get(key)
            if not isinstance(numbers, list) or [type(n) for n in numbers] != [int] * len(data):
                raise damaged(f"{place} does not hold one label for each of its {len(data):,} images")
            parts.append(np.array(numbers, np.int64))
    return np.concatenate(x), *map(np.concatenate, labels)


def _class_words(files: Files, name: str, key: bytes) -> tuple[str, ...]:
    words = read_pickle(files.read(name), f"{files.place}: {name}").get(key)
    if not isinstance(words, list) or not all(isinstance(w, bytes) for w in words):
        raise damaged(f"{files.place}: {name} does not name the classes")
    return tuple(w.decode("utf-8", "replace") for w in words)


def cifar10(path: Path, name: str) -> Dataset:
    """50,000 and 10,000 images of ten classes."""
    files = open_files(path)
    x, y = _pickled_images(files, [f"data_batch_{i}" for i in range(1, 6)], b"labels")
    x_test, y_test = _pickled_images(files, ["test_batch"], b"labels")
    return Dataset(name, x, y, x_test, y_test, _class_words(files, "batches.meta", b"label_names"))


def cifar100(path: Path, name: str) -> Dataset:
    """50,000 and 10,000 images of 100 classes in 20 superclasses; the column `superclass`."""
    files, keys = open_files(path), (b"fine_labels", b"coarse_labels")
    (x, y, coarse), (x_test, y_test, coarse_test) = (
        _pickled_images(files, [part], *keys) for part in ("train", "test")
    )
    names = np.array(_class_words(files, "meta", b"coarse_label_names"))
    if max(coarse.max(), coarse_test.max()) >= len(names):
        raise damaged(f"{files.place}: a superclass has a number above {len(names) - 1}")
    columns, test_columns = {"superclass": names[coarse]}, {"superclass": names[coarse_test]}
    classes = _class_words(files, "meta", b"fine_label_names")
    return Dataset(name, x, y, x_test, y_test, classes, columns, test_columns)


def idx(content: bytes, axes: int, place: str) -> np.ndarray:
    """The bytes of an IDX file, uint8, with `axes` axes. Raises DataError (E401) for another kind or
    length of file."""
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes((0, 0, 8, axes)):
        raise damaged(f"{place} is no IDX file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) - header != int(np.prod(shape, dtype=object)):
        length = f"{len(content) - header:,} bytes after its header"
        raise damaged(f"{place} says it holds {' x '.join(map(str, shape))} and has {length}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _idx_part(files: Files, begins: str) -> tuple[np.ndarray, np.ndarray]:
    """(images [n, rows, columns], labels) of the two files with this prefix; some copies have a dot in
    place of the hyphen."""
    parts = []
    for kind, axes in (("images", 3), ("labels", 1)):
        names = (f"{begins}-{kind}-idx{axes}-ubyte", f"{begins}-{kind}.idx{axes}-ubyte")
        name = next((n for n in names if files.named(n)), names[0])
        parts.append(idx(files.read(name), axes, f"{files.place}: {name}"))
    x, y = parts
    if len(x) != len(y):
        raise damaged(f"{files.place} holds {len(x):,} images and {len(y):,} labels of {begins}")
    return x, y.astype(np.int64)


FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def mnist(path: Path, name: str) -> Dataset:
    """28x28 grey images of ten classes."""
    files = open_files(path)
    (x, y), (x_test, y_test) = _idx_part(files, "train"), _idx_part(files, "t10k")
    classes = FASHION if name == "fashion_mnist" else tuple(map(str, range(10)))
    return Dataset(name, x[:, None], y, x_test[:, None], y_test, classes)


INNER_ZIP = "UCI HAR Dataset.zip"
"""The zip within UCI's archive."""
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


def uci_har(path: Path, name: str) -> Dataset:
    """7,352 and 2,947 windows, float32 [N, 1, 128, 9]; the column `subject`."""
    files = open_files(path)
    if files.named(INNER_ZIP):
        files = open_zip(files.read(INNER_ZIP), f"{files.place}: {INNER_ZIP}")
    lines = files.read("activity_labels.txt").decode("ascii", "replace").split("\n")
    classes = tuple(line.split()[1] for line in lines if len(line.split()) == 2)
    (x, y, subject), (x_test, y_test, subject_test) = (_windows(files, part) for part in ("train", "test"))
    columns, test_columns = {"subject": subject}, {"subject": subject_test}
    return Dataset(name, x, y, x_test, y_test, classes, columns, test_columns)


def _windows(files: Files, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(windows, labels from 0, subjects)."""
    signals = [_numbers(files, f"Inertial Signals/{name}_{part}.txt", 128) for name in SIGNALS]
    y, subject = (_numbers(files, f"{kind}_{part}.txt", 1)[:, 0] for kind in ("y", "subject"))
    if len({len(rows) for rows in (*signals, y, subject)}) > 1:
        raise damaged(f"{files.place}: the files of the part '{part}' differ in length")
    return np.stack(signals, -1)[:, None], y.astype(np.int64) - 1, subject.astype(np.int64)


def _numbers(files: Files, name: str, columns: int) -> np.ndarray:
    """The table of numbers in a text file, float32 [n, columns]."""
    with damage_as_error(f"{files.place}: {name}", "a table of numbers", AGAIN):
        rows = np.loadtxt(io.BytesIO(files.read(name)), dtype=np.float32, ndmin=2, comments=None)
    if rows.shape[1:] != (columns,) or not np.isfinite(rows).all():
        raise damaged(f"{files.place}: {name} has not {columns} numbers in each line")
    return rows


MEDMNIST = {
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1",
}
"""The MD5 of each file with images of 28 x 28, as version 3.0.2 of MedMNIST publishes them."""


_KRIZ = "www.cs.toronto.edu/~kriz"
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


def _at(place: str, digests: Mapping[str, str]) -> dict[str, str]:
    """The digests of files at this place by their addresses."""
    return {f"{place}/{name}": digest for name, digest in digests.items()}


RECIPES: dict[str, Recipe] = {
    "cifar10": Recipe(
        f"{_KRIZ}/cifar.html",
        cifar10,
        _at(
            f"https://{_KRIZ}",
            {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
        ),
    ),
    "cifar100": Recipe(
        f"{_KRIZ}/cifar.html",
        cifar100,
        _at(
            f"https://{_KRIZ}",
            {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
        ),
    ),
    "mnist": Recipe(
        "yann.lecun.com/exdb/mnist", mnist, _at("https://ossci-datasets.s3.amazonaws.com/mnist", _DIGITS)
    ),
    "fashion_mnist": Recipe(
        "github.com/zalandoresearch/fashion-mnist (MIT)",
        mnist,
        _at("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", _CLOTHES),
    ),
    "uci_har": Recipe(
        "archive.ics.uci.edu/dataset/240",
        uci_har,
        _at(
            "https://archive.ics.uci.edu/static/public/240",
            {
                "human+activity+recognition+using+smartphones.zip": (
                    "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031"
                )
            },
        ),
    ),
} | {
    name: Recipe(
        f"medmnist.com ({'CC BY 4.0' if name != 'dermamnist' else 'CC BY-NC 4.0'})",
        None,
        _at("https://zenodo.org/records/10519652/files", {f"{name}.npz": md5}),
    )
    for name, md5 in MEDMNIST.items()
}
"""The recipe of every set by its name."""


PIECE = 1 << 20
TIMEOUT_S = 60.0
Report = Callable[[str, int, int], None]
"""Receives a file's name, the bytes that have arrived, and the bytes that it has, 0 if unknown."""


def get(
    name: str, origin: Path | None, out: Path, report: Report = lambda *_: None, recipe: Recipe | None = None
) -> tuple[Path, list[str]]:
    """Write NAME.npz into a folder: (the file; remarks on its source, and on what was not compared with a
    published digest).

    origin: the archive or folder; None downloads it to `out/originals`. report: receives the progress of a
    download. recipe: by default that of the name.

    Raises UsageError: E125 for an unknown name, E161 for a file that exists or cannot be written; DataError:
    E402 for a missing origin or a download that fails, E401 for another set, a refused archive or a digest
    other than the published one, and the errors of the checks of samples.
    """
    if recipe is None and name not in RECIPES:
        known = f"{suggestion(name, RECIPES)} Known: {', '.join(RECIPES)}"
        raise UsageError("E125", f"unskew data get knows no {excerpt(name)}.{known}.")
    recipe, path = recipe or RECIPES[name], out / f"{name}.npz"
    if path.exists():
        text = f"{path} exists, and nothing is overwritten; remove it, or name another folder: --out"
        raise UsageError("E161", f"{text}.")
    try:
        origin = origin or download(name, recipe, out / "originals", report)
        if not origin.exists():
            raise DataError("E402", f"there is no {origin}.")
        compared = _is_compared(origin, recipe)
        if recipe.read:
            content = _archive_bytes(recipe.read(origin, name))
        else:
            content = open_files(origin).read(f"{name}.npz") if origin.is_dir() else origin.read_bytes()
        out.mkdir(parents=True, exist_ok=True)
        disk.replace(path, content)
    except OSError as error:
        why = f"{error.filename or out} cannot be written or read: {error.strerror or error}"
        raise UsageError("E161", f"{why}. Name another folder: --out.") from error
    remarks = [f"from {recipe.source}"]
    if not compared:
        remarks.append(f"no digest of {origin.name} is published that we know, so it was not compared")
    return path, remarks


def _is_compared(origin: Path, recipe: Recipe) -> bool:
    """Whether a file, or one in a folder, is compared with its published digest. Raises DataError (E401) for
    another digest."""
    known = recipe.digests
    files = [p for p in ([origin] if origin.is_file() else sorted(origin.rglob("*"))) if p.name in known]
    for path in files:
        if (digest := _digest(path, known[path.name])) != known[path.name]:
            text = f"{path.name} has the digest {digest}, and the published one is {known[path.name]}"
            raise DataError("E401", f"{text}; download it again from {recipe.source}.")
    return bool(files)


def _digest(path: Path, published: str) -> str:
    """The MD5 of a file if that is what is published, else its SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5" if len(published) == 32 else "sha256").hexdigest()


def _archive_bytes(dataset: Dataset) -> bytes:
    """The .npz file, with the usual names."""
    arrays = {
        "x_train": dataset.x,
        "y_train": dataset.y,
        "x_test": dataset.x_test,
        "y_test": dataset.y_test,
        "classes": np.array(dataset.classes),
    }
    for name, values in dataset.columns.items():
        arrays |= {f"{name}_train": values, f"{name}_test": dataset.test_columns[name]}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def download(name: str, recipe: Recipe, folder: Path, report: Report = lambda *_: None) -> Path:
    """Download the files of a set that are not in `folder` yet; returns the file, or the folder of several.

    Raises DataError: E402 if a server does not answer or breaks off, E401 for a file with another digest.
    """
    several = len(recipe.originals) > 1
    place = folder / name if several else folder
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / file_of(address) for address in recipe.originals]
    for path, (address, published) in zip(paths, recipe.originals.items()):
        if not path.exists():
            _fetch(address, path, published, report)
    return place if several else paths[0]


def _fetch(address: str, path: Path, published: str, report: Report) -> None:
    """Download one file into PATH.part, from where an earlier download ended, and verify it."""
    part = path.with_name(path.name + ".part")
    try:
        _append(address, part, lambda arrived, total: report(path.name, arrived, total))
    except (OSError, http.client.HTTPException) as error:
        arrived = part.stat().st_size if part.exists() else 0
        kept = (
            f"; {arrived:,} bytes are in {part}, and the same command goes on from there" if arrived else ""
        )
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        text = (
            f"{address} could not be downloaded: {reason}{kept}. Or download it yourself, and name it: --from"
        )
        raise DataError("E402", f"{text}.") from error
    if (digest := _digest(part, published)) != published:
        refused = part.replace(path.with_name(path.name + ".refused"))
        text = f"{address} is not the published file: its digest is {digest}, and {published} is published"
        raise DataError("E401", f"{text}. It is kept as {refused}; the same command downloads it again.")
    part.replace(path)


def _append(address: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Download what `part` lacks. Raises OSError or HTTPException if the server refuses or breaks off."""
    begin = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "unskew", **({"Range": f"bytes={begin}-"} if begin else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if begin and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it has arrived; the digest decides
        raise
    mode = "ab" if response.status == http.client.PARTIAL_CONTENT else "wb"
    with response, open(part, mode, opener=disk.refuse_link) as file:
        arrived = file.tell()
        total = arrived + int(response.headers.get("Content-Length", 0))
        while piece := response.read(PIECE):
            arrived += file.write(piece)
            report(arrived, total)
    if arrived < total:
        raise ConnectionError(f"the server broke off after {arrived:,} of {total:,} bytes")
