"""A full disk at either end is one sentence at both: which file, how many bytes are free, and the run goes on
or pauses."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from tests.federation import fake
from tests.federation.test_absent import sites_of, told
from tests.federation.test_conducting import Ending
from unskew.errors import Paused
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.correspondence import Contact, Correspondence
from unskew.federation.coordinator.network_run import conduct_order
from unskew.federation.coordinator.orders import ENDING, Order, RunStart, Terms, follow
from unskew.federation.protocol import signed_messages
from unskew.federation.protocol.signed_messages import BUDGET, SMALL, SignedMessage, StoredBytes
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.site import worker
from unskew.federation.tickets import Coordinator
from unskew.records.checkpoints import digest


class Full:
    """Lets the disk below a folder be full while `on`, for files whose names hold a word."""

    def __init__(self, monkeypatch, folder: Path, word: str = ""):
        self.on, self.folder, self.word, self.fsync = True, folder.resolve(), word, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if self.on and self.folder in path.parents and self.word in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(handle)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_site_with_a_full_disk_says_so_at_both_ends_and_the_others_go_on(tmp_path, monkeypatch, name):
    """N15: the coordinator read "ConnectionError", the site "the answer was not wanted any more"."""
    sites, said = sites_of(tmp_path), []
    sites[998].say = said.append
    full = Full(monkeypatch, tmp_path / "sites/s2")
    full.on = False

    def shown(state, done):
        full.on = done.t == 1  # full in round 2, and free again in round 3

    loop, _, _ = fake.run(tmp_path / "run", fake.Direct(sites), fake.small(name), shown=shown)
    ((t, text),) = told(tmp_path / "run", "E203")
    assert t == 2
    assert text.startswith("s2: disk full: cannot write ")
    assert text.endswith(" free). Reply dropped.")
    assert any("disk full: cannot write" in line for line in said)
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]]


def test_a_raw_error_of_a_full_disk_is_named_as_well(tmp_path, monkeypatch):
    """N15: where a folder cannot be created, or a Part writes."""

    def full(self, *args, **kwargs):
        if "s2" in str(self) and "runs" in str(self):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, *args, **kwargs)

    sites, real = sites_of(tmp_path), Path.mkdir
    monkeypatch.setattr(Path, "mkdir", full)
    _, _, said = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg"))
    assert any(text.startswith("E203 s2: disk full: cannot write") for text in said)


def test_a_log_that_cannot_be_written_costs_no_answer(monkeypatch, tmp_path):
    """N15: the worker's own log was on the full disk."""
    said = {}

    def broken(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Stop(Exception):
        pass

    def serve(site, path):
        monkeypatch.setattr("builtins.print", broken)
        site.say("round 1")
        said["site"] = site.member.name
        raise Stop

    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])
    from unskew.federation.site.site_folder import SiteFolder

    joined = SiteFolder.make(tmp_path / "site", home.ticket("a"))
    (tmp_path / "d.csv").write_text("x,z,label\n" + "1,2,a\n2,1,b\n" * 20)
    monkeypatch.setattr(worker, "serve", serve)
    monkeypatch.setattr("sys.argv", ["worker", str(joined.folder), str(tmp_path / "d.csv")])
    monkeypatch.setenv(worker.SOCKET, str(tmp_path / "socket"))
    before = os.umask(0o022)
    try:
        with pytest.raises(Stop):
            worker.main()
    finally:
        os.umask(before)
    assert said == {"site": "a"}


@pytest.mark.parametrize("word", ["audit", "state", "events", "sites"])
def test_a_coordinator_with_a_full_disk_pauses_and_ends_with_the_same_bits(tmp_path, monkeypatch, word):
    """N15: a raw OSError at the server's journal."""
    full = Full(monkeypatch, tmp_path / "run", word)
    full.on = word == "sites"

    def shown(state, done):
        full.on = done.t == 1

    with pytest.raises(Paused, match=rf"E203 disk full: cannot write .*{word}"):
        fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"), shown=shown)
    full.on = False
    _, state, _ = fake.run(tmp_path / "run", fake.Direct(sites_of(tmp_path)), fake.small("scaffold"))
    whole = fake.run(tmp_path / "whole", fake.Direct(sites_of(tmp_path, "others")), fake.small("scaffold"))[1]
    assert digest(state.weights) == digest(whole.weights)


