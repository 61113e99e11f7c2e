"""Callbacks are told everything, change nothing, and may end a run, which then stays ended."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from unskew.errors import StateError, UsageError
from unskew.records import checkpoints
from unskew.report.analysis.runs import read_run

CCVR = "ccvr(mode='features', epochs=1)"
SETTINGS = {"epochs": 1, "workers": 1, "lanes": "1", "skew": "iid", "clients": 3, "model": "mlp", "lr": 0.002}
RNG = np.random.default_rng(0)
Y = np.arange(90) % 3
DATA = ((RNG.normal(size=(90, 5)) + Y[:, None]).astype(np.float32), Y)


def trained(*callbacks: unskew.Callback, **more: object) -> unskew.Result:
    return unskew.run("fedavg", DATA, callbacks=callbacks, **{"rounds": 3, **SETTINGS, **more})  # type: ignore[arg-type]


class Notes(unskew.Callback):
    """Writes down the order of its calls, and all that it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.rows: list[dict[str, object]] = []
        self.replies: list[unskew.Replied] = []

    def begun(self, run):
        self.calls.append(("begun", run.t))

    def round_begun(self, run, asked):
        self.calls.append(("round_begun", run.t))
        assert asked == tuple(range(len(run.clients)))

    def replied(self, run, replies):
        self.calls.append(("replied", run.t))
        self.replies += replies

    def merged(self, run):
        self.calls.append(("merged", run.t))

    def evaluated(self, run, rows):
        self.calls.append(("evaluated", run.t))
        self.rows += rows

    def ended(self, run, why):
        self.calls.append((f"ended: {why}", run.t))


class Meddler(unskew.Callback):
    """Tries to change everything within its reach."""

    def merged(self, run):
        for tensor in run.weights().values():
            tensor.zero_()
        run.settings.__dict__["lr"] = 9.0
        torch.manual_seed(0)
        torch.rand(3)
        torch.set_grad_enabled(False)

    def evaluated(self, run, rows):
        for row in rows:
            row["value"] = 1.0
        for values in run.series("global", run.main_score):
            values.clear()


class Failing(unskew.Callback):
    def evaluated(self, run, rows):
        if run.t == 2:
            raise ValueError("no room\nleft")


class Stopping(unskew.Callback):
    def evaluated(self, run, rows):
        return "enough" if run.t == 1 else None


@pytest.fixture(scope="module")
def plain() -> unskew.Result:
    return trained()


def test_every_hook_is_called_in_order_with_every_score(plain):
    notes = Notes()
    result = trained(notes)
    a_round = ["round_begun", "replied", "merged", "evaluated"]
    rounds = [(hook, t) for t in (1, 2, 3) for hook in a_round]
    assert notes.calls == [("begun", 0), ("evaluated", 0), *rounds, ("ended: done", 3)]
    assert notes.rows == result.record.rows["metrics"]
    assert {r.client for r in notes.replies} == {k for k, n in enumerate(result.federation.sizes) if n}
    assert all(
        r.used and r.loss > 0 and r.samples == result.federation.sizes[r.client] for r in notes.replies
    )


def test_a_callback_changes_no_bit(plain):
    meddled = trained(Meddler())
    assert meddled.digest == plain.digest
    assert [r["value"] for r in meddled.record.rows["metrics"] if r["metric"] != "seconds"] == [
        r["value"] for r in plain.record.rows["metrics"] if r["metric"] != "seconds"
    ]


def test_a_callback_that_fails_is_named_and_the_run_can_go_on(plain, tmp_path):
    notes = Notes()
    with pytest.raises(StateError, match=r"E127 .*Failing failed in 'evaluated' at round 2: .*no room"):
        trained(Failing(), notes, name="r", folder=tmp_path)
    assert notes.calls[-1][0].startswith("ended: StateError")
    with pytest.raises(UsageError, match=r"E109 callbacks take a list .*Failing"):
        trained(Failing)  # type: ignore[arg-type]
    again = trained(name="r", folder=tmp_path)
    assert again.digest == plain.digest


