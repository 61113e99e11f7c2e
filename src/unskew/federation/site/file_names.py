"""Names of a site's files of a run, `SITE/runs/NUMBER/`.

This file imports neither Flower nor cryptography, so that models can be opened without these packages.
"""

from __future__ import annotations

from pathlib import Path

from unskew.system.disk import AT_SITE

SETUP = AT_SITE
REMOVED = "private-removed"
"""Marks removed or lost private state, without which the run cannot continue here."""
RECEIVED = "received.safetensors"
"""The last received weights, with the rest of their request."""
STATELESS = "stateless"
"""Marks that this site has trained in the run without private state."""
SAMPLES = "samples"
"""The fingerprint of the samples at the begin of the run."""
VERSIONS = "versions.json"
"""The versions at the begin of the run, including those of Parts from packages."""


def is_site_run(path: Path) -> bool:
    """True for the folder of a run at a site."""
    return (path / SETUP).is_file()


def private_file(run: Path, t: int) -> Path:
    """The file of the private state after round t, in a run's folder."""
    return run / f"private-{t}.safetensors"
