"""A plan's run as a `Course`: its checkpoint, its nodes, and the failures of the world it runs in."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from costmodel.campaign.checkpoint import CheckpointState, levels_of
from costmodel.campaign.closed_form import MAINTENANCE, at_full_strength
from costmodel.campaign.course import TEN_TO_NINETY, Course, Hazard, require_possible
from costmodel.campaign.failures import Devices, devices_of, rate_per_s
from costmodel.campaign.interval import with_best_interval, with_best_spares
from costmodel.campaign.record import Cause, Duration, FailureModel, Notice, Scope
from topology.base.errors import InputError
from topology.base.units import format_bandwidth, format_seconds
from topology.spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What of a plan a campaign reads.

    Attributes:
        work_s: Seconds of all its steps.
        step_s: Seconds of one.
        gpus: That it runs on.
        replica_gpus: That hold the model once.
        checkpoint: What a checkpoint of it is made of.
    """

    work_s: float
    step_s: float
    gpus: int
    replica_gpus: int
    checkpoint: CheckpointState


def course_of(job: Job, world: FailureModel, cluster: ClusterSpec) -> Course:
    """The run with the best interval and spares, in its world.

    Raises:
        InputError: it would make no headway; see `require_possible` and `require_storage`.
    """
    course = bare_course(job, world, cluster)
    require_storage(course, job.checkpoint.total_bytes, world)
    require_possible(course)
    return with_best_spares(with_best_interval(course, job.step_s))


def bare_course(job: Job, world: FailureModel, cluster: ClusterSpec) -> Course:
    """The run before an interval and spares are chosen."""
    devices = _share(devices_of(cluster), job.gpus / cluster.num_gpus)
    per_node = cluster.num_gpus / cluster.num_nodes
    levels = levels_of(job.checkpoint, world, cluster)
    slow = world.stragglers
    times = world.times
    floor = None if world.min_gpus is None else math.ceil(world.min_gpus / per_node)
    return Course(
        work_s=job.work_s,
        nodes=max(1, math.ceil(job.gpus / per_node)),
        hazards=hazards_of(world, devices),
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


def hazards_of(world: FailureModel, devices: Devices) -> tuple[Hazard, ...]:
    """Causes of one kind together: how they are noticed, and what they take, decides all that follows."""
    rates: dict[tuple[Notice, Scope], float] = defaultdict(float)
    for cause in world.site.causes:
        rates[cause.noticed, cause.loses] += rate_per_s(cause, world.site, devices)
    found = [_hazard(world, noticed, loses, rate) for (noticed, loses), rate in sorted(rates.items())]
    if world.site.planned:
        planned = Cause(name=MAINTENANCE, events=world.site.planned)
        rate = rate_per_s(planned, world.site, devices)
        stop = world.times.maintenance
        found.append(
            Hazard(
                name=MAINTENANCE, per_s=rate, notice_s=0.0,
                restart_s=stop.seconds, restart_sigma=sigma_of(stop),
            )
        )  # fmt: skip
    return tuple(found)


def sigma_of(duration: Duration) -> float:
    """Deviation of the logarithm of a time whose range holds eight of ten."""
    low, high = duration.range_s
    return math.log(high / low) / TEN_TO_NINETY


def require_storage(course: Course, total_bytes: float, world: FailureModel) -> None:
    """Refuse storage that is not done with one checkpoint before the next failure."""
    between_s, last = 1 / course.per_s, course.levels[-1]
    bandwidth = world.storage.write_bytes_per_s
    write_s = total_bytes / bandwidth
    if write_s < between_s:
        return
    raise InputError(
        what=f"{last.name} is slower than one checkpoint per failure",
        cause=f"a checkpoint takes {format_seconds(write_s)} at {format_bandwidth(bandwidth)}, "
        f"a failure comes every {format_seconds(between_s)}",
        fix=f"give storage.write_bytes_per_s above {total_bytes / between_s:.4g}, that is "
        f"{format_bandwidth(total_bytes / between_s)}",
    )


def bound_useful_share(job: Job, least_bytes: float, world: FailureModel, cluster: ClusterSpec) -> float:
    """A useful share that no layout on as many GPUs can beat, by the closed form.

    Every term of the closed form falls with the stall, the latency and the load of a checkpoint, and with
    the time that is waited for nodes. So the best interval of a run whose checkpoint is `least_bytes`,
    spread evenly over its GPUs, whose weights need not be sent on after a restart, and that never lacks a
    node, is above that of every layout: admissible, a test holds it to that.
    """
    state = CheckpointState(
        total_bytes=least_bytes,
        per_rank_bytes=least_bytes / job.gpus,
        weights_per_rank_bytes=0.0,
        writers=job.gpus,
    )
    ideal = bare_course(
        replace(job, checkpoint=state, step_s=min(job.step_s, _SHORTEST_STEP_S)), world, cluster
    )
    return at_full_strength(with_best_interval(ideal, _SHORTEST_STEP_S)).useful


_SHORTEST_STEP_S = 0.01
"""Shorter than a step between two checkpoints is not looked for."""


def _hazard(world: FailureModel, noticed: Notice, loses: Scope, rate: float) -> Hazard:
    """A kind of interruption, with its times."""
    times = world.times
    notice = {"crash": times.crash_notice, "hang": times.hang_notice, "corruption": times.corruption_notice}
    back = {"in_process": times.in_process, "swap": times.swap, "requeue": times.requeue}[world.restart]
    if world.restart == "in_process" and loses != "process":
        back = times.swap  # a process that lost its node starts on another
    return Hazard(
        name=f"{noticed}, loses {loses}",
        per_s=rate,
        notice_s=notice[noticed].seconds,
        restart_s=back.seconds,
        restart_sigma=sigma_of(back),
        loses=loses,
        noticed=noticed,
    )


def _share(devices: Devices, share: float) -> Devices:
    """The devices of a part of a cluster."""
    return Devices(gpu=devices.gpu * share, node=devices.node * share, nic=devices.nic * share)
