"""Sounds as log-mel spectrograms, in decibels.

    P_tf     |STFT|^2, Hann window, frames centred on multiples of the hop, the ends mirrored
    mel(f)   2595 log10(1 + f / 700)                                               (HTK)
    H_mf     triangles over f that rise and fall between neighbours among M + 2 points, equally far apart in mel
    dB_mt    10 log10(sum_f H_mf P_tf);   x_mt = max(dB_mt - (max dB - range), 0), so 0 to `range_db`

Letters: N samples of a waveform, T frames = 1 + N // hop, F = window / 2 + 1 frequencies, M mel bands (low ones first).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unskew.errors import DataError

if TYPE_CHECKING:
    import torch

FLOOR = 1e-10
"""Power below which there is silence; a waveform that lies in [-1, 1] has more in any frame one can hear."""
MOST_HZ, MOST_S, WINDOW_S = 22_050, 4.0, 1024 / 22_050


@dataclass(frozen=True)
class Cut:
    """How files become spectrograms of one shape: samples a second, seconds kept, samples in a window."""

    rate: int
    seconds: float
    window: int


def log_mel(
    waveform: np.ndarray | torch.Tensor,
    rate: int,
    mels: int = 64,
    window: int = 1024,
    hop: int | None = None,
    *,
    low_hz: float = 0.0,
    high_hz: float | None = None,
    range_db: float = 80.0,
) -> np.ndarray:
    """[mels, 1 + N // hop] float32 of a mono waveform [N]: dB above the loudest value less `range_db`; silence is 0.

    hop: samples between frames, by default the window. high_hz: by default half the rate.
    """
    import torch  # here, so that what only lists data sets need not load it

    wave = torch.as_tensor(np.asarray(waveform), dtype=torch.float32)
    if wave.dim() != 1 or len(wave) <= window // 2:
        raise DataError(
            "E403", f"a waveform of {list(wave.shape)} samples does not fit a window of {window}, [N] does."
        )
    spectrum = torch.stft(
        wave, window, hop or window, window=torch.hann_window(window), pad_mode="reflect", return_complex=True
    )
    bands_MF = torch.from_numpy(mel_bands(rate, window, mels, low_hz, high_hz or rate / 2))
    power_MT = bands_MF @ spectrum.abs().pow(2)
    loudest = float(power_MT.max())
    if loudest <= FLOOR:
        return np.zeros(power_MT.shape, dtype=np.float32)
    db_MT = 10 * torch.log10(power_MT.clamp(min=FLOOR))
    return (db_MT - (10 * math.log10(loudest) - range_db)).clamp(min=0).numpy()


def mel_bands(rate: int, window: int, mels: int, low_hz: float, high_hz: float) -> np.ndarray:
    """[mels, window // 2 + 1] float32: triangles of height 1; a band narrower than a bin of the STFT may be empty."""
    f_F = np.arange(window // 2 + 1) * rate / window
    edges = from_mel(np.linspace(to_mel(low_hz), to_mel(high_hz), mels + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (f_F - low) / (centre - low), (high - f_F) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def to_mel(hz: float) -> float:
    return 2595 * math.log10(1 + hz / 700)


def from_mel(mel: np.ndarray) -> np.ndarray:
    return 700 * (10 ** (mel / 2595) - 1)


def fitting(files: Sequence[Path]) -> Cut:
    """The rate of most files, at most 22,050 Hz; the longest file, at most 4 s; a power of two of about 46 ms."""
    heard = [(len(wave), rate) for wave, rate in map(waveform, files)]
    rates = [rate for _, rate in heard]
    rate = min(max(set(rates), key=lambda r: (rates.count(r), r)), MOST_HZ)
    seconds = min(max(n / r for n, r in heard), MOST_S)
    return Cut(rate, seconds, 1 << math.floor(math.log2(WINDOW_S * rate)))


def read(file: Path, cut: Cut) -> np.ndarray:
    """The log-mel spectrogram [64, T] of one file: resampled, cut or filled up with zeros at its end."""
    from scipy.signal import resample_poly

    wave, rate = waveform(file)
    if rate != cut.rate:
        common = math.gcd(rate, cut.rate)
        wave = resample_poly(wave, cut.rate // common, rate // common).astype(np.float32)
    size = max(round(cut.seconds * cut.rate), cut.window)
    return log_mel(np.pad(wave, (0, max(0, size - len(wave))))[:size], cut.rate, window=cut.window)


def waveform(file: Path) -> tuple[np.ndarray, int]:
    """(the mean of the channels [N], float32 in [-1, 1]; samples a second) of a .wav file."""
    from scipy.io import wavfile

    try:
        rate, wave = wavfile.read(file)
    except (ValueError, OSError, EOFError, struct.error) as error:
        raise DataError("E401", f"{file} cannot be read as a .wav file: {error}.") from error
    if np.issubdtype(wave.dtype, np.integer):
        info = np.iinfo(wave.dtype)
        middle = 128 if info.min == 0 else 0  # bytes have no sign
        wave = (wave.astype(np.float32) - middle) / (128 if info.min == 0 else -float(info.min))
    if not wave.size:
        raise DataError("E403", f"{file} holds no sound.")
    return (wave.mean(1) if wave.ndim > 1 else wave).astype(np.float32), int(rate)
