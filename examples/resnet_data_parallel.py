"""ResNet-style CNN on CIFAR-shaped images with data parallelism.

    python -m examples.resnet_data_parallel [--ranks 2 4]

The images are synthetic (a fixed random image per class, with noise); the network is ResNet-20 (He 2016
§4.2), whose batch norms see the batch of their own rank.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

from examples.data_parallel import compare
from examples.support import whole

BATCH = 16
CLASSES = 10
SIDE = 32


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is added back."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform images (B, C, side, side)."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet20() -> nn.Module:
    """Three groups of three blocks at widths 16, 32, 64."""
    blocks = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for outputs in (16, 32, 64):
        for index in range(3):
            blocks.append(Block(width, outputs, 2 if index == 0 and outputs > 16 else 1))
            width = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def images(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, 3, 32, 32) and labels (B,) of one rank and step."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    classes = torch.randn(CLASSES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return classes[labels] + 0.5 * torch.randn(BATCH, 3, SIDE, SIDE, generator=generator), labels


def main(arguments: list[str] | None = None) -> None:
    """Train on one rank and on several, and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=whole, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=whole, default=10)
    chosen = parser.parse_args(arguments)
    for ranks in chosen.ranks:
        compare("ResNet-20", resnet20, images, ranks=ranks, steps=chosen.steps)


if __name__ == "__main__":
    main()
