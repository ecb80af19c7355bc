"""Modules of papers, written plainly, for `plan --module examples.modules:NAME`; nothing is trained here."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 1000
STAGES = (3, 4, 6, 3)
VOCABULARY, LENGTH = 30522, 512  # of BERT's word pieces, and its longest sequence


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut (He 2015, figure 5); the stride is at the 3×3."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            *(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        same = stride == 1 and inner == out
        projection = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform images (B, C, side, side)."""
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 (He 2015, table 1), 25.6 M parameters."""
    blocks: list[nn.Module] = []
    inner = 64
    for stage, count in enumerate(STAGES):
        for index in range(count):
            blocks.append(Bottleneck(inner, 64 << stage, 2 if stage and not index else 1))
            inner = 256 << stage
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, CLASSES))


class Bert(nn.Module):
    """Encoder of Devlin 2018 with a classifier over the first token; masked positions are not modelled."""

    def __init__(
        self, *, layers: int, width: int, heads: int, vocabulary: int = 30522, length: int = 512
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        one = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) of tokens (B, S)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.places(places))
        logits: torch.Tensor = self.classifier(self.layers(x)[:, 0])
        return logits


def bert_large() -> nn.Module:
    """BERT-large (Devlin 2018, section 3): 24 layers of width 1,024 with 16 heads."""
    return Bert(layers=24, width=1024, heads=16)
