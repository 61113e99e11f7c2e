"""FedGen for images (FLea's comparison, after Liu et al., PAKDD 2022): the server trains an image generator.

The first 0.3 of the rounds (30 of the paper's 100) are FedAvg. From then on, after every merge, the server
takes 50 steps of Adam on  CE(f(G(y, e)), y) + div  with the new global model f frozen, and sends `samples`
images of G with their labels.
Client: loss + CE(f(x~), y~) on as many of these images as the batch has samples
G:      [e; y], e normal in 100 dimensions -> 4x4x256 -> 128 -> 64 -> 32 -> channels, 32x32, tanh
        times `scale`, resized
Differs from the paper: this is our reconstruction. FLea names the method and the rounds, and publishes no
code for it; latent size, layers, steps, the diversity term and the way images enter training are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Out, Part, Tensor, Tree, Weights, key
from unskew.formats.setting_ranges import Fraction, NonNegative, Positive, Rate
from unskew.methods.fedgen import diversity

LATENT = 100
LAYERS = ((256, 128, 4, 2), (128, 64, 4, 2), (64, 32, 4, 2))
"""Transposed convolutions: channels in, channels out, kernel, stride; a final 3x3 one makes the image."""


@dataclass(frozen=True)
class FedGenImages(Part):
    """Trains an image generator at the server; clients train on its images and on their own."""

    stage: Annotated[
        Fraction, "share of the rounds that are plain FedAvg, before the generator is trained"
    ] = 0.3
    steps: Annotated[int, Ge(1), Le(100_000), "steps of Adam on the generator, a round"] = 50
    batch_size: Annotated[int, Ge(1), Le(1024), "images in such a step"] = 64
    lr: Annotated[Rate, "learning rate of Adam"] = 0.001
    samples: Annotated[int, Ge(1), Le(100_000), "images the server sends in a round"] = 256
    scale: Annotated[Positive, "largest absolute value in an image, in the unit of the model's inputs"] = 2.5
    weight: Annotated[NonNegative, "weight of the synthetic images' cross-entropy at the client"] = 1.0
    name = "fedgen_images"
    alone = True
    first_stage = "stage"
    family = "distillation"
    against = ("labels",)
    use_when = "To compare with FLea's table; the method is our reconstruction."
    untuned = {"scale": "it says what values images have"}
    tasks = ("classification",)
    needs = "labels that are classes"
    keeps_at_server = ("G",)
    clashes = {"local": "there is no global model to train the generator against"}

    def refuse(self, fed: Fed) -> str | None:
        if len(fed.shape) != 3:
            return f"it makes images and a sample here is {list(fed.shape)}"
        return fed.nothing_common()

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        generator = key(fed.seed, self.name, "generator")

        def drawn(*shape: int, inside: int) -> Tensor:
            return torch.randn(shape, generator=generator) * (2 / inside) ** 0.5

        layers = {"w": drawn(256 * 16, LATENT + fed.classes, inside=LATENT), "b": torch.zeros(256 * 16)}
        for i, (a, b, kernel, stride) in enumerate(LAYERS):
            layers |= {
                f"w{i}": drawn(a, b, kernel, kernel, inside=a * (kernel // stride) ** 2),
                f"b{i}": torch.zeros(b),
            }
        layers |= {"w_out": drawn(32, fed.shape[0], 3, 3, inside=32 * 9), "b_out": torch.zeros(fed.shape[0])}
        return {"G": layers, "x": torch.zeros(0, *fed.shape), "labels": torch.zeros(0, dtype=torch.int64)}

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor]:
        return down["x"], down["labels"]

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        return {"row": Noise("cycle", (len(down["labels"]),))} if len(down["labels"]) else {}

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        if "row" not in c.noise:
            return 0.0
        y_BC = c.fed.task.targets(c.down["labels"][c.noise["row"]], c.fed.classes)
        return self.weight * b.mean(c.fed.task.loss(c.run(w, c.down["x"][c.noise["row"]]), y_BC))

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        if t < round(self.stage * fed.rounds):
            return w, s
        generator, device = key(fed.seed, t, self.name), s["x"].device
        G = {n: p.clone().requires_grad_() for n, p in s["G"].items()}
        adam = torch.optim.Adam(list(G.values()), self.lr)

        def draw(count: int) -> tuple[Tensor, Tensor]:
            e = torch.randn(count, LATENT, generator=generator)
            return e.to(device), torch.randint(fed.classes, (count,), generator=generator).to(device)

        for _ in range(self.steps):
            e, y = draw(self.batch_size)
            with torch.enable_grad():
                y_BC = fed.task.targets(y, fed.classes).to(e.dtype)
                x = images(G, y_BC, e, fed.shape, self.scale)
                loss = fed.task.loss(fed.net.run(w, x)[0], y_BC).mean() + diversity(x.flatten(1), e)
            adam.zero_grad()
            loss.backward()
            adam.step()
        trained = {n: p.detach() for n, p in G.items()}
        e, y = draw(self.samples)
        with torch.no_grad():
            x = images(trained, fed.task.targets(y, fed.classes).to(e.dtype), e, fed.shape, self.scale)
        return w, {"G": trained, "x": x, "labels": y}


def images(
    G: Mapping[str, Tensor], y_BC: Tensor, e_BE: Tensor, shape: tuple[int, ...], scale: float
) -> Tensor:
    """Images [B, *shape] in [-scale, scale] of classes y [B, C] from noise e [B, E]."""
    h = F.linear(torch.cat([e_BE, y_BC], 1), G["w"], G["b"]).relu().unflatten(1, (256, 4, 4))
    for i, (_, _, _, stride) in enumerate(LAYERS):
        h = F.conv_transpose2d(h, G[f"w{i}"], G[f"b{i}"], stride, padding=1).relu()
    x = F.conv_transpose2d(h, G["w_out"], G["b_out"], padding=1).tanh() * scale
    if x.shape[2:] == shape[1:]:
        return x
    return F.interpolate(x, tuple(shape[1:]), mode="bilinear", align_corners=False)
