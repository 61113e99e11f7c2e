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
from types import SimpleNamespace

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import allow, answer, begun, hello, weights
from tests.report.fake_runs import fake_run
from tests.report.test_page import Tags
from unskew.errors import StateError, UsageError
from unskew.federation.coordinator import run_page
from unskew.federation.local_page import HOST, Page
from unskew.federation.site import approvals, site_ledger, site_page
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import LEDGER_FILE
from unskew.federation.tickets import Ticket
from unskew.report.analysis.runs import read_run

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
    site_ledger.note_trouble(site.member.folder, EVIL, EVIL, EVIL, EVIL)
    request = approvals.Request("s", EVIL, EVIL, 1, EVIL, EVIL, 0.0)
    approvals.ask(site.member.folder, request)
    text = shown(site)
    assert EVIL not in text
    assert text.count("&lt;script&gt;") >= 5


def test_looking_changes_nothing_and_a_line_that_is_being_written_is_left_out(site):
    begun(site)(1)
    ledger = site.member.folder / "runs" / "r1" / LEDGER_FILE
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
            site_ledger.note_trouble(tmp_path, "r1", "train", "E520", f"{k}")
    rows = site_ledger.latest_troubles(tmp_path)
    assert [row["text"] for row in rows] == [f"{k}" for k in range(10, 60)]
    assert {row["times"] for row in rows} == {2}
    (tmp_path / site_ledger.TROUBLES_FILE).write_text(json.dumps("no list of rows"))
    assert site_ledger.latest_troubles(tmp_path) == []


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
    text = site_page.html(SiteFolder(spaced, here.ticket))
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


def hello_of(name, train=5):
    return {"site": name, "train": train}


def test_the_coordinators_table_counts_who_was_asked_and_whose_answer_was_used(tmp_path):
    path = fake_run(tmp_path / "run", rounds=3, clients=10)
    (path / "sites.json").write_text(
        json.dumps({"run": "1", "sites": [hello_of("a"), hello_of("b"), hello_of("c")]})
    )
    rounds_ = [(2, [0, 1], [0]), (4, [0, 1, 2], [0, 1]), (6, [0, 7], [7])]
    rows = [{"t": t, "code": "round", "asked": asked, "answered": answered} for t, asked, answered in rounds_]
    (path / "ledger.jsonl").write_text("")  # nothing was sent in the last round yet
    events = [*rows, *({"t": 1, "code": "E303", "text": f"remark {k}"} for k in range(150))]
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    (path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"t": t, "scope": scope, "client": k, "metric": metric, "value": value}) + "\n"
            for t, scope, k, metric, value in (
                (1, "global", None, "accuracy", 0.75),
                (2, "global", None, "accuracy", 0.5),
                (2, "global@client", None, "worst", 0.25),
                (2, "global@client", 1, "accuracy", 0.375),
                (2, "global@client", 9, "accuracy", 0.875),
                (2, "personal@client", 0, "accuracy", 0.625),
                (2, "global", None, "seconds", 3.0),
            )
        )
    )
    text = run_page.html(path)
    cells = [re.findall(r"<td>([^<]*)</td>", row) for row in text.split('id="sites"')[1].split("<tr>")[2:5]]
    assert cells == [
        ["a", "5", "3", "2", "round 4", ""],
        ["b", "5", "2", "1", "round 4", "accuracy 37.5%"],
        ["c", "5", "1", "0", "", ""],
    ]
    table = text.split('id="scores"')[1].split("</table>")[0]
    assert re.findall(r"<td>([^<]*)</td>", table) == [
        "global accuracy",
        "50.0%",
        "75.0%",
        "global@client worst",
        "25.0%",
        "25.0%",
    ]
    told = re.findall(r"remark (\d+)", text)
    assert told == [str(k) for k in range(149, 49, -1)]  # the newest first, and no more than a hundred
    assert "not finished; something was last written" in text


def test_the_last_lines_of_a_log_are_shown(tmp_path):
    path = fake_run(tmp_path / "run", rounds=3)
    (path / "server.log").write_bytes(b"".join(b"line %d \xff\n" % k for k in range(50)))
    text = run_page.html(path)
    assert re.findall(r"line (\d+)", text) == [str(k) for k in range(20, 50)]


def test_the_best_of_an_error_is_the_lowest(tmp_path):
    path = fake_run(tmp_path / "run", rounds=3)
    facts = json.loads((path / "federation.json").read_text())
    (path / "federation.json").write_text(
        json.dumps({**facts, "task": "regression", "target": {"name": "y", "center": 0, "scale": 1}})
    )
    rows = [(1, 3.0), (2, 2.0), (3, 4.0)]
    (path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"t": t, "scope": s, "client": None, "metric": m, "value": v}) + "\n"
            for t, v in rows
            for s, m in (("global", "rmse"), ("global@client", "mean"))
        )
    )
    assert run_page.scores(read_run(path)) == [
        {"name": "global rmse", "last": "4", "best": "2"},
        {"name": "global@client mean", "last": "4", "best": "2"},
    ]


def test_a_run_at_a_site_is_done_running_or_quiet(monkeypatch):
    def state(t, since):
        run = SimpleNamespace(t=t, rounds=3, last=1000.0 - since, method="m", began=0.0, bytes=1, epsilon=0.0)
        return site_page._run_row("r1", run, 1000.0)["state"]

    assert [state(3, 9e9), state(2, 599.0), state(2, 601.0), state(4, 1.0)] == [
        "done",
        "running",
        "quiet",
        "done",
    ]


def test_what_a_share_discloses_is_said_with_how_the_coordinator_reads_it():
    run = SimpleNamespace(kinds={"w": "weights"}, summed=True)
    kinds = [site_page._kind(share, run) for share in ("w", "other", "score/global")]
    assert kinds == ["weights, only in a sum", "statistics, only in a sum", "statistics"]
    assert site_page._kind("w", SimpleNamespace(kinds={"w": "weights"}, summed=False)) == "weights"


def test_a_sites_scores_are_by_whose_weights_and_the_last_ones(tmp_path):
    run = SimpleNamespace(metrics=["accuracy", "macro_f1"], kinds={}, summed=False)
    (tmp_path / "runs/7").mkdir(parents=True)
    rows = [
        {"share": "w", "bytes": 1000, "t": 1, "at": 0.0},
        {"share": "score/global", "bytes": 8, "t": 1, "at": 0.0, "values": [0.25, 0.125]},
        {"share": "score/global", "bytes": 8, "t": 2, "at": 0.0, "values": [0.5, 0.375]},
        {"share": "score/global.auroc", "bytes": 4, "t": 2, "at": 0.0, "values": [0.75]},
        {"share": "w", "bytes": 2000, "t": 2, "at": 0.0},
    ]
    (tmp_path / "runs/7" / LEDGER_FILE).write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"share": "w"'
    )
    assert site_page.scores(tmp_path, "7", run) == [("global", "accuracy 0.500, macro_f1 0.375, auroc 0.750")]
    left = {
        one.share: (one.times, one.bytes, one.last.split(",")[0])
        for one in site_page.disclosure_rows(tmp_path, "7", run)
    }
    assert left["w"] == (2, "3 KB", "round 2")
    assert left["score/global"] == (2, "16 B", "round 2")
    assert site_page.disclosure_rows(tmp_path, "8", run) == []