@pytest.fixture
def order(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])
    return Order(
        tmp_path / "run",
        home.folder,
        study_settings(fake.small("fedavg")).as_dict(),
        Terms(deadline_s=0.1, wait_s=0.1),
    )


def test_every_full_disk_of_a_runs_process_ends_it_as_paused(order):
    """N15: also where nobody had foreseen it."""
    conduct_order(Ending(OSError(errno.ENOSPC, "No space left on device", "somewhere")), order)
    ending = json.loads((order.path / ENDING).read_text())
    assert (ending["state"], ending["code"]) == ("stopped", 75)
    assert ending["text"] == "E203 disk full: cannot write 'somewhere'."


def test_whoever_follows_a_run_that_cannot_even_write_how_it_ended_hears_why(order, monkeypatch):
    """N15: its process could write neither its log nor its ending."""
    with contextlib.suppress(OSError):
        Full(monkeypatch, order.path)
        conduct_order(Ending(OSError(errno.ENOSPC, "No space left on device")), order)
    assert not (order.path / ENDING).exists()
    monkeypatch.setattr(orders, "STATUS_S", 0.0)
    monkeypatch.setattr(orders, "LOOK_S", 0.01)
    free = namedtuple("free", "f_bavail f_frsize")
    monkeypatch.setattr(orders.os, "statvfs", lambda path: free(2, 4096))
    with pytest.raises(Paused, match=r"E203 disk full: the run in .* cannot write \(8,192 bytes free\)"):
        follow(order.path, RunStart(7, 0), lambda: "finished", lambda text: None)


@pytest.fixture
def no_room(monkeypatch) -> list[int]:
    """The disk has room for the first two megabytes of a large message. Returns the bytes of each write it
    refuses."""
    written, refused, pwrite = [], [], os.pwrite

    def full(handle: int, data: bytes, place: int) -> int:
        written.append(len(data))
        if sum(written) > 2 << 20:
            refused.append(len(data))
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(handle, data, place)

    monkeypatch.setattr(signed_messages.os, "pwrite", full)
    return refused


def test_a_worker_without_room_for_a_large_request_refuses_it_with_its_signature(tmp_path, no_room):
    """The coordinator read "the site's worker ended (ConnectionError)", and the worker's log nothing."""
    site, said = sites_of(tmp_path)[998], []
    site.say = said.append
    request = SignedMessage("{}", b"signature", bytes(SMALL + (5 << 20)))
    here, there = socket.socketpair()
    with here, there:
        serving = threading.Thread(target=worker._answer_one, args=(site, there))
        serving.start()
        here.sendall(BUDGET.pack(20.0))
        request.send(here)  # all of it is taken, or nobody could answer
        answer = SignedMessage.receive(here, tmp_path)
        serving.join()
    assert len(no_room) == 1, "once the disk is full, the rest is read and dropped"
    header = json.loads(answer.text)
    assert fake.KEYS["s2"].public.signed(answer.text.encode(), answer.signature)
    assert (header["code"], header["re"]) == ("E203", request.digest)
    assert header["text"].startswith("disk full: cannot write ")
    assert any("E203 disk full: cannot write" in text and "large message" in text for text in said)


def test_a_site_that_cannot_keep_a_large_message_says_so_at_both_ends(tmp_path, no_room):
    """Its operator read that nobody who keeps to the protocol sends such a message."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    from tests.federation.test_answering import Script, message, played
    from unskew.federation.site.connection import NO_ROOM, MessageNotKept

    file = StoredBytes(tmp_path)
    with pytest.raises(
        Paused, match=r"E203 disk full: cannot write .*large message \(needs 9.4 MB, "
    ) as full:
        file.add(bytes(9 << 20))
    unkept = MessageNotKept(message())
    unkept.__cause__ = full.value

    def failing(*_):
        raise full.value

    for script, answer in ((Script([unkept, None]), None), (Script([message(), None]), failing)):
        said = played(script, *[answer] * bool(answer))
        assert script.replies == [NO_ROOM]
        assert str(full.value) in said
    told: list[tuple[int, str, str]] = []
    contact = Contact(None, ("s2",), fake.COORDINATOR, {})
    Correspondence("r", contact, 1.0, lambda *what: told.append(what))._check_reply(
        "s2", 3, SignedMessage("", b"", b""), NO_ROOM, None
    )
    assert told == [(3, "E203", "s2 failed: disk full: the site cannot keep so large a message.")]
