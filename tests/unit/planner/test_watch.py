"""A run is held against its plan: its useful share, its finish, and what is off are those of its lines."""

from dataclasses import replace
from functools import cache

import pytest

from costmodel.layout import ParallelLayout
from planner.analysis.campaign.watch import Watched, at_least, watched
from planner.campaign.finish import with_campaign
from planner.formats.progress import LoggedJob, LoggedStep, logged_job, logged_steps
from planner.formats.saves import held_by_saves
from planner.formats.scheduler import Interruption, Scheduled
from planner.plan import Plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError
from topology.base.units import DAY, format_seconds
from topology.builders import build


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


def test_losses_that_are_no_numbers_are_named_from_their_first_step() -> None:
    """Megatron-LM's and the trainer's lines; one that came and went is the loss scaler's."""
    line = "iteration {}/ 1000 | elapsed time per iteration (ms): 900.0 | lm loss: {} | grad norm: {} |"
    for words in ("nan", "NaN", "inf", "-inf"):
        lines = [line.format(n, words if n > 6 else "2.1", "1.0") for n in range(1, 11)]
        off = watched(planned(), list(logged_steps(lines))).off
        assert off[0].cause == "loss is NaN or infinite, or the gradient's norm NaN, from step 7 on"
    gone = [line.format(n, "2.1", "inf" if n == 6 else "1.0") for n in range(1, 11)]
    scaled = [line.format(n, "2.1", "inf") for n in range(1, 11)]
    for lines in (gone, scaled):
        assert not any("NaN" in off.cause for off in watched(planned(), list(logged_steps(lines))).off)


def test_a_run_that_has_become_slower_says_since_when() -> None:
    """Thirty steps as planned, ten of twice as long; three slow ones are not for good."""
    step_s = planned().estimate.step_time_s
    late = steady(30) + steady(10, first=31, at_s=30 * step_s, slower=2.0)
    (off,) = watched(planned(), late).off
    assert "since step 31," in off.cause
    assert watched(planned(), late[:33]).off == ()
    assert watched(planned(), late, stated=LoggedJob(is_ramping=True)).off == ()


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


def rated(apart_s: float, *, whole: int = 40, every: int = 1, **rates: float) -> list[LoggedStep]:
    """Lines of rates alone, so many seconds a step apart on a clock that shows whole ones."""
    return [
        LoggedStep(step=n, at_s=float(round(n * apart_s)), **rates) for n in range(0, whole * every, every)
    ]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("noun", ["tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s"])
def test_a_rate_is_of_the_plans_batch_only_where_the_clock_says_so(noun: str, every: int) -> None:
    """Lines of a step apart are this run; of a fourteenth of it, their steps have other tokens."""
    plan = planned()
    job, step_s = plan.request.job, plan.estimate.step_time_s
    rate = {
        "tokens_per_s_per_gpu": job.tokens_per_step / step_s / 16,
        "tokens_per_s": job.tokens_per_step / step_s,
        "samples_per_s": job.global_batch_size / step_s,
    }[noun]
    mine = watched(plan, rated(step_s, every=every, **{noun: rate}))
    assert (mine.differs, mine.off) == ((), ())
    assert mine.step_s == pytest.approx(step_s)
    for share in (1 / 14, 1 / 2, 2, 14):
        lines = rated(share * step_s, every=every, whole=max(20, round(200 / every)), **{noun: rate})
        other = watched(plan, lines)
        assert cause_of(other).startswith("not this plan's run: its steps are")
        assert other.step_s == pytest.approx(share * step_s, rel=0.06)
        assert (other.useful_share, other.days_left, other.planned_step_s) == (None, None, None)


