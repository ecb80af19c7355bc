"""A mixture of experts under expert parallelism, checked against one process.

    python -m examples.moe_expert_parallel

Predicted are the losses (those of one process) and the share of tokens that leave their rank: (ep − 1)/ep
when routing is even.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from examples.llm_ranks import SETTINGS, SMALL, RankRun, layout, losses_of, train_rank
from examples.support import report, start
from executor.model import moe
from executor.validation.reference import ReferenceJob, run_reference

MODEL = dataclasses.replace(
    SMALL,
    name="small-moe",
    num_layers=4,
    num_experts=8,
    num_experts_per_token=2,
    moe_intermediate_size=128,
    shared_expert_size=128,
    num_dense_layers=1,
)
RANKS = 4
CASE = ReferenceJob(
    spec=MODEL,
    layout=layout(dp=RANKS, ep=RANKS, zero_stage=1),
    sequence_length=64,
    num_microbatches=2,
    steps=4,
)


def counting_rank(rank: int, case: ReferenceJob) -> tuple[RankRun, int, int]:
    """Train one rank, counting the rows that all-to-alls send to other ranks, and all rows."""
    away, total = 0, 0
    original = moe.all_to_all

    def counted(
        x: torch.Tensor, received: Sequence[int] | None, sent: Sequence[int] | None, group: Any
    ) -> Any:
        nonlocal away, total
        if sent is not None and x.dim() > 1:
            total += sum(sent)
            away += sum(sent) - sent[rank]
        return original(x, received, sent, group)

    with mock.patch.object(moe, "all_to_all", counted):
        return train_rank(rank, case), away, total


def main() -> None:
    """Train four steps on four ranks and print predicted against measured."""
    found = start(counting_rank, RANKS, CASE)
    runs = [run for run, _, _ in found]
    truth, losses = run_reference(CASE, SETTINGS).losses, losses_of(CASE, runs)
    moved = sum(away for _, away, _ in found) / sum(total for _, _, total in found)
    rows: list[tuple[str, float | str, float | str]] = [
        (f"loss of step {step + 1}", true, mine)
        for step, (true, mine) in enumerate(zip(truth, losses, strict=True))
    ]
    report(
        f"{MODEL.num_experts} experts over {RANKS} ranks, step {runs[0].step_s[-1]:.2f} s",
        [*rows, ("rows leaving their rank, share", (RANKS - 1) / RANKS, moved)],
    )
    gap = max(abs(true - mine) / true for true, mine in zip(truth, losses, strict=True))
    if gap > 1e-5:
        raise SystemExit(f"losses differ from one process by {gap:.1e}")


if __name__ == "__main__":
    main()
