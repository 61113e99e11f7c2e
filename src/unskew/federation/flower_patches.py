"""Flower's SuperLink, changed: python -m unskew.federation.flower_patches SOCKET flower-superlink ...

It listens at a unix socket, which only the coordinator's user reaches, and not at a port, because it asks
operators for no password. Every name of Flower's SuperLink that is replaced or private is used in this file
only; the private names of Flower's messages in `protocol/flower_messages.py`, which must not import the
SuperLink.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage
from unskew.federation.addresses import socket_address
from unskew.federation.programs import configure_malloc
from unskew.system import disk

try:
    import uvicorn
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import NodeStatus
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_children_ids_from_object_content,
        get_object_id,
        iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content
    from flwr.supercore.object_store import object_store_factory
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore
    from flwr.supercore.state.schema.linkstate_models import Node
    from flwr.supercore.state.schema.objectstore_models import ObjectChild, StoredObject
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from sqlalchemy import delete, insert, select, update
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

announced_by_site = ContextVar("by_a_site", default=False)
"""True while an announcement from a site is processed."""
MOST_ASKED = 10_000
"""Pieces in one query to the database."""


def mark_as_site(push: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's handler of announcements from sites, which marks them as such."""

    def marked(*arguments: Any, **keywords: Any) -> Any:
        token = announced_by_site.set(True)
        try:
            return push(*arguments, **keywords)
        finally:
            announced_by_site.reset(token)

    return marked


def known_children(session: Any, numbers: list[str]) -> dict[str, set[str]]:
    """The announced children of each known piece, by number."""
    known = defaultdict[str, set[str]](set)
    for start in range(0, len(numbers), MOST_ASKED):
        some = numbers[start : start + MOST_ASKED]
        for number in session.scalars(select(StoredObject.object_id).where(StoredObject.object_id.in_(some))):
            known[number] = set()
        for parent, child in session.execute(
            select(ObjectChild.parent_id, ObjectChild.child_id).where(ObjectChild.parent_id.in_(some))
        ):
            known[parent].add(child)
    return known


def correct_tree(session: Any, tree: ObjectTree) -> None:
    """Replace announcements of pieces that differ from this tree.

    Flower believes the first sender that announces a piece of a message, and refuses all others that describe
    it differently. A site that can predict pieces, such as those of a study's first model, could thereby keep
    them from all others. The coordinator's announcement therefore overrides a site's.
    """
    announced = {
        node.object_id: {child.object_id for child in node.children} for node in iterate_object_tree(tree)
    }
    known = known_children(session, list(announced))
    if all(announced[number] == children for number, children in known.items()):
        return
    for number in announced.keys() - known.keys():
        session.execute(
            insert(StoredObject).values(object_id=number, content=b"", is_available=0, ref_count=0)
        )
    for number, children in announced.items():
        earlier = known.get(number, set())
        wrong = ObjectChild.parent_id == number, ObjectChild.child_id.in_(earlier - children)
        session.execute(delete(ObjectChild).where(*wrong))
        _count_references(session, earlier - children, -1)
        for child in children - earlier:
            session.execute(insert(ObjectChild).values(parent_id=number, child_id=child))
        _count_references(session, children - earlier, 1)


def _count_references(session: Any, numbers: set[str], by: int) -> None:
    """Change the reference counts of these pieces by `by`."""
    where = StoredObject.object_id.in_(numbers)
    session.execute(update(StoredObject).where(where).values(ref_count=StoredObject.ref_count + by))


PIECE_FOLDER = "pieces"
"""The folder of the files, next to the database."""
LEAST_FILE_BYTES = 64 << 10
"""Size in bytes from which a piece is stored in a file."""
_IN_A_FILE = b"\0in a file of bytes: "
"""Replaces a piece in the database; no piece of Flower's begins like this."""


