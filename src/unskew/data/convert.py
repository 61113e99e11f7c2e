"""A user's samples as the arrays that a Dataset holds.

One rule of scaling: whole numbers without a sign are divided by the largest that their bits can hold (uint8 by 255, uint16
by 65,535), so that images of any depth lie in [0, 1]; every other number stays what it is, and so do columns [N, columns].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.intake.room import fits
from unskew.data.rows import standing_in, streams
from unskew.data.stored import stored
from unskew.errors import DataError, excerpt

LARGE = 1 << 30
"""Bytes of a memory-mapped file above which its rows are read when they are wanted, if not a quarter of the memory is less."""
DEPTHS = {np.dtype(np.uint8): 8, np.dtype(np.uint16): 16}
"""Bits of the types that are scaled."""


def array_of(values: Any) -> np.ndarray:
    """An array from an array, a tensor on any device, a column of a table, or a list.

    Raises DataError (E403) for lists of unequal lengths and for what has no values in order.
    """
    if hasattr(values, "detach"):
        if str(values.layout) != "torch.strided":
            raise DataError(
                "E403", f"a {str(values.layout).removeprefix('torch.')} tensor was given; give x.to_dense()."
            )
        try:
            values = values.detach().cpu()
            values = values.numpy() if str(values.dtype) != "torch.bfloat16" else values.float().numpy()
        except (RuntimeError, TypeError) as error:  # such as on the device meta, or quantised
            why = str(error).partition(chr(10))[0].rstrip(".! ")
            raise DataError(
                "E403", f"a tensor that cannot be read was given: {why}; give one of plain numbers."
            ) from error
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.getmaskarray(values).any():
            text = "a masked array was given, some of whose values are missing"
            raise DataError("E403", f"{text}; fill them, x.filled(...), or leave these samples out.")
        return values.filled()
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list | tuple) and values and all(hasattr(v, "detach") for v in values):
        values = [array_of(v) for v in values]
    plain = isinstance(values, list | tuple | range) or any(
        hasattr(values, n) for n in ("__array__", "__array_interface__")
    )
    if (
        not plain
        and hasattr(values, "__getitem__")
        and hasattr(values, "__len__")
        and not isinstance(values, str | dict)
    ):
        kind = type(values).__name__
        if hasattr(values, "toarray"):
            raise DataError("E403", f"a {kind} was given; give x.toarray().")
        raise DataError("E403", f"a {kind} is a set of samples, not an array; give it as a whole: run(data=...).")
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError("E403", ragged(values)) from None
    if array.dtype.kind == "O" and not array.ndim:
        raise DataError(
            "E403",
            f"a {type(values).__name__} is no array of samples or labels; give a NumPy array, a tensor or a list.",
        )
    return array


def ragged(values: Any) -> str:
    """What to say of samples of unequal shapes."""
    shapes = [np.shape(v) if not isinstance(v, list | tuple) else (len(v),) for v in values]
    other = next((i for i, s in enumerate(shapes) if s != shapes[0]), 0)
    if not other:
        return "samples differ in shape; cut or pad them to one shape first."
    return (
        f"samples differ in shape: sample 0 is {list(shapes[0])}, sample {other} is {list(shapes[other])}; "
        "cut or pad them to one shape first."
    )


def samples(x: Any, name: str) -> np.ndarray:
    """Numbers [N, ...] as they are, from an array, a tensor or the path of a .npy file, which stays mapped.

    name: of the set, for the message.
    Raises DataError: E403 for what is no array of numbers, E401 and E402 for the file.
    """
    if streams(x):
        return x
    x = mapped(Path(x)) if isinstance(x, str | Path) else array_of(x)
    if x.dtype.kind == "O" and x.ndim == 1 and len(x) and all(np.ndim(v) for v in x):
        raise DataError("E403", f"{name}: {ragged(list(x))}")
    if not x.ndim or x.dtype.kind not in "biuf":
        example = f", such as {excerpt(x.reshape(-1)[0], 30)}" if x.size else ""
        raise DataError(
            "E403", f"{name}: x is {x.dtype} {list(x.shape)}{example}; it must be numbers [N, ...], channels first."
        )
    if 0 in x.shape[1:]:
        raise DataError("E403", f"{name}: x is {list(x.shape)}, so that a sample holds no number.")
    return x if x.dtype.isnative or is_large(x) else x.astype(x.dtype.newbyteorder("="))


def scaled(x: np.ndarray, name: str) -> np.ndarray:
    """Samples as float32: uint8 / 255, uint16 / 65,535, others unchanged, and so are columns of numbers, [N, columns].

    Of a large mapped file, rows are read when they are wanted (unskew.data.rows), and scaled then; a smaller one is copied into
    memory, so that what becomes of the file changes nothing. Raises DataError (E403) for a large mapping that was changed in memory.
    """
    if streams(x):
        return x
    bits = bits_of(x)
    full = (1 << bits) - 1 if bits else None
    if is_large(x):
        if source := stored(x, full):
            return standing_in(source)
        if x.dtype != np.float32:
            raise DataError(
                "E403",
                f"{name}: {x.nbytes:,} bytes are mapped so that changes stay in memory (mode 'c'), so they are not converted "
                f"from {x.dtype}; map the file with mode 'r'.",
            )
        return x
    if x.dtype == np.float32:
        return np.array(x) if x.nbytes <= LARGE and is_mapped(x) else x
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        return np.asarray(x.astype(np.float32) if full is None else x.astype(np.float32) / np.float32(full))


def is_large(x: np.ndarray) -> bool:
    """Whether samples are mapped from a file that is too large to be copied into memory."""
    return isinstance(x, np.memmap) and (x.nbytes > LARGE or not fits(len(x), x.shape[1:]))


def is_mapped(x: Any) -> bool:
    """Whether an array lies in a file that is mapped into memory, or is a view of one that does."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return False


def bits_of(x: np.ndarray) -> int | None:
    """Of samples that are scaled, how many bits their values have; None for others, among them columns of numbers."""
    return depth_of(x.dtype) if x.ndim > 2 else None


def depth_of(kind: np.dtype[Any]) -> int | None:
    """How many bits numbers of a type have that is scaled, whichever byte of them comes first; None for others."""
    return DEPTHS.get(kind.newbyteorder("="))


def unit_interval(x: np.ndarray) -> np.ndarray:
    """uint8 images [N, H, W, 3] or [N, channels, H, W] as float32 [N, channels, H, W] in [0, 1]."""
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] == 3 else x
    return np.ascontiguousarray(x, dtype=np.float32) / np.float32(255)


def mapped(path: Path) -> np.ndarray:
    """A .npy file, memory-mapped read-only: pages are read when they are used.

    Raises DataError: E402 if there is none, E401 if it is not whole.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
        return array
    except FileNotFoundError:
        raise DataError("E402", f"there is no {path}.") from None
    except Exception as error:  # NumPy raises many kinds of error for damaged headers
        raise DataError("E401", f"{path} is not a whole .npy file: {str(error).rstrip('.')}. Copy it again.") from error
