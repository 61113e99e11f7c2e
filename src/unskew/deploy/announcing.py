"""What lies below a piece that is announced at Flower's SuperLink: the coordinator's word counts more than a site's.

Flower believes whoever announces a piece first, and refuses everybody after that who says otherwise. A site that knows which
pieces will be sent next, such as those of a study's first model, could so keep them from all others.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from sqlalchemy import delete, insert, select, update

from unskew.errors import UsageError

try:
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.state.schema.objectstore_models import ObjectChild, StoredObject
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise UsageError("E501", f"a deployment needs Flower 1.41: pip install 'unskew[flower]' ({error}).") from error

by_a_site = ContextVar("by_a_site", default=False)
"""Whether what is announced comes from a site."""
MOST_ASKED = 10_000
"""Pieces that one question to the database names."""


def from_a_site(push: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's handler of what sites announce, which marks it as theirs."""

    def marked(*arguments: Any, **more: Any) -> Any:
        token = by_a_site.set(True)
        try:
            return push(*arguments, **more)
        finally:
            by_a_site.reset(token)

    return marked


def below(session: Any, numbers: list[str]) -> dict[str, set[str]]:
    """By piece, of those that are known, the numbers of the pieces that were said to be below it."""
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


def correct(session: Any, tree: ObjectTree) -> None:
    """Say anew what is below the pieces of this tree where somebody has said otherwise."""
    said = {node.object_id: {child.object_id for child in node.children} for node in iterate_object_tree(tree)}
    known = below(session, list(said))
    if all(said[number] == children for number, children in known.items()):
        return
    for number in said.keys() - known.keys():
        session.execute(insert(StoredObject).values(object_id=number, content=b"", is_available=0, ref_count=0))
    for number, children in said.items():
        before = known.get(number, set())
        wrong = ObjectChild.parent_id == number, ObjectChild.child_id.in_(before - children)
        session.execute(delete(ObjectChild).where(*wrong))
        _count(session, before - children, -1)
        for child in children - before:
            session.execute(insert(ObjectChild).values(parent_id=number, child_id=child))
        _count(session, children - before, 1)


def _count(session: Any, numbers: set[str], by: int) -> None:
    """Count how many pieces these are below."""
    where = StoredObject.object_id.in_(numbers)
    session.execute(update(StoredObject).where(where).values(ref_count=StoredObject.ref_count + by))
