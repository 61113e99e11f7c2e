"""A run over the wire ends with the weights of the simulator, to the bit, for methods of every shape."""

from __future__ import annotations

import collections
import functools
import json

import pytest

import unskew
from tests.federation import fake
from tests.samples import a_part_of
from tests.tasks import test_multilabel, test_regression
from unskew.core.method import Method
from unskew.data.samples.dataset import Target
from unskew.errors import UsageError
from unskew.federation.coordinator import site_exchange
from unskew.federation.site import local_run
from unskew.federation.site.policy import Policy
from unskew.federation.site.study_review import check_settings
from unskew.methods import registry
from unskew.methods.fedamp import FedAMP
from unskew.records.checkpoints import digest
from unskew.round.randomness import SeededSource

SHORTER = {"fedgen": "fedgen(steps=3)", "fedgen_images": "fedgen_images(steps=2, batch_size=8, samples=8)"}


"""Methods whose server works long at its defaults, with arguments that prove the same."""


METHODS = [
    SHORTER.get(n, n) for n in registry.names() if n not in ("fedavg_ft", "feddpms")
]  # one needs server samples


METHODS += [
    "flea(fused=True)",
    "flea(fused=True)+fedbn",
    "feddpms(alpha=5, width=8)",
    "flea+scaffold+faug",
    "fedbabu(finetune_epochs=1)",
    "ccvr(mode=features)",
]


@functools.cache
def simulated(name: str, **changes) -> unskew.Result:
    settings = fake.small(name, **changes).as_dict()
    left = {n: v for n, v in settings.items() if n not in ("method", "data")}
    return unskew.run(name, fake.federation(), **left)


def received(record) -> list[dict]:
    """What went down, but for the scores of the sites, for which a simulation asks nobody."""
    return [r for r in record.rows["ledger"] if r["way"] == "down" and "scored" not in r["share"]]


