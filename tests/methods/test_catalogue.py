"""The methods are read from their files: a new one is one file."""

from __future__ import annotations

import ast
import importlib
import pkgutil

import pytest

import unskew
import unskew.merge
import unskew.methods
import unskew.privacy
from unskew.core.part import Part
from unskew.methods import catalogue, registry


def test_the_catalogue_holds_the_parts_that_the_files_define():
    defined = {}
    for room in (unskew.methods, unskew.merge, unskew.privacy):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Part) and value.__module__ == module.name:
                    defined[value.name] = (module.name, value.__name__, dict(vars(value).get("presets", {})))
    entries = {n: (e.module, e.kind, dict(e.presets)) for n, e in catalogue.entries().items()}
    assert entries == defined
    assert len(entries) > 30


def test_a_method_stands_in_the_file_of_its_name():
    """But for `unskew`, whose file type checkers would take for the package."""
    files = {
        n: e.module.rpartition(".")[2] for n, e in catalogue.entries().items() if ".methods." in e.module
    }
    assert {n: file for n, file in files.items() if file != n} == {"unskew": "default"}


@pytest.mark.parametrize("name", sorted(catalogue.presets()))
def test_a_preset_is_its_method_with_the_settings_it_stands_for(name):
    entry, settings = catalogue.presets()[name]
    (part,) = registry.parse(name).parts
    assert type(part).__name__ == entry.kind
    assert {key: getattr(part, key) for key in settings} == settings
    assert part != type(part)()
    assert registry.names()[name].startswith(f"short for {entry.name}(")


def test_every_class_of_a_method_is_public():
    for entry in catalogue.entries().values():
        assert getattr(unskew, entry.kind).name == entry.name
    with pytest.raises(AttributeError, match="no attribute 'FedNothing'"):
        _ = unskew.FedNothing


def differences(name: str) -> str:
    """The docstring of a method's file from `Differs from the paper` on."""
    path = catalogue.PACKAGE.joinpath(*catalogue.entries()[name].module.split(".")[1:]).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, differs, rest = docstring.partition("Differs from the paper:")
    assert differs, f"{name} does not say how it differs from its paper"
    return " ".join(rest.split())


@pytest.mark.parametrize("name", catalogue.entries())
def test_every_method_says_how_it_differs_from_its_paper(name):
    text = differences(name)
    assert text[-1] == "."
    assert len(text.split()) >= 3 or text.startswith("nothing")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fedasam", "fedsam(adaptive=true, rho=0.7, eta=0.2)"),  # Caldarola et al., ECCV 2022, CIFAR-10
        ("feddistill", "fd(aggregate_weights=true)"),  # FedDistill+ in the public code of FedGen
    ],
)
def test_a_second_name_stands_for_these_settings(name, text):
    assert registry.parse(name).parts == registry.parse(text).parts
