"""The list of hooks, by which the engine finds those that a Part overrides."""

import inspect

from unskew.core import special_hooks
from unskew.core.part import HOOKS, Part


def test_every_hook_of_a_part_is_listed_once():
    homes = [k for k in Part.__mro__ if k.__module__ in (Part.__module__, special_hooks.__name__)]
    defined = [n for k in homes for n, hook in vars(k).items() if inspect.isfunction(hook) and n[0] != "_"]
    assert sorted(HOOKS) == sorted(defined)
