"""What a hook finds in place of class counts that no noise covers: whatever it does with them ends in one
sentence."""

import warnings

import numpy as np
import pytest
import torch

from unskew.errors import UsageError
from unskew.round.lanes import hidden_counts

WAYS = {
    "torch's functions": lambda h: torch.stack([torch.ones(3), h]),
    "a number first": lambda h: 1.0 / h,
    "NumPy": lambda h: np.asarray(h),
    "equal": lambda h: h == 0,
    "truth": lambda h: 1 if h else 0,
    "a part": lambda h: h[0],
}


@pytest.mark.parametrize("use", WAYS.values(), ids=WAYS)
def test_every_use_is_refused_in_a_sentence_and_without_a_warning(use):
    """`counts == 0` was False, `if counts` went on, and torch warned of its own protocol."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            UsageError, match=r"E108 a hook reads the client's class counts, which no noise of 'dpsgd'"
        ):
            use(hidden_counts("dpsgd"))
