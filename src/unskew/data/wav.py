""".wav files as log-mel spectrograms of one shape."""

from __future__ import annotations

import importlib
import io
import math
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from unskew.data.audio import log_mel
from unskew.data.checks import check_numbers
from unskew.data.intake.notes import Note, counted, some
from unskew.errors import DataError

MOST_HZ = 22_050
LEAST_HZ, HIGHEST_HZ = 1_000, 1_000_000
"""Of a file; outside, its header is damaged or it is no sound."""
MOST_S = 4.0
WINDOW_S = 1024 / 22_050
MELS = 64
RIFF = (b"RIFF", b"RIFX", b"RF64")
"""How the content of .wav files begins."""


@dataclass(frozen=True)
class Format:
    """What all files are converted to. rate: samples per second; seconds: kept of a file; window: samples in a frame."""

    rate: int
    seconds: float
    window: int

    def __str__(self) -> str:
        return f"log-mel spectrograms of {self.seconds:g} s at {self.rate:,} Hz"


def format_of(files: Sequence[Path]) -> Format:
    """The format that fits these files.

    The rate that most of them have, at most 22,050 Hz; the length of the longest, at most 4 s; as window the power of
    two below 46 ms. Raises DataError as `waveform` does.
    """
    return format_for([(len(wave), rate) for wave, rate in map(waveform, files)])


def format_for(lengths: Sequence[tuple[int, int]]) -> Format:
    """The same for sounds of these lengths: (samples of a waveform, samples per second)."""
    rates = [rate for _, rate in lengths]
    rate = min(max(set(rates), key=lambda r: (rates.count(r), r)), MOST_HZ)
    seconds = min(max(n / r for n, r in lengths), MOST_S)
    return Format(rate, seconds, 1 << math.floor(math.log2(WINDOW_S * rate)))


@dataclass(frozen=True)
class Heard:
    """What a file was. seconds: how long; rate: samples per second; silent: whether nothing is to be heard in what is kept."""

    seconds: float
    rate: int
    silent: bool


def spectrogram(file: Path | io.BytesIO, format: Format, name: str = "") -> np.ndarray:
    """The log-mel spectrogram of a file, float32 [64, T]: resampled, then cut or padded with zeros at its end.

    name: of a file in memory. Raises DataError as `waveform` does.
    """
    return heard(file, format, name)[0]


