"""Randomness has a key that depends on its purpose alone."""

from __future__ import annotations

import torch

from unskew.core.random_keys import digest, key


def test_keys_depend_on_purpose_alone():
    assert torch.equal(
        torch.rand(3, generator=key(1, 2, "batch")), torch.rand(3, generator=key(1, 2, "batch"))
    )
    assert (
        len({digest(1, 2, "a"), digest(1, 2, "b"), digest(12, "a"), digest("1", 2, "a"), digest(2, 1, "a")})
        == 5
    )
