"""Sound files as log-mel spectrograms of one shape, in decibels.

    P_tf     |STFT|^2, Hann window, frames centred on multiples of the hop, the ends mirrored
    mel(f)   2595 log10(1 + f / 700)                                               (HTK)
    H_mf     triangles over f between neighbours among M + 2 points that are equally far apart in mel
    dB_mt    10 log10(sum_f H_mf P_tf);   x_mt = max(dB_mt - (max dB - range), 0), so 0 to `range`

Letters: N samples of a waveform, T frames = 1 + N // hop, F = window / 2 + 1 frequencies, M mel bands (low
ones first).
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.data.samples.conversion import damage_as_error
from unskew.data.samples.dataset import check_numbers
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError
from unskew.system.machine import one_core

if TYPE_CHECKING:
    import torch

RANGE_DB = 80.0
"""The distance in decibels from the loudest value of a sound to the smallest that is kept."""
FLOOR = 1e-10
"""Power that counts as silence; an audible frame of a waveform in [-1, 1] has more."""


def log_mel(
    waveform: np.ndarray | torch.Tensor,
    rate: int,
    mels: int = 64,
    window: int = 1024,
    hop: int | None = None,
) -> np.ndarray:
    """The spectrogram of a mono waveform [N], float32 [mels, 1 + N // hop], in decibels from 0 to RANGE_DB.

    0 is RANGE_DB below the loudest value; silence is 0 everywhere. rate: samples per second. window: samples
    in a frame. hop: samples between frames, by default the window. The bands reach up to half the rate.
    Raises DataError (E403) for a waveform shorter than half a window or of another shape.
    """
    import torch  # imported here, so that listing data sets does not load it

    wave = torch.as_tensor(np.asarray(waveform), dtype=torch.float32)
    if wave.dim() != 1 or len(wave) <= window // 2:
        raise DataError(
            "E403",
            f"a waveform must be [N] with N above {window // 2} for a window of {window}; got"
            f" {list(wave.shape)}.",
        )
    with one_core():  # on several cores the last bits of matrix products differ
        spectrum = torch.stft(
            wave,
            window,
            hop or window,
            window=torch.hann_window(window),
            pad_mode="reflect",
            return_complex=True,
        )
        bands_MF = torch.from_numpy(mel_bands(rate, window, mels))
        power_MT = bands_MF @ spectrum.abs().pow(2)
    loudest = float(power_MT.max())
    if loudest <= FLOOR:
        return np.zeros(power_MT.shape, dtype=np.float32)
    db_MT = 10 * torch.log10(power_MT.clamp(min=FLOOR))
    return (db_MT - (10 * math.log10(loudest) - RANGE_DB)).clamp(min=0).numpy()


def mel_bands(rate: int, window: int, mels: int) -> np.ndarray:
    """The bands' weights, float32 [mels, window // 2 + 1]: triangles of height 1.

    A band that is narrower than a bin of the STFT may be empty.
    """
    f_F = np.arange(window // 2 + 1) * rate / window
    mel_points = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), mels + 2)
    edges = 700 * (10 ** (mel_points / 2595) - 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (f_F - low) / (centre - low), (high - f_F) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


MOST_HZ = 22_050
LOWEST_HZ, HIGHEST_HZ = 1_000, 1_000_000
"""Range of a file's rate; outside, its header is damaged or it is no sound."""
MOST_S = 4.0
WINDOW_S = 1024 / 22_050
MELS = 64
RIFF = (b"RIFF", b"RIFX", b"RF64")
"""The first bytes of .wav files."""


@dataclass(frozen=True)
class SoundFormat:
    """The common format of all files. rate: samples per second. seconds: length that is kept of a file.
    window: samples in a frame."""

    rate: int
    seconds: float
    window: int

    def __str__(self) -> str:
        return f"log-mel spectrograms of {self.seconds:g} s at {self.rate:,} Hz"


def format_of(lengths: Sequence[tuple[int, int]]) -> SoundFormat:
    """The format that fits sounds of these lengths: (samples of a waveform, samples per second).

    It has the most frequent rate, at most 22,050 Hz; the length of the longest file, at most 4 s; and as
    window the largest power of two below 46 ms.
    """
    rates = [rate for _, rate in lengths]
    rate = min(max(set(rates), key=lambda r: (rates.count(r), r)), MOST_HZ)
    seconds = min(max(n / r for n, r in lengths), MOST_S)
    return SoundFormat(rate, seconds, 1 << math.floor(math.log2(WINDOW_S * rate)))


def length_of(file: Path | io.BytesIO, name: str) -> tuple[int, int]:
    """(samples of a file's waveform, samples per second). Raises DataError as `waveform` does."""
    wave, rate = waveform(file, name)
    return len(wave), rate


@dataclass(frozen=True)
class AudioInfo:
    """The properties of a sound file. seconds: its length. rate: samples per second. silent: whether the
    part that is kept is silent."""

    seconds: float
    rate: int
    silent: bool


def read_sound(file: Path | io.BytesIO, name: str, format: SoundFormat) -> tuple[np.ndarray, AudioInfo]:
    """(the log-mel spectrogram of a file, float32 [1, 64, T], its properties).

    The sound is resampled, then cut or padded with zeros at its end. name: name of the file, for messages.
    Raises DataError as `waveform` does.
    """
    from scipy.signal import resample_poly

    wave, rate = waveform(file, name)
    seconds = len(wave) / rate
    if rate != format.rate:
        common = math.gcd(rate, format.rate)
        wave = resample_poly(wave, format.rate // common, rate // common).astype(np.float32)
    size = waveform_length(format)
    clip = np.pad(wave, (0, max(0, size - len(wave))))[:size]
    pixels = log_mel(clip, format.rate, mels=MELS, window=format.window)
    return pixels[None], AudioInfo(seconds, rate, not pixels.any())


def sound_notes(sounds: Sequence[AudioInfo], format: SoundFormat) -> list[Note]:
    """Notes on sounds that are longer than others, of other rates, or silent."""
    notes: list[Note] = [("scaled", f"sounds became {format}")]
    if n := sum(sound.seconds > format.seconds + 1 / format.rate for sound in sounds):
        longest = f"up to {max(sound.seconds for sound in sounds):.4g} s long"
        text = f"what comes after {format.seconds:g} s of {quantity(n, 'sound')}, {longest}"
        notes.append(("left out", text))
    if other_rates := Counter(sound.rate for sound in sounds if sound.rate != format.rate):
        rates = abbreviate([f"{n:,} of {rate:,} Hz" for rate, n in other_rates.most_common()], 4)
        low = min(other_rates) < format.rate
        hint = "; those of a lower rate have nothing in the upper bands" if low else ""
        notes.append(("note", f"sounds of other rates were resampled to {format.rate:,} Hz: {rates}{hint}"))
    if n := sum(sound.silent for sound in sounds):
        notes.append(("note", f"{quantity(n, 'sound')} without anything to hear"))
    return notes


def spectrogram_shape(format: SoundFormat) -> tuple[int, int, int]:
    """The shape of a file's spectrogram, [1, 64, T]."""
    return 1, MELS, 1 + waveform_length(format) // format.window


def waveform_length(format: SoundFormat) -> int:
    """The number of samples of a waveform that are kept."""
    return max(round(format.seconds * format.rate), format.window)


def waveform(file: Path | io.BytesIO, name: str) -> tuple[np.ndarray, int]:
    """(the mean of a file's channels, float32 [N] in [-1, 1]; samples per second). Raises DataError: E401 for
    a file that cannot be read or is truncated, E403 for one without a sample."""
    if not (file.suffix.lower() == ".wav" if isinstance(file, Path) else file.getvalue()[:4] in RIFF):
        wave, rate = _read_compressed(file, name)
    else:
        wave, rate = _read_wav(file, name)
    if not wave.size:
        raise DataError("E403", f"{name} holds no sound.")
    check_numbers(wave, name)
    return (wave.mean(1) if wave.ndim > 1 else wave).astype(np.float32), int(rate)


def _read_wav(file: Path | io.BytesIO, name: str) -> tuple[np.ndarray, int]:
    """(the numbers in a .wav file, whole ones in [-1, 1]; samples per second)."""
    from scipy.io import wavfile

    with damage_as_error(name, "a .wav file", "save it again, as PCM of 16 bits"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # about chunks without sound
            # a truncated file would otherwise count as whole
            warnings.filterwarnings("error", "Reached EOF prematurely")
            rate, wave = wavfile.read(file)
        if not LOWEST_HZ <= rate <= HIGHEST_HZ:
            raise ValueError(f"{rate:,} samples per second")
    if np.issubdtype(wave.dtype, np.integer):
        info = np.iinfo(wave.dtype)
        middle = 128 if info.min == 0 else 0  # bytes have no sign
        wave = (wave.astype(np.float32) - middle) / (128 if info.min == 0 else -float(info.min))
    return wave, rate


def _read_compressed(file: Path | io.BytesIO, name: str) -> tuple[np.ndarray, int]:
    """`_read_wav` for a file that the optional package soundfile reads (.ogg, .flac, .mp3, .aiff)."""
    try:
        soundfile: Any = importlib.import_module("soundfile")
    except ImportError:
        remedy = "convert it (ffmpeg -i FILE FILE.wav), or pip install soundfile"
        raise DataError("E401", f"{name} is compressed; {remedy}.") from None
    with damage_as_error(name, "a sound", "save it again"):
        return soundfile.read(file, dtype="float32", always_2d=True)
