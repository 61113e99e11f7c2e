"""The progress bar of a notebook, in a stand-in for its kernel, and in a real one where there is one."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import pytest

import unskew

TINY = {"clients": 4, "samples": 30, "rounds": 3, "epochs": 1, "model": "mlp", "workers": 1}
BAR = re.compile(r'<progress value="(\d+)" max="(\d+)"></progress> (.*)')


@pytest.fixture
def bars(monkeypatch):
    """What a notebook would show, in order, as (done, total, text); only with `bars` is there a kernel."""
    seen: list[tuple[int, int, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            done, total, text = BAR.fullmatch(bundle["text/html"]).groups()
            assert raw
            assert bundle["text/plain"]
            seen.append((int(done), int(total), text))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert display_id
        assert not seen  # one bar, which is updated
        Handle().update(bundle, raw)
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr("unskew.api.BAR_PAUSE_S", 0)
    return seen


@pytest.mark.parametrize("name", [None, "r"])
def test_a_run_shows_its_rounds_in_a_notebook(bars, tmp_path, name):
    """U2: in a notebook nothing showed that a run is alive."""
    result = unskew.run("fedavg", folder=tmp_path, name=name, **TINY)
    assert [(done, total) for done, total, _ in bars] == [(1, 3), (2, 3), (3, 3)]
    assert bars[-1][2] == f"round 3 of 3, global accuracy {result.scores()['last']:.1%}"


def test_a_resumed_run_goes_on_where_it_was(bars, tmp_path):
    def stop(state: object, summary: Any) -> None:
        if summary.t == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.run("fedavg", folder=tmp_path, name="r", shown=stop, **TINY)
    assert [b[0] for b in bars] == [1]
    bars.clear()
    unskew.resume(tmp_path / "r")
    assert [b[0] for b in bars] == [2, 3]


def test_a_comparison_shows_all_rounds_of_all_runs(bars, tmp_path):
    watched: list[int] = []
    unskew.compare(
        ["fedavg"], seeds=2, references=False, processes=1, folder=tmp_path, name="c",
        watch=lambda cells: watched.append(len(cells)), **TINY,
    )  # fmt: skip
    assert bars[-1] == (6, 6, "2 of 2 runs have ended")
    assert set(watched) == {2}


def test_no_bar_where_none_is_wanted_or_there_is_no_notebook(bars, monkeypatch, capsys):
    unskew.run("fedavg", progress=False, **TINY)
    # IPython is loaded, but nobody's kernel
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    unskew.run("fedavg", **TINY)
    monkeypatch.delitem(sys.modules, "IPython")
    unskew.run("fedavg", **TINY)
    assert not bars
    assert capsys.readouterr() == ("", "")


def test_other_updates_than_the_last_wait_for_the_notebook(bars, monkeypatch):
    monkeypatch.setattr("unskew.api.BAR_PAUSE_S", 3600)
    unskew.run("fedavg", **TINY)
    assert [b[0] for b in bars] in (
        [1, 3],
        [3],
    )  # a machine that has just started counts its first hour from 0


def test_the_bar_escapes_what_it_shows(bars):
    from unskew.api import ProgressBar

    ProgressBar(1).show(1, "<script>")
    assert bars == [(1, 1, "&lt;script&gt;")]


def test_in_a_real_kernel(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = f"import unskew\nunskew.run('fedavg', **{TINY!r})"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    bar, table = book.cells[0].outputs
    assert BAR.fullmatch(bar["data"]["text/html"]).groups()[:2] == ("3", "3")
    assert "global@client" in table["data"]["text/html"]
