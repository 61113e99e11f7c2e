"""Flower's SuperLink with a database for large models: python -m unskew.deploy.lean flower-superlink ...

Flower gives every connection to its database 64 MB of cache and maps 256 MB of the file besides, and a large model's
pieces pass through a dozen connections: more than the model itself. The operating system keeps the file's pages anyway.
The pieces themselves lie in files (`piece_files`).
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import sys

from unskew.deploy.freed import return_freed
from unskew.errors import UsageError

try:
    from flwr.supercore import sql_mixin
    from flwr.supercore.object_store import object_store_factory
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    from unskew.deploy.announcing import from_a_site
    from unskew.deploy.piece_files import PieceFiles
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise UsageError("E501", f"a deployment needs Flower 1.41: pip install 'unskew[flower]' ({error}).") from error

SETTINGS = {"cache_size": "-8000", "mmap_size": "0", "busy_timeout": "60000"}
"""SQLite's settings instead of Flower's: cache in KB if below 0, bytes that are mapped, ms to wait for another call."""


def main() -> None:
    """Run the SuperLink with the rest of the command line."""
    return_freed()
    sql_mixin.SQLITE_PRAGMAS = tuple({**dict(sql_mixin.SQLITE_PRAGMAS), **SETTINGS}.items())
    object_store_factory.SqlObjectStore = PieceFiles
    fleet_handlers.push_messages = from_a_site(fleet_handlers.push_messages)
    sys.argv = sys.argv[1:]
    flower_superlink()


if __name__ == "__main__":
    main()
