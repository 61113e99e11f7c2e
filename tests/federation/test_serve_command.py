"""`unskew serve` with a server whose programs are never started: what it is asked for, what it tells, and
that it is stopped."""

from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation.coordinator import server
from unskew.federation.prometheus import gauge
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator


class Server:
    """Ends the command as an operator would, or as an error does, when it is tended for the third time."""

    def __init__(self, end: BaseException):
        self.end, self.tended, self.stopped, self.bind = end, 0, 0, "0.0.0.0"

    def tend(self) -> None:
        self.tended += 1
        if self.tended == 3:
            raise self.end

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """(the server that `serve` begins, with what, its figures). Two of three sites are admitted."""
    home = Coordinator.make(tmp_path / "kept/lung", "lung", "127.0.0.1:8123", ["a", "b", "c"])
    for site in "ab":
        joined = SiteFolder.make(tmp_path / site, home.ticket(site))
        home.key_file(site).parent.mkdir(exist_ok=True)
        home.key_file(site).write_text(joined.key.public.text)
    begun = SimpleNamespace(server=Server(KeyboardInterrupt()), asked=[], figures=None)

    class Figures:
        def __init__(self, server):
            assert server is begun.server
            self.tended, self.server = 0, server
            begun.figures = self

        def tend(self):
            self.tended += 1

        def metrics(self):
            return [gauge("tended", "How often.", self.tended)]

        def problem(self):
            return ""

    def begin(home, bind, say, form):
        begun.asked.append((home.folder, bind, form))
        return begun.server

    monkeypatch.setattr(server, "start_server", begin)
    monkeypatch.setattr(server, "ServerMetrics", Figures)
    waits = iter(range(9))  # more of them mean that nothing is tended
    monkeypatch.setattr("time.sleep", lambda _: next(waits))
    return begun


def serve(tmp_path, *more):
    return call("serve", "lung", "--folder", "kept", *more, cwd=tmp_path)


def test_it_is_tended_until_it_is_stopped_and_tells_what_it_listens_to(begun, tmp_path):
    done = serve(tmp_path, "--bind", "192.0.2.7")
    ((folder, bind, form),) = begun.asked
    assert (folder.parts[-2:], bind, form) == (("kept", "lung"), "192.0.2.7", "text")
    assert (begun.server.tended, begun.figures.tended, begun.server.stopped) == (3, 2, 1)
    assert "lung  0.0.0.0:8123  TLS, for admitted keys only; requests and replies signed" in done.out
    assert "admitted 2 of 3 sites" in done.out
    assert "metrics" not in done.out


def test_without_tls_it_says_so(begun, tmp_path):
    Coordinator.make(tmp_path / "kept/open", "open", "127.0.0.1:8124", ["a"], tls=False)
    done = call("serve", "open", "--folder", "kept", cwd=tmp_path)
    assert "open  0.0.0.0:8124  TLS DISABLED, so that anybody on this machine can connect;" in done.out


def test_figures_are_read_where_it_says(begun, tmp_path):
    done = serve(tmp_path, "--metrics", "0")
    (url,) = [word for word in done.out.split() if word.startswith("http://127.0.0.1:")]
    with urllib.request.urlopen(url, timeout=5) as page:
        assert "unskew_tended 2" in page.read().decode()


def test_an_error_that_ends_it_stops_the_programs_and_is_an_object_of_the_log(begun, tmp_path):
    begun.server.end = UsageError("E507", "the front does not stay up.")
    done = serve(tmp_path, "--log-format", "json")
    assert [form for _, _, form in begun.asked] == ["json"]
    assert (done.code, begun.server.stopped) == (2, 1)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {(line["program"], line["federation"]) for line in lines} == {("serve", "lung")}
    assert (lines[-1]["code"], lines[-1]["text"]) == ("E507", "the front does not stay up.")
