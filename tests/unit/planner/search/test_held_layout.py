"""A given layout is held still: its stages and its recomputation are what was given, nothing is optimised."""

from dataclasses import replace
from typing import Any

import pytest

import meshplan
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stacks
from planner.engines.contracts import CONTRACTS, even_layers_of
from planner.law import Violation
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from planner.search.verify import verify
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()


def asked(
    name: str, gpus: int, engine: str = "megatron", job: dict[str, Any] | None = None, **pins: Any
) -> PlanRequest:
    """A request of one layout for an engine, priced by the profile of that engine."""
    stack = "megatron-core" if engine == "any" else CONTRACTS[engine].stacks[0]
    return PlanRequest(
        model=model(name),
        cluster=default_cluster("h100-sxm", gpus).spec,
        job=TrainingJob(**{"sequence_length": 4096, "global_batch_size": 64, **(job or {})}),
        stack=stack,
        engine=engine,
        pins=pins,
    )


def planned(request: PlanRequest) -> Plan:
    """The plan of its layout."""
    found = plan_of_layout(request, CAL)
    assert isinstance(found, Plan), found
    return found


FULL = {"recompute": "full", "recomputed_layers": "all"}


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (asked("llama-3.1-70b", 64, tp=4, pp=4, virtual_stages=5), "interleaved"),
        (asked("llama-3.1-8b", 8, tp=2, pp=4), "tensors"),
        (asked("llama-3.1-8b", 8, engine="any", pp=8), "no engine"),
        (asked("llama-3.1-8b", 8, engine="torchtitan", zero_stage=2), "torchtitan"),
        (asked("mixtral-8x7b", 64, tp=2, pp=8, ep=4), "experts"),
        (asked("deepseek-v2-lite", 56, engine="any", dp=2, pp=27), "a layer a stage"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_full_recomputation_never_raises_the_peak_of_a_stage(request_: PlanRequest, name: str) -> None:
    """It takes longer and saves memory, on the same stages: each recomputes what it holds, or nothing."""
    none = planned(request_)
    full = planned(replace(request_, pins={**request_.pins, **FULL}))
    assert none.layers_of_stage == full.layers_of_stage
    assert not any(none.recompute_of_stage)
    assert sum(full.recompute_of_stage) == request_.model.num_layers
    assert full.estimate.step_time_s > none.estimate.step_time_s
    pairs = zip(full.estimate.memory_by_stage, none.estimate.memory_by_stage, strict=True)
    assert all(after.total_bytes <= before.total_bytes * (1 + 1e-9) for after, before in pairs), name


def test_a_published_job_of_fourteen_layers_needs_less_with_recomputation() -> None:
    """64 H100, tp 1, pp 4 × 2, ep 16: 67.1 GiB measured, 58.7 GiB with every layer recomputed.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/6311; fourteen layers on eight stages are 1, 6 × 2, 1.
    """
    short = replace(model("deepseek-v3"), num_layers=14)
    request = replace(
        asked(
            "deepseek-v3",
            64,
            pp=4,
            virtual_stages=2,
            ep=16,
            job={"sequence_length": 2048, "global_batch_size": 256},
        ),
        model=short,
    )
    none, full = planned(request), planned(replace(request, pins={**request.pins, **FULL}))
    peaks = [plan.estimate.peak_memory_bytes / 2**30 for plan in (none, full)]
    assert none.layers_of_stage == (1, 2, 2, 2, 2, 2, 2, 1)
    assert peaks == pytest.approx([67.1, 58.7], rel=0.08)
    assert full.estimate.step_time_s / none.estimate.step_time_s == pytest.approx(3.04 / 2.50, rel=0.2)


@pytest.mark.parametrize(
    ("engine", "layers", "layout", "stages"),
    [
        ("megatron", 80, ParallelLayout(pp=4, virtual_stages=5, schedule="interleaved"), (4,) * 20),
        ("megatron", 126, ParallelLayout(pp=8), (15, *(16,) * 6, 15)),
        ("megatron", 61, ParallelLayout(pp=2), (31, 30)),
        ("megatron", 61, ParallelLayout(pp=16), None),
        ("megatron-bridge", 46, ParallelLayout(pp=5), None),
        ("torchtitan", 32, ParallelLayout(pp=4), (8, 9, 8, 7)),
        ("torchtitan", 61, ParallelLayout(pp=16), (3, *(4,) * 14, 2)),
        ("any", 61, ParallelLayout(pp=4), (15, 15, 16, 15)),
        ("accelerate", 32, ParallelLayout(), (32,)),
    ],
)
def test_an_engine_fills_its_stages_as_it_does_or_stops(
    engine: str, layers: int, layout: ParallelLayout, stages: tuple[int, ...] | None
) -> None:
    """Megatron-Core divides, with a place for the embedding and the loss; torchtitan weighs its ends."""
    assert even_layers_of(engine)(layers, layout, 0) == stages


@pytest.mark.parametrize("engine", sorted(CONTRACTS))
def test_every_stage_that_an_engine_makes_is_there(engine: str) -> None:
    """All layers are somewhere, on every rank is one, whatever the model and the pipeline."""
    for layers in (1, 2, 14, 24, 32, 61, 80, 126):
        for pp in (1, 2, 3, 4, 8, 16):
            for chunks in (1, 2, 5):
                schedule = "interleaved" if chunks > 1 else "1f1b"
                found = even_layers_of(engine)(
                    layers, ParallelLayout(pp=pp, virtual_stages=chunks, schedule=schedule), 0
                )
                if found is not None and layers >= pp * chunks:
                    assert (len(found), sum(found)) == (pp * chunks, layers)
                    assert all(sum(found[rank::pp]) > 0 for rank in range(pp))


def test_an_engine_that_makes_no_even_stages_is_said_to_stop() -> None:
    """61 layers on 16 stages of Megatron-Core: illegal, with stages that could be pinned, which then are priced."""
    request = asked("deepseek-v3", 256, pp=16, ep=8)
    (broken,) = plan_of_layout(request, CAL)  # type: ignore[misc]  # no plan
    assert isinstance(broken, Violation)
    assert broken.rule == "even-layers"
    stages = broken.hint.partition("layers_of_stage=")[2].partition(",")[0]
    flags = Flags(
        model="deepseek-v3", gpus="256",
        settings=("layout.pp=16", "layout.ep=8", f"layout.layers_of_stage={stages}"),
    )  # fmt: skip
    assert planned(understand(flags).request).layers_of_stage == (3, 3, *(4,) * 13, 3)


@pytest.mark.parametrize("text", ["9-9-8-6", "9,9,8,6", "9*2-8-6", "[9, 9, 8, 6]"])
def test_stages_that_are_pinned_are_those_of_the_plan(text: str) -> None:
    """However they are written; the plan is sound, and proves nothing."""
    flags = Flags(model="8b", gpus="8", settings=("layout.pp=4", f"layout.layers_of_stage={text}"))
    plan = planned(understand(flags).request)
    assert (plan.layers_of_stage, plan.optimality.status) == ((9, 9, 8, 6), "given")
    assert [claim for claim in verify(from_json(to_json(plan)), CAL).claims if not claim.holds] == []


def test_chunks_of_any_sizes_are_priced_where_they_stand() -> None:
    """Two chunks a rank, unlike each other: reported, verified, and slower by event simulation than equal ones."""
    uneven, even = ((6, 2, 4, 4, 2, 6, 4, 4), (4,) * 8)
    request = asked("llama-3.1-8b", 8, pp=4, virtual_stages=2)
    plans = [
        planned(replace(request, pins={**request.pins, "layers_of_stage": split})) for split in (uneven, even)
    ]
    assert [plan.layers_of_stage for plan in plans] == [uneven, even]
    assert [claim for claim in verify(from_json(to_json(plans[0])), CAL).claims if not claim.holds] == []
    played = [plan.simulated_s or 0.0 for plan in plans]
    assert played[0] > played[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("layout.pp=4", "layout.layers_of_stage=8-8-8"), r"3 stages, pp·virtual_stages = 4·1 = 4"),
        (("layout.pp=4", "layout.layers_of_stage=8-8-8-9"), "they are 33 layers, llama-3.1-8b has 32"),
        (("layout.pp=4", "layout.layers_of_stage=0-8-8-16"), "a pipeline rank has no layer"),
        (("layout.pp=4", "layout.layers_of_stage=eight"), "layers_of_stage cannot be 'eight'"),
        (("layout.pp=4", "layout.layers_of_stage=8*99999999"), "layers_of_stage cannot be"),
        (("layout.pp=2", "layout.recompute_of_stage=17-0"), "the ranks hold 16"),
        (("layout.pp=2", "layout.recompute_of_stage=1"), "of 1 pipeline ranks, pp = 2"),
        (("layout.pp=2", "layout.recompute_of_stage=1-1", "layout.recompute=none"), "not none"),
    ],
)
def test_stages_that_are_not_the_layouts_are_refused(settings: tuple[str, ...], said: str) -> None:
    """With what they are, and stages that could be pinned."""
    with pytest.raises(InputError, match=said):
        plan_of_layout(understand(Flags(model="8b", gpus="8", settings=settings)).request, CAL)


