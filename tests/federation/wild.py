"""An app of a stranger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.federation.loopback import Loopback


def run_of_a_stranger(federation: Loopback, where: str) -> str:
    """The answer of the server at HOST:PORT, as JSON, to somebody who has the certificate of the authority,
    and runs an app that writes a file wherever it is imported."""
    app, home = federation.root / "stranger" / "app", federation.root / "stranger" / "flower"
    (app / "wild").mkdir(parents=True)
    home.mkdir()
    apps = (
        "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import ServerApp\napp = ServerApp()\nsite"
        " = ClientApp()\n"
    )
    (app / "wild" / "__init__.py").write_text("")
    (app / "wild" / "code.py").write_text(
        f"open({str(federation.root / 'was-here')!r}, 'a').write('here')\n{apps}"
    )
    (app / "pyproject.toml").write_text(
        '[project]\nname = "wild"\nversion = "1.0.0"\ndescription = "x"\nlicense = "MIT"\ndependencies = []\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["."]\n[tool.flwr.app]\npublisher = "wild"\n'
        '[tool.flwr.app.components]\nserverapp = "wild.code:app"\nclientapp = "wild.code:site"\n'
    )
    link = f'address = "{where}"\nroot-certificates = "{federation.home.folder / "ca.crt"}"\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "x"\n\n[superlink.x]\n{link}')
    command = [str(Path(sys.executable).parent / "flwr"), "run", str(app), "x", "--format", "json"]
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "{" in done.stdout, done.stdout + done.stderr
    return done.stdout[done.stdout.index("{") :]
