"""What a run measures: it changes nothing, resumes, is what the round did, or is refused."""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix

import unskew
from tests.samples import a_part_of
from unskew import data, measures
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.methods.shared.sample_images import decode
from unskew.runs import conformance
from unskew.runs.measures.diversity import weight_diversity

ALL = ",".join(n for n in measures.NAMES if n != "received")  # FLea sends activations, no inputs
SMALL = {
    "clients": 6,
    "rounds": 3,
    "epochs": 1,
    "batch": 16,
    "samples": 40,
    "skew": "classes:3",
    "model": "cnn_small",
    "workers": 1,
    "availability": "bernoulli:0.7",
}


def rows_of(record) -> list[dict]:
    return [r for r in record.rows["metrics"] if r["scope"] == "measure"]


def value(result, metric: str, t: int | None = None) -> float:
    found = {r["t"]: r["value"] for r in rows_of(result.record) if r["metric"] == metric}
    return found[t if t is not None else max(found)]


@pytest.fixture(scope="module")
def measured():
    return unskew.run("flea", measure=ALL, **SMALL)


def test_measuring_changes_no_weight(measured):
    plain = unskew.run("flea", **SMALL)
    assert plain.digest == measured.digest
    assert not rows_of(plain.record)
    others = [
        [r for r in x.record.rows["metrics"] if r["scope"] != "measure" and r["metric"] != "seconds"]
        for x in (plain, measured)
    ]
    assert others[0] == others[1]
    assert plain.record.rows["ledger"] == measured.record.rows["ledger"]


def test_every_measure_leaves_its_numbers_and_pictures(measured):
    found = {r["metric"] for r in rows_of(measured.record)}
    assert {f"separation_{a}_{b}" for a in ("train", "test") for b in ("local", "global")} <= found
    assert {
        "diversity",
        "correlation",
        "correlation_squared",
        "exposure",
        "cross_site",
        "sites_local",
        "sites_global",
    } <= found
    assert {"histogram_pool", "histogram_local", "histogram_mixed"} <= found
    assert set(measured.record.measures) == {
        "exposure",
        "histograms",
        "cross_site",
        "tsne",
        "confusion",
    }
    tsne = measured.record.measures["tsne"]["local"]
    assert len(tsne["xy"]) == len(tsne["client"]) == len(tsne["label"])
    json.dumps(measured.record.measures, allow_nan=False)


def test_confusion_is_that_of_the_models_predictions(measured):
    """Against scikit-learn, from what the result itself predicts."""
    federation, record = measured.federation, measured.record
    guess = measured.trained.outputs(data.read("digits").x_test).argmax(1).numpy()
    y, classes = np.asarray(federation.y_test), range(federation.n_classes)
    assert record.measures["confusion"]["all"] == confusion_matrix(y, guess, labels=classes).tolist()
    k = record.measures["confusion"]["names"].index("client-2")
    rows = federation.test[2]
    own = confusion_matrix(y[rows], guess[rows], labels=classes).tolist()
    assert record.measures["confusion"]["sites"][k] == own


def test_where_no_global_model_answers_confusion_is_not_measured():
    with pytest.raises(UsageError, match=r"E126 .*no global model answers"):
        unskew.run("fedbn", measure="confusion", **{**SMALL, "model": "cnn_small(batch_norm=True)"})


def test_a_stopped_run_resumes_to_the_same_measures(tmp_path, measured):
    class Stop(Exception):
        pass

    def stop(state, told):
        if told.t == 2:
            raise Stop

    again = {"folder": tmp_path, "name": "halted", "measure": ALL, **SMALL}
    with pytest.raises(Stop):
        unskew.run("flea", shown=stop, **again)
    assert not (tmp_path / "halted" / "measures.json").exists()
    resumed = unskew.run("flea", **{**again, "workers": 2})  # whose number changes no measure
    assert resumed.digest == measured.digest
    assert rows_of(resumed.record) == rows_of(measured.record)
    assert json.loads((tmp_path / "halted" / "measures.json").read_text()) == measured.record.measures
    assert unskew.resume(tmp_path / "halted").record.measures == measured.record.measures


def test_diversity_is_of_the_replies_that_count():
    made = conformance.loop_for(Method(), measure="diversity")
    state = made.begin()
    start = made.down(state, 1)
    replies = made.trainer.train(start, range(len(conformance.SIZES)), {})
    state, told = made.round(state, 1)
    made.evaluate(state, told)
    (row,) = rows_of(made.record)
    assert row["value"] == pytest.approx(
        weight_diversity([r.weights for r in replies], made.fed.shared), abs=1e-6
    )


@dataclass(frozen=True)
class Spy(Part):
    """Remembers the labels that one client's loss saw."""

    client: int = 0
    seen: list = field(default_factory=list, compare=False)
    name: ClassVar[str] = "spy"

    def loss(self, w, out, b, c):
        if int(c.id) == self.client:
            self.seen.append((c.t, b.y.detach().clone()))
        return 0.0


