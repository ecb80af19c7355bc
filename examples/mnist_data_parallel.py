"""MNIST-style classifier with data parallelism.

    python -m examples.mnist_data_parallel [--ranks 2] [--data mnist.npz]

Without ``--data`` (an .npz of `x_train`, `y_train`), synthetic digits of the right shape are used: a fixed
random image per class, with noise.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import torch
from torch import nn

from examples.data_parallel import compare
from examples.support import whole

BATCH = 64
CLASSES = 10
SIDE = 28


def classifier() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def digits(step: int, rank: int, data: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, 1, 28, 28) and labels (B,) of one rank and step."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    if data is not None:
        with np.load(data) as arrays:
            images, labels = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])
        chosen = torch.randint(0, len(labels), (BATCH,), generator=generator)
        return images[chosen].unsqueeze(1).float() / 255, labels[chosen].long()
    classes = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return classes[labels] + torch.randn(BATCH, 1, SIDE, SIDE, generator=generator), labels


def main(arguments: list[str] | None = None) -> None:
    """Train on several ranks and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=whole, default=2)
    parser.add_argument("--steps", type=whole, default=20)
    parser.add_argument("--data")
    chosen = parser.parse_args(arguments)
    batches = functools.partial(digits, data=chosen.data)
    compare("MNIST-style classifier", classifier, batches, ranks=chosen.ranks, steps=chosen.steps)


if __name__ == "__main__":
    main()
