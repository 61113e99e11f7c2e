"""A method somebody else has installed: found through its entry point, checked like ours, run by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from unskew.cli import check as command
from unskew.engine import check
from unskew.errors import UsageError
from unskew.methods import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


def test_an_installed_method_is_listed_checked_and_combined(installed):
    assert "class means" in registry.names()["myproto"]
    (theirs,) = registry.parse("myproto(pull=0.5)").parts
    found = list(check.check_method(theirs))
    assert not [f"{f.name}: {f.detail}" for f in found if not f.ok]
    assert "changes nothing with neutral settings" in {f.name for f in found}
    check.train(registry.parse("myproto+scaffold+flea"), rounds=2)


def test_a_method_in_a_file_is_checked_without_being_installed():
    (part,) = command.parts_of(str(EXAMPLE))
    assert part.name == "myproto"


def test_without_the_package_its_name_is_unknown():
    registry.installed.cache_clear()
    with pytest.raises(UsageError, match="unknown method 'myproto'"):
        registry.parse("myproto")