@pytest.mark.parametrize("text", ["flea", "naivemix(per_batch=True)"])
def test_the_mixed_histogram_is_of_the_labels_training_saw(text):
    spy = Spy()
    parts = registry.parse(text).parts
    made = conformance.train_run(Method(*parts, spy), scored=True, measure="histograms", lanes="1").loop
    saw = torch.cat([y for t, y in spy.seen if t == 3]).sum(0)
    shares = made.record.measures["histograms"]["mixed"][0]
    assert shares == pytest.approx((saw / saw.sum()).tolist(), abs=2e-4)
    assert made.record.measures["histograms"]["local"][0] == [0, 1, 0]


@pytest.fixture(scope="module")
def raw():
    return unskew.run("feddata", measure="received,exposure", **SMALL)


def test_raw_inputs_are_received_as_copies_and_averages_are_not(raw):
    assert value(raw, "received_nearness") == 0
    assert value(raw, "received_likeness") > 0.8
    assert value(raw, "received_likeness_of_real") > 0.8
    received = [r for r in rows_of(raw.record) if r["metric"].startswith("received")]
    assert {r["t"] for r in received} == {SMALL["rounds"]}
    mixed = unskew.run("fedmix", measure="received", **SMALL)
    assert value(mixed, "received_nearness") > 0.3
    alone = unskew.run("fedmix(group=1)", measure="received", **SMALL)
    assert value(alone, "received_nearness") == pytest.approx(0, abs=1e-6)


def test_the_picture_of_received_inputs_is_of_what_was_sent(raw):
    picture = raw.record.measures["received"]
    sheet, there = np.moveaxis(np.array(Image.open(io.BytesIO(base64.b64decode(picture["png"])))), -1, 0)
    side = 8
    assert sheet.shape == (len(picture["classes"]) * side, picture["columns"] * side)
    first = sheet[:side, :side].astype(float)
    assert (there[:side, :side] == 255).all()
    digits = data.read("digits")
    x, y = np.asarray(digits.x)[:, 0], np.asarray(digits.y)
    own = x[y == picture["classes"][0]]
    wanted = 255 * (own - x.min()) / (x.max() - x.min())
    assert np.abs(wanted - first).reshape(len(own), -1).max(1).min() < 3


def test_latents_are_received_decoded_with_their_labels_once_they_were_shared(few_attempts):
    made = conformance.loop_for(registry.parse("feddpms(alpha=2,width=8)"), measure="received", lanes="1")
    part, fed = made.trainer.method.parts[0], made.fed
    down = made.down(made.begin(), 1).down["feddpms"]
    before, _ = part.received(down, fed)
    assert len(before) == 0
    z, label, count = down["z"].clone(), down["label"].clone(), down["count"].clone()
    z[1, :3], label[1, :3], count[1] = torch.rand(3, 8), torch.tensor([2, 0, 1]), 3
    x, y = part.received({**down, "z": z, "label": label, "count": count}, fed)
    assert y.tolist() == [2, 0, 1]
    assert torch.equal(x, decode(down["decoder"], z[1, :3], fed.shape))
    whole = {
        **SMALL,
        "rounds": 3,
        "availability": "full",
        "set": {"feddpms": {"alpha": 5, "sigma": 0.1, "width": 8}},
    }
    assert value(unskew.run("feddpms", measure="received", **whole), "received_nearness") > 0


def test_exposure_is_who_was_sent_whose(raw):
    first = next(e for e in raw.record.rows["events"] if e["code"] == "round")
    assert value(raw, "exposure", 1) == pytest.approx(len(first["asked"]) / 6)
    few = unskew.run("flea", measure="exposure", **{**SMALL, "availability": "sample:0.5"})
    asked = {e["t"]: e["asked"] for e in few.record.rows["events"] if e["code"] == "round"}
    pairs = {(i, j) for t in (2, 3) for i in asked[t - 1] for j in asked[t]}
    assert value(few, "exposure", 1) == 0
    assert value(few, "exposure", 3) == pytest.approx(len(pairs) / 36, abs=1e-6)
    since = np.array(few.record.measures["exposure"]["since"])
    assert {tuple(p) for p in np.argwhere(since > 0).tolist()} == pairs


def test_cross_site_scores_are_the_local_models():
    """A client alone: its model after the last local training is the merged one, so both scopes agree."""
    found = unskew.run("fedavg", measure="cross_site", **{**SMALL, "clients": 2, "availability": "full"})
    score = found.record.measures["cross_site"]["score"]
    assert np.shape(score) == (2, 2)
    other = [score[0][1], score[1][0]]
    assert value(found, "cross_site") == pytest.approx(np.mean(other), abs=1e-6)
    own = unskew.run("local", measure="cross_site", **{**SMALL, "clients": 2, "availability": "full"})
    last = {
        r["client"]: r["value"]
        for r in own.record.rows["metrics"]
        if r["scope"] == "personal@client"
        and r["client"] is not None
        and r["metric"] == "accuracy"
        and r["t"] == 3
    }
    diagonal = [own.record.measures["cross_site"]["score"][k][k] for k in (0, 1)]
    assert diagonal == pytest.approx([last[0], last[1]], abs=1e-6)


