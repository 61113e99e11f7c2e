"""Keys, tickets, data of a site, and the commands around them."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization

from tests.deploy import fake  # noqa: F401  skips where cryptography is missing
from unskew.cli.deployed import seconds
from unskew.config import dump
from unskew.deploy import doctor, loaders, processes, server
from unskew.deploy.identity import Private, Public
from unskew.deploy.tickets import Coordinator, Joined, Ticket
from unskew.engine import check
from unskew.engine.disk.lock import Lock
from unskew.errors import DataError, UsageError


def unskew(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "unskew", *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def home(tmp_path):
    return Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["b", "a"])


@pytest.fixture
def joined(tmp_path, home):
    return Joined.make(tmp_path / "site", Ticket.read(home.folder / "tickets" / "a.ticket"))


def test_a_ticket_holds_no_secret(home):
    text = (home.folder / "tickets" / "a.ticket").read_text()
    assert "PRIVATE" not in text
    assert set(json.loads(text)) == {"federation", "host", "port", "site", "coordinator", "authority"}


def test_private_keys_are_for_their_owner_alone(home, joined):
    for path in (home.folder / "coordinator.key", home.folder / "server.key", joined.folder / "site.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(home.folder.glob("ca.key"))
    (joined.folder / "site.key").chmod(0o644)
    with pytest.raises(UsageError, match=r"E508 .* chmod 600"):
        _ = joined.key


def test_keys_sign_and_survive_their_files(tmp_path):
    key = Private.make()
    key.save(tmp_path / "k")
    again = Private.load(tmp_path / "k")
    assert Public.parse(key.public.text).signed(b"m", again.sign(b"m"))
    assert not key.public.signed(b"n", again.sign(b"m"))
    assert not key.public.signed(b"m", b"")
    with pytest.raises(UsageError, match="E502"):
        key.save(tmp_path / "k")


def test_only_sites_with_a_ticket_and_one_key_each_are_admitted(home, joined):
    home.admit("a", joined.key.public)
    home.admit("a", joined.key.public)
    assert list(home.admitted()) == ["a"]
    with pytest.raises(UsageError, match="E502 a was admitted with another key"):
        home.admit("a", Private.make().public)
    with pytest.raises(UsageError, match="E503 this key belongs to another site"):
        home.admit("b", joined.key.public)
    with pytest.raises(UsageError, match="E503 lung has no site 'z'"):
        home.admit("z", Private.make().public)


def test_what_cannot_be_a_federation_is_refused(tmp_path, home):
    for host, sites, code in (
        ("bad host", ["a"], "E503"),
        ("h:99999", ["a"], "E503"),
        ("h", ["a", "a"], "E503"),
        ("h", [], "E503"),
        ("h", ["../a"], "E114"),
    ):
        with pytest.raises(UsageError, match=code):
            Coordinator.make(tmp_path / "other", "x", host, sites)
    with pytest.raises(UsageError, match="E502"):
        Coordinator.make(home.folder, "lung", "h", ["a"])
    with pytest.raises(UsageError, match="E502 there is no federation"):
        Coordinator.open(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"federation": "x"}', "{" * 1000])
def test_a_damaged_ticket_is_refused(tmp_path, text):
    (tmp_path / "t").write_text(text)
    with pytest.raises(UsageError, match="E503"):
        Ticket.read(tmp_path / "t")


class Listener:
    """Something that speaks TLS with a given certificate, once."""

    def __init__(self, home: Coordinator | None):
        self.home, self.door = home, socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        line, _ = self.door.accept()
        if self.home is None:
            line.close()
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.home.folder / "server.crt", self.home.folder / "server.key")
        try:
            with context.wrap_socket(line, server_side=True) as tls:
                tls.recv(1000)
                tls.sendall(b"HTTP/1.1 404 No\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            pass


def test_our_certificates_stand_strict_checks(home):
    """Which Python's own ssl makes from 3.13 on."""
    context = ssl.create_default_context(cafile=str(home.folder / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", Listener(home).port)) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as tls,
    ):
        assert tls.getpeercert()


def looked(tmp_path: Path, made: Coordinator, port: int) -> dict[str, doctor.Finding]:
    ticket = made.ticket("a")
    joined = Joined.make(tmp_path / f"site{port}", Ticket(**{**ticket.__dict__, "port": port}))
    np.savez(tmp_path / "d.npz", x=np.random.rand(20, 1, 8, 8).astype(np.float32), y=np.arange(20) % 2)
    return {f.what: f for f in doctor.check(joined.folder, str(tmp_path / "d.npz"), ["no", "yes", "perhaps"])}


def test_the_doctor_tells_what_is_wrong(tmp_path, home):
    good = looked(tmp_path, home, Listener(home).port)
    assert good["certificate"].ok
    assert not good["clock"].ok
    assert good["data"].text.startswith("16 to train on, 4 to test on, each [1, 8, 8]; 2 classes (none of perhaps)")
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    assert "refused" in looked(tmp_path, home, Listener(stranger).port)["certificate"].text
    assert "does not speak TLS" in looked(tmp_path, home, Listener(None).port)["certificate"].text
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert "cannot be reached" in looked(tmp_path, home, port)["network"].text


def joined_at(tmp_path: Path, made: Coordinator, port: int, **changes) -> Joined:
    ticket = Ticket(**{**made.ticket("a").__dict__, "port": port, **changes})
    return Joined.make(tmp_path / f"at{port}", ticket)


def test_a_site_does_not_knock_where_it_will_never_be_let_in(tmp_path, home):
    """The reason within 5 s; a server that is not there yet, or whose certificate ends soon, is no such reason."""
    stranger = Coordinator.make(tmp_path / "other", "other", "127.0.0.1", ["a"])
    began = time.monotonic()
    assert "certificate is refused" in doctor.refused(joined_at(tmp_path, home, Listener(stranger).port))
    assert "does not speak TLS" in doctor.refused(joined_at(tmp_path, home, Listener(None).port))
    assert "server speaks TLS" in doctor.refused(joined_at(tmp_path, home, Listener(home).port, authority=None))
    assert time.monotonic() - began < 5
    assert not doctor.refused(joined_at(tmp_path, home, Listener(home).port))
    assert not doctor.refused(joined_at(tmp_path, home, Listener(None).port, authority=None))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert not doctor.refused(joined_at(tmp_path, home, port))
    listener = Listener(stranger)
    made = joined_at(tmp_path, home, listener.port)
    done = unskew("site", "run", "--data", "d.npz", "--folder", str(made.folder), cwd=tmp_path)
    assert (done.returncode, done.stderr[:4]) == (2, "E509")


def test_the_server_tells_whom_flower_turned_away(tmp_path, home):
    log = home.folder / "flower" / "superlink.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("older\n")
    said: list[str] = []
    server = processes.Server(home, say=said.append)
    pem = home.key.public.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    line = f"ERROR: [/v1/fleet/activate-node][ApiError:2004] Attempted to register SuperNode with public key: {pem!r}"
    with open(log, "a") as file:
        file.write(line[:90])
        file.flush()
        server._tell_strangers()
        file.write(line[90:] + "\n" + line + "\n")
    server._tell_strangers()
    server._tell_strangers()
    assert said == [f"a site was turned away: its key {home.key.public.fingerprint} is not admitted"]


def test_another_host_than_the_certificate_names_is_refused(tmp_path):
    made = Coordinator.make(tmp_path / "fed2", "far", "far.example", ["a"])
    listener = Listener(made)
    ticket = Ticket(**{**made.ticket("a").__dict__, "port": listener.port, "host": "127.0.0.2"})
    joined = Joined.make(tmp_path / "s", ticket)
    line = socket.create_connection(("127.0.0.1", listener.port))
    (finding,) = doctor._certificate(joined, line)
    assert not finding.ok
    assert "IP address mismatch" in finding.text


def test_tables_folders_and_lines_of_python(tmp_path):
    (tmp_path / "t.csv").write_text("age,label,weight\n" + "1,sick,2\n3,well,4\n5,sick,6\n" * 10)
    found = loaders.load(str(tmp_path / "t.csv"), ["well", "sick", "unknown"])
    assert found.classes == ("well", "sick", "unknown")
    assert found.shape == (2,)
    assert set(found.y) == {0, 1}
    (tmp_path / "bad.csv").write_text("a,b\n1\n")
    with pytest.raises(DataError, match=r"E401 .* line 2 has 1 values"):
        loaders.load(str(tmp_path / "bad.csv"))
    with pytest.raises(DataError, match=r"E404 .*'sick'"):
        loaders.load(str(tmp_path / "t.csv"), ["well", "other"])
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef load():\n    return np.zeros((10, 3), np.float32), np.arange(10) % 2\n"
    )
    assert loaders.load(f"{tmp_path / 'mine.py'}:load", ["a", "b", "c"]).classes == ("a", "b", "c")
    (tmp_path / "long.csv").write_text("a,label\n" + "1" * 200_000 + ",x\n")
    with pytest.raises(DataError, match=r"E401 .*field larger"):
        loaders.load(str(tmp_path / "long.csv"))
    for text in ("nothing", f"{tmp_path / 'mine.py'}:none", "no.py:load"):
        with pytest.raises(UsageError, match="E111"):
            loaders.load(text)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "def load():\n    return open('/no/such/file')\n",
            "E401 .*:load failed at line 2: FileNotFoundError: .*/file",
        ),
        ("def load(:\n", "E111 .* cannot be read as Python at line 1: SyntaxError"),
        ("import no_such_module\ndef load(): ...\n", "E111 .* cannot be read as Python at line 1: ModuleNotFoundError"),
    ],
)
def test_a_loader_that_fails_is_one_sentence(tmp_path, lines, told):
    (tmp_path / "mine.py").write_text(lines)
    with pytest.raises((DataError, UsageError), match=told):
        loaders.load(f"{tmp_path / 'mine.py'}:load")


