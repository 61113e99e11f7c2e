"""Reconstruct and context: what is there is found, and payloads are those that the server kept."""

from __future__ import annotations

import pytest
import torch

from tests.attacks.runs import trained
from unskew.attacks import decoders, inversion, payloads, success
from unskew.attacks.decoders import TrainingSet
from unskew.attacks.kinds.context import Context, Marker
from unskew.attacks.kinds.reconstruct import Reconstruct
from unskew.attacks.target_run import TargetRun
from unskew.errors import StateError
from unskew.methods.flea import FLea

FEW = {"model": "cnn_small", "samples": 40, "rounds": 3}


@pytest.fixture(scope="module")
def flea(tmp_path_factory):
    target = TargetRun(trained(tmp_path_factory.mktemp("flea"), "flea(alpha=0.5)", **FEW))
    yield target
    target.close()


def of(target: TargetRun, attack) -> dict[tuple[str, str], float]:
    return {(s.of, s.metric): s.value for s in attack.attempt(target, 0).scores}


@pytest.mark.parametrize("fused", [False, True])
def test_activations_are_those_that_the_server_kept_with_the_samples_behind(fused, flea, tmp_path):
    target = TargetRun(trained(tmp_path, "flea(alpha=0.5,fused=True)", **FEW)) if fused else flea
    part = payloads.part_of(target, FLea)
    assert part is not None
    labels = {x.tobytes(): int(y) for x, y in zip(target.run.federation.x, target.run.federation.y)}
    first, last = payloads.activations(target, part, "every")
    for t, taken in enumerate((first, last), 1):
        assert (taken.t, len(taken.sent)) == (t, 60)  # half of 3 clients' 40 samples
        assert taken.client.tolist() == [k for k in range(3) for _ in range(20)]
        assert torch.allclose(payloads.at_cut(target, taken, taken.x), taken.sent, atol=1e-5)
        assert [labels[x.numpy().tobytes()] for x in taken.x] == taken.y.tolist()
    assert torch.equal(first.x, last.x)  # so that the server has both activations of each sample
    assert not torch.equal(first.sent, last.sent)
    (alone,) = payloads.activations(target, part, "last")
    assert torch.equal(alone.sent, last.sent)


def test_activations_with_other_bits_are_not_attacked(flea):
    kept = flea.before[0]["slices"]["flea"]["features"]
    part = payloads.part_of(flea, FLea)
    assert part is not None
    kept[0] += 1
    try:
        with pytest.raises(StateError, match="E112"):
            payloads.activations(flea, part, "last")
    finally:
        kept[0] -= 1
        flea.__dict__.pop("before")  # read it anew: what was added may not be exactly taken off


def test_the_first_layers_activations_give_the_image_back(flea):
    scores = of(flea, Reconstruct(steps=50, own=150))
    assert scores["deep decoder", "PSNR, dB"] > 20
    assert scores["class mean", "PSNR, dB"] < 17
    assert scores["white-box inversion", "MSE"] < scores["linear decoder", "MSE"]
    assert 0 < scores["white-box inversion", success.WORST] <= scores["white-box inversion", "MSE"]


def test_a_quarter_of_a_lesson_stops_the_training_and_channels_are_scaled_apart():
    x = torch.stack([torch.arange(24.0).reshape(12, 2), 5 + 10 * torch.arange(24.0).reshape(12, 2)], 1)
    train, stopping = TrainingSet(x, x, 1, 0).parts()
    assert (len(train), sorted([*train.tolist(), *stopping.tolist()])) == (9, [*range(12)])
    mean, std = decoders.scale(x)
    assert (mean.flatten().tolist(), mean.shape) == ([11.5, 120.0], std.shape)
    assert std.flatten().tolist() == pytest.approx([50**0.5, 10 * 50**0.5])


@pytest.mark.parametrize("n", [30, 300])
def test_ridge_regression_inverts_a_linear_map(n):
    """h = x A + b with an orthogonal 9x9 A. By 22 of 30 and by 225 of 300 samples; h is repeated 8 times, so
    that 72 values are more than the samples of the first (dual) and less than those of the second (primal)."""
    generator = torch.Generator().manual_seed(1)
    x, A = torch.rand(n + 5, 1, 3, 3, generator=generator), torch.randn(9, 9, generator=generator)
    x[:2] = torch.tensor([0.0, 1.0])[:, None, None, None]  # the range of all samples
    h = (x.flatten(1) @ torch.linalg.qr(A).Q + 2).repeat(1, 8).reshape(n + 5, 8, 3, 3)
    made = decoders.linear_decoder(TrainingSet(h[:n], x[:n], 1, 0))(h[n:])
    torch.testing.assert_close(made, x[n:], atol=1e-5, rtol=0)


