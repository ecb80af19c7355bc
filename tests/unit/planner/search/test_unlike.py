"""Plans whose stages run on unlike kinds of node: what they say, who checks them, who refuses them."""

import math
from dataclasses import replace

import pytest

from app.reports.plan import alternatives_table
from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from costmodel.training.unlike import estimate_unlike
from planner.analysis.explain import explain
from planner.launch.targets import export_plan
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.search.pools.unlike import search_unlike
from planner.search.pools.unlike_plan import plan_score
from planner.search.search import search
from planner.search.verified import verified
from planner.search.verify import verify
from planner.structure import structure_claims
from tests.unit.topology.pools.test_kinds import pool
from topology.base.errors import InputError
from topology.builders import build
from topology.pools.kinds import each_kind
from topology.spec import ClusterSpec

CAL = load_calibration()
TWO = pool(("dgx-h100", 1), ("dgx-a100", 1))


def request(cluster: ClusterSpec, **changes: object) -> PlanRequest:
    """A question with few layouts: layers differ in nothing, a pipeline of two stages."""
    asked = PlanRequest(
        model=replace(model("llama-3.1-8b"), num_layers=12),
        cluster=cluster,
        job=TrainingJob(sequence_length=8192, global_batch_size=128),
        pins={"cp": 1, "tp": 1, "pp": 2, "microbatch_size": 1},
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Plan:
    """The best plan of one node of each kind."""
    plan = search(request(TWO), CAL)
    assert isinstance(plan, Plan)
    return plan


def test_stages_of_both_kinds_are_faster_than_either(found: Plan) -> None:
    """The faster kind holds more layers, the step is shorter than of any part, and it is proven."""
    layers = dict(zip(found.kind_of_stage, found.layers_of_stage, strict=True))
    assert layers[0] > layers[1] > 0
    assert found.pool is not None
    steps = [part.step_time_s for part in found.pool.others if part.step_time_s is not None]
    assert found.estimate.step_time_s < min(steps)
    assert found.optimality.status == "proven"
    assert "each planned for as what it is" in found.assumptions[0]


def test_the_plan_holds_after_a_round_through_json(found: Plan) -> None:
    """Every claim is derived anew: the estimate of each stage on its kind, the bound on every choice of kinds."""
    again = from_json(to_json(found))
    assert again == found
    claims = verify(again, CAL).claims
    assert [claim.name for claim in claims if not claim.holds] == []
    assert any(claim.name.startswith("bound of stages on unlike kinds") for claim in claims)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kind_of_stage": (0, 0)}, "kinds of node of the stages"),
        ({"kind_of_stage": (0, 1, 0)}, "stages with a kind of node"),
        ({"kind_of_stage": (0, 7)}, "kinds of node of the stages"),
    ],
)
def test_kinds_that_are_not_there_are_found_out(found: Plan, changes: dict[str, object], name: str) -> None:
    """Stages without a kind, or of a kind that the cluster does not have, do not fit together."""
    wrong = [claim.name for claim in structure_claims(replace(found, **changes)) if not claim.holds]  # type: ignore[arg-type]
    assert name in wrong


def test_swapped_kinds_are_found_out(found: Plan) -> None:
    """The same layers on the other kinds are not where the ranks are."""
    swapped = replace(found, kind_of_stage=found.kind_of_stage[::-1], origin=None)
    with pytest.raises(InputError, match="in their places"):
        verified(swapped, "swapped")


def test_a_slower_arrangement_that_calls_itself_best_is_found_out(found: Plan) -> None:
    """The best part, with the proof of the pool but no stages on unlike kinds, is beaten by them."""
    alone = search(request(pool(("dgx-h100", 1))), CAL)
    assert isinstance(alone, Plan)
    assert found.pool is not None
    part = next(part for part in each_kind(TWO) if part.nodes == alone.request.cluster.nodes)
    lying = replace(alone, request=replace(alone.request, cluster=part), origin=None, pool=found.pool)
    wrong = [claim.name for claim in verify(lying, CAL).claims if not claim.holds]
    assert any(name.startswith("bound of stages on unlike kinds") for name in wrong)


def test_equal_kinds_estimate_as_one() -> None:
    """Two kinds that differ by nothing that takes time have the estimate of one kind."""
    spec = pool(("dgx-h100", 2))
    other = replace(spec.nodes[0], count=1, nic_latency_s=spec.nodes[0].nic_latency_s * (1 + 1e-13))
    unlike = replace(spec, nodes=(replace(spec.nodes[0], count=1), other))
    layout = ParallelLayout(tp=8, pp=2, sequence_parallel=True)
    asked, profile = request(spec), stack("megatron-core")
    split = even_split([r.count for r in layer_runs(asked.model)], layout, layer_order(asked.model))
    each = tuple(build(part) for part in each_kind(unlike))
    case = Case(model=asked.model, cluster=build(spec), job=asked.job, stack=profile, cal=CAL)
    one = estimate(case, layout, split)
    two, _ = estimate_unlike(replace(case, cluster=build(unlike)), layout, each, split, (0, 1))
    for name in ("step_time_s", "lower_s", "upper_s", "peak_memory_bytes", "mfu", "hfu", "wh_per_step"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-6), name


