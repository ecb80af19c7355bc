"""What NVIDIA's resiliency extension (NVRx) is told beside Megatron-LM, which has its sections, local saves.

`ft_launcher` reads section timeouts, spares and restarts; Megatron-LM saves nearer than storage by words of
its own. torchft is not told anything: torchtitan runs it in a trainer of its own (an experiment in 0.3.0),
whose replicas are jobs that agree on a gradient, which is not the plan that was priced.
"""

from __future__ import annotations

import math

from costmodel.campaign.record import Campaign, Kept
from planner.campaign.saving import near_interval_steps
from planner.engines.contract import Contract
from planner.plan import Plan

FILE_NAME = "fault_tolerance.yaml"
SLACK = 5.0
"""NVRx's own `safety_factor`: a timeout over what is expected."""


def resilience(plan: Plan, contract: Contract) -> tuple[dict[str, str], tuple[str, ...]]:
    """Files and notes for ft_launcher; none for other engines, and where no campaign was asked."""
    found = plan.campaign
    if found is None or contract.engine != "megatron":
        return {}, ()
    return {FILE_NAME: _sections(plan, found)}, (_started(plan, found), *_nearer(plan, found))


def _sections(plan: Plan, found: Campaign) -> str:
    """Timeouts of Megatron-LM's sections, and of what lies outside them.

    A step may take what a hang is noticed in, and never less than twice the slow end of its own band; saving
    and setting up what they are expected to, with NVRx's own slack.
    """
    world = found.failures
    hang_s = max(world.times.hang_notice.seconds, 2 * plan.estimate.upper_s)
    save_s = SLACK * max(one.stall_s + one.durable_s for one in _kept(found))
    back_s = getattr(world.times, world.restart).seconds
    setup_s = SLACK * (back_s + max(one.load_s for one in _kept(found)))
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


def _started(plan: Plan, found: Campaign) -> str:
    """How ft_launcher is given the spares and as many restarts as nine runs of ten need."""
    cluster = plan.request.cluster
    nodes = math.ceil(plan.layout.num_gpus * cluster.num_nodes / cluster.num_gpus)
    each = max(1, plan.layout.num_gpus // nodes)
    restarts = math.ceil(found.interruptions.p90)
    return (
        f"with NVRx: ft_launcher --nnodes={nodes}:{nodes + found.spare_nodes} --nproc-per-node={each} "
        f"--max-restarts={restarts} --ft-cfg-path={FILE_NAME} in the place of torchrun, and "
        "--enable-ft-package for Megatron-LM"
    )


def _nearer(plan: Plan, found: Campaign) -> tuple[str, ...]:
    """Words for places nearer than storage; what Megatron-LM cannot be told is said."""
    steps = near_interval_steps(plan)
    near = _kept(found)[:-1]
    if steps is None or not near:
        return ()
    words = (
        f"the plan saves every {steps} steps to {near[0].name}: --non-persistent-ckpt-type local "
        f'--non-persistent-save-interval {steps} --non-persistent-local-ckpt-dir "$LOCAL_CKPT"'
    )
    if near[0].survives in ("node", "rack"):
        words += " --replication --replication-jump JUMP, JUMP ranks away lies another node (or rack)"
    more = tuple(f"{one.name} is left to you: Megatron-LM has one nearer place" for one in near[1:])
    return (words, *more)


def _kept(found: Campaign) -> tuple[Kept, ...]:
    """The places of a campaign, also of one that was written before it named them."""
    return found.kept or (
        Kept(
            name=found.failures.storage.name,
            every_s=found.checkpoint_interval_s,
            stall_s=found.checkpoint_stall_s,
            durable_s=found.checkpoint_write_s,
            load_s=found.checkpoint_bytes / found.failures.storage.read_bytes_per_s,
        ),
    )
