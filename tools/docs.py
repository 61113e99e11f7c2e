"""Write the pages that are made from the code: all methods, settings, commands, attacks, the data sets, the
evidence.

python tools/docs.py            write them
python tools/docs.py --check    exit with code 1 if any page differs from what would be written
python tools/docs.py --site     write a page for each method, too, which only the site shows: `unskew explain`
                                prints the same, so the repository does not keep them
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import reference
from data_page import page as data_page
from evidence_page import page as evidence_page
from methods_page import overview_page as overview

from unskew import data
from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.methods import catalogue, registry
from unskew.report.method_pages import method_page
from unskew.runs.resolve import resolve

DOCS = Path(__file__).parent.parent / "docs"
SAMPLE = "digits and its default model, 10 clients"
NORMED = "digits and cnn_small(batch_norm=True), 10 clients"
COLOUR = "colour images of 32x32 and ReBaFL's CNN for them, 10 clients"


def setting_of(part: Part) -> str:
    """On what a method's page is made: the digits, or colour images or a model with batch normalisation where
    it needs them."""
    return COLOUR if part.normalises else NORMED if part.name == "fedbn" else SAMPLE


def facts(part: Part, setting: str) -> Fed:
    """What a method knows of a small run, from which its page counts bytes. setting: SAMPLE, NORMED or
    COLOUR."""
    dataset = data.read("digits")
    if setting == COLOUR:
        x, x_test = (np.zeros((len(v), 3, 32, 32), np.float32) for v in (dataset.x, dataset.x_test))
        dataset = dataclasses.replace(dataset, x=x, x_test=x_test, mean=None, std=None)
    settings = Settings(
        skew="iid", clients=10, model="cnn_small(batch_norm=True)" if setting == NORMED else "auto"
    )
    return resolve(settings, dataset, Method(part)).fed


def pages(site: bool = False) -> dict[Path, str]:
    """Every page that is made from the code: its text by its path. site: also a page for each method."""
    methods = {name: registry.parse(name).parts[0] for name in catalogue.entries()}
    known = {name: facts(part, setting_of(part)) for name, part in methods.items()}
    texts = {
        DOCS / "methods" / f"{n}.md": method_page(part, known[n], setting_of(part))
        for n, part in methods.items()
        if site
    }
    lines = {name: entry.summary for name, entry in catalogue.entries().items()}
    texts[DOCS / "methods.md"] = overview(
        {name: (part, known[name], lines[name]) for name, part in methods.items()}
    )
    texts[DOCS / "settings.md"] = reference.settings()
    texts[DOCS / "commands.md"] = reference.commands()
    texts[DOCS / "attacks.md"] = reference.attacks()
    texts[DOCS / "evidence.md"] = evidence_page()
    texts[DOCS / "data-sets.md"] = data_page()
    return texts


def main() -> int:
    stale = []
    for path, text in pages("--site" in sys.argv).items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for path in stale:
        print(("stale: " if "--check" in sys.argv else "wrote ") + str(path.relative_to(DOCS.parent)))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
