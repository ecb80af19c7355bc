"""A plan's run as a `Course`: its checkpoint, its nodes, and the failures of the world it runs in."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from costmodel.campaign.checkpoint import CheckpointState
from costmodel.campaign.closed_form import MAINTENANCE, at_full_strength
from costmodel.campaign.course import TEN_TO_NINETY, CheckpointLevel, Course, Hazard, require_possible
from costmodel.campaign.failures import Devices, failing_devices, rate_per_s
from costmodel.campaign.interval import with_best_interval, with_best_spares, with_enough_spares
from costmodel.campaign.record import Cause, Device, Duration, FailureModel, Notice, Scope
from costmodel.campaign.tiers import chains_of, last_written_s, storage_places
from topology.base.errors import InputError
from topology.base.units import HOUR, format_bandwidth, format_seconds
from topology.spec import ClusterSpec, StorageSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignJob:
    """What of a plan a campaign reads.

    Attributes:
        work_s: Seconds of all its steps.
        step_s: Seconds of one.
        gpus: That it runs on.
        replica_gpus: That hold the model once.
        checkpoint: What a checkpoint of it is made of.
        loaded_bytes_per_s: That data loading must deliver while steps are made.
        power_w: Of its GPUs together, at design power.
        idle_nodes: Whole nodes of the cluster beside it that are held, and paid for, in any case.
    """

    work_s: float
    step_s: float
    gpus: int
    replica_gpus: int
    checkpoint: CheckpointState
    loaded_bytes_per_s: float = 0.0
    power_w: float = 0.0
    idle_nodes: int = 0


def course_of(job: CampaignJob, world: FailureModel, cluster: ClusterSpec) -> Course:
    """The run with the best interval and spares, in its world.

    Raises:
        InputError: it would make no headway; see `require_possible` and `require_storage`.
    """
    course = bare_course(job, world, cluster)
    require_storage(course, job.checkpoint, world, cluster)
    require_possible(course)
    require_loader(job, world)
    chosen = _with_best_chain(job, world, cluster)
    return with_best_spares(chosen) if world.spares_for == "cost" else with_enough_spares(chosen)


def chosen_places(
    job: CampaignJob, course: Course, world: FailureModel, cluster: ClusterSpec
) -> tuple[StorageSpec, ...]:
    """The places of the chain that `course_of` took."""
    chains = chains_of(job.checkpoint, world, cluster)
    return storage_places(job.checkpoint, world, cluster)[chains.index(course.levels)]


def _with_best_chain(job: CampaignJob, world: FailureModel, cluster: ClusterSpec) -> Course:
    """The run whose checkpoints go where most is left useful, at the best interval of each place.

    A place more is taken only where it is worth something.
    """
    best, most = None, -1.0
    for levels in chains_of(job.checkpoint, world, cluster):
        course = with_best_interval(bare_course(job, world, cluster, levels), job.step_s)
        useful = at_full_strength(course).useful
        if best is None or useful > most + (_WORTH_A_PLACE if len(levels) > len(best.levels) else 0.0):
            best, most = course, useful
    if best is None:
        raise ValueError("there is always the world's own storage")
    return best


_WORTH_A_PLACE = 1e-5
"""Of the useful share: a minute in two months."""


def bare_course(
    job: CampaignJob,
    world: FailureModel,
    cluster: ClusterSpec,
    levels: tuple[CheckpointLevel, ...] | None = None,
) -> Course:
    """The run before an interval and spares are chosen, its checkpoints on one chain of places."""
    devices = _share(failing_devices(cluster, world.site), job.gpus / cluster.num_gpus)
    per_node = cluster.num_gpus / cluster.num_nodes
    levels = levels or chains_of(job.checkpoint, world, cluster)[0]
    slow = world.stragglers
    times = world.times
    floor = None if world.min_gpus is None else math.ceil(world.min_gpus / per_node)
    return Course(
        work_s=job.work_s,
        nodes=max(1, math.ceil(job.gpus / per_node)),
        idle_nodes=job.idle_nodes,
        hazards=hazards_of(world, devices, levels),
        levels=levels,
        every_s=(1.0,) * len(levels),
        repair_s=times.repair.seconds,
        repair_sigma=sigma_of(times.repair),
        replica_nodes=max(1, math.ceil(job.replica_gpus / per_node)),
        floor_nodes=floor,
        regrow_s=times.swap.seconds + levels[0].load_s,
        slow_per_s=-math.log1p(-slow.prevalence) / slow.spell.seconds,
        slow_spell_s=slow.spell.seconds,
        slowdown=slow.slowdown,
    )


def hazards_of(
    world: FailureModel, devices: Devices, levels: tuple[CheckpointLevel, ...]
) -> tuple[Hazard, ...]:
    """Causes of one kind together: how they are noticed, and what they take, decides all that follows.

    What is said before, planned stops and preemptions, saves first where the time suffices.
    """
    rates: dict[tuple[Notice, Scope, Device], float] = defaultdict(float)
    for cause in world.site.causes:
        shared: Device = cause.device if cause.device in ("rack", "switch", "storage") else "node"
        rates[cause.noticed, cause.loses, shared] += rate_per_s(cause, world.site, devices)
    hazards = [
        _hazard(world, noticed, loses, device, rate)
        for (noticed, loses, device), rate in sorted(rates.items())
    ]
    nearest = next((level for level in levels if level.survives in ("node", "rack", "memory")), levels[-1])
    saved_s = nearest.stall_s + nearest.durable_s
    if world.spot is not None:
        spot, swap = world.spot, world.times.swap
        warned = spot.warning_s >= saved_s
        hazards.append(
            Hazard(
                name="preemption", per_s=spot.per_hour / HOUR * devices.node, notice_s=0.0,
                restart_s=swap.seconds + (saved_s if warned else 0.0), restart_sigma=sigma_of(swap),
                loses="node", warned=warned,
                repair_s=spot.replaced.seconds, repair_sigma=sigma_of(spot.replaced),
            )
        )  # fmt: skip
    if world.site.planned:
        planned = Cause(name=MAINTENANCE, events=world.site.planned)
        rate = rate_per_s(planned, world.site, devices)
        stop = world.times.maintenance
        hazards.append(
            Hazard(
                name=MAINTENANCE, per_s=rate, notice_s=0.0, warned=True,
                restart_s=stop.seconds + saved_s, restart_sigma=sigma_of(stop),
            )
        )  # fmt: skip
    return tuple(hazards)


def sigma_of(duration: Duration) -> float:
    """Deviation of the logarithm of a time whose range holds eight of ten."""
    low, high = duration.range_s
    return math.log(high / low) / TEN_TO_NINETY


def require_storage(
    course: Course, state: CheckpointState, world: FailureModel, cluster: ClusterSpec
) -> None:
    """Refuse storage that is not done with one checkpoint before the next failure."""
    between_s, last = 1 / course.per_s, course.levels[-1]
    write_s = last_written_s(state, world, cluster)
    if write_s < between_s:
        return
    total_bytes = world.changed_share * state.total_bytes
    bandwidth = total_bytes / write_s
    raise InputError(
        what=f"{last.name} is slower than one checkpoint per failure",
        cause=f"a checkpoint takes {format_seconds(write_s)} at {format_bandwidth(bandwidth)}, "
        f"a failure comes every {format_seconds(between_s)}",
        fix=f"give storage.write_bytes_per_s above {total_bytes / between_s:.4g}, that is "
        f"{format_bandwidth(total_bytes / between_s)}",
    )


def require_loader(job: CampaignJob, world: FailureModel) -> None:
    """Refuse a loader that is slower than the steps of the plan, which do not wait for it."""
    there = world.loader.bytes_per_s
    if there is None or there >= job.loaded_bytes_per_s:
        return
    needed = job.loaded_bytes_per_s
    raise InputError(
        what="data loading is slower than the steps",
        cause=f"steps take {format_bandwidth(needed)}, loader.bytes_per_s = {format_bandwidth(there)}",
        fix=f"your loader must deliver {format_bandwidth(needed)}: give loader.bytes_per_s of at least "
        f"{needed:.6g}",
    )


def bound_useful_share(
    job: CampaignJob, least_bytes: float, world: FailureModel, cluster: ClusterSpec
) -> float:
    """A useful share that no layout on as many GPUs can beat, by the closed form.

    Every term of the closed form falls with the stall, the latency and the load of a checkpoint, and with
    the time that is waited for nodes. So the best interval of a run whose checkpoint is `least_bytes`,
    spread evenly over its GPUs, whose weights need not be sent on after a restart, and that never lacks a
    node, is above that of every layout on the same places, and the best of all places above all: admissible,
    a test holds it to that. A smaller checkpoint fits every place that a larger one does.
    """
    state = CheckpointState(
        total_bytes=least_bytes,
        per_rank_bytes=least_bytes / job.gpus,
        weights_per_rank_bytes=0.0,
        writers=job.gpus,
    )
    ideal = replace(job, checkpoint=state, step_s=min(job.step_s, _SHORTEST_STEP_S))
    return max(
        at_full_strength(with_best_interval(course, _SHORTEST_STEP_S)).useful
        for course in _on_every_chain(ideal, world, cluster)
    )


def _on_every_chain(job: CampaignJob, world: FailureModel, cluster: ClusterSpec) -> tuple[Course, ...]:
    """The run with its checkpoints on each chain of places."""
    chains = chains_of(job.checkpoint, world, cluster)
    return tuple(bare_course(job, world, cluster, levels) for levels in chains)


_SHORTEST_STEP_S = 0.01
"""Shorter than a step between two checkpoints is not looked for."""


def _hazard(world: FailureModel, noticed: Notice, loses: Scope, device: Device, rate: float) -> Hazard:
    """A kind of interruption, with its times; what storage is down for passes before a restart can load."""
    times = world.times
    notice = {"crash": times.crash_notice, "hang": times.hang_notice, "corruption": times.corruption_notice}
    back = {"in_process": times.in_process, "swap": times.swap, "requeue": times.requeue}[world.restart]
    if world.restart == "in_process" and loses != "process":
        back = times.swap  # a process that lost its node starts on another
    together = {"rack": world.site.nodes_per_rack, "switch": world.site.nodes_per_switch}
    all_nodes = loses == "rack"
    outage_s = times.storage_back.seconds if device == "storage" else 0.0
    return Hazard(
        name=f"{noticed}, loses {loses}" + (f" of a {device}" if all_nodes else ""),
        per_s=rate,
        notice_s=notice[noticed].seconds,
        restart_s=back.seconds + outage_s,
        restart_sigma=sigma_of(times.storage_back if outage_s > back.seconds else back),
        loses=loses,
        noticed=noticed,
        together=together.get(device, 1) if all_nodes else 1,
        repair_s=times.rack_back.seconds if all_nodes else None,
        repair_sigma=sigma_of(times.rack_back) if all_nodes else 0.0,
    )


def _share(devices: Devices, share: float) -> Devices:
    """The devices of a part of a cluster."""
    return Devices(
        gpu=devices.gpu * share,
        node=devices.node * share,
        nic=devices.nic * share,
        rack=devices.rack * share,
        switch=devices.switch * share,
    )