@pytest.mark.parametrize("method", [CCVR, "fedexp"])
def test_a_run_that_was_ended_has_a_last_round_and_stays_ended(tmp_path, method):
    """The last round does what last rounds do: trips, averages, and every client's own score."""
    ended = unskew.run(method, DATA, callbacks=[Stopping()], name="r", folder=tmp_path, rounds=9, **SETTINGS)  # type: ignore[arg-type]
    short = unskew.run(method, DATA, rounds=2, **SETTINGS)  # type: ignore[arg-type]
    assert ended.t == 2
    assert ended.digest == short.digest
    (event,) = [e for e in ended.record.rows["events"] if e["code"] == "E323"]
    assert event["text"] == "Stopping: enough; round 2 is the last."
    again = unskew.run(method, DATA, name="r", folder=tmp_path, rounds=9, **SETTINGS)  # type: ignore[arg-type]
    assert (again.t, again.digest) == (2, ended.digest)
    assert unskew.load(tmp_path / "r").t == 2
    assert read_run(tmp_path / "r").finished


def test_early_stopping_counts_rounds_without_a_better_score():
    class Said:
        main_score, t = "accuracy", 0
        values: list[float] = []

        def series(self, scope, metric):
            return list(range(len(self.values))), list(self.values)

    said, stop = Said(), unskew.EarlyStopping(2)
    reasons = []
    for said.t, value in enumerate([0.9, 0.5, 0.6, 0.6, 0.55]):  # round 0 is the untrained model
        said.values = [*said.values, value]
        reasons.append(stop.evaluated(said, []))  # type: ignore[arg-type]
    assert reasons == [None, None, None, None, "global accuracy has not risen above 0.6 since round 2"]
    assert unskew.EarlyStopping(2, least=0.2).evaluated(said, []) is not None  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="E109 patience"):
        unskew.EarlyStopping(0)


class Told:
    """A run as callbacks see it, with these series by scope and metric; `saved` holds what was kept."""

    def __init__(self, main_score: str, t: int, **series: list[tuple[int, float]]) -> None:
        self.main_score, self.t, self.saved = main_score, t, []
        self.known = {name.replace("_at_", "@"): values for name, values in series.items()}

    def series(self, scope, metric):
        pairs = self.known.get(f"{scope}:{metric}" if f"{scope}:{metric}" in self.known else scope, [])
        return [t for t, _ in pairs], [value for _, value in pairs]

    def save(self, name, facts):
        self.saved.append((name, facts["score"], facts["scope"], facts["metric"]))


def test_the_model_is_kept_when_its_score_is_the_best_of_all_trained_rounds():
    """Never that of round 0, one as good as an earlier one, or one of a round without a score."""

    def kept(t: int, *values: float) -> bool:
        run = Told("accuracy", t, **{"global": list(enumerate(values))})
        unskew.KeepBest().evaluated(run, [])  # type: ignore[arg-type]
        return bool(run.saved)

    assert not kept(0, 0.9)
    assert kept(1, 0.9, 0.5)
    assert not kept(2, 0.9, 0.5, 0.4)
    assert not kept(3, 0.9, 0.5, 0.4, 0.45)
    assert not kept(3, 0.9, 0.5, 0.4, 0.5)
    assert kept(2, 0.9, 0.5, 0.51)
    assert not kept(3, 0.9, 0.5, 0.51)


def test_patience_is_a_setting_that_ends_a_run_and_counts_as_one(tmp_path):
    still = trained(patience=1, lr=1e-9, rounds=9, name="r", folder=tmp_path)
    assert still.t == 3  # the best is round 1, round 2 is no better, and the one after is the last
    (event,) = [e for e in still.record.rows["events"] if e["code"] == "E323"]
    assert event["text"].startswith("EarlyStopping: global accuracy has not risen")
    settings = still.settings
    assert settings.replace(patience=0).fingerprint() != settings.fingerprint()
    assert settings.replace(keep_best=True).fingerprint() == settings.fingerprint()


