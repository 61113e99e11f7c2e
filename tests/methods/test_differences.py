"""M23: every method's page says where it differs from its paper, completely."""

from __future__ import annotations

import ast

import pytest

from unskew.methods import catalogue

SAID = {
    "fedavgm": ["Nesterov", "plain"],
    "fedbabu": [
        "weighted by size",
        "fine-tunes the head or all weights",
        "momentum or weight decay",
        "evaluation mode",
    ],
    "fedproto": ["class means of a batch", "pulls every sample", "head predicts", "official code: equally"],
    "feddyn": ["1e-4", "ReBaFL", "1e-2", "mean(n) / n_k", "three models"],
    "scaffold": ["eta_g", "fixed at 1"],
    "fedfa": ["weighted by size", "population's", "unbiased", "1e-6", "1.3e-5", "0.99"],
    "moon": ["first takes part", "left out"],
    "fedrs": ["soft form", "more than once"],
    "feddpms": [
        "up to the round before",
        "merged encoder and classifier",
        "binomial",
        "head reads mu",
        "not only their match's",
    ],
    "rebafl": ["h is a constant in L1", "the code's choice", "one class"],
    "fednova": ["Adam", "momentum", "Weight decay", "Statistics"],
    "multi_krum": ["weights after local training"],
}
"""What each of these has to mention; the others' differences are told by their oracles."""


def differences(name: str) -> str:
    """The docstring of a method's file from `Differs from the paper` on."""
    path = catalogue.PACKAGE.joinpath(*catalogue.entries()[name].module.split(".")[1:]).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, differs, rest = docstring.partition("Differs from the paper:")
    assert differs, f"{name} does not say how it differs from its paper"
    return " ".join(rest.split())


@pytest.mark.parametrize("name", catalogue.entries())
def test_every_method_says_how_it_differs_from_its_paper(name):
    """M23"""
    text = differences(name)
    assert text[-1] == "."
    assert len(text.split()) >= 3 or text.startswith("nothing")


@pytest.mark.parametrize("name", SAID)
def test_what_is_known_to_differ_is_said(name):
    """M23: ten pages left out where the method is not its paper's."""
    text = differences(name)
    assert [words for words in SAID[name] if words not in text] == []
