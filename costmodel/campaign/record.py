"""The nouns of a finished run, as data: what fails and how often, how long what takes, and the answer.

Plain records: a plan can hold them without the mathematics of the campaign being loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from topology.base.errors import InputError
from topology.base.units import DAY
from topology.spec import StorageSpec
from topology.spec_rules import MOST_PLACES, storage_problems

Device = Literal["gpu", "node", "nic", "rack", "switch", "storage"]
"""What a cause is counted by: twice as many of them fail twice as often. There is one storage."""
Notice = Literal["crash", "hang", "corruption"]
"""How a failure shows: a process ends, all wait for one, or numbers go wrong in silence."""
Scope = Literal["process", "node", "rack", "memory"]
"""What is lost: the processes alone, a node until it is repaired, all nodes of a rack (or below a switch), or
all that lies in memory anywhere."""
Survival = Literal["process", "disk", "node", "rack", "memory"]
"""What a checkpoint outlives; ``disk`` is that of a node's own disks: memory may go, the node may not."""
SURVIVED: Mapping[Survival, frozenset[Scope]] = {
    "process": frozenset({"process"}),
    "disk": frozenset({"process", "memory"}),
    "node": frozenset({"process", "node"}),
    "rack": frozenset({"process", "node", "rack"}),
    "memory": frozenset({"process", "node", "rack", "memory"}),
}
Restart = Literal["in_process", "swap", "requeue"]

