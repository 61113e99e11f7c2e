"""The page of a site: what it shows, and that nobody but this machine's user can read it."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.deploy import fake  # skips where cryptography is missing
from tests.deploy.test_policy import allow, answer, begun, hello, weights
from tests.report.fake_runs import fake_run
from tests.report.test_page import Tags
from unskew.deploy import approvals, run_page, site_page, troubles
from unskew.deploy.page import HOST, Page
from unskew.deploy.spent import LEDGER
from unskew.deploy.tickets import Joined, Ticket
from unskew.errors import StateError, UsageError

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


@pytest.fixture
def page():
    """A page that says `secret things`."""
    page = Page(lambda: "secret things")
    threading.Thread(target=page.serve, daemon=True).start()
    yield page
    page.close()


def ask(page: Page, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, dict]:
    line = http.client.HTTPConnection(HOST, page.port, timeout=5)
    line.request(method, path, headers={"Host": host or f"{HOST}:{page.port}"})
    answered = line.getresponse()
    return answered.status, answered.read().decode(), dict(answered.getheaders())


def joined(site) -> Joined:
    ticket = Ticket("lung", "127.0.0.1", 8123, site.member.name, fake.COORDINATOR.public.text, "")
    return Joined(site.member.folder, ticket)


def shown(site) -> str:
    return site_page.html(joined(site))


def test_only_the_printed_address_shows_anything(page):
    status, text, headers = ask(page, f"/{page.secret}")
    assert (status, text) == (200, "secret things")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    for path in ("/", f"/{page.secret}x", f"/x/{page.secret}", "/..%2f", "/%c3%a4"):
        status, text, _ = ask(page, path)
        assert (status, "secret" in text) == (404, False)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""]
)
def test_a_name_that_was_made_to_point_here_is_refused(page, host):
    """N1: a web site reads the page through DNS rebinding."""
    status, text, _ = ask(page, f"/{page.secret}", host.format(port=page.port) or " ")
    assert (status, "secret" in text) == (421, False)


def test_a_page_holds_still_for_those_who_ask_for_that(site):
    """It was made anew every five seconds, and what somebody had unfolded to read it was folded again."""
    served = Page(lambda: shown(site))
    threading.Thread(target=served.serve, daemon=True).start()
    try:
        usual, still = (ask(served, f"/{served.secret}{query}")[1] for query in ("?", "?still"))
    finally:
        served.close()
    assert usual.count('http-equiv="refresh"') == 1
    assert 'href="?still"' in usual
    assert "http-equiv" not in still
    assert 'href="?"' in still
    assert len(still) > 1000
    assert not Tags(still).wrong


def test_a_name_that_is_no_text_does_not_end_the_page():
    served = Page(lambda: "a\udce9b")
    threading.Thread(target=served.serve, daemon=True).start()
    try:
        assert ask(served, f"/{served.secret}")[:2] == (200, "a?b")
    finally:
        served.close()


def test_it_is_read_only_and_on_loopback(page):
    assert page._server.server_address[0] == "127.0.0.1"
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(page, f"/{page.secret}", method=method)[0] == 501
    assert ask(page, f"/{page.secret}", method="HEAD")[:2] == (200, "")
    with pytest.raises(UsageError, match="E109 --port"):
        Page(lambda: "", page.port)


def test_an_error_while_reading_does_not_end_the_page():
    answers = iter([ValueError("half written"), "whole"])

    def content() -> str:
        if isinstance(one := next(answers), Exception):
            raise one
        return one

    page = Page(content)
    threading.Thread(target=page.serve, daemon=True).start()
    assert ask(page, f"/{page.secret}")[:2] == (500, "ValueError; reload.")
    assert ask(page, f"/{page.secret}")[:2] == (200, "whole")
    page.close()


def test_it_shows_what_runs_what_has_left_and_what_was_refused(site):
    train = begun(site, rounds=3)
    train(1)
    train(2)
    scored = answer(site, "score", 2, {"w": weights(site)}, lr=0.05)
    assert scored["n"] == 12
    allow(site, epsilon=4.0, methods=("fedavg",))
    hello(site, "scaffold")
    text = shown(site)
    assert "<td>r1</td><td>fedavg</td><td>running</td><td>2 of 3</td>" in text
    assert "<td>weights</td><td>weights</td><td>2</td>" in text
    assert "<td>score/global</td><td>statistics</td><td>1</td>" in text
    assert "global: accuracy 0." in text
    assert "Epsilon 0 spent of 4." in text
    assert "<td>E520</td><td>r1</td>" in text
    assert "which is not among fedavg" in text
    assert not Tags(text).wrong


def test_it_shows_what_waits_with_the_command_that_decides(site):
    site.guard.approve = "ask"
    hello(site, "scaffold")
    text = shown(site)
    assert f"unskew site approve r1 --folder {site.member.folder}" in text
    assert "scaffold/delta at most" in text
    approvals.decide(site.member.folder, "r1", "approved")
    assert "unskew site approve r1" not in shown(site)


def test_a_broken_policy_is_what_it_shows_first(site):
    (site.member.folder / "policy.yaml").write_text("shares: [input]")
    assert "Did you mean &#39;inputs&#39;?" in shown(site).split("<h2")[0]


def test_nothing_that_comes_from_outside_becomes_markup(site):
    troubles.note(site.member.folder, EVIL, EVIL, EVIL, EVIL)
    request = approvals.Request("s", EVIL, EVIL, 1, EVIL, EVIL, 0.0)
    approvals.ask(site.member.folder, request)
    text = shown(site)
    assert EVIL not in text
    assert text.count("&lt;script&gt;") >= 5


def test_looking_changes_nothing_and_a_line_that_is_being_written_is_left_out(site):
    begun(site)(1)
    ledger = site.member.folder / "runs" / "r1" / LEDGER
    with open(ledger, "a") as file:
        file.write('{"at": 1, "t"')
    before = {p: digest(p) for p in site.member.folder.rglob("*") if p.is_file()}
    assert "<td>weights</td><td>weights</td><td>1</td>" in shown(site)
    assert {p: digest(p) for p in site.member.folder.rglob("*") if p.is_file()} == before


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_troubles_are_counted_not_repeated_and_the_oldest_go(tmp_path):
    for k in range(60):
        for _ in range(2):
            troubles.note(tmp_path, "r1", "train", "E520", f"{k}")
    rows = troubles.latest(tmp_path)
    assert [row["text"] for row in rows] == [f"{k}" for k in range(10, 60)]
    assert {row["times"] for row in rows} == {2}
    (tmp_path / troubles.FILE).write_text(json.dumps("no list of rows"))
    assert troubles.latest(tmp_path) == []


def test_the_coordinators_page_shows_sites_scores_what_was_sent_and_events(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    allow(sites[1000], methods=("fedavg",))
    path = tmp_path / "run"
    fake.run(path, fake.Direct(sites), fake.small("scaffold"), min_sites=2)
    text = run_page.html(path)
    assert "<strong>done</strong>, round 3 of 3" in text
    assert re.search(r"<td>s2</td><td>33</td><td>3</td><td>3</td><td>round 3</td><td>accuracy [\d.]+%</td>", text)
    assert re.search(r"<td>global accuracy</td><td>[\d.]+%</td><td>[\d.]+%</td>", text)
    assert "<td>scaffold/delta</td><td>weights</td><td>all</td><td>every round</td>" in text
    assert text.count("<td>the server, and what it makes of it by every client</td>") == 2  # weights and variates
    assert text.count("not measured; whoever has samples of its sites can attack it") == 1  # no attack reads variates
    assert text.count(f"unskew attack {path} membership --data SITE=PATH") == 1
    assert "<td>E520</td><td>s0: the site&#39;s policy does not allow it" in text
    assert not Tags(text).wrong


def test_a_run_that_has_not_begun_has_a_page_and_another_folder_has_none(tmp_path):
    with pytest.raises(StateError, match="E117"):
        run_page.html(tmp_path)
    (tmp_path / "deploy.json").write_text(json.dumps({"settings": {"method": EVIL}}))
    (tmp_path / "server.log").write_text(f"0/3 sites are there; waiting for approval at {EVIL}")
    (tmp_path / "ending.json").write_text(json.dumps({"state": "stopped", "code": 75, "text": EVIL}))
    text = run_page.html(tmp_path)
    assert EVIL not in text
    assert "waiting for approval at &lt;script&gt;" in text
    assert "<strong>stopped</strong>" in text
    assert not Tags(text).wrong


def test_a_damaged_run_says_so_instead_of_having_not_begun(tmp_path):
    path = fake_run(tmp_path / "run", rounds=3)
    assert "round 3 of 3" in run_page.html(path)
    assert 'role="alert"' not in run_page.html(path)
    (path / "metrics.jsonl").write_text('{"t": "x"}\n')
    text = run_page.html(path)
    assert re.search(r'role="alert">E111 [^<]*metrics.jsonl, line 1', text)
    assert "Sites" in text
    (path / "events.jsonl").write_text("no row\n")
    assert 'role="alert">E111' in run_page.html(path)


def test_the_command_that_decides_can_be_pasted_whatever_the_folder_is_called(site):
    site.guard.approve = "ask"
    hello(site, "scaffold")
    here = joined(site)
    spaced = here.folder.rename(here.folder.with_name("our site"))
    text = site_page.html(Joined(spaced, here.ticket))
    assert f"unskew site approve r1 --folder &#39;{spaced}&#39;" in text


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
def test_a_browser_shows_the_page_and_a_name_made_to_point_here_shows_nothing(site, tmp_path):
    """N1: DNS rebinding with a real browser, in which evil.example has this machine's address."""
    site.guard.approve = "ask"
    hello(site, "scaffold")
    served = Page(lambda: shown(site))
    threading.Thread(target=served.serve, daemon=True).start()

    def browsed(address: str) -> str:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        options += ["--host-resolver-rules=MAP evil.example 127.0.0.1", "--dump-dom", address]
        return subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=60).stdout

    try:
        assert "unskew site approve r1" in browsed(served.address)
        rebound = browsed(f"http://evil.example:{served.port}/{served.secret}")
    finally:
        served.close()
    assert "Open the address as it was printed." in rebound
    assert "approve" not in rebound
