"""A safetensors file as a list of buffers: its header, and views of the tensors, of which nothing is copied."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of types, the widest first, in which order those tensors lie in a file whose sizes are odd."""
_RANK = {dtype: rank for rank, dtype in enumerate(_TYPES)}
_ALIGNED = 64
"""Bytes: a tensor whose size is a multiple of it begins at a multiple of it, so who reads it need not move it to compute
with the kernels of tensors that torch allocated (`aligned` in core/trees.py)."""


class Form(NamedTuple):
    """Of a tensor, what a file's header says. nbytes: of its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(tensor: Tensor) -> Form:
        return Form(tensor.dtype, tuple(tensor.shape), math.prod(tensor.shape) * tensor.element_size())


def layout(tensors: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> list[memoryview]:
    """A file in the format of safetensors of these contiguous tensors on the CPU and these metadata.

    The views are of the tensors' own memory: write them before a tensor changes. Raises ValueError for a type that the
    format does not have.
    """
    names, head = headed({name: Form.of(tensor) for name, tensor in tensors.items()}, facts)
    return [head, *(view(tensors[name]) for name in names)]


def headed(forms: Mapping[str, Form], facts: Mapping[str, str] | None = None) -> tuple[list[str], memoryview]:
    """(names in the order in which their tensors lie in a file, what stands before them). Raises ValueError for a type that the
    format does not have."""
    for name, form in forms.items():
        if form.dtype not in _TYPES:
            raise ValueError(f"'{name}' is {form.dtype}, which safetensors cannot hold")
    names = sorted(forms, key=lambda n: (forms[n].nbytes % _ALIGNED != 0, _RANK[forms[n].dtype], n.encode()))
    header: dict[str, object] = {"__metadata__": dict(facts)} if facts else {}
    end = 0
    for name in names:
        form = forms[name]
        begin, end = end, end + form.nbytes
        header[name] = {"dtype": _TYPES[form.dtype], "shape": list(form.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    head = memoryview(len(text).to_bytes(8, "little") + text)
    return names, head


def view(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