def test_the_model_of_the_best_round_is_kept_beside_the_last(tmp_path, plain):
    ours = trained(keep_best=True, name="r", folder=tmp_path)
    assert ours.digest == plain.digest
    rounds, values = ours.record.series("global", "accuracy")
    best = max(range(1, len(values)), key=values.__getitem__)
    _, facts = checkpoints.read(Path(tmp_path / "r" / "best.safetensors"))
    assert (facts["t"], facts["score"]) == (rounds[best], values[best])
    again = unskew.load(tmp_path / "r", best=True)
    assert again.t == rounds[best]
    x, y = ours.federation.x_test, ours.federation.y_test
    assert (again.predict(x) == y).mean() == pytest.approx(values[best], abs=1e-6)
    assert json.loads(json.dumps(facts)) == facts
    (tmp_path / "r" / "best.safetensors").unlink()
    with pytest.raises(StateError, match=r"E155 .*has no best.safetensors"):
        unskew.load(tmp_path / "r", best=True)
    with pytest.raises(UsageError, match="E109 keep_best writes a file"):
        trained(keep_best=True)


class Mute(unskew.Callback):
    pass


class Answering(unskew.Callback):
    def __init__(self, answer: object):
        self.answer = answer

    def evaluated(self, run, rows):
        return self.answer


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (unskew.EarlyStopping(3), "E109 callbacks take a list of unskew.Callback objects.*EarlyStopping"),
        (None, "E109 callbacks take a list.*None"),
        (["early"], "E109 callbacks take a list.*'early'"),
        (
            [Mute()],
            (
                "E109 the callback Mute overrides none of begun, round_begun, replied, merged, evaluated,"
                " ended, so"
            ),
        ),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused(given, says):
    with pytest.raises(UsageError, match=says):
        unskew.run("fedavg", DATA, callbacks=given, rounds=1, **SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [0.5, np.ones(2)])
def test_an_answer_that_is_no_sentence_ends_no_run_unnoticed(answer):
    """A score that was handed back, as other libraries have it, ended the run after the next round."""
    with pytest.raises(StateError, match=r"E127 .*Answering failed in 'evaluated' at .* it returned"):
        trained(Answering(answer))


@pytest.mark.parametrize(
    ("change", "undo", "now"),
    [
        (torch.set_default_dtype, torch.float32, torch.float64),
        (torch.set_default_device, None, torch.device("meta")),
    ],
)
def test_no_call_depends_on_the_global_state_of_torch_or_changes_it(plain, tmp_path, change, undo, now):
    change(now)
    try:
        before = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        result = trained(name="r", folder=tmp_path)
        loaded = unskew.load(tmp_path / "r")
        guess = loaded.predict(np.zeros((2, 5), np.float32))
        loaded.export(tmp_path / "graph")
        unskew.diagnose(DATA, skew="iid", clients=3)
        assert now in (torch.get_default_dtype(), torch.get_default_device())
        assert before == (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        )
    finally:
        change(undo)
    assert result.digest == loaded.digest == plain.digest
    assert np.array_equal(guess, plain.predict(np.zeros((2, 5), np.float32)))


@pytest.mark.parametrize("name", ["state.safetensors", "../o.safetensors", "mine.txt"])
def test_a_callback_writes_over_no_file_of_the_run(name, tmp_path):
    class Saving(unskew.Callback):
        def merged(self, run):
            run.save(name, {})

    with pytest.raises(UsageError, match="E109 save: "):
        trained(Saving(), name="r", folder=tmp_path)


@pytest.mark.parametrize(("main", "values"), [("rmse", [0.3, 0.2, 0.1]), ("accuracy", [0.3, 0.4, 0.5])])
def test_a_score_that_was_no_number_at_first_is_better_than_by_nothing_but_it(main, values):
    """NaN in round 1 was the best for good: patience ended runs that got better, and no model was kept."""
    curve = [(0, float("nan")), (1, float("nan")), *enumerate(values, 2)]
    kept = []
    for k in range(1, len(curve) + 1):
        run = Told(main, k - 1, **{"global": curve[:k]})
        assert unskew.EarlyStopping(2).evaluated(run, []) is None  # type: ignore[arg-type]
        unskew.KeepBest().evaluated(run, [])  # type: ignore[arg-type]
        kept += [score for _, score, _, _ in run.saved]
    assert kept == values
    lost = Told(main, 3, **{"global": [(t, float("nan")) for t in range(4)]})
    said = unskew.EarlyStopping(2).evaluated(lost, [])  # type: ignore[arg-type]
    assert said == f"global {main} has been no finite number since round 1"
