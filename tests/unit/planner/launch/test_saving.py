"""What a campaign chose is told: how often to save, what to keep, spare nodes; a plan without one tells nothing."""

import math
from dataclasses import replace
from functools import cache

import pytest
import yaml

from costmodel.campaign.failures import default_model
from costmodel.layout import ParallelLayout
from planner.campaign.finish import with_campaign
from planner.campaign.saving import kept_checkpoints, nearby_interval_steps, save_interval_steps
from planner.engines.contract import read
from planner.engines.contracts import CONTRACTS
from planner.engines.formats import FORMATS
from planner.launch.bundle import bundle
from planner.launch.targets import engine_files, export_plan
from planner.plan import Plan
from tests.unit.planner.engines.priced import priced

TOLD = {
    "megatron": ["campaign.save_interval_steps"],
    "megatron-bridge": ["campaign.save_interval_steps"],
    "torchtitan": ["campaign.asynchronous", "campaign.kept_checkpoints", "campaign.save_interval_steps"],
}


@cache
def endless(engine: str) -> Plan:
    """A plan on two nodes of eight GPUs that was asked for a step."""
    return priced(ParallelLayout(dp=16, zero_stage=3), stack=CONTRACTS[engine].stacks[0])


@cache
def finished(engine: str) -> Plan:
    """The same for a trillion tokens, with two spare nodes."""
    plan = endless(engine)
    job = replace(plan.request.job, total_tokens=10**12)
    plan = with_campaign(replace(plan, request=replace(plan.request, job=job)))
    assert plan.campaign is not None
    return replace(plan, campaign=replace(plan.campaign, spare_nodes=2))


@pytest.mark.parametrize("engine", TOLD)
def test_what_an_engine_is_told_of_saving_reads_back(engine: str) -> None:
    """Interval in steps, and where the engine has the words what is kept and whether steps go on meanwhile."""
    plan, contract = finished(engine), CONTRACTS[engine]
    files = engine_files(plan, contract).files
    found = read(contract, FORMATS[engine].parse(files, contract), plan.layout.num_gpus).stated
    said = {name: value for name, value in found.items() if name.startswith("campaign.")}
    assert sorted(said) == TOLD[engine]
    assert said["campaign.save_interval_steps"] == save_interval_steps(plan)
    assert plan.campaign is not None
    assert said.get("campaign.kept_checkpoints", 3) == kept_checkpoints(plan.campaign) == 3
    assert said.get("campaign.asynchronous", True) is True


@pytest.mark.parametrize("engine", TOLD)
def test_a_plan_of_a_step_says_nothing_of_saving(engine: str) -> None:
    """Without a campaign an engine's own defaults stand."""
    files = engine_files(endless(engine), CONTRACTS[engine]).files
    assert not [
        line for text in files.values() for line in text.splitlines() if "checkpoint.interval" in line
    ]
    assert not [line for text in files.values() for line in text.splitlines() if "save" in line]


def test_the_interval_is_the_campaign_in_whole_steps() -> None:
    """Never none of a step, however short the interval is."""
    plan = finished("megatron")
    assert plan.campaign is not None
    steps = save_interval_steps(plan)
    assert steps is not None
    away_s = abs(steps * plan.estimate.step_time_s - plan.campaign.checkpoint_interval_s)
    assert away_s <= plan.estimate.step_time_s / 2
    short = replace(plan.campaign, kept=(replace(plan.campaign.kept[-1], every_s=1e-3),))
    assert save_interval_steps(replace(plan, campaign=short)) == 1


def test_what_is_kept_reaches_back_to_before_wrong_numbers() -> None:
    """Checkpoints of the time until they are noticed, and two; two where no such cause is counted."""
    found = finished("megatron").campaign
    assert found is not None
    often = replace(found, kept=(replace(found.kept[-1], every_s=60.0),))
    assert found.failures.times.corruption_notice.seconds == 3600
    assert kept_checkpoints(often) == 62
    site = found.failures.site
    seen = replace(site, causes=tuple(one for one in site.causes if one.noticed != "corruption"))
    assert kept_checkpoints(replace(often, failures=replace(found.failures, site=seen))) == 2


