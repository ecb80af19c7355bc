"""A run is held against its plan: its useful share, its finish, and what is off are those of its lines."""

from dataclasses import replace
from functools import cache

import pytest

from costmodel.layout import ParallelLayout
from planner.analysis.campaign.watch import at_least, watched
from planner.campaign.finish import with_campaign
from planner.formats.progress import LoggedStep, logged_steps
from planner.formats.saves import held_by_saves
from planner.formats.scheduler import Interruption, Scheduled
from planner.plan import Plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError
from topology.base.units import DAY, format_seconds


@cache
def planned() -> Plan:
    """A plan on sixteen GPUs for a hundred billion tokens."""
    plan = priced(ParallelLayout(dp=16, zero_stage=3))
    job = replace(plan.request.job, total_tokens=10**11)
    return with_campaign(replace(plan, request=replace(plan.request, job=job)))


def steady(count: int, *, first: int = 1, at_s: float = 0.0, slower: float = 1.0) -> list[LoggedStep]:
    """Steps as planned, or slower, one after the other."""
    step_s = planned().estimate.step_time_s * slower
    return [LoggedStep(step=first + i, step_s=step_s, at_s=at_s + i * step_s) for i in range(count)]


def test_a_run_as_planned_is_useful_and_nothing_is_off() -> None:
    """All of its time makes progress; what is left takes as long as the campaign says of such a share."""
    plan, found = planned(), watched(planned(), steady(101))
    assert found.useful_share == pytest.approx(1.0)
    assert (found.restarts, found.repeated_steps, found.off) == (0, 0, ())
    assert plan.campaign is not None
    left_s = (found.steps - 101) * plan.estimate.step_time_s
    assert found.days_left.p50 * DAY == pytest.approx(left_s / plan.campaign.useful_share.p50)
    assert found.days_left.p10 <= found.days_left.p50 <= found.days_left.p90


def test_what_a_restart_costs_is_not_useful() -> None:
    """A hundred steps, an hour of nothing, back by forty: the share is new steps over all the time."""
    step_s = planned().estimate.step_time_s
    lines = steady(101) + steady(100, first=61, at_s=100 * step_s + 3600)
    found = watched(planned(), lines)
    assert (found.step, found.restarts, found.repeated_steps) == (160, 1, 41)
    assert found.useful_share == pytest.approx(159 * step_s / (199 * step_s + 3600))


def test_slow_steps_are_named_with_a_change() -> None:
    """Beyond the band of the step, and only there; the finish moves with them."""
    band = planned().estimate.upper_s / planned().estimate.step_time_s
    slow, still = (
        watched(planned(), steady(20, slower=band * 1.05)),
        watched(planned(), steady(20, slower=band * 0.95)),
    )
    assert [one.cause.startswith("a step takes") for one in slow.off] == [True]
    assert still.off == ()
    assert slow.days_left.p50 == pytest.approx(still.days_left.p50 * 1.05 / 0.95)


def test_steps_on_another_device_are_not_held_against_the_plan() -> None:
    """`plan run` says of each line where it was not on what its plan is for; no node is slow then."""
    lines = [f'{{"step": {n}, "step_time_s": 1e5, "compared": false}}' for n in (1, 2, 3)]
    found = watched(planned(), list(logged_steps(lines)))
    assert (found.step_s, found.planned_step_s, found.off) == (1e5, None, ())


def test_more_failures_than_planned_are_named() -> None:
    """Twenty restarts in twenty short stretches are not chance at one failure in weeks."""
    lines = [step for k in range(20) for step in steady(10, at_s=k * 1000.0)]
    assert [one.change for one in watched(planned(), lines).off if "--failures" in one.change]


def test_tokens_alone_make_a_step() -> None:
    """Torchtitan prints tokens a second of one GPU: with the plan's batch that is a step."""
    plan = planned()
    rate = plan.request.job.tokens_per_step / plan.layout.num_gpus / 2.5
    found = watched(plan, [LoggedStep(step=n, tokens_per_s_per_gpu=rate) for n in (1, 2, 3)])
    assert found.step_s == pytest.approx(2.5)
    assert found.useful_share is None


