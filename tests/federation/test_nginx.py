"""deploy/nginx in a real nginx: sites prove their keys through it, and strangers are turned away behind
it."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.test_front import Front, standing, until
from unskew.federation.addresses import free_port

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
CONF = Path(__file__).parents[2] / "deploy/nginx/stream.conf"
pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(
        not (NGINX and MODULE.exists()), reason="nginx with its stream module is not on this machine"
    ),
]


def configuration(folder: Path, listen: int, front: int) -> list[str]:
    """The command of an nginx with our file, whose two addresses and log are replaced as it says."""
    ours = CONF.read_text().replace("192.0.2.10:8000", f"127.0.0.1:{front}")
    ours = ours.replace("198.51.100.7:8000", f"127.0.0.1:{listen}").replace("/var/log/nginx", str(folder))
    assert not re.search(r"192\.0\.2|198\.51", ours)
    (folder / "nginx.conf").write_text(f"load_module {MODULE};\npid {folder}/pid;\nevents {{}}\n{ours}")
    return [str(NGINX), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]


@pytest.fixture(scope="module")
def behind(tmp_path_factory) -> Iterator[tuple[Front, int, Path]]:
    """A front, and the port of an nginx before it."""
    folder, listen = tmp_path_factory.mktemp("nginx"), free_port()
    with standing(tmp_path_factory.mktemp("front")) as front:
        command = configuration(folder, listen, front.home.port)
        process = subprocess.Popen(
            [*command, "-g", "daemon off; master_process off;"], stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: _open(listen), lambda: (folder / "error.log").read_text())
            yield front, listen, folder
        finally:
            process.terminate()
            process.wait(10)


def _open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_nginx_finds_no_mistake(tmp_path):
    done = subprocess.run([*configuration(tmp_path, 9, 8), "-t"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


def test_a_site_proves_its_key_through_nginx_and_a_stranger_does_not(behind):
    front, listen, folder = behind
    site = front.sites["a"].tls()
    assert site is not None
    assert _answer_to(site, listen).startswith(b"HTTP/1.1 204")
    for context, why in (
        (front.sites["c"].tls(), "not of an admitted key"),
        (_nobody(front), "offers no certificate"),
    ):
        assert context is not None
        assert _answer_to(context, listen) == b""
        front.refused("127.0.0.1", why)
    until(lambda: len((folder / "unskew.log").read_text().splitlines()) >= 3)


def _answer_to(context: ssl.SSLContext, port: int) -> bytes:
    """What comes back for a request in TLS; nothing if the connection is closed."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as line,
    ):
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return line.recv(100)
    return b""


def _nobody(front: Front) -> ssl.SSLContext:
    """Who knows the federation's authority and has no key."""
    return ssl.create_default_context(cafile=str(front.home.folder / "ca.crt"))