def test_a_search_cannot_keep_to_stages() -> None:
    """They would be of a layout that it has yet to choose; the error names the command that can."""
    with pytest.raises(InputError, match="plan estimate"):
        search(asked("llama-3.1-8b", 8, pp=4, layers_of_stage=(8, 8, 8, 8)), CAL)


@pytest.mark.parametrize(
    "request_",
    [
        asked("llama-3.1-8b", 8, tp=4, pp=2),
        asked("llama-3.1-70b", 32, engine="any"),
        asked("llama-3.1-8b", 8, engine="torchtitan", pp=2),
    ],
)
def test_the_layout_and_split_of_a_plan_are_estimated_as_the_plan(request_: PlanRequest) -> None:
    """Estimate, simulation and ranks are the same numbers, not close ones."""
    plan = search(replace(request_, top=1), CAL)
    assert isinstance(plan, Plan)
    stages = {"layers_of_stage": plan.layers_of_stage, "recompute_of_stage": plan.recompute_of_stage}
    given = meshplan.estimate(
        request_.model, cluster=request_.cluster, job=request_.job, stack=request_.stack, engine=request_.engine,
        layout=plan.layout, set={f"layout.{name}": value for name, value in stages.items()},
    )  # fmt: skip
    assert given.estimate == plan.estimate
    assert (given.layers_of_stage, given.recompute_of_stage) == tuple(stages.values())
    assert (given.simulated_s, given.mesh, given.layout) == (plan.simulated_s, plan.mesh, plan.layout)


