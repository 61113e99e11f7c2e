"""Views of activations, which lie in memory as the kernels want them and not as the user's layers leave them.

`x.view(len(x), -1)` after a convolution is a view of what torch lays down channel by channel; here the channels of a pixel
lie side by side, so it has to be a copy.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Copies(Protocol):
    """copied: a list to which every view adds what it had to copy, or None."""

    copied: list[Tensor] | None


def view(copies: Copies, x: Tensor, *size: Any, **kwargs: Any) -> Tensor:
    """x in this shape; a view where it can be one."""
    if kwargs or (size and isinstance(size[0], torch.dtype)):
        return x.view(*size, **kwargs)
    y = x.reshape(*size)
    if copies.copied is not None and y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        copies.copied.append(y)
    return y


def view_as(copies: Copies, x: Tensor, other: Tensor) -> Tensor:
    """x in the shape of another tensor."""
    return view(copies, x, other.shape)


def view_as_complex(_copies: Copies, x: Tensor) -> Tensor:
    """Complex numbers of pairs, which have to lie side by side; weights of four axes do not."""
    return torch.view_as_complex(x.contiguous())


VIEWS = {Tensor.view: view, Tensor.view_as: view_as, torch.view_as_complex: view_as_complex}
"""What runs in place of torch's own."""
