"""A user's samples as the float32 arrays that a Dataset holds.

scaling     unsigned whole numbers of images are divided by their largest value (uint8 by 255, uint16 by
            65,535), so that images of any depth lie in [0, 1]; other numbers, and columns [N, columns], stay
            as they are
axes        channels come first. An array whose channels may come last or be missing, because its sides are
            those of an image or because it may be a series [N, time, features], is refused until its layout
            is named

Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from unskew.data.storage.rows_on_disk import Rows, StoredImages, fits_memory, is_streamed, mapped_rows
from unskew.errors import DataError, excerpt

LARGE = 1 << 30
"""Size in bytes above which a memory-mapped file is read row by row; a quarter of the memory, if that is
less."""
DEPTHS = {np.dtype(np.uint8): 8, np.dtype(np.uint16): 16}
"""The number of bits of each type that is scaled."""


def array_of(values: Any) -> np.ndarray:
    """An array from an array, a tensor on any device, a column of a table, or a list.

    Raises DataError (E403) for lists of unequal lengths and for objects without ordered values.
    """
    if hasattr(values, "detach"):
        try:
            values = values.detach().cpu()
            values = values.numpy() if str(values.dtype) != "torch.bfloat16" else values.float().numpy()
        except (RuntimeError, TypeError) as error:  # such as sparse, quantised, or on the device meta
            form = str(values.layout).removeprefix("torch.")
            text = f"a {form} tensor cannot be read as plain numbers"
            raise DataError("E403", f"{text}; give x.to_dense().") from error
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.getmaskarray(values).any():
            raise DataError(
                "E403", "a masked array lacks values; fill them, x.filled(...), or leave them out."
            )
        return values.filled()
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list | tuple) and values and all(hasattr(v, "detach") for v in values):
        values = [array_of(v) for v in values]
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError("E403", unequal_shapes(values)) from None
    if array.dtype.kind == "O" and not array.ndim:
        raise DataError("E403", f"a {type(values).__name__} is no array; give an array, a tensor or a list.")
    return array


def unequal_shapes(values: Any) -> str:
    """A sentence about samples of unequal shapes."""
    shapes = [np.shape(v) if not isinstance(v, list | tuple) else (len(v),) for v in values]
    odd = next((i for i, s in enumerate(shapes) if s != shapes[0]), 0)
    which = f": sample 0 is {list(shapes[0])}, sample {odd} is {list(shapes[odd])}" if odd else ""
    return f"samples differ in shape{which}; cut or pad them to one shape first."


def sample_array(x: Any, name: str) -> np.ndarray:
    """Numbers [N, ...] from an array, a tensor or the path of a .npy file, which stays mapped.

    name: name of the set, for the message.
    Raises DataError: E403 for anything but an array of numbers, E401 and E402 for the file.
    """
    if is_streamed(x):
        return x
    x = map_npy(Path(x)) if isinstance(x, str | Path) else array_of(x)
    if x.dtype.kind == "O" and x.ndim == 1 and len(x) and all(np.ndim(v) for v in x):
        raise DataError("E403", f"{name}: {unequal_shapes(list(x))}")
    if not x.ndim or x.dtype.kind not in "biuf":
        example = f", such as {excerpt(x.reshape(-1)[0], 30)}" if x.size else ""
        text = f"{name}: x is {x.dtype} {list(x.shape)}{example}"
        raise DataError("E403", f"{text}; it must be numbers [N, ...], channels first.")
    if 0 in x.shape[1:]:
        raise DataError("E403", f"{name}: x is {list(x.shape)}, so that a sample holds no number.")
    return x if x.dtype.isnative or is_large(x) else x.astype(x.dtype.newbyteorder("="))


def scale_samples(x: np.ndarray, name: str) -> np.ndarray:
    """Samples as float32: uint8 / 255, uint16 / 65,535. Other types and columns [N, columns] keep their
    values.

    The rows of a large mapped file are read and scaled when they are needed
    (unskew.data.storage.rows_on_disk). A smaller file is copied into memory, so later changes of the file
    have no effect. Raises DataError (E403) for a large mapping that was changed in memory.
    """
    if is_streamed(x):
        return x
    bits = bits_of(x)
    full = (1 << bits) - 1 if bits else None
    if is_large(x):
        return mapped_rows(x, full, name)
    if x.dtype == np.float32:
        return np.array(x) if is_mapped(x) else x
    with np.errstate(over="ignore"):  # values that are too large become infinite, which is refused
        return np.asarray(x.astype(np.float32) if full is None else x.astype(np.float32) / np.float32(full))


def is_large(x: np.ndarray) -> bool:
    """Whether samples are mapped from a file that is too large to be copied into memory."""
    return isinstance(x, np.memmap) and (x.nbytes > LARGE or not fits_memory(len(x), x.shape[1:]))


def is_mapped(x: Any) -> bool:
    """Whether an array, or the array that it is a view of, is mapped from a file."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return False


def bits_of(x: np.ndarray) -> int | None:
    """The number of bits of samples that are scaled; None for others, such as columns of numbers."""
    return depth_of(x.dtype) if x.ndim > 2 else None


