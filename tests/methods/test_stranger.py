"""A method somebody else has installed: found through its entry point, checked like ours, run by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unskew.cli import explain as command
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.runs import conformance

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


def test_an_installed_method_is_listed_checked_and_combined(installed):
    assert "class means" in registry.names()["myproto"]
    (theirs,) = registry.parse("myproto(pull=0.5)").parts
    found = list(conformance.check_method(theirs))
    assert not [f"{f.name}: {f.detail}" for f in found if not f.ok]
    assert "changes nothing with neutral settings" in {f.name for f in found}
    conformance.train_run(registry.parse("myproto+scaffold+flea"), rounds=2)


def test_a_method_in_a_file_is_checked_without_being_installed():
    (part,) = command.parts_of(str(EXAMPLE))
    assert part.name == "myproto"


def test_without_the_package_its_name_is_unknown():
    registry.installed.cache_clear()
    with pytest.raises(UsageError, match="unknown method 'myproto'"):
        registry.parse("myproto")


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_is_named_and_hides_no_other_method(tmp_path):
    """Every command that knows methods by name ended as an unexpected error, `unskew list methods` too."""
    (tmp_path / "their_package.py").write_text("import not_installed_here\n")
    sys.modules.pop("their_package", None)
    text = (
        "the installed method 'myproto' (their_package:MyProto) cannot be imported: ModuleNotFoundError: No"
        " module"
    )
    with pytest.raises(UsageError) as caught:
        registry.parse("myproto")
    assert (caught.value.code, caught.value.text[: len(text)]) == ("E111", text)
    assert caught.value.text.endswith("'not_installed_here'; mend its package, or install it again.")
    assert registry.names()["myproto"].startswith(text)
    assert registry.names()["fedprox"]


@pytest.mark.usefixtures("installed")
def test_an_entry_that_names_no_part_says_which_method_brings_it(tmp_path):
    (tmp_path / "their_package.py").write_text("MyProto = 5\n")
    sys.modules.pop("their_package", None)
    with pytest.raises(
        UsageError, match="E102 the installed method 'myproto' is 'their_package:MyProto', which is no Part"
    ):
        registry.parse("myproto")
