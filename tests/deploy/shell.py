"""The command line, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def unskew(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "unskew", *arguments], cwd=cwd, capture_output=True, text=True)
