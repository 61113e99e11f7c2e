"""The code on the documentation's pages: what is written there, in order, as a reader would type it.

A block whose info string has title="FILE", or whose first line is `# FILE.yaml`, is a file. A comment in the
page before a block, `<!-- not run: REASON -->`, says why tests cannot run it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^(?P<indent> *)```(?P<kind>\w+)(?:"
    r" title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
SHELL = ("console", "sh", "bash")


@dataclass(frozen=True)
class Snippet:
    """A block. kind: its language. file: the name to save it under, or "". why: why it is not run, or ""."""

    kind: str
    text: str
    file: str = ""
    why: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The words of every `unskew` command of a block for a shell, without the first one."""
        return list(commands(self.text, prompt="$ ")) if self.kind in SHELL else []


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page that have a language, in order."""
    found = []
    for match in FENCE.finditer(page.read_text()):
        first = re.match(r"# (\S+\.yaml)\n", match["text"])
        file = match["title"] or (first[1] if first else "")
        found.append(Snippet(match["kind"], match["text"], file, match["why"] or ""))
    return found


def commands(text: str, prompt: str) -> Iterator[list[str]]:
    """The words of every `unskew` command of a text but the first. prompt: what stands before each."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(prompt):
            for part in re.split(r" && |; ", line[len(prompt) :]):
                words = shlex.split(part, comments=True)
                if words[:1] == ["unskew"]:
                    yield words[1:]


def every_command(page: Path) -> list[list[str]]:
    """Those of all blocks, and those that stand indented without a prompt."""
    text = page.read_text()
    fenced = [words for snippet in snippets(page) for words in snippet.commands]
    return fenced + list(commands(FENCE.sub("", text), prompt="    "))