def test_a_dense_layer_is_inverted_through_its_non_linearity():
    """h = tanh(x A + b) with an invertible A says x exactly, and a linear decoder does not."""
    generator = torch.Generator().manual_seed(1)
    A = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    x = torch.randn(4, 6, generator=generator)
    within = inversion.Search.like(torch.randn(100, 6, generator=generator) * 2)
    f = lambda x: torch.tanh(x @ A + 0.1)  # noqa: E731
    made = inversion.white_box(f, f(x), torch.zeros(4, 6), within, 600)
    assert float((made - x).abs().max()) < 0.01
    torch.testing.assert_close(inversion.white_box(f, f(x), x, within, 3), x)  # the nearest step is kept


@pytest.mark.parametrize("values", [5, 400])
def test_a_payload_that_says_nothing_gives_the_mean(values):
    """Also one of more values than there are samples, which can be fitted as if they said all."""
    x = torch.rand(300, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    nothing = torch.rand(300, values, generator=torch.Generator().manual_seed(2))
    made = decoders.linear_decoder(TrainingSet(nothing[:200], x[:200], 1, 0))(nothing[200:])
    floor = float(success.mse(x[:200].mean(0, keepdim=True).expand_as(x[200:]), x[200:]).mean())
    assert float(success.mse(made, x[200:]).mean()) == pytest.approx(floor, rel=0.1)


def test_raw_inputs_are_read_as_they_are_and_averages_blurred(tmp_path):
    few = {**FEW, "rounds": 1}
    raw, mixed = (TargetRun(trained(tmp_path / m, m, **few)) for m in ("feddata", "fedmix"))
    assert of(raw, Reconstruct())["as sent", "MSE"] == 0
    blurred = of(mixed, Reconstruct())["as sent", "MSE"]
    alone = {s.metric: s.floor for s in Reconstruct().attempt(mixed, 0).scores}["MSE"]
    assert 0.01 < blurred < alone


@pytest.mark.parametrize("decoder", [decoders.deep_decoder, decoders.vae])
def test_what_a_decoder_learns_does_not_depend_on_the_unit_of_samples(decoder, monkeypatch):
    """Steps of Adam are as long in any unit: images from 0 to 255 were decoded at 20 dB instead of 31,
    volumes from -1000 to 3000 at 16."""
    x = torch.rand(120, 1, 6, 6, generator=torch.Generator().manual_seed(1)).round()
    sent = x.flatten(1) if decoder is not decoders.deep_decoder else x
    large, tiny = (decoder(TrainingSet(sent, scale * x, 40, 0))(sent) / scale for scale in (4096, 1 / 128))
    assert torch.allclose(large, tiny, atol=1e-5)
    blank = decoder(TrainingSet(sent, 0 * x + 7, 1, 0))(sent)  # of samples that are all one number
    assert bool(blank.isfinite().all())
    monkeypatch.setattr(decoders, "replace", None)  # numbers like those of images are learnt as they are
    assert bool(decoder(TrainingSet(sent, x, 1, 0))(sent).isfinite().all())


@pytest.mark.parametrize(("background", "colour"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_marker_can_be_seen_on_what_is_behind_it(background, colour):
    """On white a marker in the brightest colour was the background: AUC 0.47."""
    x = torch.full((5, 1, 8, 8), background)
    x[:, :, 6:, 6:] = 1 - background
    marker = Marker.on(x, 3)
    assert (marker.colour, marker.place) == (colour, slice(2, 5))
    marked = marker.drawn(x)
    assert bool((marked[:, :, 2:5, 2:5] == colour).all())
    assert int((marked != x).sum()) == 5 * 9


def test_a_marker_is_found_in_activations(flea):
    scores = of(flea, Context(marker=3, own=(200,), steps=60))
    assert scores["200 own samples", "AUC"] > 0.9
