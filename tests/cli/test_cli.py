"""The command line as a user meets it: output, errors with codes, exit codes, speed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.calling import call
from unskew import config
from unskew.cli import explain, watch
from unskew.errors import UsageError
from unskew.records.rows import Tail

FAST = ["--rounds", "2", "--epochs", "1", "--clients", "5", "--model", "mlp", "--workers", "1"]


def without(module: str, *commands: str, cwd: Path | None = None) -> None:
    """Run commands in a process of its own, which must end well and not load the module."""
    code = (
        "import sys; module, *commands = sys.argv[1:]\nfrom unskew.cli import app\nfor command in commands:\n"
        "    sys.argv = ['unskew', *command.split()]\n    try:\n        app()()\n    except SystemExit:\n        pass\n"
        "    assert module not in sys.modules, f'{module} was loaded by {command}'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, module, *commands], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_help_and_lists_do_not_load_torch():
    lists = ("list data", "list models", "list errors")
    without("torch", "--help", "run --help", "compare --help", *lists)


def test_a_run_and_its_report_do_not_load_scipy(tmp_path):
    """It takes a third of the processor's time of a short run to load, and only some methods use it."""
    without("scipy", " ".join(["run fedavg", *FAST, "--name r"]), cwd=tmp_path)
    assert (tmp_path / "runs" / "r" / "report.html").exists()


def test_a_run_from_start_to_report(tmp_path):
    done = call("run", "rebafl+fedprox(mu=0.1)", *FAST, "--name", "first", cwd=tmp_path)
    assert done.code == 0, done.err
    for piece in (
        "split   dirichlet:0.1",
        "leaves each client  weights",
        "rebafl/sums",
        "global@client",
        "report  runs/first/report.html",
    ):
        assert piece in done.out
    files = {p.name for p in (tmp_path / "runs" / "first").iterdir()}
    assert {
        "config.yaml",
        "federation.json",
        "metrics.jsonl",
        "ledger.jsonl",
        "events.jsonl",
        "env.json",
        "state.safetensors",
        "model.safetensors",
        "report.html",
    } <= files
    again = call("run", str(tmp_path / "runs/first/config.yaml"), "--name", "second", "--json", cwd=tmp_path)
    told = json.loads(again.out)
    resumed = json.loads(call("resume", "runs/first", "--json", cwd=tmp_path).out)
    assert told["sha256"] == resumed["sha256"]
    assert set(told["scores"]) == {"global", "global@client", "personal@client"}