def problems(loop) -> list[str]:
    return [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize(
    "name",
    a_part_of(
        METHODS, 16, ["fedavg", "scaffold", "flea", "fedrdn", "ccvr", *METHODS[-6:], "ditto", "dpsgd", "topk"]
    ),
)
def test_the_same_bits_as_the_simulator(tmp_path, name, monkeypatch):
    """With the noise of a guarantee drawn from the seed for once, which otherwise comes from the operating
    system."""
    for module in (site_exchange, local_run):
        monkeypatch.setattr(module, "SystemSource", lambda: SeededSource(fake.small("fedavg").seed))
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    loop, state, _ = fake.run(tmp_path / "run", channel, fake.small(name))
    assert digest(state.weights) == simulated(name).digest
    assert received(loop.record) == received(simulated(name).record)
    assert not problems(loop)


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.flower
@pytest.mark.parametrize("name", ["scaffold", "flea", "fedbn"])
def test_the_same_bits_through_flower(tmp_path, name):
    """Flower's own server app, client app and messages, without its processes."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    grid = fake.grid_of(fake.sites(tmp_path / "sites", fake.federation()))
    loop, state, _ = fake.run(tmp_path / "run", grid, fake.small(name), deadline_s=60)
    assert digest(state.weights) == simulated(name).digest
    assert not problems(loop)


@pytest.mark.usefixtures("few_attempts")
def test_epsilon_is_told_at_the_site_which_alone_knows_its_samples_by_class(tmp_path):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    said = []
    sites[1000].say = said.append
    fake.run(tmp_path / "run", fake.Direct(sites), fake.small("feddpms(alpha=5, width=8)"))
    told = "\n".join(said)
    assert " begins: feddpms(width=8, alpha=5), " in told
    assert "feddpms/z at most" in told
    assert "as published: one coordinate, one release" in told
    assert "infinite  against the coordinator" in told
    (kept,) = sites[1000].member.folder.rglob("leaves.txt")
    assert kept.read_text().partition("\n")[2].strip() in told
    account = json.loads((tmp_path / "run" / "privacy.json").read_text())["feddpms"]
    assert "sites do not tell" in account["release"]
    assert account["epsilons"] == []


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("fedavg", {"train": 3, "score": 1}),
        ("flea", {"train": 3, "visit": 2, "score": 1}),
        ("flea(fused=True)", {"train": 3, "score": 1}),
    ],
)
def test_a_round_is_one_exchange_where_the_mathematics_allow(tmp_path, name, asked):
    """Scores of a round come with the next one's training; the last round's by themselves."""
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small(name, rounds=3, eval_every=1))
    of_one = collections.Counter(kind for site, kind, _ in channel.asked if site == "s0")
    assert {kind: n for kind, n in of_one.items() if kind not in ("hello", "setup")} == asked
    alone = simulated(name, rounds=3, eval_every=1)
    assert loop.record.series("global@client", "mean") == alone.record.series("global@client", "mean")
    assert loop.record.series("global@client", "mean")[0] == [0, 1, 2, 3]


@pytest.mark.usefixtures("few_attempts")
def test_sites_that_do_not_train_in_a_round_are_asked_for_their_scores_alone(tmp_path):
    settings = {"rounds": 3, "eval_every": 1, "availability": "sample:0.4"}
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    loop, state, _ = fake.run(tmp_path / "run", channel, fake.small("scaffold", **settings))
    alone = simulated("scaffold", **settings)
    assert digest(state.weights) == alone.digest
    assert loop.record.series("global@client", "mean") == alone.record.series("global@client", "mean")
    scored = {(site, t) for site, kind, t in channel.asked if kind == "score"}
    trained = {(site, t) for site, kind, t in channel.asked if kind == "train"}
    assert not {(site, t + 1) for site, t in scored} & trained


@pytest.mark.usefixtures("few_attempts")
def test_resuming_ends_with_the_same_bits(tmp_path):
    class Stop(Exception):
        pass

    def shown(state, told):
        if told.t == 2:
            raise Stop

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    with pytest.raises(Stop):
        fake.run(tmp_path / "run", channel, fake.small("scaffold+fedbn"), shown=shown)
    assert not (tmp_path / "run" / "private").exists(), "the server holds nothing private"
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    _, state, _ = fake.run(tmp_path / "run", channel, fake.small("scaffold+fedbn"))
    assert digest(state.weights) == simulated("scaffold+fedbn").digest


@pytest.mark.usefixtures("few_attempts")
def test_a_server_that_goes_back_a_round_ends_with_the_same_bits(tmp_path):
    class Stop(Exception):
        pass

    def shown(state, told):
        if told.t == 2:
            raise Stop

    folder = tmp_path / "sites"
    with pytest.raises(Stop):
        fake.run(
            tmp_path / "run",
            fake.Direct(fake.sites(folder, fake.federation())),
            fake.small("scaffold"),
            shown=shown,
        )
    path = tmp_path / "run" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    _, state, said = fake.run(
        tmp_path / "run", fake.Direct(fake.sites(folder, fake.federation())), fake.small("scaffold")
    )
    assert any("E201" in s for s in said)
    assert digest(state.weights) == simulated("scaffold").digest


@pytest.mark.usefixtures("few_attempts")
def test_each_site_is_sent_its_own_with_the_simulators_bits_scores_and_bytes(tmp_path):
    """FedDyn keeps something at sites that trained; sites are scored by what they were sent whether they did
    or not."""
    method = "fedamp+feddyn+fedproto"
    settings = fake.small(method, availability="sample:0.6")
    loop, state, _ = fake.run(
        tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", fake.federation())), settings
    )
    left = {n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    alone = unskew.run(method, fake.federation(), **left)
    assert digest(state.weights) == alone.digest
    for scope in ("global", "global@client", "personal@client"):
        metric = "accuracy" if scope == "global" else "mean"
        assert loop.record.series(scope, metric) == alone.record.series(scope, metric)
    rows = received(loop.record)
    assert rows == received(alone.record)
    assert {r["share"]: r.get("hands_on", "") for r in rows} == {
        "w": "mixtures of the models of single clients, the most similar ones foremost",
        "fedproto": "",
    }


@pytest.mark.usefixtures("few_attempts")
def test_a_site_takes_part_only_where_its_operator_allows_it_to_be_handed_on():
    method = registry.parse("fedamp")
    with pytest.raises(
        UsageError, match=r"E520 .*send other sites mixtures of the models of single .*\(handing_on\)"
    ):
        check_settings(Policy(), method, 16, 3, False)
    check_settings(Policy(handing_on="allowed"), method, 16, 3, False)
    check_settings(Policy(), registry.parse("ditto"), 16, 3, False)
    silent = type(
        "Silent", (FedAMP,), {"hands_on": ""}
    )()  # a Part of somebody's own may not say what it hands on
    with pytest.raises(UsageError, match="send other sites what it makes for each of them"):
        check_settings(Policy(), Method(silent), 16, 3, False)


@pytest.mark.usefixtures("few_attempts")
def test_a_site_is_not_blamed_for_what_it_was_sent(tmp_path, monkeypatch):
    """All class scores of one site's model are higher by a thousand, which changes nothing of its
    training."""

    def dispatch(self, w, s, k, fed):
        bias = [n for n in w if n.endswith("bias")][-1]
        return {**w, bias: w[bias] + 1000.0 * (k == 2)}, s

    monkeypatch.setattr(FedAMP, "dispatch", dispatch)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small("fedamp", rounds=1))
    told = [row["text"] for row in loop.record.rows["events"] if row["code"] == "E318"]
    assert not told


@pytest.mark.flower
@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_the_same_bits_through_flower_of_tasks(tmp_path, task, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    whole, metrics = test_multilabel.five(), "none"
    if task == "regression":
        target = Target("dose", 1.0, 0.5, given=True)
        whole = test_regression.five(target)
        metrics = "r2,median_error"
        monkeypatch.setattr(fake, "data_of", lambda of, k: test_regression.site_data(of, k, target))
    settings = fake.small("fedavg", rounds=2, lr=0.01).replace(metrics=metrics)
    grid = fake.grid_of(fake.sites(tmp_path / "sites", whole))
    loop, state, _ = fake.run(tmp_path / "run", grid, settings, deadline_s=60)
    alone = unskew.run(
        "fedavg", whole, **{n: v for n, v in settings.as_dict().items() if n not in ("method", "data")}
    )
    assert digest(state.weights) == alone.digest
    for metric in ("mean", "auroc", "r2", "median_error"):
        expected = alone.record.series("global@client", metric)[1]
        assert loop.record.series("global@client", metric)[1] == pytest.approx(expected, rel=1e-5), metric
    assert not [e["text"] for e in loop.record.rows["events"] if e["code"] != "round"]
