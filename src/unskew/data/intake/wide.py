"""Images with 16 bits for each colour, of which Pillow keeps the upper 8: the file is read twice, once for either byte.

Pillow's decoders take the way in which numbers lie in a file as an argument of their own, such as `RGB;16B` with the upper byte
first. In the other order the byte that they keep is the lower one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

PLANES, BITS = 284, 258
"""TIFF's tags for whether each colour lies by itself (2), and of how many bits it is."""
SWAPPED = {";16B": ";16L", ";16L": ";16B", ";16N": ";16B" if sys.byteorder == "little" else ";16L"}


def colours_of_16_bits(file: Path | IO[bytes], image: Any) -> np.ndarray | None:
    """Red, green and blue, uint16 [H, W, 3], of an image that Pillow has opened but not loaded; None for any other image, among
    them those of which alpha has been multiplied in. Raises ValueError for a packed TIFF of which no lower byte can be had."""
    from PIL import Image

    if image.mode not in ("RGB", "RGBA"):
        return None
    apart = _planes_of_16_bits(image)
    ways = [_way(tile) + apart for tile in image.tile]
    if not ways or any(way[-4:] not in SWAPPED or way.startswith("RGBa") for way in ways):
        return None
    if ways[0] == "LA;16B":  # of PNG: four bytes a pixel, as RGBA has, but those of two numbers
        bytes_ = _read(image, ["RGBA"] * len(ways)).astype(np.uint16)
        return np.repeat((bytes_[..., :1] << 8) | bytes_[..., 1:2], 3, axis=2)
    upper = _read(image, ways)
    if not isinstance(file, Path):
        file.seek(0)
    with Image.open(file) as again:
        lower = _read(again, [way[:-4] + SWAPPED[way[-4:]] for way in ways])
    return (upper[..., :3].astype(np.uint16) << 8) | lower[..., :3]


def _way(tile: Any) -> str:
    """How the numbers of a part of an image lie in its file."""
    args = tile[3]
    return str(args[0] if isinstance(args, tuple) and args else args)


def _planes_of_16_bits(image: Any) -> str:
    """How 16 bits of a colour lie in a TIFF whose colours lie one after another, for which Pillow takes 8; "" for other images."""
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(PLANES) != 2 or {*tags.get(BITS, ())} != {16}:
        return ""
    if any(tile[0] != "raw" for tile in image.tile):
        raise ValueError("its colours of 16 bits lie one after another and are packed")
    return ";16B" if tags.prefix == b"MM" else ";16L"


def _read(image: Any, ways: list[str]) -> np.ndarray:
    """The bytes of an image whose numbers are taken to lie in these ways, [H, W, channels]."""
    tiles = []
    for tile, way in zip(image.tile, ways):
        args = way if isinstance(tile[3], str) else (way, *tile[3][1:])
        tiles.append(tile._replace(args=args) if hasattr(tile, "_replace") else (*tile[:3], args))
    image.tile = tiles
    image.load()
    return np.asarray(image)
