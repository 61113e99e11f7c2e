"""`unskew data get`: tiny archives in the original formats become sets that are read by name; what comes from
elsewhere does no harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from unskew.data import Dataset
from unskew.data.downloads import RECIPES, SIGNALS, download, file_of, get, read_pickle
from unskew.data.files import archives
from unskew.errors import DataError
from unskew.system import disk

RNG = np.random.default_rng(5)
TEN = RNG.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
GREY = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)


def python_2(value: Any) -> bytes:
    """A value as Python 2 pickled it, with NumPy's names of that time: the form of CIFAR's files."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python_2(k) + python_2(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python_2, value)) + b"e"
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    dtype = (
        b"cnumpy\ndtype\n"
        + python_2(value.dtype.str[1:].encode())
        + b"K\x00K\x01\x87R(K\x03U\x01|NNN"
        + python_2(-1) * 2
        + b"K\x00tb"
    )
    shape = b"(" + b"".join(map(python_2, value.shape)) + b"t"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + dtype
        + b"\x89"
        + python_2(value.tobytes())
        + b"tb"
    )


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + python_2(value) + b"."


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def folder(root: Path, contents: Mapping[str, bytes]) -> Path:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def tar(path: Path, contents: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def zipped(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def a_cifar10(
    rows: Callable[[int], Any] = lambda i: TEN[2 * i : 2 * i + 2].reshape(2, -1),
) -> dict[str, bytes]:
    batches = {
        f"cifar-10-batches-py/data_batch_{i + 1}": pickled({b"data": rows(i), b"labels": [i, 9]})
        for i in range(5)
    }
    test = {
        "cifar-10-batches-py/test_batch": pickled({b"data": TEN[:3].reshape(3, -1), b"labels": [0, 1, 2]})
    }
    names = [f"class {i}".encode() for i in range(9)] + [b"class 9"]
    return batches | test | {"cifar-10-batches-py/batches.meta": pickled({b"label_names": names})}


def a_har() -> dict[str, bytes]:
    made: dict[str, bytes] = {"activity_labels.txt": b"1 WALKING\n2 SITTING\n"}
    for part, n in (("train", 3), ("test", 2)):
        for i, name in enumerate(SIGNALS):
            rows = np.arange(n * 128).reshape(n, 128) + 1000 * i
            made[f"{part}/Inertial Signals/{name}_{part}.txt"] = "\n".join(
                "  ".join(f"{v:.7e}" for v in r) for r in rows
            ).encode()
        made[f"{part}/y_{part}.txt"] = b"1\n2\n1\n"[: 2 * n]
        made[f"{part}/subject_{part}.txt"] = b"7\n7\n9\n"[: 2 * n]
    return {f"UCI HAR Dataset/{name}": content for name, content in made.items()}


def made(name: str, origin: Path, tmp_path: Path) -> Dataset:
    return unskew.data.npz(get(name, origin, tmp_path / "out")[0])


def test_cifar10_is_read_by_its_name(tmp_path, monkeypatch):
    _, remarks = get("cifar10", tar(tmp_path / "a.tar.gz", a_cifar10()), tmp_path / "out")
    assert "a.tar.gz" in remarks[1]
    assert "not compared" in remarks[1]
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "out"))
    dataset = unskew.data.read("cifar10")
    assert np.allclose(dataset.x, TEN / np.float32(255))
    assert dataset.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert dataset.mean == (0.4914, 0.4822, 0.4465)


def test_cifar100_has_superclasses(tmp_path, monkeypatch):
    names = [b"f%d" % i for i in range(10)]
    labels = {b"fine_labels": list(range(9, -1, -1)), b"coarse_labels": [0, 1] * 5}
    part = pickled({b"data": TEN.reshape(10, -1), **labels})
    meta = pickled({b"fine_label_names": names, b"coarse_label_names": [b"even", b"odd"]})
    origin = folder(tmp_path / "c", {"train": part, "test": part, "meta": meta})
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "out"))
    assert made("cifar100", origin, tmp_path).y.tolist() == list(range(9, -1, -1))
    dataset = unskew.data.read("cifar100")
    assert dataset.classes[9] == "f9"
    assert [dataset.labels["superclass"][i] for i in dataset.columns["superclass"]] == ["even", "odd"] * 5


