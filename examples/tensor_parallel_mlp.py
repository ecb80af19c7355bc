"""A tensor-parallel MLP for inference, checked against one device.

    python -m examples.tensor_parallel_mlp [--ranks 2]

The first matrix is split by rows, the second by columns, so that one all-reduce ends the block (Shoeybi
2019 §3).
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional

from examples.support import all_reduce, device, median_seconds, report, start, whole

TOKENS, HIDDEN, INNER = 256, 512, 2048


def weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input (T, H), first matrix (F, H) and second matrix (H, F), the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, HIDDEN, generator=generator)
    first = torch.randn(INNER, HIDDEN, generator=generator) / HIDDEN**0.5
    second = torch.randn(HIDDEN, INNER, generator=generator) / INNER**0.5
    return x, first, second


def block(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The part of the MLP that these matrices make."""
    return functional.linear(functional.gelu(functional.linear(x, first)), second)


@torch.no_grad()
def serve(_rank: int) -> dict[str, float]:
    """One rank: its shard alone, one all-reduce alone, both together, and the error against one device."""
    x, first, second = (part.to(device()) for part in weights())
    ranks, mine = dist.get_world_size(), dist.get_rank()
    rows, columns = first.chunk(ranks)[mine].contiguous(), second.chunk(ranks, 1)[mine].contiguous()

    def split() -> torch.Tensor:
        y = block(x, rows, columns)
        dist.all_reduce(y)
        return y

    shard_s, reduce_s, split_s = median_seconds(
        lambda: block(x, rows, columns), all_reduce(TOKENS * HIDDEN), split
    )
    whole = block(x, first, second)
    error = float((split() - whole).norm() / whole.norm())
    return {"shard": shard_s, "reduce": reduce_s, "split": split_s, "error": error}


def main(arguments: list[str] | None = None) -> None:
    """Run on several ranks and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=whole, default=2)
    found = start(serve, parser.parse_args(arguments).ranks)
    worst = {name: max(rank[name] for rank in found) for name in found[0]}
    predicted = worst["shard"] + worst["reduce"]
    report(
        f"tensor-parallel MLP on {len(found)} ranks",
        [
            ("step_s", predicted, worst["split"]),
            ("communication share", worst["reduce"] / predicted, 1 - worst["shard"] / worst["split"]),
            ("relative error", 0.0, worst["error"]),
        ],
    )
    if worst["error"] > 1e-5:
        raise SystemExit("the split MLP differs from one device")


if __name__ == "__main__":
    main()
