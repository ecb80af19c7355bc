"""Random plans that an engine can be told: legal layouts × models × profiles, in fields and in the engine's files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from costmodel.stack import stack
from planner.engines.contract import Contract, EngineReading, read, write
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import layout_facts, model_facts, plainest, stack_facts
from planner.engines.formats import FORMATS, Files
from planner.engines.read_back import differences
from planner.plan import Problem
from planner.rules.check import legal
from topology.builders import default_cluster
from topology.hardware.gpu import Gpu

MODELS = ("llama-3.1-8b", "gpt-3-13b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b")
DRAWN = 12_000
GPUS = ("h100-sxm", "h100-sxm", "a100-sxm-80gb", "b200-sxm", "gb200")
PRECISIONS = ("bf16", "bf16", "fp16", "fp8", "mxfp8")
BUCKETS_BYTES = (None, None, 25.0 * 2**20)
FURTHER_TOKENS = (0, 0, 0, 1, 2)
OF_A_TABLE = 20


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


def told_facts(r: Random, contract: Contract, problem: Problem, layout: ParallelLayout) -> dict[str, Any]:
    """A plan of a layout, in fields: a split that the engine can be told, some of it recomputed."""
    runs = [run.count for run in layer_runs(problem.model)]
    chunk_ranks = ranks_of_chunks(layout)
    held = tuple(sum(row) for row in even_split(runs, layout).layers_of_stage)
    chunks = layers_of_chunks(chunk_ranks, held)
    again = [0] * layout.pp
    if layout.recompute == "full":
        count = r.randint(1, max(chunks)) if contract.recomputes == "per-chunk" else max(chunks)
        for rank, layers in zip(chunk_ranks, chunks, strict=True):
            again[rank] += min(count, layers)
    job = problem.job
    return {
        "cluster.num_gpus": layout.num_gpus,
        "cluster.gpu": problem.cluster.gpu.name,
        **layout_facts(layout),
        "split.layers": chunks,
        "split.recompute": tuple(again),
        **{f"job.{field.name}": getattr(job, field.name) for field in dataclasses.fields(job)},
        **model_facts(problem.model),
        **stack_facts(problem.stack),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One of them."""

    contract: Contract
    facts: dict[str, Any]
    files: Files
    gpu: Gpu
    model: ModelSpec

    @property
    def faults(self) -> tuple[Any, ...]:
        """What is read back otherwise, or not at all."""
        found: EngineReading = read(
            self.contract,
            FORMATS[self.contract.engine].parse(self.files, self.contract),
            self.facts["cluster.num_gpus"],
        )
        differs = [one for one in differences(self.facts, found.fields) if not one[0].startswith("stack.")]
        refused = (f"{one.violation.rule}: {one.violation.message}" for one in found.refused)
        return (*differs, *found.unknown, *found.wrong, *refused)


def told_plan_of(r: Random, contract: Contract, problem: Problem, layout: ParallelLayout) -> Told:
    """The plan of a layout, written for the engine."""
    facts, gpu = told_facts(r, contract, problem, layout), problem.cluster.gpu
    environment = tuple(one for one in contract.environment if one.needed(facts, gpu))
    plan: Any = None  # only the engine that is not tried here writes the plan
    files = FORMATS[contract.engine].render(plan, write(contract, facts), environment)
    return Told(contract=contract, facts=facts, files=files, gpu=gpu, model=problem.model)


def random_plans(engine: str, seed: int | str) -> Iterator[Told]:
    """Plans without end, known by engine and seed."""
    contract, r = CONTRACTS[engine], Random(f"{engine} {seed}")
    clusters = [default_cluster(gpu, 256) for gpu in GPUS]
    while True:
        spec, profile, cluster = model(r.choice(MODELS)), r.choice(contract.stacks), r.choice(clusters)
        job = TrainingJob(
            sequence_length=2048,
            global_batch_size=64,
            precision=r.choice(PRECISIONS),
            bucket_bytes=r.choice(BUCKETS_BYTES),
            mtp_layers=r.choice(FURTHER_TOKENS) if stack(profile).supports.further_tokens else 0,
        )
        problem = Problem(
            case=Case(model=spec, cluster=cluster, job=job, stack=stack(profile), cal=load_calibration()),
            engine=engine,
        )
        table = drawn(r.getrandbits(32))
        keep, _ = legal(problem, table)
        rows = np.flatnonzero(keep).tolist()
        for row in r.sample(rows, min(OF_A_TABLE, len(rows))):
            yield told_plan_of(r, contract, problem, plainest(table.layout(row)))
