"""Image files as samples: one size, ratio kept, every bit depth in [0, 1].

8 bits are divided by 255 and 16 bits by 65,535, or by the largest value of the bits that they use; floats stay what they are. An image that is not square is scaled until its
longer side fits and padded with black, and its mask with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypeVar

import numpy as np

from unskew.data.checks import check_numbers
from unskew.data.convert import array_of
from unskew.data.intake.notes import Note, counted, some
from unskew.data.intake.wide import colours_of_16_bits
from unskew.errors import DataError, excerpt

T = TypeVar("T")
Fit: TypeAlias = Literal["pad", "crop", "squash"]
ORIENTATION = 0x0112
"""The number by which EXIF calls how a camera was held."""
PHOTOMETRIC = 262
"""TIFF's tag for what numbers stand for; 0: the largest is black."""
MOST_WARNED = 4
"""Sites that a warning names."""
COLOURS = ("P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow's modes whose numbers are not red, green and blue, and are read as these."""


@dataclass(frozen=True)
class Form:
    """What an image file was. shape: (width, height). depth: "8 bit", "16 bit" or "float". turned: whether it says that it is to
    be turned or mirrored before it is looked at. clear: whether a part of it is transparent."""

    shape: tuple[int, int]
    depth: str
    frames: int = 1
    turned: bool = False
    clear: bool = False


def picture(file: Path, size: int, fit: Fit, bits: int = 16) -> tuple[np.ndarray, Form]:
    """An image file in colour, float32 [3, size, size], and what it was. bits: that files of 16 bits use. Raises DataError
    (E401) for one that cannot be read."""
    return opened(file, str(file), size, fit, bits)


def opened(file: Path | IO[bytes], name: str, size: int, fit: Fit, bits: int) -> tuple[np.ndarray, Form]:
    """As `picture`, also of a file in memory. name: of the file, for the message."""
    from PIL import Image

    if isinstance(file, Path) and not file.is_file():
        raise DataError("E401", f"{name} is no file, or a link to none; take it away.")
    try:
        with Image.open(file) as image:
            wide = colours_of_16_bits(file, image)
            pixels, depth = (
                pixels_of(image, size, fit, name, bits) if wide is None else _wide(wide, size, fit, name, bits)
            )
            turned = image.getexif().get(ORIENTATION, 1) in range(2, 9)
            return pixels, Form(image.size, depth, getattr(image, "n_frames", 1), turned, _is_clear(image))
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds of error for damaged files
        raise unreadable(name, error) from error


def pixels_of(image: Any, size: int, fit: Fit, name: str, bits: int = 16) -> tuple[np.ndarray, str]:
    """(pixels, depth), as `picture` and `Form` have them, of an image of Pillow's. name: for the message. bits: that
    whole numbers of more than 8 bits use.

    Raises DataError (E401) for whole numbers of more bits.
    """
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values, depth = _deep(image, name, bits)
        grey = fitted(Image.fromarray(values), size, fit, Image.Resampling.BICUBIC)
        pixels = np.asarray(grey, dtype=np.float32)
        return np.repeat((pixels if depth == "float" else pixels.clip(0, 1))[None], 3, axis=0), depth
    if isinstance(image.info.get("transparency"), bytes):  # of a palette: Pillow warns unless alpha is asked for
        image = image.convert("RGBA")
    colours = np.asarray(fitted(image.convert("RGB"), size, fit, None))
    return np.ascontiguousarray(colours.transpose(2, 0, 1).astype(np.float32) / np.float32(255)), "8 bit"


def channels_first(x: Any) -> np.ndarray:
    """A sample as an array, channels first; an image of Pillow's in its own size."""
    if not hasattr(x, "getbands"):
        return array_of(x)
    pixels = np.asarray(x.convert("RGB") if x.mode in COLOURS else x)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def each(files: Sequence[object], read: Callable[[int], T]) -> list[T]:
    """What `read` gives for each of these files, by number. Raises its DataError, with all files that cannot be read."""
    read_files: list[T] = []
    errors: list[tuple[object, DataError]] = []
    for i, file in enumerate(files):
        try:
            read_files.append(read(i))
        except DataError as error:
            if error.code != "E401":
                raise
            errors.append((file, error))
    if len(errors) == 1:
        raise errors[0][1]
    if errors:
        others = some([str(file) for file, _ in errors[1:]])
        raise DataError(
            "E401", f"{errors[0][1].text} {len(errors):,} of {len(files):,} files cannot be read; also {others}."
        )
    return read_files


def sizes_told(forms: Sequence[Form], size: int, fit: Fit, bits: int) -> list[Note]:
    """What became of the images' sizes, bit depths and further frames."""
    shapes = Counter(f.shape for f in forms)
    others = [shape for shape, _ in shapes.most_common() if shape != (size, size)]
    notes: list[Note] = []
    if others:
        (width, height), also = others[0], f" and {counted(len(others) - 1, 'other size')}" if others[1:] else ""
        notes.append(("scaled", f"images of {width} x {height}{also} were resized to {size} x {size} (size={size})"))
    if n := sum(f.shape[0] != f.shape[1] for f in forms):
        done = {"pad": "padded with black", "crop": "cut to their middle", "squash": "squashed"}[fit]
        notes.append(("scaled", f"{counted(n, 'image')} not square, {done} (fit={fit})"))
    for depth, n in Counter(f.depth for f in forms).items():
        how = {"8 bit": "divided by 255", "16 bit": f"divided by {(1 << bits) - 1:,}", "float": "taken as they are"}[
            depth
        ]
        notes.append(("scaled", f"{counted(n, 'image')} of {depth}, {how}"))
    if n := sum(f.frames > 1 for f in forms):
        notes.append(("left out", f"all frames but the first of {counted(n, 'image')}"))
    if n := sum(f.turned for f in forms):
        text = (
            f"{counted(n, 'image')} taken as stored, though EXIF says to turn or mirror them before they are looked at"
        )
        notes.append(("note", f"{text} (Pillow's ImageOps.exif_transpose does it)"))
    if n := sum(f.clear for f in forms):
        notes.append(("note", f"{counted(n, 'image')} with transparent parts, whose hidden colours are used"))
    return notes


def mixed_depths(forms: Sequence[Form], sites: Sequence[str] | None, bits: int) -> list[Note]:
    """A warning for each site, or for all of a folder without sites, whose images are of several depths; none where `bits` says
    what those of 16 bits use. Sites of different depths are compared by their values."""
    notes: list[Note] = []
    for site in sorted({*sites}) if sites else [""]:
        here = [f for k, f in enumerate(forms) if not sites or sites[k] == site]
        depths = Counter(f.depth for f in here)
        if len(depths) < 2 or (bits < 16 and "float" not in depths):
            continue
        kinds = " and ".join(f"{n:,} of {depth}" for depth, n in sorted(depths.items(), reverse=True))
        at = f"{excerpt(site, 40)} has " if site else ""
        text = f"{at}images of several kinds, {kinds}, and each is scaled by its own: what was stored otherwise is as much brighter"
        notes.append(("warning", f"{text} or darker; bring all to one kind (bits=12 where files of 16 bits use 12)"))
    return notes[:MOST_WARNED]


def _is_clear(image: Any) -> bool:
    """Whether a part of an image is transparent."""
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return "A" in image.getbands() and image.getchannel("A").getextrema()[0] < 255


def unreadable(file: Path | str, error: Exception) -> DataError:
    """What to say (E401) of an image file at which Pillow fails."""
    why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if why.startswith("cannot identify"):  # and what follows is the file again
        why = "it is none of a kind that is known, or cut off"
    return DataError("E401", f"{file} cannot be read as an image: {why}; save it again, as PNG, or take it away.")


def _deep(image: Any, name: str, bits: int) -> tuple[np.ndarray, str]:
    """(values, "16 bit" or "float") of an image with more than 8 bits, float32 [H, W]; whole numbers in [0, 1]."""
    values = np.asarray(image)
    if image.mode == "F":
        check_numbers(values, name)
        return values.astype(np.float32), "float"
    values = _checked(values, name, bits)
    if white_is_zero(image):  # which Pillow heeds in images of 8 bits alone
        values = (1 << bits) - 1 - values
    return _shares(values, bits), "16 bit"


def _wide(colours: np.ndarray, size: int, fit: Fit, name: str, bits: int) -> tuple[np.ndarray, str]:
    """As `pixels_of`, of colours of 16 bits, [H, W, 3]."""
    from PIL import Image

    shares = _shares(_checked(colours, name, bits), bits).transpose(2, 0, 1)
    planes = [fitted(Image.fromarray(np.ascontiguousarray(c)), size, fit, Image.Resampling.BICUBIC) for c in shares]
    return np.stack([np.asarray(c, dtype=np.float32) for c in planes]).clip(0, 1), "16 bit"


def _checked(values: np.ndarray, name: str, bits: int) -> np.ndarray:
    """Whole numbers that are so many bits long, int64. Raises DataError (E401) for others."""
    most = (1 << bits) - 1
    if values.min() < 0 or values.max() > most:
        read = "images of 8 or 16 bits are read: shift these values, or save them as floats (TIFF)"
        read = read if bits == 16 else f"bits={bits} allows {most:,} at most"
        raise DataError("E401", f"{name} holds values from {values.min()} to {values.max()}; {read}.")
    return values.astype(np.int64)


def _shares(values: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers of so many bits as float32 in [0, 1]."""
    return values.astype(np.float32) / np.float32((1 << bits) - 1)


def white_is_zero(image: Any) -> bool:
    """Whether an image is a TIFF whose numbers say how black a pixel is."""
    return getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0


def fitted(image: Any, size: int, fit: Fit, resample: Any) -> Any:
    """The image as a square of this size. resample: Pillow's way to resize, None for its default."""
    from PIL import Image

    width, height = image.size
    if width == height or fit == "squash":
        return image.resize((size, size), resample)
    if fit == "crop":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return image.crop((left, top, left + side, top + side)).resize((size, size), resample)
    longer = max(width, height)
    inner = (max(1, round(width * size / longer)), max(1, round(height * size / longer)))
    square = Image.new(image.mode, (size, size))
    square.paste(image.resize(inner, resample), ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return square
