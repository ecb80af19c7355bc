"""Denoisers to plan, without weights: the U-Net of SDXL (arXiv 2307.01952) and DiT (arXiv 2212.09748).

plan --module examples.diffusion:sdxl_unet --input 8x4x128x128,8,8x77x2048,8x2816 --gpus 8
plan --module examples.diffusion:dit_xl_2 --input 8x4x32x32,8,8:long --gpus 8
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS, DEPTHS, HEAD = (320, 640, 1280), (0, 2, 10), 64
"""Of the U-Net's three resolutions: channels, transformer layers of a residual block; size of a head."""
TIME, TEXT, ADDED, GROUPS = 1280, 2048, 2816, 32


class Attention(nn.Module):
    """Attention of an image to itself or to a text, without biases but that of its output."""

    def __init__(self, width: int, context: int, *, bias: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=bias)
        self.key, self.value = (nn.Linear(context, width, bias=bias) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor, head: int) -> Tensor:
        """Tokens of the image, each of all of the context."""
        q, k, v = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in
                   (self.query(x), self.key(context), self.value(context)))  # fmt: skip
        mixed: Tensor = self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class Layer(nn.Module):
    """A transformer layer of the U-Net: attention to the image, to the text, a gated feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: nn.LayerNorm(width) for name in ("image", "text", "mlp")})
        self.image, self.text = Attention(width, width), Attention(width, TEXT)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Tokens of the image."""
        normed = self.norms["image"](x)
        x = x + self.image(normed, normed, HEAD)
        x = x + self.text(self.norms["text"](x), text, HEAD)
        value, gate = self.up(self.norms["mlp"](x)).chunk(2, dim=-1)
        return x + self.down(value * functional.gelu(gate))


class Layers(nn.Module):
    """Transformer layers over the pixels of a feature map."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(GROUPS, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """A feature map of the same shape."""
        tokens = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        for layer in self.layers:
            tokens = layer(tokens, text)
        return x + self.leave(tokens).transpose(1, 2).unflatten(2, x.shape[2:])


class Residual(nn.Module):
    """Two convolutions, the time between them."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.before, self.after = nn.GroupNorm(GROUPS, width), nn.GroupNorm(GROUPS, out)
        self.first, self.second = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(TIME, out)
        self.short = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """A feature map of `out` channels."""
        found = (
            self.first(functional.silu(self.before(x))) + self.time(functional.silu(time))[..., None, None]
        )
        added: Tensor = self.short(x) + self.second(functional.silu(self.after(found)))
        return added


class Step(nn.Module):
    """A residual block and the transformer layers beside it."""

    def __init__(self, width: int, out: int, depth: int) -> None:
        super().__init__()
        self.residual = Residual(width, out)
        self.layers = Layers(out, depth) if depth else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """A feature map of `out` channels."""
        found: Tensor = self.residual(x, time)
        return self.layers(found, text) if self.layers is not None else found


class UNet(nn.Module):
    """The denoiser of SDXL: 2,567,463,684 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTHS[0], TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.added = nn.Sequential(nn.Linear(ADDED, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.enter = nn.Conv2d(4, WIDTHS[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, last = [WIDTHS[0]], WIDTHS[0]
        for i, (width, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True)):
            for _ in range(2):
                self.down.append(Step(last, width, depth))
                skips.append(last := width)
            if i < 2:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle, self.end = Step(last, last, DEPTHS[-1]), Residual(last, last)
        for i, (width, depth) in reversed(list(enumerate(zip(WIDTHS, DEPTHS, strict=True)))):
            for _ in range(3):
                self.up.append(Step(last + skips.pop(), width, depth))
                last = width
            if i:
                self.up.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(GROUPS, last), nn.Conv2d(last, 4, 3, padding=1)

    def forward(self, x: Tensor, when: Tensor, text: Tensor, added: Tensor) -> Tensor:
        """The noise of latents, given the time, states of two text encoders, their pooled text and sizes."""
        time = self.time(waves(when, WIDTHS[0]).to(x.dtype)) + self.added(added)
        x = self.enter(x)
        skips = [x]
        for one in self.down:
            x = one(x, time, text) if isinstance(one, Step) else one(x)
            skips.append(x)
        x = self.end(self.middle(x, time, text), time)
        for one in self.up:
            if isinstance(one, Step):
                x = one(torch.cat([x, skips.pop()], dim=1), time, text)
            else:
                x = one(functional.interpolate(x, scale_factor=2.0))
        found: Tensor = self.leave(functional.silu(self.norm(x)))
        return found


def waves(when: Tensor, width: int) -> Tensor:
    """Cosines and sines of a time at `width` / 2 frequencies."""
    rates = torch.exp(torch.arange(width // 2, device=when.device) * (-2 * math.log(10_000) / width))
    angles = when[:, None].float() * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Block(nn.Module):
    """A layer of DiT, whose norms are scaled, shifted and gated by time and class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = Attention(width, width, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.adapt = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, given: Tensor, head: int) -> Tensor:
        """Patches of the same shape."""
        shift, scale, gate, shift2, scale2, gate2 = self.adapt(functional.silu(given))[:, None].chunk(
            6, dim=-1
        )
        normed = self.first(x) * (1 + scale) + shift
        x = x + gate * self.attention(normed, normed, head)
        normed = self.second(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(functional.gelu(self.up(normed), approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer over patches of 2×2 latents, conditioned on one of 1,000 classes."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.width, self.head = width, width // heads
        self.enter = nn.Conv2d(4, width, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, 256, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.adapt, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, 4 * 8)

    def forward(self, x: Tensor, when: Tensor, classes: Tensor) -> Tensor:
        """Noise and variance of latents."""
        side = x.shape[-1] // 2
        given = self.time(waves(when, 256).to(x.dtype)) + self.classes(classes)
        x = self.enter(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, given, self.head)
        shift, scale = self.adapt(functional.silu(given))[:, None].chunk(2, dim=-1)
        found = self.leave(self.norm(x) * (1 + scale) + shift).unflatten(1, (side, side))
        return found.unflatten(-1, (2, 2, 8)).permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def sdxl_unet() -> nn.Module:
    """The U-Net of SDXL."""
    return UNet()


def dit(name: str) -> nn.Module:
    """DiT-S/2, B/2, L/2 or XL/2."""
    sizes = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
    return DiT(*sizes[name])


def dit_xl_2() -> nn.Module:
    """DiT-XL/2."""
    return dit("XL")
