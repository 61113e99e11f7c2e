"""Figures for Prometheus: what they count, in a form that can be parsed, read by nobody else and naming
nothing of a site."""

from __future__ import annotations

import http.client
import json
import re
import time
from pathlib import Path

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import begun, hello
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import RunMetrics
from unskew.federation.prometheus import Endpoint, Metric, exposition, gauge
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.site.processes import SiteMetrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


SAMPLE = re.compile(rf'({NAME})(?:\{{({NAME})="((?:[^"\\\n]|\\["\\n])*)"\}})? (\S+)')


LABELS = {"version", "program", "state", "direction", "site", "code", "kind"}


def parsed(page: str) -> dict[str, dict[str, float]]:
    """The values of every metric by its label's value; by the grammar of the text format, of which anything
    else fails."""
    assert page.endswith("\n")
    metrics: dict[str, dict[str, float]] = {}
    kinds: dict[str, str] = {}
    for line in page.splitlines():
        if match := re.fullmatch(rf"# HELP ({NAME}) (?:[^\\]|\\[\\n])+", line):
            assert match[1] not in metrics, "a metric's lines stand together"
            metrics[match[1]] = {}
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            kinds[match[1]] = match[2]
            assert (match[2] == "counter") == match[1].endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == list(metrics)[-1] == list(kinds)[-1]
            assert match[2] is None or match[2] in LABELS
            value = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), match[3] or "")
            assert value not in metrics[match[1]], "a sample stands once"
            metrics[match[1]][value] = float(match[4])
    assert metrics.keys() == kinds.keys()
    return metrics


class Simple:
    """Figures that say little, and may be unwell."""

    wrong = ""

    def metrics(self) -> list[Metric]:
        return [gauge("up", "Is it?", 1)]

    def problem(self) -> str:
        return self.wrong


@pytest.fixture(scope="module")
def served():
    figures = Simple()
    one = Endpoint("0", figures)
    one.start()
    yield one, figures
    one.close()


def ask(port: int, path: str = "/metrics", host: str | None = None, method: str = "GET") -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answered = line.getresponse()
    body = answered.read().decode()
    line.close()
    return answered.status, body


def test_it_answers_at_its_two_addresses_and_at_nothing_else(served, monkeypatch):
    one, figures = served
    assert (one.host, one.warning) == ("127.0.0.1", "")
    assert ask(one.port) == (200, exposition(figures.metrics()))
    assert ask(one.port, "/metrics?x=1")[0] == 200
    assert ask(one.port, method="HEAD") == (200, "")
    assert ask(one.port, "/healthz") == (200, "ok\n")
    monkeypatch.setattr(figures, "wrong", "not running: the worker")
    assert ask(one.port, "/healthz") == (503, "not running: the worker\n")
    for path in ("/", "/metrics/", "/../metrics", "/audit.jsonl"):
        assert ask(one.port, path)[0] == 404
    assert {ask(one.port, method=method)[0] for method in ("POST", "PUT", "DELETE")} == {501}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "10.0.0.1:{port}"])
def test_on_loopback_a_name_that_was_made_to_point_here_is_refused(served, host):
    """DNS rebinding: a web site in a browser of this machine reads the figures."""
    assert ask(served[0].port, host=host.format(port=served[0].port))[0] == 421


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a run that has had two rounds before anybody looked."""
    path = tmp_path / "a-secret-name"
    path.mkdir()
    (path / "sites.json").write_text(json.dumps({"sites": [{"site": s} for s in "abc"]}))
    for t in (1, 2):
        write(path, t)
    return path


def write(path: Path, t: int, answered=(0, 1, 2), codes=()) -> None:
    """What a round leaves in a run's files."""
    rows = {
        "metrics": [
            {"t": t, "scope": "train", "client": None, "metric": m, "value": 1.5} for m in ("seconds", "loss")
        ],
        "ledger": [
            {"t": t, "way": "down", "share": "w", "clients": [0, 1, 2], "bytes": 100},
            {
                "t": t,
                "way": "up",
                "share": "w",
                "clients": list(answered),
                "bytes": [7, 8, 9][: len(answered)],
            },
        ],
        "events": [
            *({"t": t, "code": code, "text": "c secret words /data/patients"} for code in codes),
            {"t": t, "code": "round", "asked": [0, 1, 2], "answered": list(answered), "received": 3},
        ],
    }
    for name, added in rows.items():
        with open(path / f"{name}.jsonl", "a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in added))


def test_rounds_bytes_absences_and_events_are_counted_while_a_run_goes_on(run, monkeypatch):
    monkeypatch.setattr(orders, "COUNT_S", 0)
    figures = RunMetrics()
    figures.tend([run])
    assert (figures.rounds, figures.last) == (0, 0)  # what was there before is not of this server's time
    write(run, 3, answered=(0, 2), codes=("E311",))
    write(run, 4, answered=(0,), codes=("E520", "E303", "X" * 40, "E999"))
    figures.tend([run])
    (run / "ending.json").write_text('{"state": "done"}')
    write(run, 5)
    figures.tend([])
    page = exposition(figures.metrics())
    values = parsed(page)
    assert values["unskew_rounds_total"][""] == 3
    assert values["unskew_round_seconds_total"][""] == 4.5
    assert values["unskew_payload_bytes_total"] == {"in": (7 + 8) + 7 + (7 + 8 + 9), "out": 900}
    assert values["unskew_absences_total"] == {"b": 2, "c": 1}
    assert values["unskew_events_total"] == {"E311": 1, "E520": 1, "E303": 1, "other": 2}
    assert values["unskew_runs_ended_total"] == {"done": 1, "stopped": 0, "failed": 0}
    assert values["unskew_runs_active"][""] == 0
    assert abs(values["unskew_last_round_timestamp_seconds"][""] - time.time()) < 60
    assert "secret" not in page
    assert "/" not in page


@pytest.fixture
def site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def test_a_site_counts_what_it_was_asked_and_what_it_refused(site):
    """With the answers of a real site, through the wrapper that stands before its worker."""
    figures = SiteMetrics(site.member.folder)
    real = site.answer
    counted = figures.with_counts(lambda request, _: real(request))
    site.answer = lambda request: counted(request, 10.0)
    train = begun(site, rounds=3)
    train(1)
    train(2)
    site.guard.approve = "ask"
    hello(site, "scaffold", run="r2")
    site.answer(SignedMessage("{}", b"", b""))

    def dead(*_):
        raise ConnectionError("killed")

    with pytest.raises(ConnectionError):
        figures.with_counts(dead)(SignedMessage("{}", b"", b""), 1.0)
    page = exposition(figures.metrics())
    values = parsed(page)
    assert values["unskew_rounds_total"][""] == 2
    assert values["unskew_requests_total"]["train"] == 2
    assert values["unskew_request_seconds_total"]["train"] > 0
    assert values["unskew_refusals_total"] == {"E522": 1, "E310": 1}
    assert values["unskew_failures_total"][""] == 1
    assert values["unskew_studies_waiting"][""] == 1
    assert values["unskew_runs_begun"][""] == 1
    assert values["unskew_connected"][""] == 0
    assert values["unskew_message_bytes_total"]["out"] > 2 * 1000
    assert abs(values["unskew_last_round_timestamp_seconds"][""] - time.time()) < 60
    assert str(site.member.folder) not in page
    assert "scaffold" not in page
