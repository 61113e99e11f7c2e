"""Large messages: bytes that no process holds twice, tensors that stay on the disk, and what a liar may put
there."""

from __future__ import annotations

import json
import os
import socket
import threading
from hashlib import sha256 as sha256_of
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from tests.federation import fake
from unskew.core.trees import flat_tree
from unskew.federation.protocol import wire_format
from unskew.federation.protocol.signed_messages import (
    SMALL,
    ByteViews,
    SignedMessage,
    StoredBytes,
    all_bytes,
    blocks,
    sha256,
)
from unskew.federation.protocol.wire_format import (
    Limits,
    StoredTensors,
    WireError,
    reply_of,
    seal,
    store_if_large,
    stored_tree,
    tensor_names,
    unseal,
)
from unskew.records.checkpoints import file_buffers

WIDE = Limits(1 << 26, 50)
KEY = fake.KEYS["s0"]


def tree() -> dict:
    """Weights of 6 MB, one of them with its axes in another order in memory, and a share."""
    torch.manual_seed(0)
    w = {
        "b": torch.randn(3),
        "a": torch.randn(1000, 1500).T,
        "z": torch.tensor(3),
        "flag": torch.tensor([True, False]),
    }
    return {"w": w, "shares": {"p": {"sums": torch.randn(5)}}}


def stored(folder: Path, content: bytes) -> StoredBytes:
    file = StoredBytes(folder)
    for piece in blocks(content, 1 << 20):
        file.add(piece)
    return file


def arrived(folder: Path, sealed: SignedMessage) -> SignedMessage:
    return SignedMessage(sealed.text, sealed.signature, stored(folder, all_bytes(sealed.blob)))


def forged(folder: Path, blob: bytes, **facts: object) -> SignedMessage:
    """Signed by the site, as whoever has stolen its key can do."""
    text = json.dumps({"sha256": sha256_of(blob).hexdigest(), **facts})
    return SignedMessage(text, KEY.sign(text.encode()), stored(folder, blob))


def test_a_layout_is_what_safetensors_reads(tmp_path):
    tensors = flat_tree(tree()) | {"empty": torch.zeros(0, 3), 'ä"/\\': torch.ones(2, dtype=torch.bfloat16)}
    tensors |= {"odd": torch.ones(3, dtype=torch.uint8), "even": torch.ones(64, dtype=torch.uint8)}
    tensors = {n: t.contiguous() for n, t in tensors.items()}
    for facts in (None, {"unskew": '["é\n", 1]'}):
        content = b"".join(file_buffers(tensors, facts))
        read = load(content)
        assert set(read) == set(tensors)
        assert all(read[n].dtype == t.dtype and torch.equal(read[n], t) for n, t in tensors.items())
        (tmp_path / "file").write_bytes(content)
        with safe_open(str(tmp_path / "file"), "pt") as file:
            assert file.metadata() == facts
            whole_lines = [n for n, t in tensors.items() if t.nbytes % 64 == 0]
            assert not any(file.get_tensor(n).data_ptr() % 64 for n in whole_lines)
    with pytest.raises(ValueError, match=r"'x' is torch.complex128, which safetensors cannot hold"):
        file_buffers({"x": torch.zeros(1, dtype=torch.complex128)})


def test_views_and_files_are_read_at_any_place(tmp_path):
    content = os.urandom(3000)
    views = ByteViews(
        [memoryview(content[:7]), memoryview(b""), memoryview(content[7:2000]), memoryview(content[2000:])]
    )
    for bulk in (views, stored(tmp_path, content)):
        assert len(bulk) == len(content)
        for start, stop in ((0, 3000), (0, 7), (5, 9), (7, 2001), (2999, 9000), (3000, 3001)):
            assert bulk.read(start, stop) == content[start:stop]
        assert sha256(bulk) == sha256_of(content).hexdigest()
    assert not list(tmp_path.iterdir())  # a file without a name is gone with this process, however it ends


def test_a_large_message_is_the_same_from_memory_and_from_the_disk(tmp_path):
    sent = seal({"run": "r"}, tree(), KEY)
    assert isinstance(sent.blob, ByteViews)
    for sealed in (sent, arrived(tmp_path, sent)):
        packet = unseal(sealed, KEY.public, WIDE)
        assert packet.header["run"] == "r"
        expected, got = flat_tree(tree()), flat_tree(packet.tree)
        assert list(got) == list(expected)
        assert all(torch.equal(got[n], t) and got[n].stride() == t.stride() for n, t in expected.items())


def test_a_shelf_has_names_in_order_and_axes_in_their_own(tmp_path):
    """Images whose channels lie last in memory: the order of axes is not its own inverse."""
    image = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    tensors = {name: torch.zeros(2) for name in ("w/b", "early/x", "w/a")} | {
        "w/image": image.permute(0, 2, 3, 1)
    }
    kept = StoredBytes(tmp_path)
    for piece in file_buffers({n: t.contiguous() for n, t in tensors.items()}):
        kept.add(piece)
    tree = stored_tree(kept, list(reversed(tensor_names(kept))), {"w/image": [0, 2, 3, 1]})
    assert (list(tree), list(tree["w"])) == (["early", "w"], ["a", "b", "image"])
    assert torch.equal(tree["w"]["image"], image)