def test_idx_files(tmp_path):
    y = np.array([1, 2, 1, 2, 1, 2], np.uint8)
    four = {
        f"{part}-{kind}": idx(v)
        for part in ("train", "t10k")
        for kind, v in (("images-idx3-ubyte", GREY), ("labels-idx1-ubyte", y))
    }
    samples = made("fashion_mnist", folder(tmp_path / "f", four), tmp_path)
    assert np.allclose(samples.x[:, 0], GREY / np.float32(255))
    assert samples.classes[1] == "Trouser"


def test_uci_har_is_read_from_the_zip_in_the_zip(tmp_path, monkeypatch):
    (tmp_path / "h.zip").write_bytes(zipped({"UCI HAR Dataset.zip": zipped(a_har()), "README": b""}))
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "out"))
    signals = made("uci_har", tmp_path / "h.zip", tmp_path).x[0, 0, 0]
    assert signals.tolist() == [1000.0 * i for i in range(9)]
    dataset = unskew.data.read("uci_har(signals=2)")
    assert dataset.x.shape == (3, 1, 128, 2)
    assert dataset.x[1, 0, 5].tolist() == [133, 1133]
    assert dataset.columns["subject"].tolist() == [7, 7, 9]
    assert dataset.y_test.tolist() == [0, 1]


class Evil:
    def __init__(self, call: Any, *arguments: Any):
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil(os.system, "touch pwned")}),
        pickle.dumps({b"data": Evil(eval, "1")}),
        pickle.dumps({b"data": Evil(np.fromfile, "pwned")}),
        b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
    ],
)
def test_a_pickle_that_asks_for_more_than_numbers_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"E401 data_batch_1: this pickle is refused"):
        read_pickle(content, "data_batch_1")
    assert not list(tmp_path.iterdir())


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda p: written(p / "a.tar.gz", tar(p / "b.tar.gz", a_cifar10()).read_bytes()[:900]),
            "E401 .*cannot be read as what its name says",
        ),
        (lambda p: p / "nothing.zip", "E402 there is no"),
        (lambda p: folder(p / "f", {"data_batch_1": b"cos\nsystem\n(S'x'\ntR."}), "E401 .*os.system"),
        (lambda p: tar(p / "a.tar.gz", a_cifar10(lambda i: TEN[:2, 0].reshape(2, -1))), "E401 .*no images"),
    ],
)
def test_bad_archives_are_refused_and_nothing_is_written(make, says, tmp_path):
    origin = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=says):
        made("cifar10", origin, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        (
            "mnist",
            {"train-images-idx3-ubyte": idx(GREY)[:-1], "train-labels-idx1-ubyte": idx(GREY[:, 0, 0])},
            "E401 .*6 x 4 x 5",
        ),
        (
            "mnist",
            {"train-images-idx3-ubyte.gz": gzip.compress(idx(GREY))},
            "E401 train-images-idx3-ubyte.gz has the digest",
        ),
        ("uci_har", a_har() | {"UCI HAR Dataset/train/y_train.txt": b"1\n"}, "E401 .*differ in length"),
    ],
)
def test_files_of_the_wrong_kind_or_length_are_refused(name, contents, says, tmp_path):
    with pytest.raises(DataError, match=says):
        made(name, folder(tmp_path / "f", contents), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["gz", "zip", "tar"])
