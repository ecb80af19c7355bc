"""Answers every practitioner knows: the search has to find them for physical reasons, not by rule."""

from dataclasses import replace

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from planner.campaign.finish import with_campaign
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.units import GBIT
from topology.builders import default_cluster

CAL = load_calibration()
DENSE_100B = replace(model("llama-3.1-70b"), name="dense-100b", num_layers=112)


def ask(
    spec: ModelSpec,
    gpus: int,
    *,
    gpu: str = "h100-sxm",
    sequence: int = 8192,
    batch: int = 512,
    nic_bytes_per_s: float | None = None,
    **request: object,
) -> Plan | Infeasible:
    """Plan for the usual cluster of a GPU."""
    cluster = default_cluster(gpu, gpus, nic_bandwidth_bytes_per_s=nic_bytes_per_s)
    job = TrainingJob(sequence_length=sequence, global_batch_size=batch)
    return search(PlanRequest(model=spec, cluster=cluster.spec, job=job, **request), CAL)  # type: ignore[arg-type]


def plan(*args: object, **kwargs: object) -> Plan:
    """Plan something that is possible, and prove it."""
    found = ask(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(found, Plan)
    assert found.optimality.status == "proven"
    return found


def nodes_of(found: Plan, axis: str, gpus_per_node: int = 8) -> int:
    """Most nodes that one group of an axis touches."""
    return max(len({gpu // gpus_per_node for gpu in group}) for group in found.mesh.groups(axis))


def test_70b_on_32_gpus_keeps_tensor_parallelism_inside_the_node() -> None:
    """Llama 70B needs model parallelism on 32 H100, and its tensor-parallel groups never leave a node."""
    found = plan(model("llama-3.1-70b"), 32)
    assert found.layout.tp > 1
    assert nodes_of(found, "tp") == 1
    assert found.idle_gpus == 0


def test_1b_on_8_gpus_is_plain_data_parallelism() -> None:
    """A model that fits on every GPU is replicated: no tensor or pipeline parallelism."""
    found = plan(model("llama-3.2-1b"), 8)
    assert (found.layout.tp, found.layout.pp) == (1, 1)
    assert found.idle_gpus == 0


def test_405b_on_8_gpus_of_40_gb_does_not_fit() -> None:
    """It is memory that stands in the way, the weights and their state alone; more GPUs would help."""
    found = ask(model("llama-3.1-405b"), 8, gpu="a100-sxm-40gb")
    assert isinstance(found, Infeasible)
    (violation,) = found.violations
    assert violation.rule == "memory"
    assert violation.have > violation.need
    assert any("GPUs" in change.change for change in found.nearest)


@pytest.mark.parametrize("gbit_per_s", [25, 100])
def test_100b_on_slow_nodes_splits_tensors_inside_and_pipelines_across(gbit_per_s: int) -> None:
    """With one slow NIC per GPU, TP stays on NVLink and PP, which sends least, crosses the nodes."""
    found = plan(DENSE_100B, 32, sequence=4096, batch=256, nic_bytes_per_s=gbit_per_s * GBIT)
    assert found.layout.tp > 1
    assert nodes_of(found, "tp") == 1
    assert found.layout.pp > 1
    assert nodes_of(found, "pp") > 1


def test_a_mixture_of_experts_uses_expert_parallelism() -> None:
    """Mixtral 8×7B spreads its experts, and every GPU of an expert group holds whole experts."""
    found = plan(model("mixtral-8x7b"), 32, sequence=4096)
    assert found.layout.ep > 1
    assert model("mixtral-8x7b").num_experts % found.layout.ep == 0


def test_a_long_context_uses_context_parallelism() -> None:
    """One sequence of 128k tokens is split over context ranks."""
    assert plan(model("llama-3.1-70b"), 64, sequence=131_072, batch=64).layout.cp > 1


def test_126_layers_split_unevenly_over_8_ranks() -> None:
    """126 layers on 8 ranks: the rank with the head holds no more than the middle ones."""
    found = plan(model("llama-3.1-405b"), 1024, pins={"pp": 8})
    per_rank = [sum(found.layers_of_stage[rank :: found.layout.pp]) for rank in range(8)]
    assert sum(found.layers_of_stage) == 126
    assert len(found.layers_of_stage) == 8 * found.layout.virtual_stages
    assert per_rank[-1] <= max(per_rank[1:-1])


def test_61_layers_of_deepseek_split_over_16_ranks() -> None:
    """61 layers do not divide by 16: stages differ by what the ends and the dense layers weigh."""
    found = plan(
        model("deepseek-v3"), 1024, sequence=4096, pins={"pp": 16, "virtual_stages": 1, "schedule": "1f1b"}
    )
    assert sum(found.layers_of_stage) == 61
    assert len(set(found.layers_of_stage)) > 1
    assert max(found.layers_of_stage) <= 5
    assert found.layout.ep > 1


def test_a_vocabulary_of_256k_takes_layers_off_the_last_stage() -> None:
    """Gemma's head weighs as much as layers do, so its stage holds fewer of them."""
    found = plan(model("gemma-2-27b"), 64, pins={"pp": 4, "virtual_stages": 1, "schedule": "1f1b"})
    assert found.layers_of_stage[-1] < max(found.layers_of_stage)


def test_the_cheapest_plan_never_costs_more_than_the_fastest() -> None:
    """Minimising cost minimises seconds of the GPUs of all rented nodes."""
    fastest, cheapest = (
        plan(model("llama-3.1-8b"), 32, batch=64, objective=goal) for goal in ("step-time", "cost")
    )
    spent = [-(-found.layout.num_gpus // 8) * found.estimate.step_time_s for found in (fastest, cheapest)]
    assert spent[1] <= spent[0] * (1 + 1e-6)


def test_a_deadline_is_met_with_the_fewest_gpus() -> None:
    """Its run keeps the deadline nine times in ten, failures included, and no plan for fewer GPUs does."""
    cluster = default_cluster("h100-sxm", 64).spec
    job = TrainingJob(sequence_length=8192, global_batch_size=128, total_tokens=10**10, deadline_s=2 * 86_400)
    request = PlanRequest(model=model("llama-3.1-8b"), cluster=cluster, job=job, objective="gpus")
    found = search(request, CAL)
    assert isinstance(found, Plan)
    run = with_campaign(found).campaign
    assert run is not None
    assert run.deadline_chance is not None
    assert run.deadline_chance >= 0.9
    assert run.days.p90 <= 2
    assert 0 < found.layout.num_gpus < 64
