"""What a coordinator's and a site's commands leave behind: in the journals, on the screen, and among old
runs."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.test_cleaning import age, site  # noqa: F401
from unskew.federation import admission, certificates
from unskew.federation.journal import JOURNAL_FILE, Journal, file_sha256
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

x509 = pytest.importorskip("cryptography.x509")


@pytest.fixture
def home(tmp_path):
    done = call("federation", "init", "lung", "--host", "127.0.0.1:9000", "--sites", "a,b,c", cwd=tmp_path)
    assert done.code == 0, done.err
    return Coordinator.open(tmp_path / "federations/lung")


def test_an_audit_notices_files_that_were_changed_after_the_run(tmp_path, home):
    """Scores, model and ledger are named in the journal's last line, by their digests."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("metrics.jsonl", "model.safetensors"):
        (run / name).write_text(name)
    journal = Journal(run / JOURNAL_FILE, home.key)
    journal.note("begun")
    journal.note(
        "done", files={name: file_sha256(run / name) for name in ("metrics.jsonl", "model.safetensors")}
    )
    journal.close()
    told = call("federation", "audit", "lung", "run", "--json", cwd=tmp_path)
    assert (told.code, json.loads(told.out)["changed"]) == (0, [])
    (run / "metrics.jsonl").write_text("better scores")
    (run / "model.safetensors").unlink()
    for more in ((), ("--json",)):
        told = call("federation", "audit", "lung", "run", *more, cwd=tmp_path)
        assert (told.code, told.err[:4]) == (2, "E201")
        assert "have changed since the run ended: metrics.jsonl, model.safetensors" in told.err
    assert json.loads(told.out)["changed"] == ["metrics.jsonl", "model.safetensors"]


def test_tickets_and_revocations_are_noted_in_the_federations_journal(tmp_path, home):
    """Who was let in, and who no more, can be read later and not be changed unseen."""
    call("join", str(home.ticket_file("a")), cwd=tmp_path)
    admitted = call(
        "federation", "admit", "lung", "--compared", "site/a.pub", "--samples", "6000", cwd=tmp_path
    )
    assert admitted.code == 0, admitted.err
    key = home.admitted()["a"].fingerprint
    assert call("federation", "ticket", "lung", "b", "--days", "3", cwd=tmp_path).code == 0
    assert call("federation", "revoke", "lung", "a", cwd=tmp_path).code == 0
    noted = [json.loads(line) for line in (home.folder / JOURNAL_FILE).read_text().splitlines()]
    said = [(n["what"], n.get("site"), n.get("key")) for n in noted]
    assert ("ticket", "b", None) in said
    assert said[-1] == ("revoked", "a", key)
    (ticket,) = (n for n in noted if n["what"] == "ticket" and n["site"] == "b")
    assert ticket["expires"] == Ticket.read(home.ticket_file("b")).expires
    assert call("federation", "audit", "lung", cwd=tmp_path).code == 0


def test_show_says_who_is_admitted_and_what_bounds_a_site(tmp_path, home):
    for name in ("a", "b"):
        call("join", str(home.ticket_file(name)), "--folder", name, cwd=tmp_path)
        call("federation", "admit", "lung", "--compared", f"{name}/{name}.pub", cwd=tmp_path)
    admission.write_bound(home, "a", 6000)
    lines = call("federation", "show", "lung", cwd=tmp_path).out.splitlines()
    sites = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert sites["a"].endswith(f"{home.admitted()['a'].fingerprint}  at most 6,000 samples")
    assert sites["b"].endswith(f"{home.admitted()['b'].fingerprint}  no bound on its samples")
    assert sites["c"].split(maxsplit=1)[1] == "not admitted"
    told = json.loads(call("federation", "show", "lung", "--json", cwd=tmp_path).out)
    assert told["samples"] == {"a": 6000}
    assert told["sites"]["c"] is None
    assert 360 < told["days"] <= 365


def test_without_tls_there_is_no_certificate_and_it_is_said(tmp_path):
    done = call(
        "federation", "init", "plain", "--host", "127.0.0.1", "--sites", "a", "--no-tls", cwd=tmp_path
    )
    assert "NO certificate: TLS is DISABLED" in done.out
    assert not (tmp_path / "federations/plain/server.crt").exists()
    assert "TLS DISABLED" in call("federation", "show", "plain", cwd=tmp_path).out
    refused = call("federation", "renew", "plain", cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E503")


def test_runs_that_are_named_are_removed_and_no_others(tmp_path, site):  # noqa: F811
    (run,) = (site / "runs").iterdir()
    other = run.with_name("other")
    other.mkdir()
    for path in run.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    for each in (run, other):
        age(each, 40)
    done = call("site", "clean", "other", "--folder", str(site))
    assert done.code == 0, done.err
    assert done.out.startswith("removed  other  ")
    assert list(run.glob("*.safetensors"))
    assert not list(other.glob("*.safetensors"))


def test_a_sites_check_ends_with_a_code_that_says_what_to_mend(tmp_path, monkeypatch):
    """3 where the data cannot be read, 2 for anything else, 0 only where nothing was found."""
    from unskew.federation.site import site_checks
    from unskew.federation.site.handshake import Finding

    for findings, code in (
        ([Finding("data", True, ""), Finding("network", True, "")], 0),
        ([Finding("data", True, ""), Finding("network", False, "no")], 2),
        ([Finding("data", False, "no"), Finding("network", False, "no")], 3),
    ):
        monkeypatch.setattr(site_checks, "check_site", lambda *_, found=findings: found)
        for more in ((), ("--json",)):
            assert call("site", "check", "--data", "d.npz", *more, cwd=tmp_path).code == code


def test_a_default_policy_replaces_none(tmp_path, home):
    folder = tmp_path / "site"
    SiteFolder.make(folder, home.ticket("a").signed(home.key))
    assert call("site", "policy", "--set", "most_rounds=9", cwd=tmp_path).code == 0
    refused = call("site", "policy", "--default", cwd=tmp_path)
    assert (refused.code, refused.err[:4]) == (2, "E161")
    assert json.loads(call("site", "policy", "--json", cwd=tmp_path).out)["most_rounds"] == 9


def test_a_renewed_certificate_names_each_host_once(tmp_path, home):
    """Those of the old one, and the new ones."""
    for _ in range(2):
        done = call("federation", "renew", "lung", "--also", "fed.example, 127.0.0.1", cwd=tmp_path)
        assert done.code == 0, done.err
    names = certificates.read(home.folder / "server.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert sorted(str(name.value) for name in names.value) == ["127.0.0.1", "::1", "fed.example", "localhost"]