def test_a_bundle_starts_on_spares_and_saves_as_planned() -> None:
    """Slurm may give the job up to its spares, requeues it, and starts ranks on the plan's own nodes alone."""
    plan = finished("megatron")
    files, _ = bundle(plan, "megatron", "slurm")
    lines = files["train.sbatch"].splitlines()
    assert "#SBATCH --nodes=2-4" in lines
    assert "#SBATCH --requeue" in lines
    assert any(line.startswith("exec srun --nodes=2 --ntasks=2 ") for line in lines)
    assert f'--save-interval "${{SAVE_INTERVAL:-{save_interval_steps(plan)}}}"' in files["start.sh"]


def test_a_bundle_of_a_step_is_as_it_was() -> None:
    """No requeue, as many nodes as the plan has, the usual interval."""
    files, _ = bundle(endless("megatron"), "megatron", "slurm")
    assert "#SBATCH --nodes=2\n" in files["train.sbatch"]
    assert "requeue" not in files["train.sbatch"]
    assert "exec srun --kill-on-bad-exit=1 " in files["train.sbatch"]
    assert '--save-interval "${SAVE_INTERVAL:-500}"' in files["start.sh"]


def test_the_own_executor_is_requeued_and_spares_are_left_to_the_partition() -> None:
    """`plan run` starts on every node it is given, so it is given no more."""
    written = export_plan(finished("meshplan"), "slurm")
    assert "#SBATCH --requeue\n" in written.text
    assert "#SBATCH --nodes=2\n" in written.text
    assert any(note.startswith("keep 2 more nodes free") for note in written.notes)
    assert "requeue" not in export_plan(endless("meshplan"), "slurm").text


def nearer() -> Plan:
    """The same with a copy in a peer's memory."""
    plan = endless("megatron")
    job = replace(plan.request.job, total_tokens=10**12)
    world = replace(default_model("h100-sxm"), peer_memory=True)
    return with_campaign(replace(plan, request=replace(plan.request, job=job)), world)


def test_storage_is_saved_to_as_seldom_as_it_is_planned_beside_a_nearer_place() -> None:
    """The saver writes to storage at storage's interval; the peer's is a word of Megatron-LM's local saves."""
    plan = nearer()
    assert plan.campaign is not None
    near, far = plan.campaign.kept
    assert save_interval_steps(plan) == round(far.every_s / plan.estimate.step_time_s)
    steps = nearby_interval_steps(plan)
    assert steps == round(near.every_s / plan.estimate.step_time_s)
    assert steps < save_interval_steps(plan)
    (said,) = [note for note in export_plan(plan, "megatron").notes if "non-persistent" in note]
    assert f"--non-persistent-save-interval {steps} " in said
    assert "--replication " in said


def test_nvrx_is_told_timeouts_spares_and_restarts() -> None:
    """Sections of Megatron-LM; a hang is noticed when the plan says, and no step of its band is cut off."""
    plan = finished("megatron")
    assert plan.campaign is not None
    files, notes = bundle(plan, "megatron", "slurm")
    told = yaml.safe_load(files["fault_tolerance.yaml"])["fault_tolerance"]
    sections = told["rank_section_timeouts"]
    assert sections["step"] == max(
        plan.campaign.failures.times.hang_notice.seconds, math.ceil(2 * plan.estimate.upper_s)
    )
    assert sections["checkpointing"] >= sections["step"]
    assert sections["setup"] > plan.campaign.failures.times.swap.seconds
    assert told["rank_out_of_section_timeout"] >= sections["setup"]
    (line,) = [note for note in notes if "ft_launcher" in note]
    restarts = math.ceil(plan.campaign.interruptions.p90)
    assert f"--nnodes=2:4 --nproc-per-node=8 --max-restarts={restarts} " in line


def test_nvrx_reads_what_it_is_told() -> None:
    """Its own parser, where it is installed, knows every key."""
    config = pytest.importorskip("nvidia_resiliency_ext.fault_tolerance.config", reason="NVRx is not here")
    files, _ = bundle(finished("megatron"), "megatron", "slurm")
    told = yaml.safe_load(files["fault_tolerance.yaml"])["fault_tolerance"]
    read = config.FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, **told)
    assert dict(read.rank_section_timeouts) == told["rank_section_timeouts"]


@pytest.mark.parametrize("engine", ["megatron-bridge", "torchtitan"])
def test_engines_without_its_sections_are_told_nothing_of_nvrx(engine: str) -> None:
    """Nor is a plan of a step."""
    assert "fault_tolerance.yaml" not in bundle(finished(engine), engine, "slurm")[0]
    assert "fault_tolerance.yaml" not in bundle(endless("megatron"), "megatron", "slurm")[0]