def heard(file: Path | io.BytesIO, format: Format, name: str = "") -> tuple[np.ndarray, Heard]:
    """(the spectrogram of a file, what the file was); arguments as of `spectrogram`."""
    from scipy.signal import resample_poly

    wave, rate = waveform(file, name)
    seconds = len(wave) / rate
    if rate != format.rate:
        common = math.gcd(rate, format.rate)
        wave = resample_poly(wave, format.rate // common, rate // common).astype(np.float32)
    size = samples_kept(format)
    kept = np.pad(wave, (0, max(0, size - len(wave))))[:size]
    pixels = log_mel(kept, format.rate, mels=MELS, window=format.window)
    return pixels, Heard(seconds, rate, not pixels.any())


def sounds_told(sounds: Sequence[Heard], format: Format) -> list[Note]:
    """What became of sounds that are longer than others, of other rates, or silent."""
    notes: list[Note] = [("scaled", f"sounds became {format}")]
    if n := sum(one.seconds > format.seconds + 1 / format.rate for one in sounds):
        longest = f"{'up to ' if n > 1 else ''}{max(one.seconds for one in sounds):.4g} s long"
        notes.append(("left out", f"what comes after {format.seconds:g} s of {counted(n, 'sound')}, {longest}"))
    if others := Counter(one.rate for one in sounds if one.rate != format.rate):
        rates = some([f"{n:,} of {rate:,} Hz" for rate, n in others.most_common()], 4)
        low = "; those of a lower rate have nothing in the upper bands" if min(others) < format.rate else ""
        notes.append(("note", f"sounds of other rates were resampled to {format.rate:,} Hz: {rates}{low}"))
    if n := sum(one.silent for one in sounds):
        notes.append(("note", f"{counted(n, 'sound')} without anything to hear"))
    return notes


def shape_of(format: Format) -> tuple[int, int]:
    """The shape of a file's spectrogram, [64, T]."""
    return MELS, 1 + samples_kept(format) // format.window


def samples_kept(format: Format) -> int:
    """How many samples of a waveform are kept."""
    return max(round(format.seconds * format.rate), format.window)


def waveform(file: Path | io.BytesIO, name: str = "") -> tuple[np.ndarray, int]:
    """(the mean of a file's channels, float32 [N] in [-1, 1]; samples per second).

    file: on a disk, or in memory and then called `name` in messages. Raises DataError: E401 for a file that cannot be read or
    is cut off, E403 for one without a sample.
    """
    if isinstance(file, Path) and not file.is_file():
        raise DataError("E401", f"{file} is no file, or a link to none; take it away.")
    if not (file.suffix.lower() == ".wav" if isinstance(file, Path) else file.getvalue()[:4] in RIFF):
        return _compressed(file, name)
    from scipy.io import wavfile

    name = name or str(file)
    try:
        with open(file, "rb") if isinstance(file, Path) else nullcontext(file) as content:
            _check_chunks(content)
        if not isinstance(file, Path):
            file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that hold no sound
            warnings.filterwarnings("error", "Reached EOF prematurely")  # what is there would be taken for all of it
            rate, wave = wavfile.read(file)
    except Exception as error:  # SciPy's reader raises many kinds of error for damaged files
        why = str(error).partition(". ")[0].rstrip(".")
        text = f"{name} cannot be read as a .wav file: {why}; save it again, as PCM of 16 bits, or take it away"
        raise DataError("E401", f"{text}.") from error
    if not LEAST_HZ <= rate <= HIGHEST_HZ:
        expected = f"expected {LEAST_HZ:,} to {HIGHEST_HZ:,}"
        raise DataError("E401", f"{name} cannot be read as a .wav file: {rate:,} samples per second, {expected}.")
    if np.issubdtype(wave.dtype, np.integer):
        info = np.iinfo(wave.dtype)
        middle = 128 if info.min == 0 else 0  # bytes have no sign
        wave = (wave.astype(np.float32) - middle) / (128 if info.min == 0 else -float(info.min))
    if not wave.size:
        raise DataError("E403", f"{name} holds no sound.")
    check_numbers(wave, name)
    return (wave.mean(1) if wave.ndim > 1 else wave).astype(np.float32), int(rate)


def _compressed(file: Path | io.BytesIO, name: str) -> tuple[np.ndarray, int]:
    """As `waveform`, of a file that the optional package soundfile reads (.ogg, .flac, .mp3, .aiff)."""
    how = "save its sounds as .wav"
    if isinstance(file, Path):
        name, how = str(file), f"convert it (ffmpeg -i {file.name} {file.stem}.wav)"
    try:
        soundfile: Any = importlib.import_module("soundfile")
    except ImportError:
        raise DataError("E401", f"{name} is compressed; {how}, or pip install soundfile.") from None
    try:
        wave, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except Exception as error:  # soundfile raises errors of its own
        raise DataError("E401", f"{name} cannot be read as a sound: {str(error).rstrip('.')}.") from error
    if not wave.size:
        raise DataError("E403", f"{name} holds no sound.")
    return wave.mean(1), int(rate)


def _check_chunks(wav: IO[bytes]) -> None:
    """What SciPy's reader passes over: chunks that are none, and samples of an impossible size. Raises ValueError."""
    kind, _, _ = wav.read(4), wav.read(4), wav.read(4)
    pieces = 0
    order = ">" if kind == b"RIFX" else "<"
    while kind != b"RF64" and len(head := wav.read(8)) == 8:
        name, size = struct.unpack(f"{order}4sI", head)
        if not name.decode("latin-1").isprintable():
            raise ValueError("a chunk in it has no name")
        pieces += name == b"data"
        if pieces > 1:
            raise ValueError("its sound is in several pieces, of which one would be read")
        if name == b"fmt ":
            _, channels, _, _, frame, bits = struct.unpack(f"{order}HHIIHH", wav.read(16))
            if not bits or frame != channels * ((bits + 7) // 8):
                raise ValueError(f"{channels} channels of {bits} bits do not fill a frame of {frame} bytes")
            size -= 16
        wav.seek(size + size % 2, 1)
