"""Flower's SuperLink: the coordinator's calls to it, and where it keeps pieces of large messages."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import os
import shutil
import subprocess
import time
from pathlib import Path

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.object_store.object_store import NoObjectInStoreError

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.loopback import SLOW_MACHINE
from unskew.federation import addresses as socket_names
from unskew.federation import flower_patches, programs
from unskew.federation.coordinator import mailbox, superlink
from unskew.federation.coordinator.superlink import SuperLink
from unskew.federation.flower_patches import LEAST_FILE_BYTES, PieceStore, mark_as_site
from unskew.federation.protocol.flower_messages import pack_message
from unskew.federation.protocol.signed_messages import PrivateKey, SignedMessage
from unskew.federation.tickets import Coordinator

pytestmark = pytest.mark.flower


@pytest.fixture
def home(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", ["a"])
    return home


def test_its_user_alone_reaches_it_registers_a_removed_site_again_and_begins_runs(tmp_path, monkeypatch):
    folder = tmp_path / ("f" * socket_names.MOST_SOCKET_PATH)  # longer than a socket's address may be
    home, key = Coordinator.make(folder, "lung", "127.0.0.1:1", ["a"]), PrivateKey.make().public
    env = programs.environment(home.folder / "flower")
    process = subprocess.Popen(superlink.superlink_command(home), env=env)
    link, until = SuperLink(home), time.monotonic() + SLOW_MACHINE * 60
    try:
        while not home.superlink.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        assert home.superlink.parent.stat().st_mode & 0o777 == 0o700
        tables = [Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        listening = {line.split()[9] for table in tables for line in table.splitlines() if " 0A " in line}
        held = {os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert not held & {f"socket:[{inode}]" for inode in listening}
        assert link.nodes() == {}
        link.register("a", key)
        ((text, node),) = link.nodes().items()
        assert text == superlink.flower_key(key)
        link.unregister(node)
        assert link.nodes() == {}
        link.register("a", key)
        assert link.nodes().keys() == {text}
        stale = link.start()  # its command was killed before it took its task
        monkeypatch.setattr(mailbox, "HeartbeatSender", Silent)
        with mailbox.run_mailbox(home) as messages:
            assert messages._run != stale
            assert messages.nodes() == []
        assert link.take() is None, "the task of the other run was ended"
    finally:
        link.close()
        process.terminate()
        process.wait()


class Silent:
    """Sends no heartbeats, each of which is a thread that outlives the test."""

    is_running = False

    def __init__(self, beat):
        pass

    def start(self):
        pass


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A new database, which takes Flower seconds."""
    folder = tmp_path_factory.mktemp("empty")
    opened(folder)
    return folder / "superlink.db"


@pytest.fixture
def store(tmp_path, empty):
    shutil.copy(empty, tmp_path)
    return opened(tmp_path)


def opened(folder) -> PieceStore:
    store = PieceStore(str(folder / "superlink.db"))
    store.initialize()
    return store


def messages(count: int) -> list[Message]:
    """Messages with the same 9 MB of tensors, as the coordinator sends them."""
    fake.grid_of({})
    arrays, blob = {}, os.urandom(9 << 20)
    return [
        Message(pack_message(SignedMessage(f"{k}", b"", blob), arrays), k, "train")
        for k in range(1, count + 1)
    ]


def keep(store: PieceStore, message: Message, run: int = 1) -> dict[str, bytes]:
    """Announce and bring a message. Returns its pieces."""
    store.preregister(run, get_object_tree(message))
    pieces = {number: piece.deflate() for number, piece in get_all_nested_objects(message).items()}
    for number, piece in pieces.items():
        store.put(number, piece)
    return pieces


def files(store: PieceStore) -> set[str]:
    return set(os.listdir(store.folder))


def test_large_pieces_lie_in_files_of_this_user_and_are_read_as_they_came(store):
    (message,) = messages(1)
    pieces = keep(store, message)
    assert {number: store.get(number) for number in pieces} == pieces
    large = {number for number, piece in pieces.items() if len(piece) >= LEAST_FILE_BYTES}
    assert files(store) == large
    assert len(large) == 2
    size = sum(os.path.getsize(store.folder.parent / name) for name in ("superlink.db", "superlink.db-wal"))
    assert size < 4e6, "the database holds none of them"
    modes = [store.folder.stat().st_mode] + [file.stat().st_mode for file in store.folder.iterdir()]
    assert not any(mode & 0o077 for mode in modes)


def test_a_piece_with_another_number_or_form_or_that_nobody_announced_is_refused(store):
    """An admitted site could write files of any name."""
    pieces = keep(store, messages(1)[0])
    other = {number: piece for number, piece in pieces.items() if len(piece) >= LEAST_FILE_BYTES}
    number, piece = next(iter(other.items()))
    for name in ("../../serve.log", "0" * 64):
        with pytest.raises(ValueError, match="another number"):
            store.put(name, piece)
    with pytest.raises(UnexpectedObjectContentError):
        store.put(flower_patches.get_object_id(b"\0" * LEAST_FILE_BYTES), b"\0" * LEAST_FILE_BYTES)
    store.delete_objects_in_run(1)
    with pytest.raises(NoObjectInStoreError):
        store.put(number, piece)
    assert files(store) == set()


def wrong(*numbers: str, under: str) -> ObjectTree:
    return ObjectTree(object_id=under, children=[ObjectTree(object_id=number) for number in numbers])


@pytest.mark.parametrize("most", [1, flower_patches.MOST_ASKED])
def test_what_a_site_says_of_pieces_that_are_not_its_own_keeps_them_from_nobody(store, monkeypatch, most):
    """It knew the pieces of a study's first model before they were sent, and announced others below them: the
    coordinator could then send them to nobody."""
    monkeypatch.setattr(flower_patches, "MOST_ASKED", most)
    first, second = messages(2)
    tree = get_object_tree(first)
    pieces = {number: piece.deflate() for number, piece in get_all_nested_objects(first).items()}
    leaf = next(number for number, piece in pieces.items() if len(piece) > LEAST_FILE_BYTES)
    parent = next(n.object_id for n in iterate_object_tree(tree) if leaf in {c.object_id for c in n.children})
    announce = mark_as_site(store.preregister)
    announce(1, wrong(parent, under=leaf))  # a circle, once the coordinator has spoken
    announce(1, wrong("0" * 64, under=tree.object_id))
    with pytest.raises(ValueError, match="other pieces are below"):
        store.put(leaf, pieces[leaf])
    keep(store, first)
    keep(store, second)
    assert get_all(store, store.get_object_tree(tree.object_id)) == pieces
    with pytest.raises(ValueError, match="different children"):
        announce(1, wrong(parent, under=leaf))
    store.delete(tree.object_id)  # of which the second message has pieces, too
    theirs = {number: piece.deflate() for number, piece in get_all_nested_objects(second).items()}
    assert get_all(store, get_object_tree(second)) == theirs
    store.delete(get_object_tree(second).object_id)
    assert not files(store)
    store.delete_objects_in_run(1)
    assert len(store) == 0


def get_all(store: PieceStore, tree: ObjectTree) -> dict[str, bytes | None]:
    return {node.object_id: store.get(node.object_id) for node in iterate_object_tree(tree)}