@pytest.mark.parametrize("method", ["fedbn", "local", "fedprox", "fedrdn"])
def test_kept_weights_and_odd_clients_are_measured(method):
    more = {} if method == "fedrdn" else {"availability": "drop:0.6"}
    wanted = "separation,cross_site,tsne" + (",diversity" if method in ("fedbn", "fedprox") else "")
    made = conformance.train_run(registry.parse(method), scored=True, measure=wanted, **more).loop
    assert all(math.isfinite(r["value"]) for r in rows_of(made.record))


def test_an_empty_round_is_measured():
    flea = registry.parse("flea")
    made = conformance.train_run(flea, scored=True, until=1, measure=ALL, availability="drop:1").loop
    assert {r["metric"] for r in rows_of(made.record)} <= {"exposure", "separation_test_global"}


def test_sites_with_their_own_test_rows_are_seen_with_their_own_statistics():
    """Three sites' images differ by brightness alone; FedRDN's statistics undo it."""
    rng = np.random.default_rng(0)
    site, y = np.repeat([0, 1, 2], 60), np.tile([0, 1], 90)
    x = (rng.random((180, 1, 8, 8)) + y[:, None, None, None] + 5 * site[:, None, None, None]).astype(
        np.float32
    )
    given = data.arrays(x, y, columns={"site": site}, test=0.5)
    settings = {
        "measure": "separation,tsne,cross_site",
        "skew": "column:site",
        "rounds": 1,
        "epochs": 1,
        "workers": 1,
        "normalise": "none",
    }
    plain, rdn = (unskew.run(m, given, **settings) for m in ("fedavg", "fedrdn"))
    assert value(rdn, "sites_global") > 5 * value(plain, "sites_global")
    assert value(rdn, "separation_test_global") < 2
    assert [len(r) for r in rdn.record.measures["cross_site"]["score"]] == [3, 3, 3]
    assert rdn.record.measures["tsne"]["names"] == ["site-0", "site-1", "site-2"]


MEASURED = [n for n in registry.names() if n not in ("local", "fd", "adcol", "fedpcl")]
"""Those whose clients share weights that they have trained."""
SHORTER = {"fedgen": "fedgen(steps=2)", "fedgen_images": "fedgen_images(steps=2, batch_size=8, samples=8)"}


@pytest.mark.slow
@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize("name", a_part_of(MEASURED, 24, ("flea",)))
def test_every_method_can_be_measured(name):
    method, measures_ = registry.parse(SHORTER.get(name, name)), "separation,diversity,cross_site,tsne"
    made = conformance.train_run(method, scored=True, measure=measures_, rounds=2).loop
    found = {r["metric"] for r in rows_of(made.record)}
    assert {
        "separation_train_local",
        "separation_test_global",
        "diversity",
        "cross_site",
        "sites_local",
    } <= found


@pytest.mark.parametrize(
    ("method", "measure", "says"),
    [
        ("fedavg", "diversty", "unknown measure 'diversty'. Did you mean 'diversity'"),
        ("fedavg", "correlation", "'correlation' cannot be measured of fedavg here: it shares no features"),
        ("flea(alpha=0)", "correlation", "shares no features"),
        ("rebafl", "exposure", "no client is sent what another one shared"),
        ("ccvr", "exposure", "no client is sent what another one shared"),
        ("fedavg", "histograms", "sent no labelled pool"),
        ("local", "diversity", "share no trained weight"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_trains(method, measure, says):
    with pytest.raises(UsageError, match="E126") as error:
        unskew.run(method, measure=measure, **SMALL)
    assert says in str(error.value)


def test_too_many_clients_and_masks_are_refused():
    with pytest.raises(UsageError, match=r"E126.*at most 20 clients"):
        unskew.run("fedavg", measure="cross_site", **{**SMALL, "clients": 24, "samples": 20})
    x, y = np.zeros((12, 3, 16, 16), np.float32), np.zeros((12, 16, 16), np.int64)
    y[:, :8] = 1
    for measure in ("separation", "tsne"):
        with pytest.raises(UsageError, match=r"E126.*every pixel has a class"):
            unskew.run(
                "fedavg", (x, y, x, y), measure=measure, clients=2, skew="iid", rounds=1, model="unet(base=4)"
            )


def test_references_of_a_comparison_are_not_measured(tmp_path):
    from unskew.comparison.plan import Plan, plan_cells

    methods = ("flea", "local", "centralised")
    plan = plan_cells(tmp_path, Plan(methods, (0,), {**SMALL, "measure": "correlation"}))
    assert [c.settings.measure for c in plan] == ["correlation", "none", "none"]