def test_pauses_between_lines_are_no_other_batch() -> None:
    """A checkpoint after every tenth step lengthens one gap of ten, and the useful share is less."""
    plan = planned()
    step_s = plan.estimate.step_time_s
    rate = plan.request.job.tokens_per_step / step_s
    lines = [replace(one, at_s=one.at_s + one.step // 10 * 60.0) for one in rated(step_s, tokens_per_s=rate)]
    found = watched(plan, lines)
    assert found.differs == ()
    assert found.useful_share < 1


def test_operations_are_counted_as_an_engine_likes_and_the_clock_is_no_opinion() -> None:
    """One that counts recomputation prints a third more; the step is that of the lines."""
    plan = planned()
    step_s = plan.estimate.step_time_s
    rate = 4 / 3 * plan.estimate.mfu * build(plan.request.cluster).gpu.peak("bf16")
    found = watched(plan, rated(step_s, flop_per_s_per_gpu=rate))
    assert (found.differs, found.off) == ((), ())
    assert found.step_s == pytest.approx(step_s, rel=0.05)


def test_rates_without_a_clock_of_another_run_are_no_step() -> None:
    """Its batch is not known, so neither is its step."""
    lines = [LoggedStep(step=n, tokens_per_s=1e5) for n in (1, 2, 3)]
    found = watched(planned(), lines, stated=LoggedJob(num_gpus=4))
    assert (found.step_s, found.useful_share) == (None, None)


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


def cause_of(found: Watched) -> str:
    """The first thing that is off; empty where nothing is."""
    return found.off[0].cause if found.off else ""


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (LoggedJob(global_batch_size=3), "its batch is 3 sequences"),
        (LoggedJob(sequence_length=77), "its sequences are 77 tokens"),
        (LoggedJob(steps=500_000_000), "it has 500,000,000 steps"),
        (LoggedJob(num_gpus=4), "it runs on 4 GPUs, planned 16"),
    ],
)
def test_a_log_of_another_job_is_not_this_plans_run(said: LoggedJob, names: str) -> None:
    """Whatever its pace: what differs is named, and nothing of the plan is said of it."""
    found = watched(planned(), steady(20), stated=said)
    assert cause_of(found).startswith("not this plan's run")
    assert names in cause_of(found)
    assert (found.days_left, found.planned_step_s) == (None, None)


def test_what_a_log_says_of_this_plans_job_is_no_difference() -> None:
    """Its own numbers, and a batch that still grows."""
    plan = planned()
    job, steps = plan.request.job, plan.request.job.total_tokens // plan.request.job.tokens_per_step
    mine = LoggedJob(
        global_batch_size=job.global_batch_size, sequence_length=job.sequence_length, steps=steps, num_gpus=16
    )
    assert watched(plan, steady(20), stated=mine).differs == ()
    assert watched(plan, steady(20), stated=LoggedJob(global_batch_size=1, is_ramping=True)).differs == ()


def test_a_speed_or_a_memory_that_no_layout_has_is_another_run() -> None:
    """A printed rate, a step, and a peak: beyond the GPU, beyond any layout, less than the states."""
    plan = planned()
    gpu = build(plan.request.cluster).gpu
    states = min(
        stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        for stage in plan.estimate.memory_by_stage
    )
    step_s = plan.estimate.step_time_s
    wrong = {
        "TFLOP/s per GPU": {"step_s": step_s, "flop_per_s_per_gpu": 0.95 * gpu.peak("bf16")},
        "faster than any layout": {"step_s": step_s * (plan.estimate.lower_s / step_s) ** 2 * 0.97},
        "would be": {"step_s": step_s / 50},
        f"a {gpu.name} has": {"step_s": step_s, "peak_memory_bytes": 1.01 * gpu.memory_bytes},
        "states of a planned stage": {"step_s": step_s, "peak_memory_bytes": 0.9 * states},
    }
    for words, line in wrong.items():
        found = watched(plan, [LoggedStep(step=n, **line) for n in (1, 2, 3)])
        assert words in cause_of(found)
        assert found.days_left is None