def test_files_that_unpack_to_far_more_than_their_size_are_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL_SIZE", 1 << 20)
    name, content = "train-images.idx3-ubyte", bytes(3 << 20)
    if kind == "gz":
        origin = folder(tmp_path / "f", {f"{name}.gz": gzip.compress(content)})
    elif kind == "zip":
        origin = written(tmp_path / "a.zip", zipped({name: content}))
    else:
        origin = tar(tmp_path / "a.tar.gz", {name: content})
    with pytest.raises(DataError, match=rf"E401 {name}.* bytes unpack to more than 1,048,576"):
        made("mnist", origin, tmp_path)


def test_a_file_of_a_published_digest_is_verified(tmp_path):
    y = GREY[:, 0, 0] % 10
    four = {
        f"{p}-{k}.gz": gzip.compress(idx(v), mtime=0)
        for p in ("train", "t10k")
        for k, v in (("images-idx3-ubyte", GREY), ("labels-idx1-ubyte", y))
    }
    origin = folder(tmp_path / "f", four)
    digests = {f"https://example.org/{name}": disk.sha256(origin / name) for name in four}
    _, remarks = get("mnist", origin, tmp_path / "out", recipe=replace(RECIPES["mnist"], originals=digests))
    assert len(remarks) == 1


def test_the_command_says_what_it_wrote_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "d"))
    tar(tmp_path / "a.tar.gz", a_cifar10())
    done = call("data", "get", "cifar10", "--from", "a.tar.gz", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.endswith("next  unskew data check cifar10\n")
    before = (tmp_path / "d" / "cifar10.npz").read_bytes()
    for arguments, code, says in (
        (["cifar10", "--from", "a.tar.gz"], 2, "E161"),
        (
            ["cifar11", "--from", "a.tar.gz"],
            2,
            "E125 unskew data get knows no 'cifar11'. Did you mean 'cifar10'?",
        ),
        (["cifar10", "--from", "b.tar.gz", "--out", "e"], 2, "E402"),
        (["cifar10", "--from", "a.tar.gz", "--out", "a.tar.gz"], 2, "E161"),
    ):
        refused = call("data", "get", *arguments, cwd=tmp_path)
        assert refused.code == code, refused.err
        assert refused.err.startswith(says), refused.err
        assert refused.err.count("\n") == 1
    assert (tmp_path / "d" / "cifar10.npz").read_bytes() == before
    again, _ = get("cifar10", tmp_path / "a.tar.gz", tmp_path / "again")
    assert again.read_bytes() == before


def test_a_file_of_medmnist_is_read_and_kept_as_it_is(tmp_path):
    """Channels come last, or are missing, and labels are [N, 1]; a class that only the test part has is one."""
    y, colours = np.arange(10, dtype=np.uint8)[:, None] % 2, TEN.transpose(0, 2, 3, 1)
    labels = {"train_labels": y, "test_labels": np.array([[3], [1]], np.uint8)}
    recipe = replace(RECIPES["bloodmnist"], originals={})
    for kind, images, first in (("colour", colours, TEN), ("grey", colours[..., 0], TEN[:, :1])):
        (tmp_path / kind).mkdir()
        original = tmp_path / kind / "bloodmnist.npz"
        np.savez(original, train_images=images, test_images=images[:2], val_images=images, **labels)
        for origin in (original, original.parent):
            path, _ = get("bloodmnist", origin, tmp_path / f"{kind} of {origin.name}", recipe=recipe)
            assert path.read_bytes() == original.read_bytes()
        dataset = unskew.data.npz(path)
        assert np.allclose(dataset.x, first / np.float32(255))
        assert (dataset.y_test.tolist(), dataset.classes) == ([3, 1], ("0", "1", "2", "3"))


def test_a_published_md5_is_compared(tmp_path):
    (tmp_path / "bloodmnist.npz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"E401 bloodmnist.npz has the digest .*7053d0359d"):
        get("bloodmnist", tmp_path / "bloodmnist.npz", tmp_path / "out")


class Server(ThreadingHTTPServer):
    """Serves `files` by name. cut: sends no more than so many bytes of a reply, though it announces all.
    ranges: whether it answers requests for a part. asked: the Range header of each request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.ranges, self.asked = {}, None, True, []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def address(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(file_of(self.path))
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if content is None or begin >= len(content):
            return self.send_error(404 if content is None else 416)
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        self.wfile.write(content[begin:][: self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def recipe_of(server, *names):
    """The recipe of CIFAR-10 with these files of the server, of published digests."""
    digests = {server.address(name): hashlib.sha256(server.files[name]).hexdigest() for name in names}
    return replace(RECIPES["cifar10"], originals=digests)


def test_a_set_is_made_from_its_address_alone(server, tmp_path):
    server.files["c.tar.gz"] = tar(tmp_path / "a.tar.gz", a_cifar10()).read_bytes()
    recipe = recipe_of(server, "c.tar.gz")
    seen = []
    path, remarks = get("cifar10", None, tmp_path / "out", lambda *progress: seen.append(progress), recipe)
    size = len(server.files["c.tar.gz"])
    assert seen[-1] == ("c.tar.gz", size, size)
    by_hand, _ = get("cifar10", tmp_path / "a.tar.gz", tmp_path / "by-hand", recipe=recipe)
    assert path.read_bytes() == by_hand.read_bytes()
    assert len(remarks) == 1
    path.unlink()
    get("cifar10", None, tmp_path / "out", recipe=recipe)
    assert len(server.asked) == 1, "what is there is not downloaded again"


def test_a_download_goes_through_no_link(server, tmp_path):
    """In a folder that several share, a link at the name of the unfinished file led to another one."""
    server.files["a.bin"] = b"a" * 100
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "a.bin.part").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(DataError, match="E402"):
        download("cifar10", recipe_of(server, "a.bin"), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_broke_off_is_resumed(server, tmp_path, ranges):
    server.files["a.bin"], server.cut, server.ranges = bytes(range(256)) * 8, 1000, ranges
    recipe = recipe_of(server, "a.bin")
    with pytest.raises(
        DataError, match=r"E402 .*1,000 of 2,048 bytes; 1,000 bytes are in .*goes on from there"
    ):
        download("x", recipe, tmp_path)
    server.cut = None
    assert download("x", recipe, tmp_path).read_bytes() == server.files["a.bin"]
    assert server.asked == [None, "bytes=1000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_another_file_than_the_published_one_is_refused_and_kept_aside(server, tmp_path):
    server.files["a.bin"] = b"published"
    recipe = recipe_of(server, "a.bin")
    server.files["a.bin"] = b"altered"
    with pytest.raises(DataError, match=r"E401 .*is not the published file.*a\.bin\.refused"):
        download("x", recipe, tmp_path)
    assert (tmp_path / "a.bin.refused").read_bytes() == b"altered"
    assert not (tmp_path / "a.bin").exists()
    server.files["a.bin"] = b"published"
    assert download("x", recipe, tmp_path).read_bytes() == b"published"


def test_several_files_lie_in_a_folder_of_the_set(server, tmp_path):
    server.files |= {"a.bin": b"a", "b.bin": b"b"}
    recipe = recipe_of(server, "a.bin", "b.bin")
    assert download("x", recipe, tmp_path) == tmp_path / "x"
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == server.files


def test_an_address_that_does_not_answer_names_the_other_way(server, tmp_path):
    server.files["a.bin"] = b"a"
    recipe = recipe_of(server, "a.bin")
    del server.files["a.bin"]
    with pytest.raises(DataError, match=r"E402 .*/a\.bin could not be downloaded: .*name it: --from"):
        download("x", recipe, tmp_path)


def test_every_address_has_a_digest_of_its_file():
    digests = [digest for recipe in RECIPES.values() for digest in recipe.originals.values()]
    assert {len(bytes.fromhex(digest)) for digest in digests} == {16, 32}  # MD5, SHA-256
