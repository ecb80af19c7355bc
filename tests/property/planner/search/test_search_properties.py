"""What must hold whatever is asked: more is never worse, the same question has the same answer."""

import json
import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TrainingPrecision
from costmodel.kernels.tables import load_calibration
from costmodel.memory.fit import fit_of, out_of_memory_chance
from costmodel.models.catalog import model as find_model
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.stage_costs import StageSplit, step_time
from costmodel.training.bands import peak_spread
from costmodel.training.stages import stage_costs
from planner.plan import Plan, PlanRequest, from_json, problem_of, to_json
from planner.rules.check import check
from planner.search.best_first import explore
from planner.search.infeasible import Infeasible
from planner.search.search import search
from tests.counts import tries
from topology.base.units import GIB
from topology.builders import default_cluster
from topology.catalog import gpu
from topology.spec import ClusterSpec

CAL = load_calibration()
SLACK = 1 + 1e-6  # the documented rounding of seconds in the solver


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Small models with odd layer counts, dense or with experts."""
    hidden, experts = draw(st.sampled_from([1024, 4096])), draw(st.sampled_from([0, 8]))
    layers = draw(st.integers(3, 13))
    return ModelSpec(
        name="small",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        vocab_size=draw(st.sampled_from([32_000, 262_144])),
        max_sequence_length=8192,
        num_experts=experts,
        num_experts_per_token=2 if experts else 0,
        moe_intermediate_size=hidden if experts else 0,
        num_dense_layers=draw(st.integers(0, 2)) if experts else 0,
    )


def cluster(num_gpus: int, memory_bytes: float, nic_scale: float = 1.0) -> ClusterSpec:
    """The usual cluster with other memory and other NICs."""
    spec = default_cluster("h100-sxm", num_gpus).spec
    node = spec.nodes[0]
    node = replace(node, nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s * nic_scale)
    described = replace(gpu("h100-sxm"), memory_bytes=memory_bytes)
    return replace(spec, nodes=(node,), gpus=(described,))


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    """Requests on 1–32 GPUs, often with tight memory."""
    model = draw(models())
    num_gpus = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    share = draw(st.sampled_from([0.5, 1.0, 1.5, 4.0]))
    memory = 3 * GIB + share * 18 * parameter_count(model) / num_gpus
    return PlanRequest(
        memory_headroom=0.0,
        model=model,
        cluster=cluster(num_gpus, memory),
        job=TrainingJob(sequence_length=2048, global_batch_size=draw(st.sampled_from([16, 24, 32]))),
        stack=draw(st.sampled_from(["megatron-core", "torchtitan"])),
    )


def best_s(request: PlanRequest) -> float:
    """Step time of the best plan, infinite if there is none."""
    done = explore(request, CAL)
    return math.inf if isinstance(done, tuple) or done.best is None else done.best.step_time_s


def with_node(request: PlanRequest, **changes: float) -> PlanRequest:
    """The same request on nodes with other fields."""
    node = replace(request.cluster.nodes[0], **changes)  # type: ignore[arg-type]
    return replace(request, cluster=replace(request.cluster, nodes=(node,)))


@settings(max_examples=tries(4, 25), deadline=None)
@given(request=requests())
def test_more_gpus_never_give_a_worse_plan(request: PlanRequest) -> None:
    """Idle GPUs are allowed, so twice the cluster is at least as fast."""
    memory = request.cluster.gpus[0].memory_bytes
    larger = replace(request, cluster=cluster(2 * request.cluster.num_gpus, memory))
    assert best_s(larger) <= best_s(request) * SLACK


@settings(max_examples=tries(4, 25), deadline=None)
@given(request=requests(), more=st.floats(1.01, 3.0))
def test_more_memory_never_gives_a_worse_plan(request: PlanRequest, more: float) -> None:
    """A GPU with more memory runs every plan the smaller one runs."""
    described = request.cluster.gpus[0]
    roomy = replace(described, memory_bytes=described.memory_bytes * more)
    larger = replace(request, cluster=replace(request.cluster, gpus=(roomy,)))
    assert best_s(larger) <= best_s(request) * SLACK


@settings(max_examples=tries(4, 25), deadline=None)
@given(request=requests(), faster=st.floats(1.1, 4.0))
def test_more_bandwidth_never_gives_a_worse_plan(request: PlanRequest, faster: float) -> None:
    """Faster NICs run every plan at least as fast."""
    nic = request.cluster.nodes[0].nic_bandwidth_bytes_per_s
    quicker = with_node(request, nic_bandwidth_bytes_per_s=nic * faster)
    assert best_s(quicker) <= best_s(request) * SLACK


@st.composite
def pinned_fields(draw: st.DrawFn) -> dict[str, object]:
    """One to three fields at any value: what the rules admit of them is in the space, whatever it is."""
    degrees = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "expert_tp", "shard_degree"), st.integers(1, 8))
    values: dict[str, st.SearchStrategy[object]] = {
        **degrees,
        "microbatch_size": st.integers(1, 12),
        "virtual_stages": st.integers(1, 4),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "schedule": st.sampled_from(["1f1b", "interleaved"]),
    }
    names = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3, unique=True))
    return {name: draw(values[name]) for name in names}


@settings(max_examples=tries(8, 50), deadline=None)
@given(request=requests(), pin=pinned_fields())
def test_a_pin_never_gives_a_better_plan(request: PlanRequest, pin: dict[str, object]) -> None:
    """Fixing a field can only cost."""
    assert best_s(request) <= best_s(replace(request, pins=pin)) * SLACK


@settings(max_examples=tries(3, 15), deadline=None)
@given(request=requests())
def test_the_same_request_gives_the_same_document(request: PlanRequest) -> None:
    """Two searches write the same JSON byte for byte, timing apart, and it reads back exactly."""
    documents = []
    for _ in range(2):
        found = search(request, CAL)
        if not isinstance(found, Plan):
            return
        assert from_json(to_json(found)) == found
        documents.append(json.loads(to_json(found)) | {"search_time_s": 0})
    assert documents[0] == documents[1]


@settings(max_examples=tries(3, 15), deadline=None)
@given(request=requests())
def test_every_plan_is_consistent(request: PlanRequest) -> None:
    """A plan is legal, fits, sums up, and its step is that of its split."""
    found = search(request, CAL)
    if not isinstance(found, Plan):
        return
    s = problem_of(request, CAL)
    assert check(s, found.layout) == ()
    assert sum(found.layers_of_stage) == s.model.num_layers
    assert len(found.layers_of_stage) == found.layout.pp * found.layout.virtual_stages
    assert found.estimate.time.total_s == float(f"{found.estimate.step_time_s}") or math.isclose(
        found.estimate.time.total_s, found.estimate.step_time_s, rel_tol=1e-9
    )
    assert found.estimate.peak_memory_bytes <= s.memory_budget_bytes * SLACK
    assert found.mesh.num_ranks + found.idle_gpus == s.cluster.num_gpus
    assert found.optimality.enumerated == sum(found.optimality.pruned.values()) + found.optimality.solved
    done = explore(request, CAL)
    assert not isinstance(done, tuple)
    assert done.best is not None
    split: StageSplit = done.best.split
    costs = stage_costs(s.case, found.layout)
    assert math.isclose(step_time(costs, split), found.estimate.step_time_s, rel_tol=1e-12)


@settings(deadline=None, max_examples=tries(2, 25))
@given(
    requests(),
    st.sampled_from(("megatron-core", "torchtitan", "megatron-deepspeed")),
    st.sampled_from(("bf16", "fp16", "fp8")),
    st.floats(0.3, 3.0),
)
def test_a_default_plan_fits(
    request: PlanRequest, stack: str, precision: TrainingPrecision, times: float
) -> None:
    """Who names no headroom is answered by plans whose chance of OOM is below 5 %, by one told to be tight, or refused.

    Whatever the evidence of the stack in this precision, so however wide the band of the peak. A plan is tight
    only where no layout fits.
    """
    memory = request.cluster.gpus[0].memory_bytes * times
    asked = replace(
        request,
        cluster=cluster(request.cluster.num_gpus, memory),
        job=replace(request.job, precision=precision),
        stack=stack,
        memory_headroom=None,
        top=3,
    )
    found = search(asked, CAL)
    if not isinstance(found, Plan):
        assert isinstance(search(replace(asked, objective="memory"), CAL), Infeasible)
        return
    e = found.estimate
    if fit_of(e.out_of_memory_chance) != "fits":
        assert fit_of(e.out_of_memory_chance) == "tight"
        assert found.assumptions[0].startswith("no layout fits")
        assert isinstance(search(asked, CAL, or_tight=False), Infeasible)
    assert e.out_of_memory_chance == out_of_memory_chance(
        e.peak_memory_bytes, memory, peak_spread(problem_of(asked, CAL).case)
    )
    budget = problem_of(found.request, CAL).memory_budget_bytes * SLACK
    assert all(other.peak_memory_bytes <= budget for other in found.alternatives)


def test_less_headroom_is_faster_and_more_daring() -> None:
    """70B on 32 H100: filling memory saves 0.6 s of 114 s, and the chance of OOM is above 5 %."""
    asked = PlanRequest(
        model=find_model("llama-3.1-70b"),
        cluster=default_cluster("h100-sxm", 32).spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=512),
    )
    careful, bold = (search(replace(asked, memory_headroom=room), CAL) for room in (None, 0.0))
    assert isinstance(careful, Plan)
    assert isinstance(bold, Plan)
    assert fit_of(careful.estimate.out_of_memory_chance) == "fits"
    assert fit_of(bold.estimate.out_of_memory_chance) == "tight"
    assert bold.estimate.step_time_s < careful.estimate.step_time_s