def test_the_planners_own_split_is_there_for_who_asks() -> None:
    """``layers_of_stage=auto`` with ``recompute=full:auto`` is no slower than any split that fits."""
    longer = {"sequence_length": 8192}
    request = asked("llama-3.1-70b", 64, job=longer, tp=4, pp=4, virtual_stages=5)
    best = planned(replace(request, pins={**request.pins, "recompute": "full", "layers_of_stage": "auto"}))
    held = planned(replace(request, pins={**request.pins, "recompute": "full"}))
    assert best.optimality.status == "proven"
    assert best.estimate.step_time_s <= held.estimate.step_time_s * (1 + 1e-6)
    assert max(best.estimate.peak_memory_bytes, held.estimate.peak_memory_bytes) < 80e9
    assert 0 < sum(held.recompute_of_stage) < 80


@pytest.mark.parametrize("name", sorted(stacks()))
@pytest.mark.parametrize("axis", ["dp", "tp", "cp"])
def test_what_nobody_said_of_a_layout_is_what_its_stack_can_run(name: str, axis: str) -> None:
    """Eight GPUs of an 8B: a plan for every stack and axis that it has, however it shards by default."""
    flags = Flags(model="8b", gpus="8", stack=name, settings=(f"layout.{axis}=8",))
    found = plan_of_layout(understand(flags).request, CAL)
    if isinstance(found, tuple):
        assert found[0].rule == f"{axis}-offered"
        assert axis != "dp"
        return
    assert getattr(found.layout, axis) == 8
