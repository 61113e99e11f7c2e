"""Soft cross-entropy and scores against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

import unskew
from tests.fixtures import Y, Z, assert_close, onehot
from unskew.config import build
from unskew.errors import UsageError
from unskew.federation.protocol.study_rules import study_settings
from unskew.tasks.task import Classification, class_weights


def test_cross_entropy_and_its_gradient():
    z = Z.clone().requires_grad_()
    losses = Classification().loss(z, onehot(Y))
    assert_close(losses, [0.2413, 0.6803])
    losses.mean().backward()
    assert_close(z.grad, [[-0.1072, 0.0876, 0.0196], [0.0932, -0.2468, 0.1536]])


def test_a_masked_class_without_mass_costs_nothing():
    z = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = Classification().loss(z, torch.tensor([[0.5, 0.5, 0.0]]))
    loss.backward()
    assert_close(loss, [0.8133])
    assert torch.isfinite(z.grad).all()


def test_weights_of_classes_multiply_the_loss_as_in_torch():
    weights_C, y_B = torch.tensor([2.0, 0.5, 1.0]), torch.tensor([2, 0])
    z_BC = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.5, -0.2]])
    theirs = F.cross_entropy(z_BC, y_B, weight=weights_C, reduction="none")
    assert_close(Classification(weights_C).loss(z_BC, F.one_hot(y_B, 3).float()), theirs)


def test_balanced_weights_are_those_of_scikit_learn():
    y = np.array([0] * 6 + [1] * 3 + [2])
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=y)
    assert_close(class_weights("balanced", np.array([6, 3, 1])), theirs)
    assert_close(class_weights("balanced", np.array([6, 0, 2])), [8 / 12, 1, 8 / 4])


def weighted(tmp_path, name, weights, method="fedavg", **changes):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 30, 10])
    np.savez(tmp_path / "set.npz", x=rng.normal(size=(100, 4)).astype("f4"), y=y)
    settings = {"rounds": 2, "epochs": 1, "workers": 1, "clients": 4, "model": "mlp", "batch": 8}
    return unskew.run(
        method,
        str(tmp_path / "set.npz"),
        class_weights=weights,
        folder=tmp_path,
        name=name,
        **{**settings, **changes},
    )


def test_a_run_with_balanced_weights_is_the_run_with_these_numbers(tmp_path):
    by_name = weighted(tmp_path, "balanced", "balanced")
    counts = by_name.run.federation.label_counts.sum(0)
    by_number = weighted(tmp_path, "numbers", (counts.sum() / (3 * counts)).tolist())
    assert by_name.digest == by_number.digest != weighted(tmp_path, "none", "none").digest
    assert unskew.load(tmp_path / "balanced").digest == unskew.resume(tmp_path / "balanced").digest


@pytest.mark.parametrize(
    ("weights", "changes", "why"),
    [
        ([1, 2], {}, "E109 class_weights has 2 numbers, and there are 3 classes"),
        ("1,-2", {}, r"E109 class_weights should be none, balanced or a number of at least 0 .*, got '1,-2'"),
        ("0,0", {}, "E109 class_weights should be"),
        ("balanced", {"method": "bsm"}, "E108 'bsm' cannot run here: it presumes cross-entropy"),
        ("balanced", {"method": "dpsgd"}, "E108 'dpsgd' cannot run here: a balanced weight"),
        ("balanced", {"method": "dp(epsilon=4)"}, "E108 'dp' cannot run here: a balanced weight"),
        ("balanced", {"target": "y"}, "E109 class_weights weighs samples of one class each"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, changes, why):
    with pytest.raises(UsageError, match=why):
        weighted(tmp_path, "r", weights, **changes)


def test_sites_cannot_balance_by_counts_that_they_keep():
    with pytest.raises(UsageError, match=r"E506 class_weights=balanced needs .*\[1, 5\]"):
        study_settings(unskew.Settings(class_weights="balanced"))
    with pytest.raises(UsageError, match="E506 test_samples draws from one test set"):
        study_settings(unskew.Settings(test_samples=10))
    assert study_settings(build({"class_weights": [1, 5]})).class_weights == "1.0,5.0"


def test_scores():
    true, guess = np.array([0] * 10 + [1] * 10), np.array([0] * 8 + [1] * 2 + [0] * 5 + [1] * 5)
    scores = Classification().scores(guess, true, 3)  # nobody has class 2
    assert_close([*scores.values()], [0.65, (16 / 23 + 10 / 17) / 2, 0.5])
    assert [*scores] == ["accuracy", "macro_f1", "worst_class"]


def test_scores_of_many_classes_need_no_matrix_of_all_pairs():
    """100,000 names of classes in a file, for two that occur, asked for 75 GiB of memory."""
    true, guess = np.array([0] * 10 + [1] * 10), np.array([0] * 8 + [1] * 2 + [0] * 5 + [1] * 5)
    task = Classification()
    assert task.scores(guess, true, 2) == task.scores(guess, true, 1_000_000)
    assert task.scores(guess[:0], true[:0], 2) == {}


def test_a_mixed_target_costs_the_mixture():
    y = torch.tensor([[0.25, 0.0, 0.75], [0.0, 0.7, 0.3]])
    losses = Classification().loss(Z, y)
    assert_close(losses, [2.4913, 0.8303])
    assert_close(losses.mean(), 1.6608)
    assert_close(Classification().loss(Z, onehot(Y)).mean(), 0.4608)


def test_targets_keep_classes_nobody_holds():
    found = Classification().targets(Y, 4)
    assert found.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert found.dtype == torch.float32
    assert Classification().predictions(Z).tolist() == [0, 1]
