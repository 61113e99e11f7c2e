"""A series of DICOM as a volume: its planes in the order in which they lie in the patient, turned as a NIfTI file's are.

Planes are ordered by where their positions fall on the normal of their orientation, never by the names of files; where no
position is known, by the numbers of the images. A series that lacks a plane, has two in one place, or holds planes of
several orientations or sizes is refused, because a stack of them would be no picture of the patient.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.volumes.dicom import MOST, Item, whole
from unskew.data.volumes.planes import Plane, planes
from unskew.data.volumes.volume import Volume
from unskew.errors import DataError

APART = 0.05
"""Millimetres, or as a share of the step between planes, by which a plane may lie off its place; scanners round."""


@dataclass(frozen=True)
class Series:
    """The files of one series, in the order of paths. name: what messages call it, such as `scans, series 3`."""

    name: str
    items: tuple[Item, ...]

    def __str__(self) -> str:
        return self.name


def stacked(series: Series) -> Volume:
    """The volume of a series.

    Raises DataError: E401 for damaged files, missing planes and series that are too large, E403 for colours, E409 for a
    series whose images do not make one stack.
    """
    stack: list[Plane] = []
    room = MOST // 2
    for item in series.items:
        more = planes(item, whole(item), room)
        room -= sum(plane.values.size for plane in more)
        stack += more
    _check_alike(series, stack)
    stack = _in_order(series, stack)
    values = np.stack([plane.values.T for plane in stack], axis=2)  # columns, rows, planes: x, y, z of NIfTI
    directions, spacing = stack[0].directions, stack[0].spacing
    if directions is None or spacing is None:
        return _as_stored(series, stack, values)
    return _turned(series, values, _affine(series, stack, directions, spacing))


def _check_alike(series: Series, stack: Sequence[Plane]) -> None:
    """Raises DataError (E409) for planes that do not belong into one stack, E401 for a place without a scale."""
    first = stack[0]
    for plane in stack[1:]:
        one, other = (" x ".join(map(str, p.values.shape)) for p in (first, plane))
        if one != other:
            raise _no_stack(series, f"holds images of {one} and of {other}")
        if (first.position is None) != (plane.position is None):
            raise _no_stack(series, "says of some of its images where they lie, and not of others")
        for ours, theirs, what in (
            (first.directions, plane.directions, "orientations"),
            (first.spacing, plane.spacing, "pixel sizes"),
        ):
            if ours is None and theirs is None:
                continue
            if ours is None or theirs is None or np.abs(ours - theirs).max() > 1e-3:
                raise _no_stack(series, f"holds images of several {what}")
    if (first.position is None) != (first.directions is None):
        raise DataError(
            "E401", f"{series} has one of ImagePositionPatient and ImageOrientationPatient; export it with both."
        )
    if first.position is not None and first.spacing is None:
        raise DataError("E401", f"{series} has no PixelSpacing, so its proportions are not known; export it again.")


def _no_stack(series: Series, what: str) -> DataError:
    return DataError(
        "E409", f"{series} {what}, as scouts and localisers do; leave them out, or export a series for each."
    )


def _in_order(series: Series, stack: Sequence[Plane]) -> list[Plane]:
    """The planes along their normal, or by their numbers. Raises DataError (E409) where two are in one place."""
    first = stack[0]
    if first.position is None or first.directions is None:
        if len(series.items) == 1:  # the frames of one file are in order
            return list(stack)
        numbers = [plane.number for plane in stack]
        if None in numbers or len(set(numbers)) < len(numbers):
            raise _no_stack(series, "has neither positions nor an image number of its own for each image")
        return sorted(stack, key=lambda plane: plane.number or 0)
    normal = np.cross(*first.directions)
    along = np.array([normal @ p.position for p in stack])
    order = np.argsort(along, kind="stable")
    steps = np.diff(along[order])
    if steps.size and steps.min() < 1e-3:
        text = f"{series} has two images in one place: it holds several times, echoes or copies"
        raise DataError("E409", f"{text}; give one volume a series.")
    if steps.size and steps.max() - (usual := float(np.sort(steps)[(len(steps) - 1) // 2])) > APART * usual:
        text = f"{series} lacks images: one lies {steps.max():.4g} mm behind its neighbour, others {usual:.4g} mm"
        raise DataError("E401", f"{text}; copy or export all of it.")
    return [stack[i] for i in order]


def _affine(series: Series, stack: Sequence[Plane], directions: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """From [column, row, plane] to millimetres to the right, front and head, [4, 4]. Raises DataError (E401) where planes
    do not lie on a line at equal steps."""
    first = stack[0]
    positions = np.array([plane.position for plane in stack])
    if len(stack) > 1:
        step = (positions[-1] - positions[0]) / (len(stack) - 1)
        off = np.abs(positions - (positions[0] + np.arange(len(stack))[:, None] * step)).max()
        if off > max(APART, APART * float(np.linalg.norm(step))):
            text = f"{series} has images that lie {off:.4g} mm off the line of the others, or at unequal steps"
            raise DataError("E401", f"{text}; copy or export all of it.")
    else:
        step = np.cross(*directions) * (first.step or 1.0)
    affine = np.eye(4)
    affine[:3, 0] = directions[0] * spacing[1]
    affine[:3, 1] = directions[1] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, positions[0]
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM counts to the left and the back


def _turned(series: Series, values: np.ndarray, affine: np.ndarray) -> Volume:
    library = _nibabel(series)
    ways = library.orientations.io_orientation(affine)
    turned = library.orientations.apply_orientation(values, ways)
    affine_turned = affine @ library.orientations.inv_ornt_aff(ways, values.shape)
    x, y, z = map(float, library.affines.voxel_sizes(affine_turned))
    stored = "".join(library.aff2axcodes(affine))
    return Volume(Path(series.name), np.ascontiguousarray(turned), affine_turned, (x, y, z), stored)


def _as_stored(series: Series, stack: Sequence[Plane], values: np.ndarray) -> Volume:
    """Without a place in the patient, such as an X-ray: rows still run downwards, so that pictures are the right way up."""
    first = stack[0]
    row, column = (1.0, 1.0) if first.spacing is None else map(float, first.spacing)
    spacing = (column, row, first.step or 1.0)
    return Volume(Path(series.name), values[:, ::-1], np.diag([*spacing, 1.0]), spacing, "")


def _nibabel(series: Series) -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError:
        raise DataError("E403", f"reading {series} needs nibabel; pip install 'unskew[medical]'.") from None
