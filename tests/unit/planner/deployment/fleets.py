"""Fleets of many shapes, made of one plan: what of a deployment follows from workers and degrees alone."""

from dataclasses import replace
from functools import cache
from typing import TypeAlias

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout, published_weights
from costmodel.updates.adapters import Adapter
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.base.units import GB, GIB
from topology.builders import default_cluster

Size: TypeAlias = tuple[int, int]
"""Workers and their tensor-parallel degree."""


@cache
def planned(engine: str) -> ServingPlan:
    """Two pools on eight GPUs."""
    job = ServingJob(input_tokens=1000, output_tokens=200)
    request = ServingRequest(
        model=model("8b"), job=job, gpu="h100-sxm", num_gpus=8, engine=engine, modes=("disaggregated",),
        pins={"tp": 2, "pp": 1},
    )  # fmt: skip
    found = search_serving(load_calibration(), request, default_cluster("h100-sxm", 8).hierarchy)
    assert isinstance(found, ServingPlan)
    return found


def resized(engine: str, prefill: tuple[int, int] | None, decode: tuple[int, int]) -> ServingPlan:
    """That plan with other pools: workers and their tensor-parallel degree."""
    plan = planned(engine)
    pool = plan.decode

    def of(size: tuple[int, int] | None) -> object:
        return size and replace(pool, workers=size[0], layout=ServingLayout(tp=size[1]))

    return replace(plan, prefill=of(prefill), decode=of(decode))  # type: ignore[arg-type]  # no pool is None


SIZES = [
    (None, (1, 8)), (None, (3, 2)), (None, (20, 2)), (None, (3, 16)), ((1, 4), (1, 4)), ((3, 2), (2, 8)),
    ((5, 3), (3, 4)), ((2, 1), (1, 16)),
]  # fmt: skip

MIXTURES: tuple[tuple[str, int, ServingLayout], ...] = (
    ("deepseek-r1", 1, ServingLayout(tp=1, attention_dp=8, ep=8)),
    ("deepseek-r1", 2, ServingLayout(tp=1, attention_dp=16, ep=16)),
    ("gpt-oss-120b", 4, ServingLayout(tp=2, attention_dp=2, ep=4)),
    ("qwen3-235b", 1, ServingLayout(tp=8, ep=8)),
)
"""Mixtures of experts: workers and their layout, over one node and over two."""
SIXTY = range(60)


@cache
def varied(number: int) -> ServingPlan:
    """One of sixty plans: engines in turn; dense fleets of every size and mixtures; precisions, lengths, GPUs."""
    engine = ("vllm", "sglang", "trtllm")[number % 3]
    turn = number // 3
    if turn < 2 * len(SIZES):
        plan = resized(engine, *SIZES[turn % len(SIZES)])
        name, later = ("8b", "70b")[turn // len(SIZES)], turn >= len(SIZES)
    else:
        name, workers, layout = MIXTURES[turn - 2 * len(SIZES)]
        plan, later = resized(engine, None, (1, 8)), turn % 2 == 0
        if engine == "trtllm" and layout.attention_dp > 1:  # its attention ranks are of one GPU
            layout = replace(layout, tp=1, attention_dp=layout.stage_gpus)
        if engine == "vllm" and layout.tp == 8:
            layout = replace(layout, dcp=2)  # two ranks have the same of its four heads of keys and values
        plan = replace(plan, mode="aggregated", decode=replace(plan.decode, workers=workers, layout=layout))
    wanted = model(name)
    weights = "fp8" if later and name == "70b" else published_weights(wanted) or "bf16"
    adapted = engine != "trtllm" and name == "8b" and turn % 3 == 0  # of rank 24, in buffers of rank 32
    job = replace(
        plan.request.job,
        input_tokens_p99=4000 if turn % 2 else None,
        output_tokens_p99=900 if turn % 3 else None,
        adapter=Adapter(rank=24) if adapted else None,
        adapters=8 if adapted else 0,
    )
    amd = later and engine != "trtllm" and turn % 4 == 1
    host = 128 * (GIB if engine == "vllm" else GB) if engine != "trtllm" and turn % 4 == 2 else 0.0
    request = replace(
        plan.request, host_cache_bytes=host, model=wanted, job=job, gpu="mi300x" if amd else plan.request.gpu
    )
    kv = "fp8" if turn % 5 == 4 else "bf16"
    return replace(plan, request=request, weights=weights, kv_dtype=kv)