def test_parts_of_the_step_sum(found: Plan) -> None:
    """The breakdown of the pacing stage, the bubble of all and the tail of the longest make up the step."""
    assert found.estimate.time.total_s == pytest.approx(found.estimate.step_time_s, rel=1e-9)


def test_flags_are_read_back_on_the_same_nodes() -> None:
    """Megatron is told unequal stages by a layout string, and which nodes the ranks of a stage are on."""
    plan = search(request(TWO, engine="megatron"), CAL)
    assert isinstance(plan, Plan)
    assert plan.kind_of_stage
    told = export_plan(plan, "megatron")
    assert "pipeline-model-parallel-layout" in told.text
    assert any("in the order of stages" in note for note in told.notes)


def test_nothing_is_asked_of_unlike_stages_that_answers_for_equal_ones(found: Plan) -> None:
    """Changes of the request are estimated on GPUs planned for alike."""
    assert explain(found, CAL).what_if == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "memory"},
        {"pins": {"schedule": "interleaved"}},
    ],
)
def test_where_unlike_stages_are_not_offered(changes: dict[str, object]) -> None:
    """Not under schedules whose closed form wants equal ranks, nor for memory, which every stage fills."""
    assert search_unlike(request(TWO, **changes), CAL, math.inf) is None


def test_a_plan_for_memory_counts_as_the_fastest_in_whose_band_it_is(found: Plan) -> None:
    """It is slower by choice; under other objectives the step is what counts."""
    certain = replace(found, optimality=replace(found.optimality, bound_s=0.5 * found.estimate.step_time_s))
    for_memory = replace(certain, request=replace(found.request, objective="memory"))
    assert plan_score(certain) == found.estimate.step_time_s
    assert plan_score(for_memory) == 0.5 * found.estimate.step_time_s


def test_others_are_listed_with_where_they_run_and_why_they_lost(found: Plan) -> None:
    """The best part alone and other degrees on both kinds, none better, each estimated anew on its nodes."""
    assert found.pool is not None
    steps = [found.estimate.step_time_s, *(other.step_time_s for other in found.alternatives)]
    assert len(steps) > 1
    assert steps == sorted(steps)
    alone = next(other for other in found.alternatives if other.kinds == (0,))
    parts = {part.nodes: part.step_time_s for part in found.pool.others}
    assert alone.step_time_s == parts["1 × 8 h100-sxm"]
    assert alone.kind_of_stage == ()
    assert alone.difference.startswith("all on 1 × 8 h100-sxm, 1 × 8 a100-sxm-80gb left idle; ")
    names = [claim.name for claim in verify(found, CAL, proof=False).claims]
    assert f"step time of alternative {len(found.alternatives)}" in names
    lost = explain(found, CAL).runner_up
    assert lost is not None
    assert sum(part.seconds_s for part in lost.lost_on) == pytest.approx(steps[1] - steps[0])


def test_other_degrees_on_both_kinds_are_listed() -> None:
    """Their best plan is that of a search that is pinned to them."""
    free = search(request(TWO, pins={"cp": 1, "microbatch_size": 1}), CAL)
    assert isinstance(free, Plan)
    other = next(other for other in free.alternatives if other.kind_of_stage)
    degrees = {name: getattr(other.layout, name) for name in ("tp", "pp", "cp", "microbatch_size")}
    asked = request(TWO, pins=degrees)
    pinned = search_unlike(replace(asked, cluster=free.request.cluster), CAL, math.inf)
    assert pinned is not None
    assert pinned.best is not None
    assert other.step_time_s == pytest.approx(pinned.best.step_time_s)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kinds": (5,)}, "kinds of the pool of alternative 1"),
        ({"kinds": (1, 0)}, "kinds of the pool of alternative 1"),
        ({"kind_of_stage": (3,)}, "stages with a kind of node of alternative 1"),
        ({"step_time_s": 1.0, "lower_s": 0.5}, "step time of alternative 1"),
    ],
)
def test_an_edited_alternative_of_a_pool_is_noticed(
    found: Plan, changes: dict[str, object], name: str
) -> None:
    """Kinds that the pool lacks and steps that are others on their nodes are named."""
    others = (replace(found.alternatives[0], **changes), *found.alternatives[1:])  # type: ignore[arg-type]
    claims = verify(replace(found, alternatives=others), CAL, proof=False).claims
    assert name in [claim.name for claim in claims if not claim.holds]


def test_tables_say_where_each_plan_runs(found: Plan) -> None:
    """Rows for a table and the report name the nodes of every plan, which differ in a pool."""
    rows = found.rows()
    assert rows[0]["gpu_of_stage"].split() == [
        found.request.cluster.nodes[kind].gpu for kind in found.kind_of_stage
    ]
    place = next(rank for rank, other in enumerate(found.alternatives, start=1) if other.kinds == (0,))
    assert (rows[place]["nodes"], rows[place]["gpu_of_stage"]) == ("1 × 8 h100-sxm", "")
    table = alternatives_table(found)
    assert table.columns[2] == "nodes"
    assert table.rows[place - 1][2] == "all on 1 × 8 h100-sxm"
