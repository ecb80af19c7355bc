"""Models of papers, written plainly: their sizes are published, and are what a trace is held to."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """Basic (two 3×3) or bottleneck (1×1, 3×3, 1×1) block of He et al. 2015 (arXiv 1512.03385), figure 5."""

    def __init__(self, inner: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        out = 4 * width if bottleneck else width
        sizes = [(inner, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        if not bottleneck:
            sizes = [(inner, width, 3, stride), (width, width, 3, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, k, stride=s, padding=k // 2, bias=False) for a, b, k, s in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        self.shortcut = None
        if stride != 1 or inner != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions make to what the shortcut keeps."""
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = torch.relu(y) if i + 1 < len(self.norms) else y
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class ResNet(nn.Module):
    """ResNet of table 1 of the paper; the stride of a bottleneck is at its 3×3, as every library has it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        bottleneck, inner, stages = depth >= 50, 64, []
        for stage, count in enumerate(DEPTHS[depth]):
            width, blocks = 64 << stage, []
            for i in range(count):
                stride = 2 if stage and not i else 1
                blocks.append(Block(inner, width, stride, bottleneck=bottleneck))
                inner = 4 * width if bottleneck else width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inner, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the scores of a thousand classes."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


def resnet50() -> nn.Module:
    """The one that everybody trains."""
    return ResNet(50)


def resnet18() -> nn.Module:
    """The smallest of the paper's."""
    return ResNet(18)


def looks_at_values() -> nn.Module:
    """A module whose shapes depend on values."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            if y.sum().item() > 0:
                return y
            return -y

    return Chooses()


class Selects(nn.Module):
    """Keeps what is positive: how much that is depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many numbers as are positive."""
        return x[x > 0]


def selects() -> nn.Module:
    """A module whose shapes depend on values."""
    return Selects()