def test_lines_of_four_programs_are_steps() -> None:
    """Those of `plan run`, Megatron-LM, NeMo and torchtitan with its colours; others and half lines are not."""
    lines = [
        '{"step": 7, "loss": 2.0, "step_time_s": 1.5}',
        '{"step": 8, "step_ti',
        '{"step": 1e400, "step_time_s": 1.5}',
        '{"step": 9, "step_time_s": -1.5}',
        " [2026-01-02 03:04:05.123] iteration       20/  100 | consumed samples: 640 | elapsed time per iteration (ms): 5400.5 | loss: 2",
        "[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: 30  \x1b[32mloss: 2.0  \x1b[36mtps: 7,123  \x1b[33mtflops: 10",
        "Training epoch 0, iteration 39/99 | lr: 3e-05 | global_batch_size: 512 | global_step: 39 | reduced_train_loss: 2.1 | train_step_timing in s: 6.25 | consumed_samples: 20480",
        "Epoch 0: :   0%|          | 3/300000 [01:22<2535:12:11, v_num=1, global_step=49.00, consumed_samples=6144.0, train_step_timing in s=20.40]",
        "global_step: 51 | train_step_timing in s: nan",
        "iteration 5/ 9 | elapsed time per iteration (ms): 0 |",
        "step: many tps: none",
        "",
    ]
    found = list(logged_steps(lines))
    assert [(one.step, one.step_s, one.tokens_per_s_per_gpu) for one in found] == [
        (7, 1.5, None), (20, 5.4005, None), (30, None, 7123.0), (40, 6.25, None), (50, 20.4, None),
    ]  # fmt: skip
    assert found[0].at_s is None
    assert next(logged_steps(['{"step": 7, "step_time_s": 1.5, "at_s": 1767323045.0}'])).at_s == 1767323045.0
    assert found[1].at_s == found[2].at_s


def test_nothing_to_watch_is_refused() -> None:
    """A log without steps, and a plan without an end."""
    with pytest.raises(InputError, match="no step to watch"):
        watched(planned(), [])
    with pytest.raises(InputError, match="does not say when"):
        watched(replace(planned(), campaign=None), steady(3))


@pytest.mark.parametrize(
    ("count", "mean", "chance"), [(0, 0.0, 1.0), (1, 0.0, 0.0), (2, 1.0, 0.26424), (10, 3.0, 0.0011)]
)
def test_the_chance_of_so_many_is_poissons(count: int, mean: float, chance: float) -> None:
    """1 − 2/e of two at a mean of one; tables of the distribution for the others."""
    assert at_least(count, mean) == pytest.approx(chance, abs=5e-5)


def test_longer_checkpoints_are_named_where_they_cost_the_run() -> None:
    """As planned, nothing; by two hundredths of the interval more, with the share that they take."""
    campaign = planned().campaign
    assert campaign is not None
    usual, longer = (
        campaign.checkpoint_stall_s,
        campaign.checkpoint_stall_s + 0.02 * campaign.checkpoint_interval_s,
    )
    still, off = (watched(planned(), steady(20), [held] * 3) for held in (usual, longer))
    assert (still.off, still.held_s) == ((), usual)
    assert [one.cause.startswith("a checkpoint holds steps up for") for one in off.off] == [True]
    assert f"planned {format_seconds(usual)}: 2.0 % of the run more" in off.off[0].cause


def test_held_steps_are_read_from_the_lines_of_engines() -> None:
    """Megatron-LM's timer in milliseconds, the slowest rank; torchtitan's and plan run's seconds."""
    lines = (
        "  successfully saved checkpoint from iteration      10 to /ckpt",
        "    save-checkpoint ................................: (4512.31, 4612.40)",
        "[titan] root - INFO - Finished saving the checkpoint (or staging if async is enabled)in 1.50 seconds.",
        '{"step": 10, "held_s": 0.25, "at_s": 1.0}',
        '{"step": 10, "held_s": "soon"}',
    )
    assert list(held_by_saves(lines)) == [4.6124, 1.5, 0.25]


def test_a_node_that_fails_again_and_waiting_for_nodes_are_named() -> None:
    """Failures of the scheduler count where step numbers did not go back; nodes are asked for once more."""
    lines = steady(101)
    wall_s = lines[-1].at_s or 0.0
    failures = tuple(Interruption(at_s=9.0 * i, cause="a node failed", node="gpu-7") for i in range(4))
    found = watched(planned(), lines, (), Scheduled(interruptions=failures, waited_s=0.1 * wall_s))
    assert found.interruptions == {"a node failed": 4}
    planned_share = planned().campaign.lost_share.waiting_for_nodes  # type: ignore[union-attr]
    assert [one.cause.split(" ", 2)[2] for one in found.off][1:] == [
        "4 interruptions name node gpu-7",
        f"of the time went by without nodes, planned {100 * planned_share:.1f} %",
    ]
    assert found.off[0].cause.startswith("4 restarts in")
