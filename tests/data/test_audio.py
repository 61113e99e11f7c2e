"""Log-mel spectrograms against NumPy, pure tones and the lengths of the named sets; folders of sounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import wavfile
from scipy.signal import get_window

from unskew import data
from unskew.data.kinds import sounds as kinds_sounds
from unskew.data.kinds.sounds import log_mel
from unskew.errors import DataError


def tone(hz, rate, seconds=1.0):
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def slowly(wave, rate, mels, window, hop):
    """The definition, frame by frame and band by band, in double precision."""
    wave = np.pad(wave.astype(np.float64), window // 2, mode="reflect")
    frames = np.array([wave[i : i + window] for i in range(0, len(wave) - window + 1, hop)])
    power = np.abs(np.fft.rfft(frames * get_window("hann", window), axis=1)) ** 2
    f, top = np.arange(window // 2 + 1) * rate / window, 2595 * np.log10(1 + rate / 2 / 700)
    points = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, top, mels + 2)]
    bands = np.zeros((mels, len(f)))
    for m in range(mels):
        low, centre, high = points[m : m + 3]
        for i, hz in enumerate(f):
            bands[m, i] = max(0.0, min((hz - low) / (centre - low), (high - hz) / (high - centre)))
    db = 10 * np.log10(np.maximum(power @ bands.T, 1e-10)).T
    return np.maximum(db - db.max() + 80, 0)


@pytest.mark.parametrize(("mels", "window", "hop"), [(64, 256, 256), (20, 512, 128)])
def test_equals_the_definition(mels, window, hop):
    wave = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32) + 0.3 * tone(700, 8000, 0.5)
    found = log_mel(wave, 8000, mels, window, hop)
    np.testing.assert_allclose(found, slowly(wave, 8000, mels, window, hop), atol=1e-3)
    assert np.median(abs(found - slowly(wave, 8000, mels, window, hop))) < 1e-4


def test_lengths_and_range_are_the_named_sets():
    rng = np.random.default_rng(1)
    assert log_mel(rng.normal(size=4 * 22050), 22050).shape == (64, 87)
    assert log_mel(rng.normal(size=8000), 8000, window=256).shape == (64, 32)
    wave = tone(440, 8000)
    wave[4000:] = 0
    found = log_mel(wave, 8000, window=256)
    assert (found.min(), found.max()) == (0, pytest.approx(80, abs=1e-4))
    quieter = log_mel(
        0.01 * wave, 8000, window=256
    )  # level does not matter; far below the peak float32 rounds
    np.testing.assert_allclose(quieter, found, atol=0.01)
    assert not log_mel(np.zeros(8000), 8000, window=256).any()
    with pytest.raises(
        DataError, match=r"E403 a waveform must be \[N\] with N above 128 for a window of 256; got \[100\]"
    ):
        log_mel(np.zeros(100), 8000, window=256)


def sounds(root, rates=(8000, 8000, 16000)):
    for part, n in (("train", 3), ("test", 1)):
        for name, hz in (("high", 2000), ("low", 300)):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                wave = tone(hz, rates[i], 0.5 + 0.1 * i)
                kind = [
                    wave,
                    (32767 * wave).astype(np.int16),
                    np.stack([128 + 127 * wave] * 2, 1).astype(np.uint8),
                ][i]
                wavfile.write(root / part / name / f"{i}.wav", rates[i], kind)


def test_a_folder_of_sounds(tmp_path):
    sounds(tmp_path)
    d = data.folder(tmp_path)
    assert kinds_sounds.format_of(
        [kinds_sounds.length_of(f, f.name) for f in (tmp_path / "train").rglob("*.wav")]
    ) == kinds_sounds.SoundFormat(8000, 0.7, 256)
    assert d.x.shape == (6, 1, 64, 1 + 5600 // 256)
    assert d.classes == ("high", "low")
    assert len(d.y_test) == 2
    loudest = d.x[:, 0, :, 4].argmax(1)
    assert np.ptp(loudest[:3]) <= 1  # at any rate and width
    assert loudest[:3].min() > loudest[3:].max() + 10
    assert np.ptp(loudest[3:]) <= 1
    standard = d.standardised()
    assert abs(standard.x.mean()) < 1e-3
    assert abs(standard.x.std() - 1) < 1e-3


@pytest.mark.parametrize(
    ("samples", "wave"),
    [
        (np.array([-(1 << 15), 0, 1 << 14], np.int16), [-1, 0, 0.5]),
        (np.array([0, 128, 192], np.uint8), [-1, 0, 0.5]),  # bytes have no sign: silence is 128
        (np.array([-(1 << 31), 0, 1 << 30], np.int32), [-1, 0, 0.5]),
        (np.array([-1.0, 0.0, 0.5], np.float32), [-1, 0, 0.5]),
        (
            np.array([[-(1 << 15), 0], [0, 0], [1 << 14, 1 << 14]], np.int16),
            [-0.5, 0, 0.5],
        ),  # the mean of two channels
    ],
)
def test_waves_lie_between_minus_one_and_one_whatever_their_type(tmp_path, samples, wave):
    wavfile.write(tmp_path / "a.wav", 8000, samples)
    read, rate = kinds_sounds.waveform(tmp_path / "a.wav", "a.wav")
    assert (read.tolist(), read.dtype, rate) == (wave, np.float32, 8000)
