"""A BERT-shaped encoder fine-tuned on four ranks, its gradients sent whole, in 16 bits, or as rank-4 factors.

    python -m examples.compressed_gradients

Predicted are the bytes that a rank hands to the all-reduces of a step: 4 or 2 a parameter, and for PowerSGD
(Vogels 2019) two factors of rank r for each matrix. Measured are those that it handed over. What compression
does to the loss is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from examples.support import device, report, start, whole

WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH, CLASSES, BATCH = 96, 2, 4, 256, 32, 4, 8
BUCKET_MB = 1024  # one bucket: gloo would mix up the products of several, which end in any order
RANK = 4
RATE = 2  # a matrix goes as factors where these are smaller by more than this
WARM_UP_STEPS = 2  # of PowerSGD, which begins with whole gradients

KINDS = ("whole", "fp16", f"rank {RANK}")


class Encoder(nn.Module):
    """Embeddings, bidirectional layers with norms after, and a classifier over the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) of tokens (B, S)."""
        logits: torch.Tensor = self.classifier(self.layers(self.tokens(tokens) + self.places)[:, 0])
        return logits


def sentences(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens whose class is that of the first one, and their classes."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    return tokens.to(device()), (tokens[:, 0] % CLASSES).to(device())


def predicted_bytes(kind: str, model: nn.Module) -> int:
    """Bytes that a rank hands to all-reduce in a step."""
    parameters = list(model.parameters())
    if kind != KINDS[2]:
        return sum(p.numel() for p in parameters) * (4 if kind == "whole" else 2)
    sent = 0
    for p in parameters:
        rows, columns = p.shape[0], p.numel() // p.shape[0]
        factors = min(rows, columns, RANK) * (rows + columns)
        sent += factors if p.dim() > 1 and RATE * factors < p.numel() else p.numel()
    return 4 * sent


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes of each all-reduce that is called meanwhile."""
    handed: list[int] = []

    def counting(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        handed.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *arguments, **options)

    all_reduce = dist.all_reduce
    with mock.patch.object(dist, "all_reduce", counting):
        yield handed


def fine_tune(rank: int, kind: str, steps: int) -> tuple[float, float, int]:
    """Train; gives the first and last loss and the bytes of the last step's all-reduces."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder().to(device()), bucket_cap_mb=BUCKET_MB)
    if kind == "whole":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=RANK, start_powerSGD_iter=WARM_UP_STEPS, min_compression_rate=RATE
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    sent = 0
    for step in range(steps):
        tokens, classes = sentences(step, rank)
        optimizer.zero_grad()
        with counted() as handed:
            loss = functional.cross_entropy(model(tokens), classes)
            loss.backward()
        sent = sum(handed)
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1], sent


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune three times and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=whole, default=4)
    parser.add_argument("--steps", type=whole, default=30)
    chosen = parser.parse_args(arguments)
    for kind in KINDS:
        first, last, sent = start(fine_tune, chosen.ranks, kind, chosen.steps)[0]
        report(
            f"BERT-shaped encoder on {chosen.ranks} ranks, gradients {kind}, loss {first:.3f} → {last:.3f}",
            [("bytes to all-reduce in a step", predicted_bytes(kind, Encoder()), sent)],
        )


if __name__ == "__main__":
    main()