def test_a_reply_has_weights_in_the_models_order_and_keeps_those_that_nobody_expects(tmp_path):
    w = {name: torch.ones(1 << 20) for name in ("b", "a", "x", "c")}
    sent = seal({"n": 3}, {"w": w}, KEY)
    for sealed in (sent, arrived(tmp_path, sent)):
        reply = reply_of(0, unseal(sealed, KEY.public, WIDE), ["c", "b", "a", "d"])
        assert reply is not None
        assert list(reply.weights) == ["c", "b", "a", "x"]


def test_tensors_on_the_disk_are_in_memory_only_while_somebody_reads_them(tmp_path):
    w = {f"layer{i}": torch.full((1 << 20,), float(i)) for i in range(8)}
    shelf = store_if_large(w, tmp_path)
    assert isinstance(shelf, StoredTensors)
    before = file_pages()
    assert sum(float(t.sum()) for t in shelf.values()) == sum(range(8)) * (1 << 20)
    assert file_pages() - before < 6e6  # of 33.6 MB
    assert store_if_large({"small": torch.ones(3)}, tmp_path)["small"].sum() == 3


def test_changing_a_tensor_of_a_shelf_changes_a_copy(tmp_path):
    shelf = store_if_large({"a": torch.zeros(1 << 21)}, tmp_path)
    shelf["a"].add_(1)
    assert not shelf["a"].any()


def file_pages() -> int:
    """Bytes of resident pages that belong to files."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda blob: blob[:-1], "E310"),
        (lambda blob: blob[:8], "E310"),
        (lambda blob: b"\xff" * 8 + blob[8:], "E303"),
        (lambda blob: blob + b"x", "E310"),
        (lambda blob: blob.replace(b'"F32"', b'"F64"', 1), "E310"),
        (lambda blob: blob.replace(b"[0,", b"[1,", 1), "E310"),
        (lambda blob: blob.replace(b'"w/a"', b'"w"  ', 1), "E310"),
    ],
)
def test_what_a_liar_puts_into_a_file_is_refused_before_anything_is_read_from_it(tmp_path, change, code):
    """A file is read by pages, so that a header that lies about places could show others' bytes or end the
    process."""
    honest = all_bytes(seal({}, tree(), KEY).blob)
    with pytest.raises(WireError) as refused:
        unseal(forged(tmp_path, change(honest)), KEY.public, WIDE)
    assert refused.value.code == code


def test_orders_of_axes_that_do_not_fit_are_refused_at_once(tmp_path):
    """Or the run would end when the tensor is first read."""
    honest = all_bytes(seal({}, tree(), KEY).blob)
    for axes in ({"w/b": [1]}, {"w/a": [0, 0]}, {"other": [0]}, {"w/a": "ab"}, ["w/a"], 7):
        with pytest.raises(WireError) as refused:
            unseal(forged(tmp_path, honest, axes=axes), KEY.public, WIDE)
        assert refused.value.code == "E310"


def test_a_file_that_is_not_what_was_signed_is_refused(tmp_path):
    sent = arrived(tmp_path, seal({}, tree(), KEY))
    sent.blob.add(b"more")  # type: ignore[union-attr]
    with pytest.raises(WireError, match="SHA-256"):
        unseal(sent, KEY.public, WIDE)
    with pytest.raises(WireError, match="at most 1,003,072 and"):
        unseal(arrived(tmp_path, seal({}, tree(), KEY)), KEY.public, Limits(1_000_000, 5))


def test_a_large_message_goes_through_a_socket_to_a_file(tmp_path):
    sent = seal({}, tree(), KEY)
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=sent.send, args=(here,))
        sender.start()
        received = SignedMessage.receive(there, tmp_path)
        sender.join()
    assert isinstance(received.blob, StoredBytes)
    assert len(sent.blob) > SMALL
    assert all_bytes(received.blob) == all_bytes(sent.blob)
    assert load(all_bytes(received.blob))["w/b"].equal(tree()["w"]["b"])


def test_a_tree_that_is_sent_to_several_is_packed_once(monkeypatch, tmp_path):
    packed = wire_format.pack(tree())
    monkeypatch.setattr(wire_format, "pack", None)
    texts = [seal({"site": site}, packed, KEY) for site in ("a", "b")]
    assert texts[0].blob is texts[1].blob
    assert all(isinstance(t, Tensor) for t in flat_tree(unseal(texts[0], KEY.public, WIDE).tree).values())


def test_a_large_message_is_sent_block_by_block():
    """All blocks were read before the first was sent: the whole model once more in memory, at both ends of
    the socket."""
    read, held = [], []

    class Bytes:
        def __len__(self) -> int:
            return 9 << 20

        def read(self, start: int, stop: int) -> bytes:
            read.append(start)
            return bytes(min(stop, len(self)) - start)

    class Line:
        def sendall(self, piece: bytes) -> None:
            held.append(len(read))

    SignedMessage("{}", b"signature", Bytes()).send(Line())  # type: ignore[arg-type]
    assert held == [0, 0, 0, *range(1, 10)]
