"""Trees look the same to a hook anywhere: in the order of names, at addresses that torch would choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import safe_open

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.core.trees import flat_tree, nested_tree
from unskew.records import checkpoints
from unskew.records.private_state import DiskStore
from unskew.runs import conformance

ODD = {
    f"{name}.weight": torch.arange(n, dtype=torch.float32) for n, name in enumerate("kcfjaigbdhe", start=1)
}
"""Names out of order, and sizes after which the next tensor of a file lies anywhere."""


def addresses(tree) -> set[int]:
    return {t.data_ptr() % 64 for t in flat_tree(tree).values()}


def test_a_tensor_from_a_file_lies_where_torch_would_put_it(tmp_path):
    checkpoints.write(tmp_path / "state.safetensors", {"w": ODD}, {})
    with safe_open(str(tmp_path / "state.safetensors"), "pt") as file:
        assert addresses({n: file.get_tensor(n) for n in file.keys()}) != {0}, "this would show nothing"
    tree, _ = checkpoints.read(tmp_path / "state.safetensors")
    assert addresses(tree) == {0}
    kept = DiskStore(Path(tmp_path))
    kept.put(1, {3: {"part": ODD}})
    assert addresses(kept.fetch([3])[3]) == {0}
    kept.close()


def test_a_tree_read_from_paths_is_in_the_order_of_names():
    one = torch.zeros(1)
    assert list(nested_tree({"b/y": one, "a.b/x": one, "a/z": one, "b/x": one})) == ["a", "a.b", "b"]
    assert list(nested_tree({"b/y": one, "b/x": one})["b"]) == ["x", "y"]


def test_a_reply_is_in_the_order_of_names():
    one = torch.zeros(1)
    reply = Reply(0, 1.0, {}, {"p": {"tree": {"b": one, "a": one}}}, {"p": {"d": one, "c": one}})
    assert list(reply.shares["p"]["tree"]) == ["a", "b"]
    assert list(reply.private["p"]) == ["c", "d"]


@dataclass(frozen=True)
class Unsorted(Part):
    """Returns trees out of order, and notes in which order it is handed them."""

    name: ClassVar[str] = "unsorted"
    seen: ClassVar[list[list[str]]] = []

    def server_init(self, w, fed):
        return {"z": torch.zeros(1), "a": torch.zeros(1)}

    def client_init(self, w, fed):
        return {"q": torch.zeros(1), "d": torch.zeros(1)}

    def server(self, s, ups, fed):
        self.seen.append(list(s))
        return {"z": s["z"], "a": s["a"]}

    def dispatch(self, w, s, k, fed):
        return w, {"y": s["z"], "b": s["a"]}

    def finish(self, w, c):
        self.seen.extend([list(c.down), list(c.mine)])
        return {}, {"q": torch.zeros(1), "d": torch.zeros(1)}


def test_hooks_in_memory_see_the_order_that_they_see_after_a_resume_or_over_a_network():
    Unsorted.seen.clear()
    conformance.train_run(Method(Unsorted()))
    assert ["a", "z"] in Unsorted.seen
    assert ["b", "y"] in Unsorted.seen
    assert ["d", "q"] in Unsorted.seen
    assert all(names == sorted(names) for names in Unsorted.seen)
