"""After a run over a network a site has its own model in its own folder, the one that the simulator has of
that client."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from tests.federation import fake
from unskew.data.samples.intake import Intake
from unskew.errors import StateError, UnskewError, UsageError
from unskew.federation.protocol.hello import Hello, check_compatible
from unskew.federation.site.run_folder import RunFiles
from unskew.federation.site.site_model import _ledger_row, _scores

SITE = 2
"""With 33 samples of all classes."""


@functools.cache
def simulated(name: str) -> unskew.Result:
    settings = fake.small(name).as_dict()
    return unskew.run(
        name, fake.federation(), **{n: v for n, v in settings.items() if n not in ("method", "data")}
    )


def trained(folder: Path, name: str, **changes) -> Path:
    """The folder of the run at a site, once the run is over."""
    sites = fake.sites(folder / "sites", fake.federation())
    for site in sites.values():
        data = replace(site.load(), **changes)
        site.load = lambda data=data: data
    fake.run(folder / "run", fake.Direct(sites), fake.small(name))
    (run,) = (folder / f"sites/s{SITE}/runs").iterdir()
    return run


@pytest.fixture(scope="module")
def of_fedbn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("fedbn"), "fedbn")


@pytest.mark.parametrize("name", ["fedbn", "fedper", "fedrdn", "unskew", "ditto", "local", "apfl"])
def test_a_sites_own_model_is_the_simulators_to_the_bit(tmp_path, name):
    own, x = unskew.load(trained(tmp_path, name)), fake.federation().x_test
    assert (own.t, own.own.site, own.own.client) == (fake.small(name).rounds, "s2", SITE)
    assert np.array_equal(own.predict_proba(x), simulated(name).predict_proba(x, client=SITE))
    assert repr(own).startswith("<s2's own model after round 3 of 3")
    with pytest.raises(UsageError, match=r"E131 .* holds the model of s2 alone"):
        own.predict(x, client="s1")


def test_where_no_site_has_a_model_of_its_own_it_is_the_global_one(tmp_path):
    own, x = unskew.load(trained(tmp_path, "fedavg")), fake.federation().x_test
    assert (own.own.client, own.own.kept) == (None, 0)
    assert np.array_equal(own.predict_proba(x), simulated("fedavg").predict_proba(x))
    assert "the model that s2 was sent" in repr(own)


def test_a_site_without_test_samples_has_what_its_last_training_began_with(tmp_path):
    federation = fake.federation()
    nothing = {"x_test": federation.x_test[:0], "y_test": federation.y_test[:0]}
    own = unskew.load(trained(tmp_path, "fedbn", **nothing))
    assert (own.t, own.own.kept) == (2, 2)
    assert "model after round 2 of 3, with what it kept after round 2" in repr(own)
    assert np.array_equal(own.predict_proba(federation.x_test), after(2, "fedbn"))


def after(rounds: int, name: str) -> np.ndarray:
    """What the simulator's client answers after fewer rounds."""
    settings = {n: v for n, v in fake.small(name).as_dict().items() if n not in ("method", "data", "rounds")}
    federation = fake.federation()
    return unskew.run(name, federation, rounds=rounds, **settings).predict_proba(
        federation.x_test, client=SITE
    )


class Stop(Exception):
    pass


@pytest.mark.parametrize(("last", "t"), [(1, None), (2, 1)])
def test_a_site_that_is_cut_off_has_what_its_last_training_began_with(tmp_path, last, t):
    """It had what it scored last, or nothing where scores were asked for at the end alone."""

    def shown(_, told):
        if told.t == last:
            raise Stop

    sites = fake.sites(tmp_path / "sites", fake.federation())
    with pytest.raises(Stop):
        fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedbn", eval_every=3), shown=shown)
    (run,) = (tmp_path / f"sites/s{SITE}/runs").iterdir()
    if t is None:
        with pytest.raises(
            StateError, match=r"E155 .* holds no model that came after training: the first comes as round 2"
        ):
            unskew.load(run)
        return
    own = unskew.load(run)
    assert (own.t, own.own.kept) == (t, t)
    assert np.array_equal(own.predict_proba(fake.federation().x_test), after(t, "fedbn"))


def own_data(folder: Path) -> unskew.Dataset:
    """What the site took part with."""
    return fake.sites(folder, fake.federation())[1000 - SITE].load()


@pytest.mark.parametrize("name", ["ifca", "knn_per", "fedbabu(finetune_epochs=2)"])
def test_a_model_that_is_made_with_the_sites_samples_is_given_them(tmp_path, name):
    """It could not be used at all after a run over a network."""
    run, x = trained(tmp_path, name), fake.federation().x_test
    with pytest.raises(
        UsageError, match=r"E131 this method makes a client's own model with its samples, .* give them at a"
    ):
        unskew.load(run).predict(x)
    own = unskew.load(run, data=own_data(tmp_path / "again"))
    assert np.array_equal(own.predict_proba(x), simulated(name).predict_proba(x, client=SITE))


