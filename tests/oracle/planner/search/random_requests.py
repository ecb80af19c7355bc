"""Random small requests that reach the corners of the space: what certificates are tried on.

Everything comes from a `random.Random` of a fixed seed, so that a case is known by its number. Sizes are drawn
first; the memory of a GPU is then what some random plan of the space needs, or a little more, so that often
only few plans fit and recomputation and uneven stages decide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from random import Random
from typing import Any

from costmodel.job import TrainingJob
from costmodel.kernels.level import StackLevel
from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.stage_costs import StageSplit, memory_of_stages, step_time
from costmodel.stack import stacks
from costmodel.training.stages import stage_costs
from planner.engines.contracts import CONTRACTS
from planner.plan import FREE, PlanRequest, Problem
from tests.oracle.planner.search.plain_enumeration import every_layout, problem_of, sampled_layouts
from tests.oracle.planner.search.plain_splits import splits_of, told_splits
from topology.base.decode import structure, unstructure
from topology.builders import default_cluster, gpu_named
from topology.spec import ClusterSpec, TierSpec

ROOMY_BYTES = 2.0**45
"""A GPU in which every plan fits, until the case has a memory of its own."""

MANY_LAYERS, FEW_RANKS = 12, 3
"""Models of many layers are put on few GPUs: their splits are counted in binomials."""

MOST_PINS = 6
"""Fields pinned at most to make a space small enough."""

PIN_FIELDS = (
    "tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size", "schedule", "zero_stage",
    "shard_degree", "recompute", "sequence_parallel", "cp_kind", "axis_order",
)  # fmt: skip
"""Every field of a layout."""


def random_model(r: Random) -> ModelSpec:
    """Dense, mixture of experts, latent attention, windows, tied embeddings, vocabularies of all sizes."""
    hidden, heads = r.choice((512, 1024, 1024, 2048, 4096)), r.choice((4, 8, 8, 16))
    layers = r.choice((1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 17, 18))
    experts = r.choice((0, 0, 2, 4, 8))
    latent, window = r.random() < 0.2, r.random() < 0.2
    pattern = r.choice((0, 2))
    return ModelSpec(
        name="small",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=hidden * r.choice((1, 3, 4)),
        num_attention_heads=heads,
        num_key_value_heads=r.choice([g for g in (1, 2, 4, 8) if heads % g == 0]),
        head_dim=hidden // heads,
        vocab_size=r.choice((1_000, 32_000, 32_000, 50_257, 262_144, 1_000_000)),
        max_sequence_length=2**17,
        tie_word_embeddings=r.random() < 0.3,
        gated_mlp=r.random() < 0.8,
        sliding_window=256 if window else None,
        sliding_window_pattern=pattern if window else 0,
        num_sliding_layers=(layers - layers // pattern if pattern else r.randint(0, layers)) if window else 0,
        q_lora_rank=r.choice((0, 256)) if latent else 0,
        kv_lora_rank=128 if latent else 0,
        qk_nope_head_dim=64 if latent else 0,
        qk_rope_head_dim=32 if latent else 0,
        v_head_dim=64 if latent else 0,
        num_experts=experts,
        num_experts_per_token=min(experts, r.choice((1, 2))),
        moe_intermediate_size=hidden * r.choice((1, 2)) // r.choice((1, 4)) if experts else 0,
        shared_expert_size=hidden if experts and r.random() < 0.3 else 0,
        num_dense_layers=min(r.choice((0, 0, 1, 2)), layers - 1) if experts else 0,
    )


def random_cluster(r: Random, most_gpus: int) -> ClusterSpec:
    """One node or several small ones, fast and slow networks, tiers that carry less than what enters them."""
    sizes = [n for n in (1, 2, 2, 2, 3, 4, 4, 4, 4, 4, 6, 8) if n <= most_gpus]
    gpus = r.choice(sizes)
    name = r.choice((
        "h100-sxm", "h100-sxm", "a100-sxm-80gb", "b200-sxm", "rtx-4090", "l40s", "a100-pcie-80gb", "mi300x",
    ))  # fmt: skip
    per_node = r.choice([n for n in (1, 2, 2, 4, gpus, gpus, gpus) if gpus % n == 0])
    spec = default_cluster(name, gpus, gpus_per_node=per_node).spec
    if gpus > per_node:
        node = replace(spec.nodes[0], nic_bandwidth_bytes_per_s=r.choice((1e9, 12.5e9, 50e9, 2e11)))
        tiers = spec.tiers
        if gpus >= 4 * per_node and r.random() < 0.5:
            tiers = (
                TierSpec(
                    name="leaf", nodes_per_unit=2, oversubscription=r.choice((1.0, 4.0)), latency_s=1e-6
                ),
                TierSpec(name="spine", nodes_per_unit=128, latency_s=1e-6),
            )
        spec = replace(spec, nodes=(node,), tiers=tiers)
    return replace(spec, gpus=(replace(gpu_named(name), memory_bytes=ROOMY_BYTES),), name="small")


def random_sizes(r: Random, most_gpus: int, engine: str = FREE) -> PlanRequest:
    """A request without limits: model, cluster, job and stack, one that prices the engine."""
    model = random_model(r)
    cluster = random_cluster(r, most_gpus if model.num_layers < MANY_LAYERS else FEW_RANKS)
    stack = r.choice(sorted(stacks()) if engine == FREE else CONTRACTS[engine].stacks)
    precision = "fp8" if "fp8" in cluster.gpus[0].peak_flop_per_s and r.random() < 0.1 else "bf16"
    level = r.choice((0.5, 1.9))
    parts = {"products": 0.8, "attention": 1.3, "passes": 1.2, "host": 0.6, "exchange": 1.6}
    return PlanRequest(
        model=model,
        cluster=cluster,
        job=TrainingJob(
            sequence_length=r.choice((256, 512, 512, 2048, 2048, 4096, 32_768)),
            global_batch_size=r.choice((1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16, 24)),
            precision=precision,
        ),
        stack=stack,
        engine=engine,
        memory_headroom=r.choice((0.0, 0.0, 0.0, 0.1, None)),
        anchor=StackLevel(stack=stack, level=level, deviation=0.1, runs=3, **parts)
        if r.random() < 0.05
        else None,
    )


def random_split(r: Random, s: Problem, layout: ParallelLayout) -> StageSplit:
    """Any split of the layers of a layout, with any recomputation that it and the engine allow."""
    if s.engine != FREE and layout.recompute == "full" and CONTRACTS[s.engine].recomputes != "per-rank":
        return r.choice(told_splits(s, layout))
    rows = r.choice(splits_of(s, layout))
    recomputed = [r.choice((0, sum(row), r.randint(0, sum(row)))) for row in rows]
    return StageSplit(
        layers_of_stage=rows,
        recompute_of_stage=tuple(recomputed) if layout.recompute == "full" else (0,) * len(rows),
    )


def pins_of(r: Random, layouts: Sequence[ParallelLayout], count: int) -> dict[str, Any]:
    """Some fields as one of these layouts has them; all shards are the default, so that is no pin."""
    layout, pins = r.choice(layouts), {}
    for name in r.sample(PIN_FIELDS, count):
        value = getattr(layout, name)
        if value is not None:
            pins[name] = value
    return pins


def random_request(
    r: Random, cal: Calibration, *, most_layouts: int, most_gpus: int = 8, engine: str = FREE
) -> tuple[PlanRequest, list[ParallelLayout]] | None:
    """A request and all layouts of its space; None where the sizes allow none, or too many even pinned.

    Args:
        r: where chance comes from.
        cal: kernel and collective tables.
        most_layouts: fields are pinned until there are at most so many.
        most_gpus: the largest cluster.
        engine: whose contract the plan keeps.
    """
    request, duplicates = random_sizes(r, most_gpus, engine), r.random() < 0.1
    s, pins, candidates = problem_of(request), {}, 8 * most_layouts
    sampled = sampled_layouts(r, s, pins, 200)
    if not sampled:
        return None
    if r.random() < 0.25:
        pins |= pins_of(r, sampled, r.choice((1, 1, 2)))
    pool = every_layout(s, pins, duplicates=duplicates, most=candidates)
    while (pool is None or len(pool) > most_layouts) and len(pins) < MOST_PINS:
        pins |= pins_of(r, sampled_layouts(r, s, pins, 200) or sampled, 1)
        pool = every_layout(s, pins, duplicates=duplicates, most=candidates)
    if not pool or len(pool) > most_layouts:
        return None
    return with_limits(r, replace(request, pins=pins), pool, cal), pool


def with_limits(
    r: Random, request: PlanRequest, layouts: Sequence[ParallelLayout], cal: Calibration
) -> PlanRequest:
    """The request with a memory and an objective that random plans of the space just meet, or just miss."""
    s = problem_of(request)
    layout = r.choice(layouts)
    split = random_split(r, s, layout)
    costs = stage_costs(s.case, layout)
    needed = float(memory_of_stages(costs, split).max()) / (1 - s.memory_headroom)
    memory = math.ceil(needed * r.choice((0.9, 1.0001, 1.001, 1.01, 1.05, 1.2, 2.0, 8.0))) + 100
    request = replace(request, cluster=with_memory(request.cluster, float(memory)))
    objective = r.choice(("step-time", "step-time", "step-time", "step-time", "cost", "gpus", "memory"))
    if objective == "gpus":
        job, steps = request.job, 1000
        deadline = steps * step_time(costs, split) * r.choice((0.8, 1.2, 1.6, 2.4))
        job = replace(job, total_tokens=steps * job.tokens_per_step, deadline_s=deadline)
        request = replace(request, job=job)
    return replace(request, objective=objective)


def with_memory(spec: ClusterSpec, memory_bytes: float) -> ClusterSpec:
    """The cluster with GPUs of another capacity."""
    return replace(spec, gpus=(replace(spec.gpus[0], memory_bytes=memory_bytes),))


def written(value: Any) -> Any:
    """A request as plain data; fields that have their default are left out."""
    if not is_dataclass(value) or isinstance(value, type):
        return [written(part) for part in value] if _of_dataclasses(value) else _plain(value)
    return {
        field.name: written(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != _default(field)
    }


def _of_dataclasses(value: Any) -> bool:
    return isinstance(value, tuple) and any(is_dataclass(part) for part in value)


def _plain(value: Any) -> Any:
    """What JSON makes of a value."""
    return json.loads(json.dumps(unstructure(value)))


def _default(field: Field[Any]) -> Any:
    """The default of a field, or what nothing equals."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def read(data: Mapping[str, Any]) -> PlanRequest:
    """The request that `written` wrote."""
    request = structure(data, PlanRequest, "a found case")
    pins = {k: tuple(v) if isinstance(v, list) else v for k, v in request.pins.items()}
    return replace(request, pins=pins)


EACH = "each"
"""For `engine`: one engine of all, drawn for every case."""


def case_of(
    seed: int, number: int, cal: Calibration, *, most_layouts: int, most_gpus: int = 8, engine: str = FREE
) -> tuple[PlanRequest, list[ParallelLayout]] | None:
    """One numbered case of a seed: of the free space, of an engine's, or of that of a random engine."""
    chance = Random(f"{seed}/{number}" if engine == FREE else f"{engine} {seed}/{number}")
    drawn = chance.choice(sorted(CONTRACTS)) if engine == EACH else engine
    return random_request(chance, cal, most_layouts=most_layouts, most_gpus=most_gpus, engine=drawn)