class PieceStore(SqlObjectStore):
    """Flower's store of pieces, with files. A lost or truncated file counts as a missing piece.

    Flower's database contains only the numbers of pieces; large messages lie in files next to it. In the
    database a piece was written twice, and the deletion of a model of 1 GB held its lock for longer than
    other calls wait.
    """

    def __init__(self, database_path: str):
        super().__init__(database_path, verify=False)  # `put` does, before anything is written
        self.folder = Path(database_path).parent / PIECE_FOLDER

    def initialize(self, *arguments: Any, **keywords: Any) -> list[str]:
        """Open the database, and remove the files of unknown pieces."""
        tables = super().initialize(*arguments, **keywords)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for file in self.folder.iterdir():
            if file.name not in self:
                file.unlink(missing_ok=True)
        return tables

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Announce pieces. Returns the numbers of missing pieces.

        Raises ValueError if a site announces other children of a known piece.
        """
        with self._mutation_session() as session:
            if not announced_by_site.get():
                correct_tree(session, object_tree)
            return super().preregister(run_id, object_tree)

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store a piece.

        Raises ValueError for a wrong number, an invalid form, or other children than announced, and OSError
        on a full disk.
        """
        if get_object_id(object_content) != object_id:
            raise ValueError(f"the piece has another number than {object_id}")
        validate_object_content(content=object_content)
        with self.session() as session:
            children = known_children(session, [object_id]).get(object_id)
        if children not in (None, set(get_object_children_ids_from_object_content(object_content))):
            raise ValueError(f"other pieces are below {object_id} than was announced")
        if len(object_content) < LEAST_FILE_BYTES:
            return super().put(object_id, object_content)
        with self.session():  # the number must not be read before the file exists
            super().put(object_id, _IN_A_FILE + b"%d" % len(object_content))
            disk.replace_unsynced(self.folder / object_id, object_content)

    def get(self, object_id: str) -> bytes | None:
        """A piece; b"" if it was announced and has not come, None if it is unknown or its file is lost."""
        content = super().get(object_id)
        if content is None or not content.startswith(_IN_A_FILE):
            return content
        with suppress(FileNotFoundError):
            piece = (self.folder / object_id).read_bytes()
            if len(piece) == int(content.removeprefix(_IN_A_FILE)):
                return piece
        return None

    def delete(self, object_id: str) -> None:
        """Delete a piece and its children, unless another message contains them too."""
        super().delete(object_id)  # which calls this again for each below
        if (self.folder / object_id).exists() and object_id not in self:
            (self.folder / object_id).unlink(missing_ok=True)


def free_key(create: Callable[..., int]) -> Callable[..., int]:
    """Flower's function that registers a node, which then accepts a key that was unregistered."""

    def created(state: Any, *, public_key: bytes, **more: Any) -> int:
        with state.session() as session:
            ended = Node.public_key == public_key, Node.status == NodeStatus.UNREGISTERED
            session.execute(delete(Node).where(*ended))
        return create(state, public_key=public_key, **more)

    return created


SQLITE_SETTINGS = {"cache_size": "-8000", "mmap_size": "0", "busy_timeout": "60000"}
"""SQLite's settings instead of Flower's: negative cache size in KB, mapped bytes, ms to wait for another
call. Flower gives every connection 64 MB of cache and maps another 256 MB of the file. The pieces of a large
model pass through a dozen connections, which takes more memory than the model; the operating system caches
the file anyway."""


def main() -> None:
    """Run the SuperLink with the rest of the command line."""
    configure_malloc()
    address = socket_address(Path(sys.argv[1]))
    sql_mixin.SQLITE_PRAGMAS = tuple({**dict(sql_mixin.SQLITE_PRAGMAS), **SQLITE_SETTINGS}.items())
    object_store_factory.SqlObjectStore = PieceStore
    fleet_handlers.push_messages = mark_as_site(fleet_handlers.push_messages)
    SqlLinkState.create_node = free_key(SqlLinkState.create_node)
    uvicorn.run = partial(_listen, uvicorn.run, address)
    sys.argv = sys.argv[2:]
    flower_superlink()


def _listen(run: Callable[..., None], address: str, *, app: Any, log_config: Any, **_: Any) -> None:
    """Run an app with uvicorn at a unix socket, without TLS. run: uvicorn.run."""
    run(app, uds=address, log_config=log_config)


if __name__ == "__main__":
    main()
