"""Blocks of text of the pages that are made from the code."""

from unskew.formats.markdown import block

FULL = "word " * 21 + "end"  # 108 columns: no further word fitted
FORMULA = "    L = " + "x + " * 30 + "y"


def lines(text, width=40):
    return block(text, width).splitlines()[1:-1]


def test_prose_is_filled_anew_and_nothing_is_lost():
    shown = lines(f"{FULL}\nwhich goes on.")
    assert all(len(line) <= 40 for line in shown)
    assert " ".join(shown) == f"{FULL} which goes on."
    assert lines(f"{FULL}\nwhich goes on.", 50)[-1] == "word end which goes on."


def test_lines_that_ended_on_purpose_and_formulas_stay():
    assert lines("z: logits.\nw: weights.") == ["z: logits.", "w: weights."]
    shown = lines(f"{FULL}\n{FORMULA}\nwith y as before.\n\nAnd more.")
    assert shown[-4:] == [FORMULA, "with y as before.", "", "And more."]
    assert lines(f"{FORMULA}\nwith") == [FORMULA, "with"]  # prose after a long formula is no part of it


def test_statements_with_labels_and_equations_are_not_joined_to_what_stands_before_them():
    """`without samples it sends u_k back Test:   a client's own score` had become one line of pFedLA's
    page."""
    first = "Client: trains what it was sent, " + "x " * 39 + "last;   sends it"
    assert len(first) > 115
    shown = block(f"{first}\nTest:   its score.\n{FULL}.\nw <- w + d_k\nMore.").splitlines()[1:-1]
    assert shown[2:4] == ["        sends it", "Test:   its score."]
    assert shown[-2:] == ["w <- w + d_k", "More."]
    full = "Test:   " + "y " * 50 + "z"
    assert (
        block(f"{full}\nIt is prose with a line of its own.").splitlines()[-2]
        == "It is prose with a line of its own."
    )
    stages = [f"Stage I   {FULL}", "Stage II  trains on."]
    assert block("\n".join(stages), 400).splitlines()[1:-1] == stages
    prose = f"Differs from the paper: {FULL}"
    assert block(f"{prose}\ns_b = m, too.", 400).splitlines()[1:-1] == [f"{prose} s_b = m, too."]


def test_statements_of_a_line_are_divided_where_gaps_are_and_stand_below_each_other():
    shown = lines("Client: g <- g + 1;   w <- w - lr (g + mu w)      S: steps")
    assert shown == ["Client: g <- g + 1;", "        w <- w - lr (g + mu w)", "        S: steps"]
    assert lines("Client: g <- g + 1;   w <- w - lr (g + mu w)      S: steps", 50)[0].endswith(
        "g + 1;   w <- w - lr (g + mu w)"
    )
    equation = lines("s = a + b + c + d + e + f + g + h + i + j + k")
    assert [line[:5] for line in equation] == ["s = a", "    i"]


def test_long_words_are_not_broken():
    assert lines("see " + "a-b" * 20) == ["see", "a-b" * 20]


def test_no_text_is_no_block():
    assert block("") == block("\n") == ""
