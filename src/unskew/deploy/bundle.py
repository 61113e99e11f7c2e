"""The one app that a coordinator runs: an archive that names the installed server's code, and holds none.

Flower starts runs of apps only. An app's archive can hold any Python, so nothing of an archive is ever unpacked: its
SHA-256 says whether a run is ours, and what it is to do is in an order on the coordinator's own disk.
"""

from __future__ import annotations

import hashlib
import io
import zipfile

ORDER = "order"
"""The setting of a run that names its order."""
_PROJECT = f"""[project]
name = "unskew-run"
version = "0.1.0"
description = "A study of unskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew.deploy.conductor:main"
clientapp = "unskew.deploy.worker:main"

[tool.flwr.app.config]
{ORDER} = ""
"""


def _archive() -> bytes:
    """The same bytes each time: without times, and not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _PROJECT)
    return buffer.getvalue()


APP = _archive()
APP_HASH = hashlib.sha256(APP).hexdigest()
