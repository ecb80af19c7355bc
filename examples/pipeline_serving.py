"""Serving a model of Llama-3.1-70B's shape, made small, over a pipeline of four ranks: prompts to tokens.

    python -m examples.pipeline_serving [--prompts 12]

One prompt alone waits for every stage in turn; many in flight keep all of them busy. Both times are predicted
from the stages' own, and every first token is checked against one process. Where four ranks would have to
share fewer cores, every stage is stretched by a pause that uses none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from examples.support import device, device_type, report, start, synchronize, whole
from executor.comm.mesh import build_meshes
from executor.model.transformer import build_model
from executor.parallel.pipeline import build_pipeline, run_forward
from executor.parallel.weights import initialize

STAGES, TOKENS, PAUSE_S, SEED = 4, 64, 0.05, 0
LARGE = model("llama-3.1-70b")
SCALE = 64
SPEC: ModelSpec = replace(
    LARGE,
    num_layers=LARGE.num_layers // 4,
    hidden_size=LARGE.hidden_size // SCALE,
    intermediate_size=LARGE.intermediate_size // SCALE,
    num_attention_heads=LARGE.num_attention_heads // 8,
    num_key_value_heads=LARGE.num_key_value_heads // 8,
    head_dim=LARGE.head_dim // 8,
    vocab_size=512,
)
"""A quarter of its layers, of a sixty-fourth of its width; eight query heads to one of keys, as there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one rank saw: seconds for one prompt, for all and of its stage alone; first tokens if it picks."""

    one_s: float
    all_s: float
    stage_s: float
    first_tokens: tuple[int, ...]


def prompts(count: int) -> torch.Tensor:
    """Prompts (count, 1, S), the same everywhere."""
    return torch.randint(SPEC.vocab_size, (count, 1, TOKENS), generator=torch.Generator().manual_seed(SEED))


def serve(_rank: int, count: int, pause_s: float) -> Served:
    """One rank: one prompt, then all of them in flight; the last stage picks the likeliest token of each."""
    layout = ParallelLayout(pp=STAGES)
    meshes = build_meshes(layout, device().type, experts=False)
    pipeline = build_pipeline(
        SPEC,
        layout,
        meshes,
        sequence_length=TOKENS,
        num_microbatches=count,
        precision="fp32",
        device=device(),
    )
    for stage in pipeline.stages:
        initialize(stage.module, meshes, seed=SEED, device=device())
        if pause_s:
            stage.module.register_forward_hook(lambda *_: time.sleep(pause_s))
    asked, picked = prompts(count).to(device()), list[int]()

    def pick(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        picked.append(int(logits[0, -1].argmax()))
        return logits.new_zeros(())

    def seconds(number: int) -> float:
        """From the first prompt's arrival to the last's first token, as all ranks see it."""
        whole = pipeline.program
        pipeline.program = tuple(step for step in whole if step.action.microbatch < number)
        dist.barrier()
        began_s = time.perf_counter()
        run_forward(pipeline, asked[:number], asked[:number], pick)
        synchronize()
        dist.barrier()
        pipeline.program = whole
        return time.perf_counter() - began_s

    seconds(1)  # warms up
    one_s = seconds(1)
    pipeline.spans = []
    picked.clear()
    all_s = seconds(count)
    mine = statistics.median(span.end_s - span.start_s for span in pipeline.spans)
    return Served(one_s=one_s, all_s=all_s, stage_s=mine, first_tokens=tuple(picked))


def alone(count: int) -> tuple[int, ...]:
    """First tokens by one process."""
    whole = build_model(SPEC)
    initialize(whole, None, seed=SEED, device=torch.device("cpu"))
    with torch.no_grad():
        return tuple(int(whole(one)[0, -1].argmax()) for one in prompts(count))


def main(arguments: list[str] | None = None) -> None:
    """Serve, and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=whole, default=12)
    count = parser.parse_args(arguments).prompts
    crowded = device_type(STAGES) == "cpu" and (os.cpu_count() or 1) < STAGES
    found = start(serve, STAGES, count, PAUSE_S if crowded else 0.0)
    stages = [one.stage_s for one in found]
    through, measured = sum(stages) + (count - 1) * max(stages), max(one.all_s for one in found)
    busy = count * sum(stages) / STAGES
    agreed = found[-1].first_tokens == alone(count)
    report(
        f"70B-shaped model in {STAGES} stages, {count} prompts of {TOKENS} tokens",
        [
            ("first token of one prompt_s", sum(stages), max(one.one_s for one in found)),
            ("first tokens of all_s", through, measured),
            ("prompts per second", count / through, count / measured),
            ("busy share of the ranks", busy / through, busy / measured),
            ("first tokens as in one process", str(count), str(count if agreed else "not all")),
        ],
    )
    if not agreed:
        raise SystemExit("the pipeline picks other tokens than one process")


if __name__ == "__main__":
    main()
