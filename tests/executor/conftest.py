"""Plans made by hand, so that executor tests need no search, and processes that are forked, not started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.spec import ModelSpec
from planner.plan import Optimality, Plan, PlanRequest
from planner.search.verify import estimate_anew
from tests.fork_server import RANKS, SCRIPT, Forking, possible
from topology.builders import default_cluster
from topology.fabric.mesh import Mesh

TINY = ModelSpec(
    name="tiny",
    num_layers=4,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=259,
    max_sequence_length=64,
)


def _estimate(ranks: int) -> Estimate:
    return Estimate(
        time=TimeBreakdown(compute_s=0.1),
        step_time_s=0.1,
        lower_s=0.08,
        upper_s=0.12,
        memory_by_stage=(MemoryBreakdown(**{part.name: 0.0 for part in fields(MemoryBreakdown)}),) * ranks,
        peak_memory_bytes=0.0,
        memory_lower_bytes=0.0,
        memory_upper_bytes=0.0,
        mfu=0.4,
        hfu=0.4,
        tokens_per_s_per_gpu=1000.0,
        usd_per_step=None,
        usd_per_billion_tokens=None,
        wh_per_step=0.0,
        wh_per_billion_tokens=0.0,
        bound_by="compute",
    )


def make_plan(layout: ParallelLayout, *, spec: ModelSpec = TINY, batch: int = 8, sequence: int = 16) -> Plan:
    """Build a plan around a layout, with an estimate that nobody should believe."""
    stages = layout.pp * layout.virtual_stages
    return Plan(
        request=PlanRequest(
            model=spec,
            cluster=default_cluster("h100-sxm", 8).spec,
            job=TrainingJob(sequence_length=sequence, global_batch_size=batch),
            stack="meshplan",
        ),
        layout=layout,
        layers_of_stage=tuple(
            spec.num_layers // stages + (i < spec.num_layers % stages) for i in range(stages)
        ),
        recompute_of_stage=(0,) * layout.pp,
        mesh=Mesh(
            axes=tuple((axis, getattr(layout, axis)) for axis in layout.axis_order),
            gpu_of_rank=tuple(range(layout.num_gpus)),
        ),
        estimate=_estimate(layout.pp),
        alternatives=(),
        optimality=Optimality(status="best-found", bound_s=0.0, gap=1.0, enumerated=1, pruned={}, solved=1),
        search_time_s=0.0,
        idle_gpus=8 - layout.num_gpus,
    )


@pytest.fixture(scope="session", autouse=True)
def forking() -> Iterator[Forking]:
    """Fork ranks and launchers, which tests start, from a process that has imported torch."""
    forking = Forking()
    if possible():
        forking.install()
    yield forking
    forking.remove()


@pytest.fixture(scope="module")
def real_starts(forking: Forking) -> Iterator[None]:
    """Start the processes of a module's tests: they look at what a fork does not have."""
    forking.real += 1
    yield
    forking.real -= 1


@pytest.fixture(scope="module")
def forked_scripts(forking: Forking) -> Iterator[None]:
    """Fork also what the tests of a module start by ``python -c``, from where torch is imported and no compiler."""
    forking.served[SCRIPT] = RANKS
    yield
    del forking.served[SCRIPT]


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    """Build a plan around a layout."""
    return make_plan


@pytest.fixture(scope="session")
def estimated_plan_of() -> Callable[..., Plan]:
    """Build a plan around a layout, with the estimate of the cost model: for commands, which check it."""

    def make(layout: ParallelLayout, batch: int = 8, **sizes: Any) -> Plan:
        plan = make_plan(layout, batch=batch, spec=replace(TINY, **sizes))
        anew = estimate_anew(plan, plan.problem)
        return replace(anew, assumptions=anew.estimate.assumptions)

    return make
