"""Users' YAML, Markdown's tables, texts with a grammar of their own, and names of measures."""

from __future__ import annotations

import pytest

from unskew import config
from unskew.errors import UsageError
from unskew.formats import documents


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "latin").write_bytes(b"na\xefve")
    for name, before, why in (
        ("none", "there is no file", ""),
        ("latin", "cannot read", ": save it as UTF-8"),
        (".", "cannot read", ": Is a directory"),
    ):
        with pytest.raises(UsageError) as raised:
            documents.text_of(tmp_path / name)
        assert raised.value.text == f"{before} {tmp_path / name}{why}."
        assert raised.value.code == "E111"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        (".5e1", 5.0),
        ("1e", "1e"),
        ("1e5x", "1e5x"),
        ("'1e5'", "1e5"),
    ],
)
def test_a_number_with_an_exponent_is_a_number(text, value):
    read = documents.load(f"a: {text}", "f.yaml", "E109")["a"]
    assert (read, type(read)) == (value, type(value))


def refused(text):
    with pytest.raises(UsageError) as raised:
        documents.load(text, "f.yaml", "E126")
    assert raised.value.code == "E126"
    assert "\n" not in raised.value.text
    return raised.value.text


def test_a_key_that_stands_twice_is_refused_at_any_depth():
    assert refused("a: 1\nb: 2\na: 3") == "f.yaml: 'a' stands at line 1 and at line 3."
    assert refused("x:\n  - a: 1\n    a: 2") == "f.yaml: 'a' stands at line 2 and at line 3."
    assert refused("x: {y: {a: 1, a: 2}}") == "f.yaml: 'a' stands at line 1 and at line 1."
    assert documents.load("x: {a: 1}\ny: {a: 2}", "f.yaml", "E109") == {"x": {"a": 1}, "y": {"a": 2}}


def test_what_is_no_yaml_is_one_sentence_with_its_line():
    told = refused("a: [1,\nb: 2")
    assert told.startswith("f.yaml is not YAML: ")
    assert "line 2" in told
    assert "unicode string" not in told
    assert refused("a: 2024-13-45").startswith("f.yaml is not YAML: month must be in 1..12")
    assert refused("[" * 2000).startswith("f.yaml is nested too deeply")
    assert refused("a: &x [1, 1]\nb: [*x, *x]").startswith("f.yaml: line 2 has the alias '*x'")


def test_no_code_of_a_document_is_run():
    assert refused("a: !!python/object/apply:os.getcwd []").startswith("f.yaml is not YAML: could not")


def test_the_lines_of_keys_are_counted_from_one():
    assert documents.lines_of("# x\na: 1\n\nb:\n  c: 2\n") == {"a": 2, "b": 4}
    assert documents.lines_of("- a") == documents.lines_of("") == {}
    assert documents.lines_of("[1]: x\na: 2") == {"a": 2}


def test_what_is_written_is_read_again_in_its_order():
    values = {"b": [1, "x", "2.E+5", "-1e0"], "a": {"é": None, "1e-3": True, "n": 1e-3}}
    text = documents.dump(values)
    assert documents.load(text, "f.yaml", "E109") == values
    assert text.startswith("b:")
    twice = {"a": (one := [1]), "b": one}
    assert documents.load(documents.dump(twice), "f.yaml", "E109") == twice


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("secure_aggregation", True, "on"),
        ("secure_aggregation", False, "off"),
        ("metrics", ["ece", "auroc", "ece"], "ece,auroc"),
        ("metrics", " ", "none"),
        ("measure", " Diversity,separation ,diversity", "diversity,separation"),
        ("track", "mlflow", "mlflow"),
    ],
)
def test_yaml_means_on_and_off_and_texts_have_one_spelling(key, value, kept):
    assert getattr(config.build({key: value}), key) == kept


@pytest.mark.parametrize(
    ("key", "text", "code", "says"),
    [
        ("measure", "diversty", "E126", "unknown measure 'diversty' at line 3. Did you mean 'diversity'?"),
        ("metrics", "aurok", "E126", "unknown metric 'aurok' at line 3. Did you mean 'auroc'?"),
        ("track", "mlfow", "E109", "track at line 3"),
        ("secure_aggregation", "perhaps", "E109", "secure_aggregation at line 3"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_at_its_line(key, text, code, says):
    with pytest.raises(UsageError) as raised:
        config.build({key: text}, {key: 3})
    assert raised.value.code == code
    assert says in raised.value.text