def test_the_command_takes_the_sites_data(tmp_path, of_fedbn):
    run, mine = trained(tmp_path, "ifca"), own_data(tmp_path / "again")
    np.savez(
        tmp_path / "mine.npz",
        x_train=mine.x,
        y_train=mine.y,
        x_test=mine.x_test,
        y_test=mine.y_test,
        classes=mine.classes,
    )
    np.savez(tmp_path / "new.npz", x=fake.federation().x_test)
    done = call("predict", str(run), str(tmp_path / "new.npz"), "--data", str(tmp_path / "mine.npz"))
    assert done.code == 0, done.err
    own = unskew.load(run, data=mine)
    says = [line.split(",")[1] for line in done.out.splitlines()[1:]]
    assert says == [str(c) for c in own.predict(fake.federation().x_test)]
    exported = call("export", str(run), str(tmp_path / "out"), "--data", str(tmp_path / "mine.npz"))
    assert exported.code == 0, exported.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            lambda d: {"x": d.x[1:], "y": d.y[1:]},
            r"E131 .* holds 32 training samples of .*; s2 trained on 33 of",
        ),
        (lambda d: {"y": np.roll(d.y, 1) * 0 + d.y[0]}, r"E131 .* holds 33 training samples .*by class"),
        (lambda d: {"classes": tuple(reversed(d.classes))}, r"E131 .* holds 33 training samples"),
    ],
)
def test_other_data_than_the_sites_are_refused(tmp_path, of_fedbn, changes, says):
    mine = own_data(tmp_path / "again")
    with pytest.raises(UsageError, match=says):
        unskew.load(of_fedbn, data=replace(mine, **changes(mine)))


def test_data_are_for_a_sites_folder(tmp_path, of_fedbn):
    with pytest.raises(UsageError, match=r"E109 classes name those of the site's data; give data too"):
        unskew.load(of_fedbn, classes=["a", "b"])
    with pytest.raises(UsageError, match=r"E109 .* is no run at a site \(SITE/runs/NUMBER\)"):
        unskew.load(tmp_path, data=own_data(tmp_path / "again"))


def test_samples_are_scaled_as_those_of_the_site_were(tmp_path):
    mean, std = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)
    own, x = unskew.load(trained(tmp_path, "fedbn", mean=mean, std=std)), fake.federation().x_test
    given = ((x - np.array(mean, "f4")[:, None, None]) / np.array(std, "f4")[:, None, None]).astype("f4")
    natural = own.predict_proba(x)
    bare = replace(own.federation, applied=None)
    own.trained = replace(own.trained, run=replace(own.trained.run, federation=bare))
    assert np.allclose(natural, own.predict_proba(given), atol=1e-6)


def test_it_is_exported_with_its_scores_and_what_has_left(tmp_path, of_fedbn):
    done = call("export", str(of_fedbn), str(tmp_path / "out"), "--format", "torch-export")
    assert done.code == 0, done.err
    assert "s2's own model after round 3 of 3, with what it kept after round 3" in done.err
    facts = json.loads((tmp_path / "out/model.json").read_text())
    assert (facts["client"], facts["round"]) == ("s2", 3)
    card = (tmp_path / "out/model.md").read_text()
    scores = simulated("fedbn").record
    rows = [
        r for r in scores.rows["metrics"] if r["t"] == 3 and r["client"] == SITE and r["metric"] == "accuracy"
    ]
    assert f"| personal@client | accuracy | {rows[-1]['value']:.4f} |" in card
    assert "| weights | weights | leaves.txt |" in card
    assert "33 for training, 12 for the scores below" in card
    np.savez(tmp_path / "new.npz", x=fake.federation().x_test)
    said = call("predict", str(of_fedbn), str(tmp_path / "new.npz"))
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 61


def test_scores_are_those_of_the_models_own_round():
    rows = [
        {"t": 2, "share": "score/global", "values": [0.1, 0.2]},
        {"t": 3, "share": "weights", "bytes": 9},
        {"t": 3, "share": "score/kept", "values": [0.7, 0.5]},
        {"t": 3, "share": "score/kept.f1", "values": [0.6]},
    ]
    at = {
        t: {(r["scope"], r["metric"]): r["value"] for r in _scores(rows, ["accuracy", "loss"], t)}
        for t in (2, 3)
    }
    assert at[2] == {("global@client", "accuracy"): 0.1, ("global@client", "loss"): 0.2}
    own = "personal@client"
    assert at[3] == {(own, "accuracy"): 0.7, (own, "loss"): 0.5, (own, "f1"): 0.6}


def test_what_has_left_is_called_as_in_a_runs_ledger():
    spent = SimpleNamespace(kinds={"weights": "weights", "flea/features": "activations"})
    rows = [{"t": 1, "share": share, "bytes": 5} for share in ("weights", "flea/features", "score/global")]
    assert [(r["share"], r["kind"]) for r in (_ledger_row(row, spent, 2) for row in rows)] == [
        ("w", "weights"), ("flea/features", "activations"), ("score/global", "statistics"),
    ]  # fmt: skip


