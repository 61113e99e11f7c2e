"""Sounds as log-mel spectrograms, in decibels.

    P_tf     |STFT|^2, Hann window, frames centred on multiples of the hop, the ends mirrored
    mel(f)   2595 log10(1 + f / 700)                                               (HTK)
    H_mf     triangles over f that rise and fall between neighbours among M + 2 points, equally far apart in mel
    dB_mt    10 log10(sum_f H_mf P_tf);   x_mt = max(dB_mt - (max dB - range), 0), so 0 to `range_db`

Letters: N samples of a waveform, T frames = 1 + N // hop, F = window / 2 + 1 frequencies, M mel bands (low ones first).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from unskew.cores import one_core
from unskew.errors import DataError

if TYPE_CHECKING:
    import torch

RANGE_DB = 80.0
"""How far below the loudest value of a sound the least one lies."""
FLOOR = 1e-10
"""Power that counts as silence; an audible frame of a waveform in [-1, 1] has more."""


def log_mel(
    waveform: np.ndarray | torch.Tensor,
    rate: int,
    mels: int = 64,
    window: int = 1024,
    hop: int | None = None,
    *,
    low_hz: float = 0.0,
    high_hz: float | None = None,
    range_db: float = RANGE_DB,
) -> np.ndarray:
    """The spectrogram of a mono waveform [N], float32 [mels, 1 + N // hop], in decibels from 0 to `range_db`.

    0 is `range_db` below the loudest value; silence is 0 everywhere. rate: samples per second. window: samples in a
    frame. hop: samples between frames, by default the window. low_hz, high_hz: the range of the bands, by default up to
    half the rate. Raises DataError (E403) for a waveform shorter than half a window or of another shape.
    """
    import torch  # here, so that listing data sets need not load it

    wave = torch.as_tensor(np.asarray(waveform), dtype=torch.float32)
    if wave.dim() != 1 or len(wave) <= window // 2:
        raise DataError(
            "E403",
            f"a waveform must be [N] with N above {window // 2} for a window of {window}; got {list(wave.shape)}.",
        )
    with one_core():  # products of matrices have other last bits on many
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
    """The bands' weights, float32 [mels, window // 2 + 1]: triangles of height 1.

    A band that is narrower than a bin of the STFT may be empty.
    """
    f_F = np.arange(window // 2 + 1) * rate / window
    edges = from_mel(np.linspace(to_mel(low_hz), to_mel(high_hz), mels + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (f_F - low) / (centre - low), (high - f_F) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def to_mel(hz: float) -> float:
    """A frequency in hertz on the mel scale."""
    return 2595 * math.log10(1 + hz / 700)


def from_mel(mel: np.ndarray) -> np.ndarray:
    """Points of the mel scale in hertz."""
    return 700 * (10 ** (mel / 2595) - 1)