def test_faster_than_the_band_is_said_and_may_be_this_run() -> None:
    """One run in ten is: it is off against the plan, and still watched."""
    found = watched(
        planned(), steady(20, slower=0.99 * planned().estimate.lower_s / planned().estimate.step_time_s)
    )
    assert "at least" in cause_of(found)
    assert (found.differs, found.days_left is None) == ((), False)


def test_a_step_five_times_longer_is_not_one_slow_node() -> None:
    """The job and its links come first; a node is suspected first only of what a node can do."""
    band = planned().estimate.upper_s / planned().estimate.step_time_s
    much, little = (
        watched(planned(), steady(20, slower=factor)).off[0].change for factor in (5.0, 1.02 * band)
    )
    assert much.startswith("see first that the job is the planned one")
    assert little.startswith("look for one slow node")


@pytest.mark.parametrize("ranks", [("",) * 9, tuple("012345678")])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("pasted", [True, False])
def test_lines_of_several_ranks_are_no_restarts(ranks: tuple[str, ...], timed: bool, pasted: bool) -> None:
    """Nine ranks print each step: beside each other, or one whole log behind the other."""
    lines = [one if timed else replace(one, at_s=None) for one in steady(30)]
    if pasted:
        logged = [replace(one, rank=rank) for rank in ranks for one in lines]
    else:
        logged = [replace(one, rank=rank) for one in lines for rank in ranks]
    found = watched(planned(), logged)
    assert (found.restarts, found.repeated_steps, found.step, found.off) == (0, 0, 30, ())


def test_steps_done_again_are_off_however_few_restarts() -> None:
    """Two restarts are chance; a quarter of the steps done twice is not."""
    step_s = planned().estimate.step_time_s
    lines = [
        *steady(100),
        *steady(100, first=61, at_s=200 * step_s),
        *steady(100, first=121, at_s=400 * step_s),
    ]
    found = watched(planned(), lines)
    assert (found.restarts, found.repeated_steps) == (2, 80)
    assert any("80 steps were done again, 26.7 %" in one.cause for one in found.off)


def test_what_a_log_says_of_its_job_is_read() -> None:
    """Batch, length, GPUs and steps, of engines and of MLPerf; a batch that grows is known as such."""
    lines = [
        "using world size: 16, data-parallel size: 8",
        " iteration  3/ 500000 | elapsed time per iteration (ms): 5.0 | global batch size: 512 |",
        " iteration  4/ 500000 | elapsed time per iteration (ms): 5.0 | global batch size: 1,024 |",
        "Training starts at step 1, with local batch size 1, sequence length 8192, total steps 1000",
    ]
    found = logged_job(lines)
    assert (found.num_gpus, found.global_batch_size, found.steps, found.sequence_length) == (
        16,
        1024,
        500_000,
        8192,
    )
    assert found.is_ramping
    mlperf = logged_job(
        [
            ':::MLLOG {"key": "global_batch_size", "value": 1152}',
            ':::MLLOG {"key": "max_sequence_length", "value": 8192}',
        ]
    )
    assert (mlperf.global_batch_size, mlperf.sequence_length) == (1152, 8192)


def test_a_bar_of_microbatches_counts_steps_of_as_many_as_the_plan_accumulates() -> None:
    """OpenRLHF's bar shows a quarter of a step, four times as often."""
    plan = planned()
    each = plan.request.job.global_batch_size // (plan.layout.dp * plan.layout.microbatch_size)
    assert each > 1
    bar = "Train step of epoch 0:  1%|  | {at}/{all} [01:00<16:40:00,  1.50s/it, loss=2.1, lr=5e-6]"
    steps = watched(plan, steady(1)).steps
    lines = [bar.format(at=at * each, all=steps * each) for at in range(10, 13)]
    found = watched(plan, list(logged_steps(lines)), stated=logged_job(lines))
    assert (found.step, found.step_s, found.differs) == (12, pytest.approx(1.5 * each), ())