def depth_of(kind: np.dtype[Any]) -> int | None:
    """The number of bits of a type that is scaled, in either byte order; None for other types."""
    return DEPTHS.get(kind.newbyteorder("="))


def unit_interval(x: np.ndarray) -> np.ndarray:
    """uint8 images [N, H, W, 3] or [N, channels, H, W] as samples [N, channels, H, W] in [0, 1]. They stay
    whole numbers in memory, and are divided when they are read."""
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] == 3 else x
    return cast(np.ndarray, Rows(StoredImages(x)))


@contextmanager
def damage_as_error(name: object, kind: str, remedy: str) -> Iterator[None]:
    """Turn all that a library raises for a damaged file into a DataError (E401); a missing file is E402.

    name: of the file, for the message. kind: what it should be.
    """
    try:
        yield
    except (DataError, PermissionError):
        raise
    except FileNotFoundError:
        raise DataError("E402", f"there is no {name}.") from None
    except Exception as error:  # Pillow, SciPy, pyarrow, nibabel and NumPy raise many kinds
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if reason.startswith("cannot identify"):  # the rest of Pillow's message repeats the file
            reason = "it is none of a kind that is known, or cut off"
        if "allow_pickle" in reason:  # NumPy's advice is to run what the file holds
            reason = "it holds Python objects, not numbers or words"
        text = f"{name} cannot be read as {kind}: {excerpt(reason, 200)[1:-1]}"
        raise DataError("E401", f"{text}; {remedy}.") from error


def map_npy(path: Path) -> np.ndarray:
    """A .npy file, memory-mapped read-only: pages are read when they are used.

    Raises DataError: E402 if there is none, E401 if it is not whole.
    """
    with damage_as_error(path, "a whole .npy file", "copy it again"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
        return array


AxisOrder = Literal["auto", "channels first", "channels last", "time first"]
"""The order of the axes behind that of the samples; "channels last" also for images without channels, "time
first" for series [N, time, features], "auto" if it follows from the shape."""
LAYOUT_HINT = "name the layout, unskew.data.take(data, layout=...) or PATH(layout=...)"
LEAST_SIDE = 8
CHANNEL_COUNTS = (1, 2, 3, 4)
SERIES_RATIO = 8
"""A series this many times as long as it has channels is taken to have its channels first."""


def channels_first(x: np.ndarray, layout: AxisOrder, name: str) -> np.ndarray:
    """The samples with their channels first, a view. Raises DataError (E403) for a layout that these samples
    cannot have."""
    if layout in ("auto", "channels first"):
        return x
    if is_streamed(x) or x.ndim not in ((3,) if layout == "time first" else (3, 4)):
        what = "samples that are read one by one" if is_streamed(x) else f"x is {list(x.shape)}"
        text = f"{name}: {what}, which cannot be read with layout='{layout}'"
        raise DataError("E403", f"{text}; put channels first.")
    if layout == "time first":
        return x.swapaxes(1, 2)
    return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)


def check_axes(name: str, x: np.ndarray, masks: bool = False, series: bool = True) -> None:
    """Raises DataError (E403) for samples [N], [N, H, W], [N, H, W, channels] or [N, time, features]; the
    message has the line of code that mends it.

    masks: whether every pixel has a label, so that [N, H, W] is certainly an image without channels.
    series: whether [N, time, features] is refused; not among several inputs, which need a user's own model.
    """
    subject = f"{name}: x is {list(x.shape)}"
    if x.ndim == 1:
        raise DataError("E403", f"{subject}; write x[:, None] for samples with one column.")
    escape = f"or {LAYOUT_HINT}: 'channels last', or 'channels first' if the second axis does hold channels"
    channels_last = x.ndim == 4 and x.shape[-1] in CHANNEL_COUNTS and x.shape[1] not in CHANNEL_COUNTS
    if channels_last and _are_sides(x.shape[1:3], 4):
        text = f"{subject}, which looks like [N, H, W, channels]"
        raise DataError("E403", f"{text}; write x.transpose(0, 3, 1, 2), {escape}.")
    if x.ndim == 3 and (masks or _are_sides(x.shape[1:], 2)):
        text = f"{subject}, which looks like images [N, H, W] without channels; write x[:, None]"
        raise DataError("E403", f"{text}, {escape}, 'time first' if it holds time.")
    if series and x.ndim == 3 and _may_be_series(*x.shape[1:]):
        text = f"{subject}: {x.shape[1]} channels, or {x.shape[1]} points in time of {x.shape[2]} features?"
        raise DataError("E403", f"{text} Please {LAYOUT_HINT}: 'channels first' or 'time first'.")


def _may_be_series(first: int, second: int) -> bool:
    """Whether the first axis of these samples may be time, and the second features."""
    if first == 1 or (first in CHANNEL_COUNTS and second > first):
        return False
    return second < SERIES_RATIO * first


def _are_sides(shape: tuple[int, ...], ratio: float) -> bool:
    """Whether two axes may be the sides of an image: neither is short, and their ratio is below `ratio`."""
    return min(shape) >= LEAST_SIDE and max(shape) < ratio * min(shape)
