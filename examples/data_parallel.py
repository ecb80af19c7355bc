"""Train a model with data parallelism, and take its step apart into compute and communication.

Shared by the MNIST and the ResNet example. The prediction is made from parts measured alone: a step of one
process, and one all-reduce of the gradient's size. Scaling is weak (the batch of a rank stays the same).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from examples.support import all_reduce, device, median_seconds, report, start

ModelMaker = Callable[[], nn.Module]
BatchMaker = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
"""(step, rank) → inputs and labels of that rank."""


class Trainer:
    """A model and its optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        """One optimizer step; returns the loss."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def measure(_rank: int, make_model: ModelMaker, make_batch: BatchMaker, steps: int) -> dict[str, float]:
    """On one rank: a step without and with gradient exchange, the exchange alone, and training."""
    torch.manual_seed(0)
    several, rank = dist.get_world_size() > 1, dist.get_rank()
    batches = [[part.to(device()) for part in make_batch(index, rank)] for index in range(steps)]
    alone = Trainer(make_model().to(device()))
    together = Trainer(DistributedDataParallel(make_model().to(device())) if several else alone.model)
    losses = [together.step(*batch) for batch in batches]
    elements = sum(parameter.numel() for parameter in alone.model.parameters())
    alone_s, exchange_s, together_s = median_seconds(
        lambda: alone.step(*batches[0]),
        all_reduce(elements),
        lambda: together.step(*batches[0]),
    )
    return {
        "alone": alone_s,
        "exchange": exchange_s if several else 0.0,
        "together": together_s,
        "first": losses[0],
        "last": losses[-1],
    }


def compare(title: str, make_model: ModelMaker, make_batch: BatchMaker, *, ranks: int, steps: int) -> None:
    """Run on one rank and on several; print scaling efficiency and communication share."""
    single = start(measure, 1, make_model, make_batch, 1)[0]["together"]
    found = start(measure, ranks, make_model, make_batch, steps)
    alone, exchange, together = (
        max(rank[name] for rank in found) for name in ("alone", "exchange", "together")
    )
    predicted = alone + exchange
    report(
        f"{title}: data parallel on {ranks} ranks, loss {found[0]['first']:.3f} → {found[0]['last']:.3f}",
        [
            ("step_s", predicted, together),
            ("communication share", exchange / predicted, max(0.0, 1 - alone / together)),
            ("scaling efficiency", single / predicted, single / together),
        ],
    )
