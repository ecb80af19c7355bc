"""What changes of the world are worth: days, dollars, and when a place for checkpoints pays back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from costmodel.campaign.closed_form import expected, why_invalid
from costmodel.campaign.compose import CampaignJob, course_of
from costmodel.campaign.course import Course
from costmodel.campaign.record import Duration, FailureModel, Worth
from costmodel.campaign.tiers import LOCAL_TIERS
from topology.base.errors import InputError
from topology.base.units import DAY, HOUR
from topology.spec import ClusterSpec, StorageSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrice:
    """What is paid: dollars an hour of a GPU, the GPUs of a node, dollars an hour of what idles beside."""

    usd_per_gpu_hour: float
    gpus_per_node: float
    idle_usd_per_hour: float = 0.0


def usd_per_s(course: Course, price: RunPrice | None) -> float | None:
    """Dollars a second of all nodes that are rented: those that work, what idles beside, spares beyond it."""
    if price is None:
        return None
    working = price.usd_per_gpu_hour * price.gpus_per_node * (course.nodes + course.paid_spares)
    return (working + price.idle_usd_per_hour) / HOUR


def worth_of(
    job: CampaignJob, world: FailureModel, cluster: ClusterSpec, price: RunPrice | None, useful: float
) -> tuple[Worth, ...]:
    """What changes of the world are worth, best first; those worth less than an hour in all are left out."""
    now = course_of(job, world, cluster)
    worths = []
    for change, altered in _changes(world).items():
        try:
            then = course_of(job, altered, cluster)
        except InputError:  # the change makes it worse than possible
            continue
        if why_invalid(then) or why_invalid(now):
            continue
        share = expected(then).useful
        saved_s = job.work_s / useful - job.work_s / share
        before, after = usd_per_s(now, price), usd_per_s(then, price)
        usd = None if before is None or after is None else (
            job.work_s / useful * before - job.work_s / share * after
        )  # fmt: skip
        if saved_s > HOUR:
            worths.append(Worth(change=change, days=saved_s / DAY, usd=usd))
    worths += _places_worth(job, world, cluster, price, useful)
    return tuple(sorted(worths, key=lambda worth: -worth.days))


def _places_worth(
    job: CampaignJob, world: FailureModel, cluster: ClusterSpec, price: RunPrice | None, useful: float
) -> list[Worth]:
    """What every near place is worth that checkpoints go to beside the shared one, and when it has paid back.

    Its price over the dollars that a day of the run saves by it.
    """
    places_worth = []
    for place in world.tiers:
        left = tuple(tier for tier in world.tiers if tier != place)
        if place.kind not in LOCAL_TIERS or not left:
            continue
        try:
            course = course_of(job, replace(world, tiers=left, peer_memory=False), cluster)
        except InputError:
            continue
        now = course_of(job, world, cluster)
        if why_invalid(course) or why_invalid(now):
            continue
        with_s, without_s = job.work_s / useful, job.work_s / expected(course).useful
        before, after = usd_per_s(course, price), usd_per_s(now, price)
        usd = None if before is None or after is None else without_s * before - with_s * after
        back = None
        if usd is not None and usd > 0 and place.usd:
            back = place.usd / (usd / (with_s / DAY))
        places_worth.append(
            Worth(
                change=f"{place.title} beside {left[-1].title}",
                days=(without_s - with_s) / DAY,
                usd=usd,
                pays_back_days=back,
            )
        )
    return places_worth


def _changes(world: FailureModel) -> Mapping[str, FailureModel]:
    """Changes that are asked about."""
    times = world.times
    changed: dict[str, FailureModel] = {}

    def timed(words: str, **of: Duration) -> None:
        """A change of a time."""
        changed[words] = replace(world, times=replace(times, **of))

    restart = getattr(times, world.restart)
    timed("halving restart time", **{world.restart: _times(restart, 0.5)})
    timed("noticing hangs as fast as crashes", hang_notice=times.crash_notice)
    timed("noticing wrong numbers in half the time", corruption_notice=_times(times.corruption_notice, 0.5))
    timed("halving the stall of a checkpoint", stall=_times(times.stall, 0.5))
    timed("halving repair time", repair=_times(times.repair, 0.5))
    changed["twice the bandwidth of storage"] = replace(
        world, tiers=tuple(tier if tier.kind in LOCAL_TIERS else _twice(tier) for tier in world.tiers)
    )
    if not world.peer_memory and all(tier.kind != "peer" for tier in world.tiers):
        changed["a copy of the checkpoint in a peer's memory"] = replace(world, peer_memory=True)
    if not world.asynchronous:
        changed["writing checkpoints while steps go on"] = replace(world, asynchronous=True)
    return changed


def _twice(place: StorageSpec) -> StorageSpec:
    """A place of twice the bandwidth."""
    return replace(
        place,
        write_bytes_per_s=2 * place.write_bytes_per_s,
        read_bytes_per_s=2 * place.read_bytes_per_s,
    )


def _times(duration: Duration, factor: float) -> Duration:
    """A time and its range, longer or shorter."""
    scaled: Callable[[float | None], float | None] = lambda x: None if x is None else x * factor  # noqa: E731
    return replace(
        duration,
        seconds=duration.seconds * factor,
        low_s=scaled(duration.low_s),
        high_s=scaled(duration.high_s),
    )