MOST_EVENTS, MOST_DAYS, LONGEST_S = 1e7, 1e5, 1e7
LEAST_S = 1e-3
LEAST_COUNTED = 1e-3
"""Of days that were watched; a minute and a half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Seconds something takes in the mean, and the range in which eight of ten lie."""

    seconds: float
    low_s: float | None = None
    high_s: float | None = None
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse times that nothing takes."""
        low, high = self.range_s
        if not 0 < LEAST_S <= low <= self.seconds <= high <= LONGEST_S:
            raise InputError(
                what="this is no time that something takes",
                cause=f"seconds = {self.seconds:g}, low_s = {low:g}, high_s = {high:g}",
                fix=f"give low_s ≤ seconds ≤ high_s, from {LEAST_S:g} to {LONGEST_S:g} seconds",
            )

    @property
    def range_s(self) -> tuple[float, float]:
        """The range, or the mean twice where none is known."""
        low = self.seconds if self.low_s is None else self.low_s
        return low, self.seconds if self.high_s is None else self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of interruptions, as counted at a site: so many events on all devices of its kind."""

    name: str
    events: float
    device: Device = "node"
    noticed: Notice = "crash"
    loses: Scope = "process"

    def __post_init__(self) -> None:
        """Refuse a cause that never struck: no rate follows from it."""
        if not 0 < self.events <= MOST_EVENTS:
            raise InputError(
                what=f"the cause {self.name!r} has no rate",
                cause=f"events = {self.events:g}, must be above 0: 1 is the fewest that is counted",
                fix="leave the cause out, or give events of at least 1, the fewest that were counted",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJobs:
    """Mean hours between failures of jobs of one size, as a site measured them."""

    gpus: int
    hours: float

    def __post_init__(self) -> None:
        """Refuse sizes and times that no job has."""
        if not (0 < self.gpus <= 10**7 and 0 < self.hours <= MOST_DAYS):
            raise InputError(
                what="these are no measured jobs",
                cause=f"gpus = {self.gpus}, hours = {self.hours:g}",
                fix="give at least 1 GPU and more than 0 hours",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What failed on a number of GPUs in a number of days.

    `spread` is the standard deviation of the logarithm of its rate, where it is taken for another site.
    `measured` are mean times between failures of its jobs by size, where it published them.
    """

    name: str
    gpu: str
    gpus: int
    gpus_per_node: int = 8
    nics_per_node: int = 8
    nodes_per_rack: int = 1
    nodes_per_switch: int = 1
    days: float
    planned: float = 0.0
    causes: tuple[Cause, ...]
    spread: float | None = None
    measured: tuple[MeasuredJobs, ...] = ()
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse a site without devices, days or causes."""
        counts = ("gpus", "gpus_per_node", "nics_per_node", "nodes_per_rack", "nodes_per_switch", "days")
        positive = {name: getattr(self, name) for name in counts}
        wrong = [
            f"{name} = {value:g}" for name, value in positive.items() if not LEAST_COUNTED <= value <= 10**7
        ]
        if wrong or not self.causes or not 0 <= self.planned <= MOST_EVENTS:
            raise InputError(
                what=f"no rate follows from what {self.name!r} counted",
                cause=", ".join(wrong) or ("no causes" if not self.causes else f"planned = {self.planned:g}"),
                fix="give gpus, gpus_per_node and nics_per_node of at least 1, 0.001 days or more, one cause",
            )
        for cause in self.causes:
            sizes = {"rack": self.nodes_per_rack, "switch": self.nodes_per_switch}
            if sizes.get(cause.device) == 1 or (cause.loses == "rack" and cause.device not in sizes):
                raise InputError(
                    what=f"how many nodes {cause.name!r} takes is not said",
                    cause=f"device = {cause.device}, loses = {cause.loses}, nodes_per_rack = "
                    f"{self.nodes_per_rack}, nodes_per_switch = {self.nodes_per_switch}",
                    fix="count it by rack or switch, with nodes_per_rack or nodes_per_switch of at least 2",
                )

    @property
    def nodes(self) -> float:
        """Nodes that were watched."""
        return self.gpus / self.gpus_per_node

    @property
    def interruptions(self) -> float:
        """Unexpected interruptions of all causes."""
        return sum(cause.events for cause in self.causes)

    @property
    def per_1000_node_days(self) -> float:
        """The usual word for a rate."""
        return 1000 * self.interruptions / (self.nodes * self.days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long it takes to notice, to come back, to repair, and to hand a checkpoint over."""

    crash_notice: Duration
    hang_notice: Duration
    corruption_notice: Duration
    in_process: Duration
    swap: Duration
    requeue: Duration
    repair: Duration
    maintenance: Duration
    stall: Duration
    rack_repair: Duration | None = None
    outage: Duration | None = None

    @property
    def rack_back(self) -> Duration:
        """Until a rack, or what is below a switch, is back; as long as a node's repair where nobody said."""
        return self.rack_repair or self.repair

    @property
    def storage_back(self) -> Duration:
        """Until storage answers again; as long as a requeue where nobody said."""
        return self.outage or self.requeue


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Nodes that are slow: the share of time a job has one, what a step takes then, how long until found."""

    prevalence: float
    slowdown: float
    spell: Duration
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse shares and factors that are none."""
        if not (0 <= self.prevalence < 1 and 1 <= self.slowdown <= 1000):
            raise InputError(
                what="these are no stragglers",
                cause=f"prevalence = {self.prevalence:g}, slowdown = {self.slowdown:g}",
                fix="give a prevalence from 0 to below 1, and a slowdown of at least 1",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A place checkpoints go to: bytes a second of the whole system, written and read.

    `survives` is the largest loss after which it can still be read.
    """

    name: str
    write_bytes_per_s: float
    read_bytes_per_s: float
    survives: Survival = "memory"
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse a place that nothing can be written to."""
        if not all(0 < value <= 1e18 for value in (self.write_bytes_per_s, self.read_bytes_per_s)):
            raise InputError(
                what=f"nothing can be kept on {self.name!r}",
                cause=f"writes {self.write_bytes_per_s:g} and reads {self.read_bytes_per_s:g} bytes a second",
                fix="give write_bytes_per_s and read_bytes_per_s above 0",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Nodes that their owner takes back: how often each, how long before it is said, until another is had."""

    per_hour: float
    warning_s: float = 120.0
    replaced: Duration

    def __post_init__(self) -> None:
        """Refuse rates that no market has."""
        if not (0 < self.per_hour <= 3600 and 0 <= self.warning_s <= LONGEST_S):
            raise InputError(
                what="these are no preemptions",
                cause=f"per_hour = {self.per_hour:g}, warning_s = {self.warning_s:g}",
                fix="give per_hour above 0, such as 0.06, warning_s of at least 0, or leave spot out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Data on their way to the ranks: bytes of a token (a sample of a module), and bytes a second of all."""

    bytes_per_token: float | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what carries nothing."""
        if not all(value is None or 0 < value <= 1e18 for value in (self.bytes_per_token, self.bytes_per_s)):
            raise InputError(
                what="this loader delivers nothing",
                cause=f"bytes_per_token = {self.bytes_per_token}, bytes_per_s = {self.bytes_per_s}",
                fix="give numbers above 0, or leave them out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """All that a campaign assumes of the world: who counted what failed, and how long everything takes.

    `restart` is how a run comes back where a process or a node was lost; `asynchronous` writes while steps
    go on; `peer_memory` keeps a copy in another node's memory. With `min_gpus` a run goes on with fewer
    replicas where no spare is left, down to that many GPUs; without, it waits. `tiers` are the places that
    checkpoints may go to, in place of those of the cluster; the search takes those that leave most useful.
    `spares_for` says whether spares make the cheapest or the earliest finish.
    `changed_share` of a checkpoint is written where the engine writes what changed since the one before.
    """

    site: Site
    times: Times
    stragglers: Stragglers
    storage: Storage
    restart: Restart = "swap"
    asynchronous: bool = True
    peer_memory: bool = False
    min_gpus: int | None = None
    tiers: tuple[StorageSpec, ...] = ()
    changed_share: float = 1.0
    spot: Spot | None = None
    spares_for: Literal["cost", "date"] = "cost"
    loader: Loader = field(default_factory=Loader)

    def __post_init__(self) -> None:
        """Refuse places and shares that are none."""
        wrong = [
            line
            for i, storage_spec in enumerate(self.tiers)
            for line in storage_problems(storage_spec, f"tiers[{i}]")
        ]
        if len(self.tiers) > MOST_PLACES:
            wrong = [f"{len(self.tiers)} tiers, must be {MOST_PLACES} or fewer"]
        if not 0 < self.changed_share <= 1:
            wrong.append(f"changed_share = {self.changed_share:g}, must be above 0 and at most 1")
        if wrong:
            raise InputError(
                what="checkpoints cannot be kept so",
                cause="; ".join(wrong),
                fix="give kind, write_bytes_per_s, read_bytes_per_s of at least 1; changed_share = 1 is all",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A number of which one in ten is below `p10`, half below `p50`, nine in ten below `p90`."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostShare:
    """Where the time that is not useful goes: shares of the whole run, 1 with the useful one."""

    checkpoints: float = 0.0
    lost_work: float = 0.0
    detection: float = 0.0
    restart: float = 0.0
    waiting_for_nodes: float = 0.0
    fewer_replicas: float = 0.0
    stragglers: float = 0.0
    maintenance: float = 0.0

    @property
    def total(self) -> float:
        """All that is lost."""
        return float(sum(getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What one change of the world is worth: a finish so many days earlier, so many dollars cheaper.

    `pays_back_days` of the run save its price, where it has one.
    """

    change: str
    days: float
    usd: float | None
    pays_back_days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One place that checkpoints go to: seconds of work between two, and seconds that steps wait for each."""

    name: str
    every_s: float
    stall_s: float
    durable_s: float
    load_s: float
    survives: Survival = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A finished run: when, for how much, how much of it useful, and what to set for it.

    Bands hold the step's own band, the spread of failure rates between sites, and chance. `by` says what
    answered, the closed form or the simulation; `bound_useful_share` is what no layout can beat, None where
    the closed form does not hold; `kept` are the places that checkpoints go to, nearest first.
    `kwh` are those of its GPUs at design power from start to finish, `co2_kg` what the grid emits for them,
    None where nobody said. `loader_bytes_per_s` is what data loading must deliver to all ranks. `base_bytes`
    are frozen weights, which `checkpoint_bytes` do not hold: a restart reads them where the run found them.
    `idle_spare_nodes` of the spares are nodes that the cluster has beside the run: they cost nothing more.
    `percentile_days` are the days within which 0, 1, …, 100 % of the runs are finished, from which follows
    the chance of every limit; `deadline_chance` and `budget_chance` are those of the job's own, None where it
    has none.
    """

    useful_share: Band
    days: Band
    usd: Band | None
    interruptions: Band
    checkpoint_interval_s: float
    checkpoint_bytes: float
    checkpoint_write_s: float
    checkpoint_stall_s: float
    spare_nodes: int
    lost_share: LostShare
    mean_useful_share: float
    bound_useful_share: float | None
    mean_time_between_failures_s: float
    failures: FailureModel
    by: Literal["closed form", "simulation"]
    kept: tuple[Kept, ...] = ()
    kwh: Band | None = None
    co2_kg: Band | None = None
    loader_bytes_per_s: float = 0.0
    base_bytes: float = 0.0
    worth: tuple[Worth, ...] = ()
    notes: tuple[str, ...] = field(default=())
    idle_spare_nodes: int = 0
    percentile_days: tuple[float, ...] = ()
    deadline_chance: float | None = None
    budget_chance: float | None = None

    @property
    def missed(self) -> tuple[Limit, ...]:
        """The job's own limits that are kept in hardly any run."""
        chances: dict[Limit, float | None] = {"deadline": self.deadline_chance, "budget": self.budget_chance}
        return tuple(
            name for name, chance in chances.items() if chance is not None and limit_word(chance) == "missed"
        )

    def chance_within_s(self, seconds: float) -> float:
        """Chance, in 0…1, that the run is finished within so many seconds."""
        return chance_within(self.percentile_days, seconds / DAY)

    def chance_within_usd(self, usd: float) -> float | None:
        """Chance, in 0…1, that the run costs at most so many dollars; None without a price.

        Dollars are those of an hour of all nodes times the hours of the run.
        """
        if self.usd is None:
            return None
        if not self.usd.p50:
            return 1.0
        return chance_within(self.percentile_days, usd * self.days.p50 / self.usd.p50)


def chance_within(percentiles: Sequence[float], limit: float) -> float:
    """Chance, in 0…1, of a value of at most a limit, from its percentiles at even steps; straight between.

    >>> chance_within((2.0, 3.0, 4.0), 3.5), chance_within((2.0, 3.0, 4.0), 1.0)
    (0.75, 0.0)
    """
    above = bisect_right(percentiles, limit)
    if above in (0, len(percentiles)):
        return float(above > 0)
    low, high = percentiles[above - 1], percentiles[above]
    return (above - 1 + (limit - low) / (high - low)) / (len(percentiles) - 1)


KEPT = 0.9
"""Chance from which on a limit is called kept; at most what is left of it, and it is called missed."""
Verdict = Literal["kept", "uncertain", "missed"]
Limit = Literal["deadline", "budget"]
"""What a run may have to keep."""


def limit_word(chance: float) -> Verdict:
    """Whether a limit is kept, given the chance of keeping it.

    >>> limit_word(0.9), limit_word(0.62), limit_word(0.05)
    ('kept', 'uncertain', 'missed')
    """
    if chance >= KEPT:
        return "kept"
    return "missed" if chance <= 1 - KEPT else "uncertain"
