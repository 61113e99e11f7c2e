"""Blocks of text of the pages that are made from the code."""

from unskew.markdown import block

FULL = "word " * 23 + "end"  # 118 columns: no further word fitted
FORMULA = "    L = " + "x + " * 30 + "y"


def lines(text, width=40):
    return block(text, width).splitlines()[1:-1]


def test_prose_is_filled_anew_and_nothing_is_lost():
    shown = lines(f"{FULL}\nwhich goes on.")
    assert all(len(line) <= 40 for line in shown)
    assert " ".join(shown) == f"{FULL} which goes on."
    assert lines(f"{FULL}\nwhich goes on.", 50)[-1] == "word word word end which goes on."


def test_lines_that_ended_on_purpose_and_formulas_stay():
    assert lines("z: logits.\nw: weights.") == ["z: logits.", "w: weights."]
    shown = lines(f"{FULL}\n{FORMULA}\nwith y as before.\n\nAnd more.")
    assert shown[-4:] == [FORMULA, "with y as before.", "", "And more."]
    assert lines(f"{FORMULA}\nwith") == [FORMULA, "with"]  # prose after a long formula is no part of it


def test_long_words_are_not_broken():
    assert lines("see " + "a-b" * 20) == ["see", "a-b" * 20]


def test_no_text_is_no_block():
    assert block("") == block("\n") == ""
