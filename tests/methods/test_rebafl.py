"""R-BSM and F-Aug against hand-worked numbers (methods of arXiv 2303.06314), and their limits."""

from __future__ import annotations

import pytest
import torch

from tests.fixtures import COUNTS, Y, Z, assert_close, batch, client, onehot, out
from unskew.core.replies import Reply, Ups
from unskew.methods.rebafl import ReBaFL
from unskew.tasks.task import Classification


def losses(part: ReBaFL, z=Z, y=Y):
    return Classification().loss(part.logits(z, batch(), client()), onehot(y))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (ReBaFL(eps=0.01), [0.0726, 0.7429]),
        (ReBaFL(eps=0.0), [0.0717, 0.7437]),  # balanced softmax
        (ReBaFL(eps=1.0), [0.2413, 0.6803]),  # cross-entropy
    ],
)
def test_relaxed_balanced_softmax(part, expected):
    assert_close(losses(part), expected)


def test_prior_in_both_forms():
    assert_close(losses(ReBaFL(eps=0.1)).mean(), 0.4081)
    assert_close(losses(ReBaFL(eps=0.01, form="additive")).mean(), 0.40774, 5)
    assert_close(losses(ReBaFL(eps=0.01)).mean(), 0.40771, 5)
    assert_close(ReBaFL(eps=0.01)._smooth(COUNTS / 40), [0.7458, 0.2508, 0.0033])
    assert_close(ReBaFL(eps=0.01, form="additive")._smooth(COUNTS / 40), [0.7379, 0.2524, 0.0097])


def test_gradient_on_a_missing_class():
    for eps, expected in ((0.01, [0.0001, 0.0019]), (0.0, [0.0, 0.0]), (1.0, [0.0196, 0.1536])):
        z = Z.clone().requires_grad_()
        losses(ReBaFL(eps=eps), z).mean().backward()
        assert_close(z.grad[:, 2], expected)


TABLE = torch.tensor([[0.0, 0], [1, 1], [2, -1]])
H = torch.tensor([[0.5, 0.5], [2, 1], [1, 0], [0.2, -0.3]])
LABELS = [0, 1, 1, 0]


def test_augmentation_moves_the_batch_to_every_known_class_in_turn():
    moved, label = ReBaFL().augment(H, onehot(LABELS), TABLE, torch.ones(3))
    assert_close(moved, [[0.5, 0.5], [2, 1], [2, -2], [0.2, -0.3]])
    assert label.tolist() == [0, 1, 2, 0]
    _, label = ReBaFL().augment(H, onehot(LABELS), TABLE, torch.tensor([1.0, 0, 1]))
    assert label.tolist() == [0, 2, 0, 2]


def augmented_loss(use: float, aug_grad: bool = False):
    W = torch.tensor([[1.0, 0], [0, 1], [-1, -1]])
    h = H.clone().requires_grad_()
    c = client(
        round={"prototypes": TABLE, "known": torch.ones(3), "use": torch.tensor(use)},
        head=lambda w, h: h @ W.T,
    )
    b = batch(torch.zeros(4, 1), onehot(LABELS))
    return ReBaFL(eps=0.01, mu=1.0, aug_grad=aug_grad).loss({}, out(h, features=h), b, c), h


def test_augmented_loss():
    assert_close(augmented_loss(1.0)[0], 1.4164)
    assert_close(augmented_loss(0.0)[0], 0.0)


def test_augmented_loss_trains_the_head_only_unless_asked():
    loss, h = augmented_loss(1.0)
    assert not loss.requires_grad
    loss, h = augmented_loss(1.0, aug_grad=True)
    loss.backward()
    assert h.grad.abs().sum() > 0


def test_server_weighs_prototypes_by_class_counts_and_forgets_unless_told():
    def reply(k, sums, counts):
        return Reply(k, 1.0, {}, {"rebafl": {"sums": torch.tensor(sums), "counts": torch.tensor(counts)}})

    ups = Ups.of(
        [reply(1, [[30.0, 0], [0, 0]], [30.0, 0]), reply(0, [[30.0, 40], [0, 0]], [10.0, 0])]
    ).seen_by("rebafl")
    old = {"prototypes": torch.tensor([[9.0, 9], [7, 7]]), "known": torch.ones(2)}
    fresh = ReBaFL().server(old, ups, None)
    assert_close(fresh["prototypes"], [[1.5, 1], [0, 0]])
    assert fresh["known"].tolist() == [1, 0]
    kept = ReBaFL(keep_stale=True).server(old, ups, None)
    assert_close(kept["prototypes"], [[1.5, 1], [7, 7]])
    assert kept["known"].tolist() == [1, 1]


def test_without_augmentation_nothing_is_shared():
    assert ReBaFL(mu=0.0).shares(None) == {}