def test_a_site_of_one_class_must_name_them_all(tmp_path):
    """Else it would pass its own check and be turned away by the server."""
    np.savez(tmp_path / "one.npz", x=np.random.default_rng(0).random((20, 1, 4, 4)), y=np.zeros(20, np.int64))
    with pytest.raises(DataError, match=r"E404.*one class.*--classes a,b"):
        loaders.load(str(tmp_path / "one.npz"))
    assert loaders.load(str(tmp_path / "one.npz"), ["no", "yes"]).classes == ("no", "yes")


def test_the_commands_of_a_federation(tmp_path):
    done = unskew("federation", "init", "lung", "--host", "h.example:9000", "--sites", "a,b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    joined = unskew("join", "federations/lung/tickets/a.ticket", "--json", cwd=tmp_path)
    told = json.loads(joined.stdout)
    assert unskew("join", "federations/lung/tickets/a.ticket", cwd=tmp_path).returncode == 2
    admitted = unskew("federation", "admit", "lung", told["public"], cwd=tmp_path)
    assert told["fingerprint"] in admitted.stdout
    shown = json.loads(unskew("federation", "show", "lung", "--json", cwd=tmp_path).stdout)
    assert shown["sites"] == {"a": told["fingerprint"], "b": None}
    run = unskew("run", "fedavg", "--on", "lung", "--min-sites", "2", cwd=tmp_path)
    assert (run.returncode, run.stderr[:4]) == (2, "E109")
    assert unskew("run", "fedavg", "--on", "none", cwd=tmp_path).stderr.startswith("E502")
    assert unskew("serve", "none", cwd=tmp_path).returncode == 2
    checked = unskew("site", "check", "--data", "none.npz", cwd=tmp_path)
    assert checked.returncode == 3
    assert "FAIL  data" in checked.stdout


def test_a_site_is_told_what_a_study_would_take_from_it(tmp_path):
    unskew("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b", cwd=tmp_path)
    unskew("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 4)
    (tmp_path / "study.yaml").write_text("method: feddpms(alpha=5, width=8)\nmodel: cnn_small\nrounds: 4\n")
    done = unskew("site", "check", "--data", "d.npz", "--study", "study.yaml", "--json", cwd=tmp_path)
    told = "\n".join(json.loads(done.stdout)["leaves"])
    assert "weights" in told
    assert "feddpms/z at most" in told
    assert "infinite  end to end" in told
    assert "infinite  against the coordinator" in told
    assert any(f["what"] == "network" and not f["ok"] for f in json.loads(done.stdout)["found"])
    (tmp_path / "study.yaml").write_text("method: fedavg_ft\n")
    done = unskew("site", "check", "--data", "d.npz", "--study", "study.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr[:4]) == (2, "E506")


def test_a_folder_that_holds_another_run_is_left_as_it_is(tmp_path):
    """And one whose run is going on: refused before its deploy.json is written over."""
    unskew("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a", cwd=tmp_path)
    unskew("join", "federations/lung/tickets/a.ticket", cwd=tmp_path)
    unskew("federation", "admit", "lung", "site/a.pub", cwd=tmp_path)
    path = tmp_path / "runs/r"
    path.mkdir(parents=True)
    (path / "deploy.json").write_text("as it was")
    (path / "config.yaml").write_text(
        dump(server.study(check.settings(method="fedavg+clip_median", clients=1, lr=0.5)))
    )
    on = ("run", "fedavg", "--on", "lung", "--min-sites", "1", "--name", "r", "--lr", "0.1")
    done = unskew(*on, cwd=tmp_path)
    assert (done.returncode, done.stderr[:4]) == (2, "E112"), done.stderr
    assert "lr was 0.5, is 0.1 now" in done.stderr
    with Lock(path):
        for command in (on, ("resume", "runs/r")):
            done = unskew(*command, cwd=tmp_path)
            assert (done.returncode, done.stderr[:4]) == (2, "E110"), done.stderr
    assert (path / "deploy.json").read_text() == "as it was"


def test_durations():
    assert [seconds(t) for t in ("30s", "10m", "2h", "5", "1.5m")] == [30, 600, 7200, 5, 90]
    for text in ("", "0s", "soon", "-1m"):
        with pytest.raises(UsageError, match="E109"):
            seconds(text)
