"""The pieces of large messages at Flower's SuperLink: in files beside its database, which then holds their numbers only.

Flower keeps them in the database itself. A piece was written twice there, and to forget a model of 1 GB held the lock of
the database for longer than other calls wait.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.deploy.announcing import below, by_a_site, correct
from unskew.errors import UsageError

try:
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content, get_object_id
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise UsageError("E501", f"a deployment needs Flower 1.41: pip install 'unskew[flower]' ({error}).") from error

FOLDER = "pieces"
"""Beside the database."""
LEAST = 64 << 10
"""Bytes of a piece that gets a file of its own."""
_IN_A_FILE = b"\0in a file of bytes: "
"""Stands in the database for a piece; no piece of Flower's begins so."""


class PieceFiles(SqlObjectStore):
    """Flower's store of pieces. A file that is lost or cut off is a piece that is not there, and its sender is told."""

    def __init__(self, database_path: str):
        super().__init__(database_path, verify=False)  # `put` does, before anything is written
        self.folder = Path(database_path).parent / FOLDER

    def initialize(self, *arguments: Any, **more: Any) -> list[str]:
        """Open the database, and remove the files of pieces that it does not know."""
        tables = super().initialize(*arguments, **more)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for file in self.folder.iterdir():
            if file.name not in self:
                file.unlink(missing_ok=True)
        return tables

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Announce pieces. Returns the numbers of those that are not there. Raises ValueError if a site says of a known piece
        that others are below it."""
        with self._mutation_session() as session:
            if not by_a_site.get():
                correct(session, object_tree)
            return super().preregister(run_id, object_tree)

    def put(self, object_id: str, object_content: bytes) -> None:
        """Keep a piece.

        Raises ValueError if it has another number, no form of Flower's, or other pieces below it than was announced, and
        OSError on a full disk.
        """
        if get_object_id(object_content) != object_id:
            raise ValueError(f"the piece has another number than {object_id}")
        validate_object_content(content=object_content)
        with self.session() as session:
            children = below(session, [object_id]).get(object_id)
        if children not in (None, set(get_object_children_ids_from_object_content(object_content))):
            raise ValueError(f"other pieces are below {object_id} than was announced")
        if len(object_content) < LEAST:
            return super().put(object_id, object_content)
        with self.session():  # nobody reads the number before the file is there
            super().put(object_id, _IN_A_FILE + b"%d" % len(object_content))
            disk.replace_unsynced(self.folder / object_id, object_content)

    def get(self, object_id: str) -> bytes | None:
        """A piece; b"" if it was announced and has not come yet, None if it is not known or its file is lost."""
        content = super().get(object_id)
        if content is None or not content.startswith(_IN_A_FILE):
            return content
        with suppress(FileNotFoundError):
            piece = (self.folder / object_id).read_bytes()
            if len(piece) == int(content.removeprefix(_IN_A_FILE)):
                return piece
        return None

    def delete(self, object_id: str) -> None:
        """Forget a piece and those below it, unless another message holds them too."""
        super().delete(object_id)  # which calls this again for each below
        if (self.folder / object_id).exists() and object_id not in self:
            (self.folder / object_id).unlink(missing_ok=True)
