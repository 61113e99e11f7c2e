"""Names of the files that a site keeps of a run, `SITE/runs/NUMBER/`.

To ask whether a folder is one of these needs neither Flower nor cryptography, without which models are
trained and opened on one machine.
"""

from __future__ import annotations

from pathlib import Path

from unskew.system.disk import AT_SITE

SETUP = AT_SITE
REMOVED = "private-removed"
"""Stands for private state that the operator has removed, or that was lost: its run cannot go on here as if
there had been none."""
RECEIVED = "received.safetensors"
"""The weights that came last, with what came beside them."""
STATELESS = "stateless"
"""Says that this site has trained in the run and kept nothing."""
SAMPLES = "samples"
"""The fingerprint of the samples with which the run began here."""
VERSIONS = "versions.json"
"""The versions, also of Parts that packages bring, with which the run began here."""


def is_site_run(path: Path) -> bool:
    """Whether a folder is that of a run at a site."""
    return (path / SETUP).is_file()


def private_file(run: Path, t: int) -> Path:
    """Where the private state after round t is, in a run's folder."""
    return run / f"private-{t}.safetensors"
