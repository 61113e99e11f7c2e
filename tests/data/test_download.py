"""`unskew data get` without --from: a server on the loopback interface stands in for a set's address."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.data.test_downloads import a_cifar10, tar
from unskew.data.downloads import get
from unskew.data.downloads.get import download
from unskew.data.downloads.recipes import RECIPES, file_of
from unskew.errors import DataError


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
    got = get.get("cifar10", None, tmp_path / "out", lambda *progress: seen.append(progress), recipe)
    size = len(server.files["c.tar.gz"])
    assert seen[-1] == ("c.tar.gz", size, size)
    by_hand = get.get("cifar10", tmp_path / "a.tar.gz", tmp_path / "by-hand", recipe=recipe)
    assert got.files[0].read_bytes() == by_hand.files[0].read_bytes()
    assert "equals the published one" in got.files[1].read_text()
    got.files[0].unlink()
    get.get("cifar10", None, tmp_path / "out", recipe=recipe)
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