def test_a_comparison_goes_on_where_it_stopped(tmp_path):
    arguments = ["compare", "fedavg", "rbsm", *FAST, "--seeds", "2", "--name", "c", "--set", "rebafl.eps=0.1"]
    planned = call(*arguments, "--dry-run", cwd=tmp_path)
    assert planned.code == 0, planned.err
    assert not list(tmp_path.iterdir())
    done = call(*arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    assert re.search(r"^(fedavg|rebafl\(mu=0\.0\)|rbsm) .*best$", done.out, re.M)
    for reference in ("local", "centralised"):
        assert re.search(rf"^{reference} .*reference$", done.out, re.M)
    table = json.loads((tmp_path / "runs/c/compare.json").read_text())
    (tmp_path / "runs/c/fedavg--s1/model.safetensors").unlink()
    again = call("resume", "runs/c", "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    assert [r["mean10"] for r in json.loads(again.out)["rows"]] == [r["mean10"] for r in table]
    absences = [(tmp_path / f"runs/c/{m}--s0/events.jsonl").read_text() for m in ("fedavg", "rbsm")]
    assert absences[0] == absences[1]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run", "fedprx"], 2, r"E102 unknown method 'fedprx'\. Did you mean 'fedprox'\?"),
        (
            ["compare", "fedavg", "flea", "--set", "fle.alpha=0.2"],
            2,
            r"E102 --set names 'fle', .*Did you mean 'flea'",
        ),
        (
            ["compare", "fedavg", "--target", "90"],
            2,
            r"E109 target must be above 0 and at most 1, .* for 90 % write 0.9",
        ),
        (
            ["compare", "fedavg", "--target", "-1"],
            2,
            r"E109 target must be above 0 and at most 1, .* a share; got -1",
        ),
        (["run", "fedavg", "--skew", "dirichelt:0.1"], 2, r"E103 .*Did you mean 'dirichlet'"),
        (["run", "fedavg", "--lr", "-1"], 2, r"E109 lr must be a number, above 0; got -1"),
        (["run", "norm+fedrdn"], 2, r"E107 'norm' and 'fedrdn' cannot be combined: both normalise the input"),
        (["run", "fedavg", "--set", "flea.alpha=1"], 2, r"E102 --set names 'flea'"),
        (["run", "fedavg", "--data", "digts"], 2, r"E125 .*Did you mean 'digits'"),
        (["run", "fedavg", "--clients", "2000", "--samples", "9"], 2, r"E103 .*Feasible"),
        (["run", "fedavg", "--name", "../up"], 2, r"E109"),
        (
            ["run", "fedavg", "--set", "measure=diversty"],
            2,
            r"E126 unknown measure 'diversty'\. Did you mean 'diversity'",
        ),
        (
            ["run", "fedavg", "--set", "measure=correlation"],
            2,
            r"E126 'correlation' cannot be measured of fedavg here",
        ),
        (["run", "nowhere.yaml"], 2, r"E111 there is no file nowhere\.yaml"),
        (["resume", "nowhere"], 2, r"E117"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, code, told, tmp_path):
    done = call(*arguments, cwd=tmp_path)
    assert done.code == code, done.err
    assert re.search(told, done.err), done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_yaml_errors_name_the_line(tmp_path):
    (tmp_path / "c.yaml").write_text("method: fedavg\nrounds: 3\nlernign_rate: 0.1\n")
    done = call("run", "c.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "E109 unknown key 'lernign_rate' at line 3." in done.err
    (tmp_path / "c.yaml").write_text("method: fedavg\nrounds: many\n")
    with pytest.raises(
        UsageError, match=r"E109 rounds at line 2 must be a whole number, above 0; got 'many'"
    ):
        config.load(tmp_path / "c.yaml")
    for text, says in (
        ("rounds: 2026-13-45", "is not YAML: month must be"),
        ("rounds: " + 3000 * "[", "is nested too deeply"),
    ):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(UsageError, match=f"E111 .*c.yaml.*{says}"):
            config.load(tmp_path / "c.yaml")
    with pytest.raises(UsageError, match="E111 cannot read"):
        config.load(tmp_path)
    (tmp_path / "c.yaml").write_text("rounds: 3\nset: {flea: {alpha: 0.1,\n  alpha: 0.2}}\n")
    with pytest.raises(UsageError, match=r"E111 .*c.yaml: 'alpha' stands at line 2 and at line 3"):
        config.load(tmp_path / "c.yaml")


def test_an_interrupt_is_polite(tmp_path):
    arguments = ["run", "fedavg", "--rounds", "5000", "--name", "long", "--clients", "5", "--model", "mlp"]
    process = subprocess.Popen(
        [sys.executable, "-m", "unskew", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # which a background job is born without
    )
    metrics = tmp_path / "runs/long/metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and '"t":3' in metrics.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 15  # at once on an idle machine
    assert process.returncode == 130
    assert re.search(
        r"Interrupted at round \d+, which is saved\. Continue with: unskew resume runs/long", out
    )
    assert "Traceback" not in err


def test_a_comparison_in_the_background_ends_when_told(tmp_path):
    """A shell's background jobs, and what they start, are born ignoring the interrupt that stops the
    cells."""
    settings = "--rounds 50000 --clients 5 --model mlp --seeds 1 --processes 1 --no-references --name long"
    process = subprocess.Popen(
        [sys.executable, "-m", "unskew", "compare", "fedavg", *settings.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    metrics = tmp_path / "runs/long/fedavg--s0/metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and '"t":3' in metrics.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 143


def test_explain_prints_codes_and_every_page_that_the_package_names(tmp_path):
    assert "does not exist or has a value of the wrong type" in call("explain", "E109", cwd=tmp_path).out
    for name, near in (("E1090", "no code 'E1090'"), ("docs/dat.md", "Did you mean 'docs/data.md'?")):
        refused = call("explain", name, cwd=tmp_path)
        assert (refused.code, refused.err[:4]) == (2, "E125")
        assert near in refused.err
    texts = [path.read_text() for path in Path(config.__file__).parent.rglob("*.py")]
    for page in {name for text in texts for name in re.findall(r"docs/[\w/-]+\.md", text)}:
        assert explain.text(page).startswith("# "), page


def test_explain_counts_for_a_table_of_the_users(tmp_path):
    done = call("explain", "flea", cwd=tmp_path)
    assert "Differs from the paper" in done.out
    disclosed = r"\(kind: features, samples behind a number: 1, read: each, guarantee: empirical\)"
    assert re.search(r"flea/features at most [\d.]+ KB a round " + disclosed, done.out)
    rows = [f"{'abc'[i % 3]},{i / 40},{'no' if i < 20 else 'yes'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["hospital,pressure,diagnosis", *rows]))
    own = call("explain", "unskew", "--data", "t.csv(site=hospital)", cwd=tmp_path).out
    assert "With t.csv(site=hospital) and its default model, 3 clients, in all:" in own
    assert "not possible with 'unskew': it exchanges messages beside training" in own


FROZEN = (
    "method data skew clients samples test_samples availability rounds epochs batch optimiser lr lr_decay lr_min"
    " lr_rounds first_epochs momentum weight_decay loss class_weights drop_last model weighting cap"
    " secure_aggregation normalise seed partition_seed eval_every validation patience keep_best track measure"
    " metrics lanes workers device precision set"
)


def test_the_settings_are_frozen():
    """A renamed or dropped setting breaks users' files: change this list only on purpose."""
    assert set(config.FIELDS) == {*FROZEN.split()}
    shown = call("run", "--help", "--all").out
    for name in {*FROZEN.split()} - {"method"}:
        assert f"--{name.replace('_', '-')} " in shown or f"│ {name} " in shown


def test_a_round_that_ends_between_two_reads_is_told_whole(tmp_path, monkeypatch):
    """The watcher reads two files that another process writes; here a round ends after the first was read."""
    run = tmp_path / "runs/r"
    run.mkdir(parents=True)
    event = {"t": 1, "code": "round", "asked": [0, 1, 2], "answered": [0, 2], "received": 2}
    score = {"t": 1, "scope": "global", "client": None, "metric": "accuracy", "value": 0.5}
    seconds = {"t": 1, "scope": "train", "client": None, "metric": "seconds", "value": 0.1}
    history, read = watch._History(run), Tail.read

    def then_the_round_ends(tail):
        rows = list(read(tail))
        with open(run / "events.jsonl", "a") as events, open(run / "metrics.jsonl", "a") as metrics:
            events.write(json.dumps(event) + "\n")
            metrics.writelines(json.dumps(row) + "\n" for row in (score, seconds))
        monkeypatch.setattr(Tail, "read", read)
        return iter(rows)

    monkeypatch.setattr(Tail, "read", then_the_round_ends)
    for _ in range(2):
        assert list(history.read()) == []
        assert all("2/3 answered" in history.line(t, 1) for t in history.complete)
    assert history.complete == {1}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "fedavg", "--model", "resnet"], "E104"),
        (["compare", "fedavg", "fedavg"], "E109"),
        (["compare", "fedavg", "flea", "--set", "track=tensorboard"], "E133"),
    ],
)
def test_nothing_is_loaded_or_shown_before_a_misspelling_is_told(tmp_path, arguments, code, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    done = call(*arguments, "--data", "fashion_mnist", cwd=tmp_path)
    assert (done.code, done.out, done.err[:4]) == (2, "", code)


def test_a_bad_file_is_named_and_its_sample_by_the_number_it_has_there(tmp_path):
    import numpy as np

    (tmp_path / "bad.npz").write_text("junk")
    done = call("run", "fedavg", "--data", "bad.npz", cwd=tmp_path)
    assert (done.code, done.err[:4]) == (2, "E401")
    assert "pickle" not in done.err
    x = np.zeros((10, 3), np.float32)
    x[7, 1] = np.nan
    np.savez(tmp_path / "n.npz", x=x, y=np.arange(10) % 2)
    assert "sample 7 holds nan at [1]" in call("run", "fedavg", "--data", "n.npz", cwd=tmp_path).err


@pytest.mark.parametrize(("given", "is_"), [(4, "4"), ("4", "4"), ("auto", "auto")])
def test_lanes_may_be_written_as_a_number(given, is_, tmp_path):
    """`lanes: 4`, as everybody writes it in YAML."""
    (tmp_path / "c.yaml").write_text(f"lanes: {given}\n")
    assert config.load(tmp_path / "c.yaml").lanes == config.build({"lanes": given}).lanes == is_
    with pytest.raises(UsageError, match="E109 lanes must be text; got True"):
        config.build({"lanes": True})
