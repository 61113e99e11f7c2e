"""Code of a user's own that was edited after Python had imported it: what runs is the old one, under the
digest of the new one.

Likely mistakes: a notebook that imports a module once and edits it; an edit elsewhere in the file, which is
none; a class whose attribute the program sets.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

import unskew
from unskew.errors import UsageError

TEXT = '''"""Mine."""
from dataclasses import dataclass
import torch
from torch import nn
from unskew.core import Part

def size():
    return 0.01

@dataclass(frozen=True)
class Mine(Part):
    mu: float = 0.1
    name = "mine"
    family = "loss"

    def loss(self, w, out, b, c):
        return self.mu * size() * b.mean(out.logits.square().sum(1))

class Net(nn.Module):
    if torch.__version__:
        chosen = "first"
    else:
        chosen = "second"
    counted = 0
    counted += 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())
'''
DATA = (np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's module on Python's path, and its file."""
    (tmp_path / "mine_of_a_user.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("mine_of_a_user"), tmp_path / "mine_of_a_user.py"
    del sys.modules["mine_of_a_user"]


def trained(module) -> str:
    given = {"rounds": 1, "clients": 2, "skew": "iid", "workers": 1, "lanes": "1", "device": "cpu"}
    return unskew.run(module.Mine(), DATA, model=module.Net(), **given).digest


@pytest.mark.parametrize(
    ("before", "after", "of"),
    [
        ("return self.mu *", "return 2 * self.mu *", "Mine"),
        ("mu: float = 0.1", "mu: float = 0.2", "Mine"),
        ('family = "loss"', 'family = "data"', "Mine"),
        ("def loss(self, w, out, b, c):", "def logits(self, w, out, b, c):", "Mine"),
        ("return 0.01", "return 0.02", "size"),
        (".relu()", ".tanh()", "Net"),
        ("class Net(nn.Module):", "class Net(nn.Module:", "Mine"),  # no Python any more
    ],
)
def test_code_that_was_edited_since_it_was_imported_is_refused(mine, before, after, of):
    module, file = mine
    trained(module)
    assert before in TEXT
    file.write_text(TEXT.replace(before, after))
    with pytest.raises(
        UsageError, match=f"E112 '{of}' is not what .*mine_of_a_user.py says: one of them was changed"
    ):
        trained(module)
    file.write_text(TEXT)
    trained(module)


def test_a_reloaded_module_is_what_its_file_says(mine):
    module, file = mine
    before = trained(module)
    file.write_text(TEXT.replace("return self.mu *", "return 90 * self.mu *"))
    assert trained(importlib.reload(module)) != before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Mine."""', '"""Mine, and a comment."""\n# that moves every line\n'),
        ("class Net", "def another():\n    return 3\n\nclass Net"),
        ("    def loss", "    # what it adds\n    def loss"),
    ],
)
def test_an_edit_that_changes_nothing_of_what_runs_is_none(mine, before, after):
    module, file = mine
    digest = trained(module)
    file.write_text(TEXT.replace(before, after))
    assert trained(module) == digest


def test_an_attribute_that_the_program_set_is_not_what_the_file_says(mine):
    module, _ = mine
    module.Mine.family = "data"
    with pytest.raises(UsageError, match="E112 'Mine' is not what"):
        trained(module)


def test_what_a_decorator_writes_is_in_no_file(mine):
    """As those of attrs and beartype do, whose functions are said to be of the module."""
    module, _ = mine
    scope = {"__name__": module.__name__}
    exec(compile("def account(self, fed, rounds): return None", "<a decorator>", "exec"), scope)
    module.Net.account = scope["account"]
    trained(module)
