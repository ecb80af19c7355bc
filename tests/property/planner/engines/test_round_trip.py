"""What is written of any plan that an engine can be told reads back as that plan, in every engine's own files."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from costmodel.stack import stack
from planner.engines.contract import Contract, read, write
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import layout_facts, model_facts, plainest, stack_facts
from planner.engines.formats import FORMATS
from planner.engines.judge import differences
from planner.problem import Setting
from planner.rules.check import legal
from topology.builders import default_cluster

MODELS = ("llama-3.1-8b", "gpt-3-13b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b")
DRAWN = 12_000
WANTED = 450
"""Layouts of each engine: 2,250 of five engines; the sixth writes the plan itself."""


def drawn(seed: int) -> LayoutTable:
    """Layouts of all kinds, most of them illegal."""
    r = np.random.default_rng(seed)

    def pick(*values: int) -> Any:
        return r.choice(np.array(values), DRAWN)

    dp, cp = pick(1, 2, 4, 8), pick(1, 1, 1, 2, 4)
    shards = np.where(r.random(DRAWN) < 0.7, dp * cp, np.maximum(1, dp * cp // pick(1, 2, 4)))
    return LayoutTable(
        tp=pick(1, 1, 2, 4), pp=pick(1, 1, 2, 4), dp=dp, cp=cp, ep=pick(1, 1, 2, 4), expert_tp=pick(1, 1, 1, 2),
        virtual_stages=pick(1, 1, 2, 3), microbatch_size=pick(1, 2), schedule=r.integers(len(SCHEDULES), size=DRAWN),
        zero_stage=pick(0, 1, 2, 3), shard_degree=shards, recompute=r.integers(len(RECOMPUTES), size=DRAWN),
        sequence_parallel=r.random(DRAWN) < 0.5, cp_kind=r.integers(len(CP_KINDS), size=DRAWN),
        axis_order=np.where(r.random(DRAWN) < 0.6, 0, r.integers(len(AXIS_ORDERS), size=DRAWN)),
    )  # fmt: skip


def told_facts(
    r: Random, contract: Contract, spec: ModelSpec, job: TrainingJob, profile: str, layout: ParallelLayout
) -> dict[str, Any]:
    """A plan of a layout, in fields: a split that the engine can be told, some of it recomputed."""
    runs = [run.count for run in layer_runs(spec)]
    chunk_ranks = ranks_of_chunks(layout)
    held = tuple(sum(row) for row in even_split(runs, layout).layers_of_stage)
    chunks = layers_of_chunks(chunk_ranks, held)
    again = [0] * layout.pp
    if layout.recompute == "full":
        count = r.randint(1, max(chunks)) if contract.recomputes == "per-chunk" else max(chunks)
        for rank, layers in zip(chunk_ranks, chunks, strict=True):
            again[rank] += min(count, layers)
    return {
        "cluster.num_gpus": layout.num_gpus,
        **layout_facts(layout),
        "split.layers": chunks,
        "split.recompute": tuple(again),
        **{f"job.{field.name}": getattr(job, field.name) for field in dataclasses.fields(job)},
        **model_facts(spec),
        **stack_facts(stack(profile)),
    }


@pytest.mark.parametrize("engine", [name for name in CONTRACTS if name != "meshplan"])
def test_what_is_written_reads_back(engine: str) -> None:
    """Layout, split, job, model and switches, of random legal layouts of several models and profiles."""
    contract, form, r, seen = CONTRACTS[engine], FORMATS[engine], Random(engine), 0
    while seen < WANTED:
        spec, profile = model(r.choice(MODELS)), r.choice(contract.stacks)
        precision = r.choice(("bf16", "bf16", "fp16", "fp8", "mxfp8"))
        job = TrainingJob(sequence_length=2048, global_batch_size=64, precision=precision)
        cluster = default_cluster("b200-sxm" if precision == "mxfp8" else "h100-sxm", 256)
        setting = Setting(model=spec, cluster=cluster, job=job, stack=stack(profile), engine=engine)
        table = drawn(r.getrandbits(32))
        keep, _ = legal(setting, table)
        rows = np.flatnonzero(keep).tolist()
        for row in r.sample(rows, min(40, len(rows))):
            layout = plainest(table.layout(row))
            facts = told_facts(r, contract, spec, job, profile, layout)
            environment = tuple(one for one in contract.environment if one.needed(facts, cluster.gpu))
            plan: Any = None  # only the engine that is not tried here writes the plan
            files = form.render(plan, write(contract, facts), environment)
            found = read(contract, form.parse(files, contract), layout.num_gpus)
            differs = [d for d in differences(facts, found.fields) if not d[0].startswith("stack.")]
            assert (differs, found.unknown, found.wrong) == ([], (), ()), (layout, files)
            seen += 1
