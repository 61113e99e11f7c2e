"""The page of a site: what it shows, and that nobody but this machine's user can read it."""

from __future__ import annotations

import http.client
import json
import re
import threading

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, hello, weights
from tests.report.test_page import Tags
from unskew.errors import StateError
from unskew.federation.coordinator import run_page
from unskew.federation.local_page import HOST, Page
from unskew.federation.site import approvals, site_ledger, site_page
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Ticket

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


def joined(site) -> SiteFolder:
    ticket = Ticket("lung", "127.0.0.1", 8123, site.member.name, fake.COORDINATOR.public.text, "")
    return SiteFolder(site.member.folder, ticket)


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
    status, text, _ = ask(page, f"/{page.secret}", host.format(port=page.port) or " ")
    assert (status, "secret" in text) == (421, False)


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


def test_nothing_that_comes_from_outside_becomes_markup(site):
    site_ledger.note_trouble(site.member.folder, EVIL, EVIL, EVIL, EVIL)
    request = approvals.Request("s", EVIL, EVIL, 1, EVIL, EVIL, 0.0)
    approvals.ask(site.member.folder, request)
    text = shown(site)
    assert EVIL not in text
    assert text.count("&lt;script&gt;") >= 5


def test_the_coordinators_page_shows_sites_scores_what_was_sent_and_events(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    allow(sites[1000], methods=("fedavg",))
    path = tmp_path / "run"
    fake.run(path, fake.Direct(sites), fake.small("scaffold"), min_sites=2)
    text = run_page.html(path)
    assert "<strong>done</strong>, round 3 of 3" in text
    assert re.search(
        r"<td>s2</td><td>33</td><td>3</td><td>3</td><td>round 3</td><td>accuracy [\d.]+%</td>", text
    )
    assert re.search(r"<td>global accuracy</td><td>[\d.]+%</td><td>[\d.]+%</td>", text)
    assert "<td>scaffold/delta</td><td>weights</td><td>all</td><td>every round</td>" in text
    assert (
        text.count("<td>the server, and what it makes of it by every client</td>") == 2
    )  # weights and variates
    assert (
        text.count("not measured by gradient, membership; whoever has samples of its sites can attack it")
        == 1
    )  # no attack reads variates
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
