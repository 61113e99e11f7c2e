"""How files became the samples that a model takes, in words: for a program that reads such files without unskew.

The samples of a folder of images are numbers in [0, 1] already, so that `divided_by` is 1, and nothing else says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.data.audio import RANGE_DB
from unskew.data.wav import MELS, samples_kept
from unskew.data.wav import Format as Sound

FITTED = {
    "pad": "scaled until its longer side is {size} and put on the middle of a black square",
    "crop": "cut to the square in its middle and scaled to {size} x {size}",
    "squash": "scaled to {size} x {size}, whatever its sides",
}


def from_files(form: Mapping[str, Any], name: str = "") -> str:
    """How a file, or a row of a table, became a sample; "" where samples were given as arrays.

    form: `Intake.form` of the training samples. name: of an input, where a sample has several.
    """
    if name in (files := form.get("files", {})):
        return from_files(files[name])
    kind = form.get("kind", "arrays")
    if name and name != {"images": "image", "sounds": "sound"}.get(kind):
        kinds = dict(form.get("beside", ()))
        return _column(name, kinds[name]) if name in kinds else ""
    return {"images": _image, "sounds": _sound, "volumes": _volume, "table": _row}.get(kind, _nothing)(form)


def _nothing(_form: Mapping[str, Any]) -> str:
    return ""


def _image(form: Mapping[str, Any]) -> str:
    fitted = FITTED[form["fit"]].format(size=form["size"])
    scaled = f"8 bits divided by 255, more by {(1 << int(form['bits'])) - 1:,}, floats as they are"
    how = "in red, green and blue, greys as three equal ones, without alpha, and not turned as EXIF says"
    return f"the first image of a file, {how}; {fitted} (bicubic, as Pillow's resize does); {scaled}; [3, H, W]"


def _sound(form: Mapping[str, Any]) -> str:
    sound = Sound(int(form["rate"]), float(form["seconds"]), int(form["window"]))
    wave = f"the mean of the channels, from -1 to 1, at {sound.rate:,} Hz (scipy.signal.resample_poly)"
    cut = f"its first {samples_kept(sound):,} samples, shorter ones with zeros behind"
    power = f"|STFT|^2 with a periodic Hann window of {sound.window}, as large a hop, centred, the ends mirrored (torch.stft)"
    bands = (
        f"{MELS} triangles of height 1, equally far apart in 2595 log10(1 + f / 700) from 0 to {sound.rate / 2:,g} Hz"
    )
    loud = f"10 log10 of it, less what is {RANGE_DB:g} below the loudest value, and 0 where that is negative or all is silent"
    return f"{wave}; {cut}; {power}; {bands}; {loud}; [1, bands, frames], low bands first"


def _volume(form: Mapping[str, Any]) -> str:
    cut = f"turned to RAS and cut into {form['axis']} slices, rows from the front or the head, columns to the patient's right or the front"
    scaled = f"scaled in millimetres, each pixel the mean over its area, until the longer side is {form['size']}"
    return f"a volume's values as its header scales them; {cut}; {scaled}; the rest of the square is the volume's least value"


def _row(form: Mapping[str, Any]) -> str:
    named = "; ".join(_column(column, words) for column, words in form["columns"])
    return f"a row of a table, in this order: {named}"


def _column(column: str, words: Sequence[str]) -> str:
    if not words:
        return f"'{column}' as it is"
    if len(words) == 2:
        return f"'{column}', 0 for {words[0]!r} and 1 for {words[1]!r}"
    return (
        f"'{column}', a number for each of {', '.join(map(repr, words))}, which is 1 for the one that is there, else 0"
    )