def test_the_site_says_where_its_model_is(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    said: list[str] = []
    sites[1000 - SITE].say = said.append
    fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg"))
    (run,) = (tmp_path / f"sites/s{SITE}/runs").iterdir()
    assert [text for text in said if "unskew predict" in text] == [
        f"after round 3: the model is here, too: unskew predict {run} INPUT, unskew export {run} OUT"
    ]


def altered(run: Path, folder: Path, name: str, content: bytes | None) -> Path:
    """A copy of the run in a site's folder, of which one file has another content, or is gone."""
    copied = Path(shutil.copytree(run.parent.parent, folder / "site")) / "runs" / run.name
    file = copied / name
    file.unlink() if content is None else file.write_bytes(content)
    return copied


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("received.safetensors", None, r"E155 .* holds no model that came after training"),
        ("received.safetensors", b"x" * 99, r"E201 received\.safetensors"),
        ("setup.safetensors", b"", r"E201 setup\.safetensors"),
        ("private-3.safetensors", b"\0" * 99, r"E201 private-3\.safetensors"),
        ("private-3.safetensors", None, r"E201 the private state after round 3 is not in"),
    ],
)
def test_a_damaged_folder_is_one_sentence(tmp_path, of_fedbn, name, content, says):
    with pytest.raises(StateError, match=says):
        unskew.load(altered(of_fedbn, tmp_path, name, content)).predict(fake.federation().x_test)


def test_options_of_finished_runs_are_refused(of_fedbn):
    for option in ("best", "unfinished"):
        with pytest.raises(UsageError, match=r"E109 .*leave out unfinished and best"):
            unskew.load(of_fedbn, **{option: True})


def test_a_ledger_that_cannot_be_read_leaves_the_model(tmp_path, of_fedbn):
    for content in (b'{"t": 3}\n', b"[]\n", b"\xff\n", b'{"t":3,"share":"w","bytes":"many"}\n'):
        run = altered(of_fedbn, tmp_path / str(len(content)), "ledger.jsonl", content)
        assert unskew.load(run).own.record.rows["metrics"] == []


def test_cleaning_removes_it(of_fedbn):
    assert of_fedbn / "received.safetensors" in RunFiles.of(of_fedbn).files


MEAN, STD = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)


def test_the_coordinator_scales_what_it_predicts_as_sites_scaled_a_set_that_everybody_has(tmp_path):
    """Its model took samples as they were given, and answered as if they were standardised."""
    trained(tmp_path, "fedavg", mean=MEAN, std=STD)
    run, x = unskew.load(tmp_path / "run"), fake.federation().x_test
    assert run.federation.applied == (MEAN, STD)
    (site,) = (tmp_path / f"sites/s{SITE}/runs").iterdir()
    assert np.array_equal(run.predict_proba(x), unskew.load(site).predict_proba(x))


def test_the_coordinator_predicts_nothing_where_sites_scaled_by_constants_of_their_own(tmp_path):
    trained(tmp_path, "fedavg", mean=MEAN, std=STD, intake=Intake("float32"))
    run, x = unskew.load(tmp_path / "run"), fake.federation().x_test
    with pytest.raises(UsageError, match="E131 sites standardised their samples by constants of their own"):
        run.predict(x)
    with pytest.raises(UsageError, match="E131 sites standardised"):
        run.export(tmp_path / "out")
    (site,) = (tmp_path / f"sites/s{SITE}/runs").iterdir()
    assert unskew.load(site).federation.applied == (MEAN, STD)


def test_standardising_by_a_set_that_has_no_constants_is_refused(tmp_path):
    """It was left out without a word."""
    sites = fake.sites(tmp_path / "sites", fake.federation())
    with pytest.raises(
        UnskewError, match=r"the study sets normalise=dataset, and a site's own samples have no constants"
    ):
        fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg").replace(normalise="dataset"))


SAID = {
    "site": "s0",
    "train": 3,
    "test": 1,
    "shape": [3, 8, 8],
    "classes": ["a", "b"],
    "pixels": [],
    "versions": {},
}


@pytest.mark.parametrize(
    "scale", [[0.5, 0.1], [0, 0, 0, 1, 1, 1, 7], [0, 0, 0, 1, 0, 1], [0, 0, 0, 1, 1, float("nan")], ["x"]]
)
def test_a_site_says_one_mean_and_deviation_for_each_channel(scale):
    with pytest.raises(ValueError):
        Hello.read({**SAID, "scale": scale})
    said = Hello.read({**SAID, "scale": [0.0, 0, 0, 1, 1, 1]})
    assert Hello.read(json.loads(json.dumps(said.as_json()))) == said
    other = replace(said, site="s1", scale=(0.0, 0.0, 0.5, 1.0, 1.0, 1.0))
    with pytest.raises(
        UsageError, match="E504 sites hold different data: the constants of standardising are"
    ):
        check_compatible([said, other])
