"""What `plan explain` says: shares of the step, memory, links, the runner-up, the changes."""

from dataclasses import replace
from math import ceil

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.analysis.explain import Explanation, explain, what_if
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from tests.unit.costmodel.models.small_modules import traced
from topology.base.units import DAY
from topology.builders import default_cluster

CAL = load_calibration()


def request(name: str, gpus: int, **pins: object) -> PlanRequest:
    """A request on the usual cluster."""
    return PlanRequest(
        model=model(name),
        cluster=default_cluster("h100-sxm", gpus).spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=128),
        pins=pins,
    )


@pytest.fixture(scope="module")
def told() -> tuple[Plan, Explanation]:
    """Llama 70B on four nodes, explained."""
    plan = search(request("llama-3.1-70b", 32), CAL)
    assert isinstance(plan, Plan)
    return plan, explain(plan, CAL)


def test_shares_of_the_step_sum_to_it(told: tuple[Plan, Explanation]) -> None:
    """Every second of the step belongs to one part, largest first."""
    plan, explanation = told
    assert sum(part.seconds_s for part in explanation.shares) == pytest.approx(plan.estimate.step_time_s)
    assert sum(part.share for part in explanation.shares) == pytest.approx(1.0)
    assert explanation.shares[0].part == "compute"


def test_memory_names_the_fullest_stage(told: tuple[Plan, Explanation]) -> None:
    """The sentence holds what is used, what is there and what fills it."""
    plan, explanation = told
    assert f"of {plan.layout.pp} is fullest" in explanation.memory
    assert "free" in explanation.memory


def test_links_say_where_groups_run(told: tuple[Plan, Explanation]) -> None:
    """Tensor parallelism of this plan stays inside a node, and its exposed time is named."""
    _, explanation = told
    tensor = next(line for line in explanation.links if line.startswith("tp of"))
    assert "stays inside a node" in tensor


def test_the_runner_up_loses_by_the_difference_of_its_parts(told: tuple[Plan, Explanation]) -> None:
    """What it loses on, part by part, is what it is slower by."""
    plan, explanation = told
    assert explanation.runner_up is not None
    lost = sum(part.seconds_s for part in explanation.runner_up.lost_on)
    assert lost == pytest.approx(explanation.runner_up.step_time_s - plan.estimate.step_time_s, abs=1e-6)


def test_better_hardware_never_hurts_and_the_best_change_comes_first(told: tuple[Plan, Explanation]) -> None:
    """What-ifs are sorted, and more memory or faster links give nothing worse."""
    _, explanation = told
    gains = [one.faster_by for one in explanation.what_if]
    assert gains == sorted(gains, reverse=True)
    hardware = [one for one in explanation.what_if if "memory" in one.change or "twice as fast" in one.change]
    assert len(hardware) == 3
    assert all(one.faster_by >= -1e-6 for one in hardware)


def test_an_impossible_pin_is_named_and_dropping_it_helps() -> None:
    """Tensor parallelism of 3 divides nothing; the nearest change is to leave it out."""
    found = search(request("llama-3.1-8b", 8, tp=3), CAL)
    assert isinstance(found, Infeasible)
    assert "attention-heads" in {violation.rule for violation in found.violations}
    assert found.nearest[0].change == "leave layout.tp to the planner"


def test_a_missed_deadline_is_told_in_steps_and_the_gpus_that_would_meet_it() -> None:
    """The cause holds the arithmetic of the run; the first change gives the GPUs that finish in time."""
    asked = request("llama-3.1-8b", 8)
    job = replace(asked.job, total_tokens=10**11, deadline_s=10 * DAY)
    found = search(replace(asked, job=job, objective="gpus"), CAL)
    assert isinstance(found, Infeasible)
    (violation,) = found.violations
    steps = ceil(10**11 / job.tokens_per_step)
    assert violation.rule == "deadline"
    assert f"{steps:,} steps × " in violation.message
    assert violation.message.endswith("the deadline is 10.0 days")
    assert violation.have > violation.need == job.deadline_s
    assert found.nearest[0].flag == "--gpus 16"
    later = next(change for change in found.nearest if change.flag.startswith("--deadline"))
    assert later.flag == f"--deadline {ceil(violation.have / DAY)}d"


@pytest.mark.parametrize(
    ("gpu", "precision", "flag"),
    [("v100-sxm-32gb", "bf16", "--precision fp16"), ("a100-sxm-80gb", "fp8", "--precision bf16")],
)
def test_a_precision_the_gpu_lacks_is_refused_for_the_one_it_has(
    gpu: str, precision: TrainingPrecision, flag: str
) -> None:
    """Volta multiplies no bf16, Ampere no fp8; the first change that helps is to use what there is."""
    asked = request("llama-3.2-1b", 8)
    job = replace(asked.job, precision=precision, sequence_length=2048)
    found = search(replace(asked, cluster=default_cluster(gpu, 8).spec, job=job), CAL)
    assert isinstance(found, Infeasible)
    assert [violation.rule for violation in found.violations] == ["precision-hardware"]
    assert found.nearest[0].flag == flag


def test_four_bits_are_planned_where_there_are_units_for_them() -> None:
    """NVFP4 is multiplied by the fp4 units, whose peak its MFU is a share of."""
    asked = request("llama-3.2-1b", 8)
    job, cluster = replace(asked.job, precision="nvfp4"), default_cluster("b200-sxm", 8)
    found = search(replace(asked, cluster=cluster.spec, job=job), CAL)
    assert isinstance(found, Plan)
    assert TRAINING["nvfp4"].peak == "fp4"


def test_changes_are_held_against_the_fastest_plan_whatever_the_objective() -> None:
    """A plan that was chosen for its memory is slow by choice; no change of the hardware gets the credit."""
    asked = request("llama-3.1-8b", 8)
    fastest, emptiest = (search(replace(asked, objective=what), CAL) for what in ("step-time", "memory"))
    assert isinstance(fastest, Plan)
    assert isinstance(emptiest, Plan)
    assert emptiest.estimate.step_time_s > fastest.estimate.step_time_s
    told = {one.change: one.faster_by for one in what_if(emptiest, CAL)}
    assert told["links inside the node twice as fast"] == pytest.approx(
        {one.change: one.faster_by for one in what_if(fastest, CAL)}["links inside the node twice as fast"]
    )


def test_no_change_is_weighed_that_would_be_refused() -> None:
    """A traced module is planned in sixteen bits: fp8 was weighed, and refused where its flag was followed."""
    job = TrainingJob(sequence_length=1, global_batch_size=128)
    asked = replace(request("llama-3.1-8b", 8), model=traced(), job=job, stack="torchtitan")
    plan = search(asked, CAL)
    assert isinstance(plan, Plan)
    weighed = {one.flag for one in what_if(plan, CAL)}
    assert "--precision fp8" not in weighed
    assert "--global-batch-size 256" in weighed
