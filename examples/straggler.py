"""ZeRO-3 of a model of Llama-3.2-1B's shape, made small, over eight hosts of which one is slow.

    python -m examples.straggler [--slower 1.5]

Hosts are processes here, and what a GPU would compute is a pause that uses no core. With ZeRO-3 every layer
waits for its weights from all hosts, so a step takes what the slowest takes; no loss changes. Predicted from
the pauses alone: what the slow host adds, and what is left without it, its share given to the other seven.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from costmodel.models.catalog import model
from examples.llm_ranks import RankRun, layout, losses_of, train_rank
from examples.support import factor, report, start
from executor.validation.reference import ReferenceJob

HOSTS, SLOW, PAUSE_S = 8, 5, 0.25
ONE_BILLION = model("llama-3.2-1b")
SPEC = replace(
    ONE_BILLION,
    num_layers=ONE_BILLION.num_layers // 4,
    hidden_size=ONE_BILLION.hidden_size // 32,
    intermediate_size=ONE_BILLION.intermediate_size // 32,
    num_attention_heads=ONE_BILLION.num_attention_heads // 8,
    num_key_value_heads=ONE_BILLION.num_key_value_heads // 8,
    head_dim=ONE_BILLION.hidden_size // ONE_BILLION.num_attention_heads // 4,
    vocab_size=512,
)
"""A quarter of its layers, of a thirty-second of its width; four query heads to one of keys, as there."""
CASE = ReferenceJob(
    spec=SPEC, layout=layout(dp=HOSTS, zero_stage=3), sequence_length=32, num_microbatches=2, steps=3
)


def host(rank: int, slower: float) -> RankRun:
    """One host of the run; the slow one computes `slower` times as long."""
    return train_rank(rank, CASE, PAUSE_S * (slower if rank == SLOW else 1.0))


def main(arguments: list[str] | None = None) -> None:
    """Train twice and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slower", type=factor, default=1.5)
    slower = parser.parse_args(arguments).slower
    even, uneven = (start(host, HOSTS, times) for times in (1.0, slower))
    as_planned = min(run.step_s[-1] for run in even)
    measured = min(run.step_s[-1] for run in uneven)
    added = 3 * CASE.num_microbatches * PAUSE_S * (slower - 1)  # a forward pass and twice as long backward
    without = as_planned + 3 * CASE.num_microbatches * PAUSE_S / (HOSTS - 1)
    rows: list[tuple[str, float | str, float | str]] = [
        ("step of eight even hosts_s", "", as_planned),
        (f"step, one {slower:g} times slower_s", as_planned + added, measured),
        ("share of all GPUs lost to it", added / (as_planned + added), 1 - as_planned / measured),
        ("step of seven without it_s", without, ""),
    ]
    pairs = zip(losses_of(CASE, even), losses_of(CASE, uneven), strict=True)
    rows += [(f"loss of step {step}", true, mine) for step, (true, mine) in enumerate(pairs, start=1)]
    report(f"1B-shaped model, ZeRO-3 over {HOSTS} hosts, host {SLOW} slow", rows)
    best = "leave it out" if without < as_planned + added else "keep it"
    print(f"  a host that is {slower:g} times slower: {best} (seven even hosts break even at {8 / 7:.2f})")


if __name__ == "__main__":
    main()
