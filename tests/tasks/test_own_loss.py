"""A user's own loss, as a function or from a file, in place of the task's."""

from __future__ import annotations

import pytest
import torch

import unskew
from unskew.attacks import target_run
from unskew.errors import UnskewError
from unskew.federation.protocol.study_rules import study_settings
from unskew.runs.reopen import UserCode
from unskew.tasks.task import Classification, MultiLabel, Regression, Segmentation, TokenLabels

SMALL = {"data": "digits", "model": "mlp", "clients": 4, "samples": 40, "rounds": 3, "epochs": 1}
CODE = "def ce(z, y):\n    return -(y * z.log_softmax(-1)).sum(-1)\n"


def ce(z, y):
    return -(y * z.log_softmax(-1)).sum(-1)


def absolute(z, u):
    return (z - u).abs().sum(-1)


def train(method="fedavg", **options):
    return unskew.run(method, progress=False, **{**SMALL, **options})


def same_weights(one, other):
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


@pytest.mark.parametrize("method", ["fedprox", "ditto", "flea"])
def test_the_task_s_own_loss_as_a_function_gives_the_same_bits(method):
    for lanes in ("1", "4"):
        options = {"model": "cnn_small" if method == "flea" else "mlp", "lanes": lanes, "rounds": 2}
        assert same_weights(train(method, **options), train(method, loss=ce, **options))


def test_another_loss_trains_another_model_with_the_same_scores_of_the_task():
    run = train(loss=focal)
    assert not same_weights(run, train())
    assert 0 < run.scores()["last"] < 1


def focal(z, y):
    log_p = z.log_softmax(-1)
    return -(y * (1 - log_p.exp()).square() * log_p).sum(-1)


def test_a_loss_of_numbers_compares_them_in_units_of_the_scale():
    kwargs = {"data": "diabetes", "model": "auto"}
    assert same_weights(train(loss=absolute, **kwargs), train(loss="mae", **kwargs))


def test_a_loss_from_a_file_is_kept_with_the_run_and_resumed(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CODE)
    text = f"{file}:ce"
    short = train(loss=text, name="a", folder=tmp_path, rounds=2)
    assert same_weights(short, train(rounds=2))
    with pytest.raises(UnskewError, match=r"E506 .*own\.py is named in a document"):
        unskew.resume(tmp_path / "a", rounds=3)
    assert same_weights(unskew.resume(tmp_path / "a", rounds=3, loss=text, progress=False), train())
    file.write_text(CODE.replace("-(y", "-(2 * y"))
    with pytest.raises(UnskewError, match="E112"):
        unskew.resume(tmp_path / "a", rounds=4, loss=text)


def mean_of_all(z, y):
    return ce(z, y).mean()


def missing_name(z, y):
    return z.gone


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"loss": "cee"}, "E109 unknown loss 'cee'. Did you mean 'ce'"),
        ({"loss": mean_of_all}, r"E127 the loss 'mean_of_all' returned \[\]; .* one number a sample"),
        ({"loss": missing_name}, "E127 the loss 'missing_name' failed with AttributeError"),
        ({"loss": lambda z, y: z}, "E126"),
        ({"loss": ce, "class_weights": [1] * 10}, "E109 class_weights weighs the usual loss"),
        ({"loss": ce, "method": "rebafl"}, "E108 'rebafl' cannot run here: it presumes cross-entropy"),
    ],
)
def test_what_cannot_be_a_loss_is_refused_in_one_sentence(options, fault):
    with pytest.raises(UnskewError, match=fault):
        train(**options)


@pytest.mark.parametrize(
    "kind", [Classification, MultiLabel, Regression, Segmentation, TokenLabels], ids=lambda kind: kind.name
)
def test_every_task_minimises_the_function_in_its_place(kind):
    task = kind(own_loss=lambda z, y: (z + y).flatten(1).sum(1))
    assert task.loss(torch.ones(2, 3), torch.ones(2, 3)).tolist() == [6, 6]


def test_an_attack_takes_the_loss_from_its_caller_and_not_from_the_folder(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CODE)
    text = f"{file}:ce"
    train(loss=text, name="a", folder=tmp_path, rounds=1)
    settings = target_run.settings_of(tmp_path / "a")
    with pytest.raises(UnskewError, match=r"E156 the loss of .* name yours: --loss"):
        target_run.open_run(tmp_path / "a", settings, UserCode())
    assert target_run.open_run(tmp_path / "a", settings, UserCode(loss=text)).run.task.own_loss
    file.write_text(CODE.replace("-(y", "-(2 * y"))
    with pytest.raises(UnskewError, match="E112"):
        target_run.open_run(tmp_path / "a", settings, UserCode(loss=text))


def test_no_site_loads_a_loss_that_a_study_names(tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    with pytest.raises(UnskewError, match=r"E506 the loss .* is a function of your own"):
        study_settings(unskew.Settings(loss=f"{tmp_path}/own.py:ce"))
