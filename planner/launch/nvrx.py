"""What NVIDIA's resiliency extension (NVRx) is told beside Megatron-LM, which has its sections, local saves.

`ft_launcher` reads section timeouts, spares and restarts; Megatron-LM saves nearer than storage by words of
its own. torchft is not told anything: torchtitan runs it in a trainer of its own (an experiment in 0.3.0),
whose replicas are jobs that agree on a gradient, which is not the plan that was priced.
"""

from __future__ import annotations

import math

from costmodel.campaign.record import Campaign, Kept
from planner.campaign.saving import nearby_interval_steps
from planner.engines.contract import Contract
from planner.plan import Plan

FILE_NAME = "fault_tolerance.yaml"
SLACK = 5.0
"""NVRx's own `safety_factor`: a timeout over what is expected."""


def resilience(plan: Plan, contract: Contract) -> tuple[dict[str, str], tuple[str, ...]]:
    """Files and notes for ft_launcher; none for other engines, and where no campaign was asked."""
    campaign = plan.campaign
    if campaign is None or contract.engine != "megatron":
        return {}, ()
    return {FILE_NAME: _sections(plan, campaign)}, (_started(plan, campaign), *_nearer(plan, campaign))


def _sections(plan: Plan, campaign: Campaign) -> str:
    """Timeouts of Megatron-LM's sections, and of what lies outside them.

    A step may take what a hang is noticed in, and never less than twice the slow end of its own band; saving
    and setting up what they are expected to, with NVRx's own slack.
    """
    world = campaign.failures
    hang_s = max(world.times.hang_notice.seconds, 2 * plan.estimate.upper_s)
    save_s = SLACK * max(kept.stall_s + kept.durable_s for kept in _kept(campaign))
    back_s = getattr(world.times, world.restart).seconds
    setup_s = SLACK * (back_s + max(kept.load_s for kept in _kept(campaign)))
    return "\n".join([
        "# of nvidia-resiliency-ext: ft_launcher --ft-cfg-path, with --enable-ft-package of Megatron-LM",
        "fault_tolerance:",
        "  initial_rank_heartbeat_timeout: null  # sections are watched in place of heartbeats",
        "  rank_heartbeat_timeout: null",
        "  rank_section_timeouts:",
        f"    setup: {math.ceil(setup_s)}",
        f"    step: {math.ceil(hang_s)}",
        f"    checkpointing: {math.ceil(max(save_s, hang_s))}",
        f"  rank_out_of_section_timeout: {math.ceil(max(setup_s, hang_s))}",
        "",
    ])  # fmt: skip


def _started(plan: Plan, campaign: Campaign) -> str:
    """How ft_launcher is given the spares and as many restarts as nine runs of ten need."""
    cluster = plan.request.cluster
    nodes = math.ceil(plan.layout.num_gpus * cluster.num_nodes / cluster.num_gpus)
    each = max(1, plan.layout.num_gpus // nodes)
    restarts = math.ceil(campaign.interruptions.p90)
    return (
        f"with NVRx: ft_launcher --nnodes={nodes}:{nodes + campaign.spare_nodes} --nproc-per-node={each} "
        f"--max-restarts={restarts} --ft-cfg-path={FILE_NAME} in the place of torchrun, and "
        "--enable-ft-package for Megatron-LM"
    )


def _nearer(plan: Plan, campaign: Campaign) -> tuple[str, ...]:
    """Words for places nearer than storage; what Megatron-LM cannot be told is said."""
    kepts = _kept(campaign)[:-1]
    steps = nearby_interval_steps(plan)
    if steps is None or not kepts:
        return ()
    words = (
        f"the plan saves every {steps} steps to {kepts[0].name}: --non-persistent-ckpt-type local "
        f'--non-persistent-save-interval {steps} --non-persistent-local-ckpt-dir "$LOCAL_CKPT"'
    )
    if kepts[0].survives in ("node", "rack"):
        words += " --replication --replication-jump JUMP, JUMP ranks away lies another node (or rack)"
    more = tuple(f"{kept.name} is left to you: Megatron-LM has one nearer place" for kept in kepts[1:])
    return (words, *more)


def _kept(campaign: Campaign) -> tuple[Kept, ...]:
    """The places of a campaign, also of one that was written before it named them."""
    return campaign.kept or (
        Kept(
            name=campaign.failures.storage.name,
            every_s=campaign.checkpoint_interval_s,
            stall_s=campaign.checkpoint_stall_s,
            durable_s=campaign.checkpoint_write_s,
            load_s=campaign.checkpoint_bytes / campaign.failures.storage.read_bytes_per_s,
        ),
    )
