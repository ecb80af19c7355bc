"""The nouns of the planner: what is asked, the problem that it poses, what is proposed, how sure that is.

Requests and plans round-trip through JSON exactly, and a problem is built from either; no solver is imported,
so that the executor, the command line and the dashboard can read a plan without one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from costmodel.campaign.record import Campaign, FailureModel
from costmodel.case import Case
from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.level import StackLevel
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import ParallelLayout, layout_record, layout_words
from costmodel.memory.fit import Fit, fit_of, fit_text, headroom_for
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack, stack
from costmodel.switches.profile import with_switches
from costmodel.training.bands import peak_spread
from topology.base.decode import document_of, structure, unstructure
from topology.base.errors import InputError
from topology.base.units import format_seconds
from topology.builders import build
from topology.cluster import Cluster
from topology.fabric.mesh import Mesh
from topology.spec import ClusterSpec

SCHEMA_VERSION = (
    5  # 1 did not say what a model computes (rotary positions, epsilon); later ones see `_UPGRADES`
)

_NUMBERS = re.compile(r"\[[-+.,eE\d\s]+\]")

FREE = "any"
"""The engine of a plan that no engine need be able to run."""

Recomputes = Literal["per-rank", "per-chunk", "all"]
"""How many layers an engine recomputes: a number of each rank's own, one number for all chunks, or all."""

RecomputedLayers = Literal["all"] | int
RECOMPUTED_LAYERS = "recomputed_layers"
"""Pin beside ``recompute``: how many layers of every pipeline rank ``full`` recomputes, if that is given."""
LAYERS_OF_STAGE = "layers_of_stage"
"""Pin of the layers of every virtual stage in model order, or `OPTIMISED`; of one given layout."""
RECOMPUTE_OF_STAGE = "recompute_of_stage"
"""Pin of the recomputed layers of every pipeline rank; of one given layout."""
SPLIT_PINS = (RECOMPUTED_LAYERS, LAYERS_OF_STAGE, RECOMPUTE_OF_STAGE)
"""Pins that say how the stages of a layout are filled, and are no field of it."""
OPTIMISED: Final = "auto"
"""Layers of stages as the planner would split them."""

Objective = Literal["step-time", "cost", "gpus", "memory"]
RENTS_WHAT_IT_USES: frozenset[Objective] = frozenset({"cost", "gpus"})
"""Objectives whose answer says how many GPUs to rent; under others idle ones are there and paid for."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked: a model, a cluster, a job, the software that runs it, and what "best" means.

    `objective` is ``step-time`` (shortest optimizer step), ``cost`` (least money per token, of rented nodes,
    of the whole run where `job.total_tokens` are known), ``gpus`` (fewest GPUs that keep `job.deadline_s`
    for `job.total_tokens` nine times in ten) or ``memory`` (largest headroom among
    plans within the error band of the fastest). `pins` fixes fields of the layout by name, for example
    ``{"tp": 8}``; beside ``"recompute": "full"``, `RECOMPUTED_LAYERS` says how many, and of one given layout
    `LAYERS_OF_STAGE` and `RECOMPUTE_OF_STAGE` say how its stages are filled. `memory_headroom` is the
    share of a GPU's memory to leave free; None leaves as much as keeps the 80 % band of the peak within the
    GPU, 0 fills it to the last byte. `anchor` is the level of the user's own runs of the stack; None before
    any was measured. `engine` is whose contract the plan keeps (`planner.engines.contracts`); ``any`` keeps
    none. `switches` are those of the engine that are not as the profile has them (`costmodel.switches`), by
    name. `recompute_modules` are what ``selective`` repeats in place of what the profile says. With
    `offload_shares` the search chooses how much of the optimizer's state waits in host memory, among these.
    `failures` is what interrupts the run; None for what is published of such GPUs.
    """

    model: ModelSpec
    cluster: ClusterSpec
    job: TrainingJob
    stack: str = "megatron-core"
    objective: Objective = "step-time"
    pins: Mapping[str, Any] = field(default_factory=dict)
    top: int = 5
    memory_headroom: float | None = None
    anchor: StackLevel | None = None
    engine: str = FREE
    switches: Mapping[str, str] = field(default_factory=dict)
    recompute_modules: tuple[str, ...] = ()
    offload_shares: tuple[float, ...] = ()
    failures: FailureModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the layouts of a request are judged against, and by which limits of memory and engine.

    `memory_headroom` is the share of a GPU's memory that a plan leaves free, `engine` whose limits it keeps,
    `recomputed_layers` how many layers of every pipeline rank the policy ``full`` recomputes: all of them, a
    number, or None for as many as memory asks for.
    """

    case: Case
    memory_headroom: float = 0.0
    engine: str = FREE
    recomputed_layers: RecomputedLayers | None = None

    @property
    def model(self) -> ModelSpec:
        """The model of the case."""
        return self.case.model

    @property
    def cluster(self) -> Cluster:
        """The cluster of the case."""
        return self.case.cluster

    @property
    def job(self) -> TrainingJob:
        """The job of the case."""
        return self.case.job

    @property
    def stack(self) -> SoftwareStack:
        """The engine's profile of the case."""
        return self.case.stack

    @property
    def memory_budget_bytes(self) -> float:
        """What a plan may fill of one GPU's memory."""
        return self.case.cluster.gpu.memory_bytes * (1 - self.memory_headroom)

    def of(self, **parts: Any) -> Problem:
        """The same problem with other parts of its case: another cluster, stack or tables."""
        return replace(self, case=replace(self.case, **parts))


def problem_of(request: PlanRequest, cal: Calibration) -> Problem:
    """What the layouts of a request are judged against.

    Who names no headroom leaves as much free as a layout needs to fit (`costmodel.memory.fit`).
    """
    case = Case(
        model=request.model,
        cluster=build(request.cluster),
        job=request.job,
        stack=stack_of(request),
        cal=cal,
    )
    free = request.memory_headroom
    return Problem(
        case=case,
        memory_headroom=headroom_for(peak_spread(case)) if free is None else free,
        engine=request.engine,
        recomputed_layers=request.pins.get(RECOMPUTED_LAYERS) if "recompute" in request.pins else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimality:
    """The certificate of a search; of one given layout and split (status ``given``) nothing is proven.

    `enumerated` layouts were considered; `pruned` counts those dismissed by each rule or bound, `solved`
    those whose stages were decided by the solver. `bound_s` is a step time that no layout on as many GPUs
    can beat under the objective; `gap` is (incumbent − bound) / incumbent. Under the objective ``memory`` the
    gap is that of the peak memory to `bound_bytes`, which no plan whose step is within `within_s` (the band
    of the fastest) can do with. `floors_s` is what the proof rests on: for each bound of the funnel, the
    least step that any layout it dismissed could have reached, on as many GPUs as the plan's; none is below
    the plan's own. `plan verify` derives `bound_s` anew, by a slower and simpler path.
    """

    status: Literal["proven", "best-found", "given"]
    bound_s: float
    gap: float
    enumerated: int
    pruned: Mapping[str, int]
    solved: int
    bound_bytes: float | None = None
    within_s: float | None = None
    floors_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a plan was made with: the version of meshplan, and digests of everything that decides it.

    `request` is what was asked, `cluster` the cluster with the numbers of its GPUs, `tables` the kernel and
    collective tables, `constants` the other data of the cost model, `measurements` the user's own; empty
    where there were none.
    """

    version: str
    request: str
    cluster: str
    tables: str
    constants: str
    measurements: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another plan worth considering: how it differs, what it gives up, and whether the model can tell.

    `simulated_s` is its step by event simulation of the schedule, `step_time_s` by the closed form of the
    search. Beside a plan of a pool, `kinds` are the kinds of node that it takes (places in
    `topology.pools.kinds.kinds_of` of what was offered) where they are not the plan's, and `kind_of_stage`
    says the same as of a plan.
    """

    layout: ParallelLayout
    layers_of_stage: tuple[int, ...]
    recompute_of_stage: tuple[int, ...]
    step_time_s: float
    lower_s: float
    upper_s: float
    peak_memory_bytes: float
    slower_by: float
    tied: bool
    difference: str
    simulated_s: float | None = None
    kinds: tuple[int, ...] = ()
    kind_of_stage: tuple[int, ...] = ()
    out_of_memory_chance: float | None = None

    @property
    def fit(self) -> Fit | None:
        """The word of its chance of OOM; None in a file of before that was kept."""
        return None if self.out_of_memory_chance is None else fit_of(self.out_of_memory_chance)

    @property
    def fit_text(self) -> str:
        """Whether it fits, and its chance of OOM; a dash in a file of before that was kept."""
        return "–" if self.out_of_memory_chance is None else fit_text(self.out_of_memory_chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Some kinds of node of a pool, and the shortest step on them; None where there is no plan."""

    nodes: str
    num_gpus: int
    step_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedNodes:
    """What was offered where nodes differ: a plan's own cluster is the part of it that is used.

    `others` are the parts that were searched as well, each with all its nodes planned for as the slowest and
    smallest of them; the one with all kinds says what it would cost to use every node.
    """

    offered: ClusterSpec
    others: tuple[PoolPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One proposed way to run the job.

    `layers_of_stage` counts layers per virtual stage in model order (pp · virtual_stages numbers);
    `recompute_of_stage` counts recomputed layers per pipeline rank (pp numbers). `simulated_s` is the step
    by event simulation of the schedule, where `estimate.step_time_s` is the closed form that was searched.
    `origin` says what it was made with; None in plans of a time before they said so. `pool` says what was
    offered where nodes differ; None where all are alike. `kind_of_stage` says on which kind of node of the
    cluster each pipeline stage runs (places in `topology.pools.kinds.kinds_of`), costed as what that kind
    is; empty where all GPUs are planned for alike. `campaign` is the run to its last token, where tokens
    were asked.
    """

    request: PlanRequest
    layout: ParallelLayout
    layers_of_stage: tuple[int, ...]
    recompute_of_stage: tuple[int, ...]
    mesh: Mesh
    estimate: Estimate
    alternatives: tuple[Alternative, ...]
    optimality: Optimality
    search_time_s: float
    idle_gpus: int = 0
    simulated_s: float | None = None
    assumptions: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    origin: Origin | None = None
    pool: OfferedNodes | None = None
    kind_of_stage: tuple[int, ...] = ()
    campaign: Campaign | None = None
    schema_version: int = SCHEMA_VERSION
    _problem: list[Problem] = field(init=False, repr=False, compare=False, default_factory=list)

    @property
    def problem(self) -> Problem:
        """What it was judged against, by the tables it was made with; built once."""
        if not self._problem:
            self._problem.append(problem_of(self.request, tables_of(self)))
        return self._problem[0]

    @property
    def case(self) -> Case:
        """The case of its problem."""
        return self.problem.case

    def __repr__(self) -> str:
        """The plan in one line: what was asked, how it is split, what a step takes, how sure it is."""
        kinds = " + ".join(dict.fromkeys(node.gpu for node in self.request.cluster.nodes))
        asked = f"{self.request.model.name} on {self.request.cluster.num_gpus:,} × {kinds}"
        step = f"{format_seconds(self.estimate.step_time_s)} a step"
        return f"Plan({asked}: {layout_words(self.layout)}, {step}, {self.optimality.status})"

    def _repr_markdown_(self) -> str | None:
        """What `plan` prints, as Markdown; None where nobody said how plans are written."""
        return _WRITERS["markdown"](self) if _WRITERS else None

    def _repr_html_(self) -> str | None:
        """What `plan` prints, as HTML with pictures; None where nobody said how plans are written."""
        return _WRITERS["html"](self) if _WRITERS else None

    def to_dict(self) -> dict[str, Any]:
        """The document that `plan --json` prints, as dicts, lists, texts and numbers."""
        document: dict[str, Any] = json.loads(to_json(self))
        return document

    def rows(self) -> list[dict[str, Any]]:
        """The plan as row 0 and its alternatives after it, as `--format csv` has them; a table for pandas."""
        step = {name: getattr(self.estimate, name) for name in _COSTS}
        rows = [_row(0, self, {**step, "slower_by": 0.0, "tied": False})]
        for rank, other in enumerate(self.alternatives, start=1):
            costs = {name: getattr(other, name) for name in (*_COSTS, "slower_by", "tied")}
            rows.append(_row(rank, other, costs))
        if self.pool is not None:  # where each runs, which need not be where the plan does
            places = ((), *(other.kinds for other in self.alternatives))
            stages = [self.kind_of_stage, *(other.kind_of_stage for other in self.alternatives)]
            for row, kinds, kind_of_stage in zip(rows, places, stages, strict=True):
                row["nodes"], row["gpu_of_stage"] = self._places(kinds, kind_of_stage)
        return rows

    def _places(self, places: tuple[int, ...], kind_of_stage: tuple[int, ...]) -> tuple[str, str]:
        """Nodes of a pool in words, by their kinds or the plan's own, and the GPU of each unlike stage."""
        from topology.pools.kinds import kinds_of, nodes_in_words

        offered = kinds_of(self.pool.offered) if self.pool is not None else ()
        used = tuple(offered[place] for place in places) or kinds_of(self.request.cluster)
        return nodes_in_words(used), " ".join(used[kind].gpu for kind in kind_of_stage)


def tables_of(plan: Plan) -> Calibration:
    """The tables a plan was made with, if they are here: the shipped ones, or those with own measurements."""
    if plan.origin is not None and not plan.origin.measurements:
        return load_calibration()
    return calibration_for(plan.request.cluster)


_WRITERS: dict[Literal["markdown", "html"], Callable[[Plan], str]] = {}


def write_plans_with(*, markdown: Callable[[Plan], str], html: Callable[[Plan], str]) -> None:
    """Say how notebooks show plans: words and pictures stand in `app`, which this package never imports."""
    _WRITERS["markdown"], _WRITERS["html"] = markdown, html


_COSTS = ("step_time_s", "lower_s", "upper_s", "peak_memory_bytes", "out_of_memory_chance")


def _row(rank: int, plan: Plan | Alternative, costs: Mapping[str, Any]) -> dict[str, Any]:
    """One plan as flat data; keys carry units, counts of stages stand in one cell."""
    return {
        "rank": rank,
        **layout_record(plan.layout),
        "layers_of_stage": "-".join(map(str, plan.layers_of_stage)),
        "recompute_of_stage": "-".join(map(str, plan.recompute_of_stage)),
        **costs,
    }


def stack_of(request: PlanRequest) -> SoftwareStack:
    """The software stack of a request, at the level of the user's own runs if there are any."""
    profile = with_switches(replace(stack(request.stack), measured=request.anchor), request.switches)
    if profile.timing.graphed_modules:  # megatron-core stops at graphs of modules in layers that run twice
        kept = tuple(policy for policy in profile.supports.recomputes if policy != "full")
        profile = replace(profile, supports=replace(profile.supports, recomputes=kept))
    if not request.recompute_modules:
        return profile
    return replace(profile, timing=replace(profile.timing, recomputed_modules=request.recompute_modules))


def steps_of_request(request: PlanRequest) -> int:
    """Steps that all tokens of a request take, the last one whole; none where no tokens are asked."""
    return math.ceil((request.job.total_tokens or 0) / request.job.tokens_per_step)


def to_json(plan: Plan) -> str:
    """Write a plan as one JSON document; every float reads back exactly, lists of numbers take one line.

    Beside each chance of OOM stands its word (`fit`), beside the device's peak the allocator's, and `missed`
    names the limits of the run that it misses.
    """
    document = unstructure(plan)
    document["missed"] = list(plan.campaign.missed) if plan.campaign else []
    document["estimate"] |= _derived_of_estimate(plan.estimate)
    for alternative, record in zip(plan.alternatives, document["alternatives"], strict=True):
        record["fit"] = alternative.fit
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    return _NUMBERS.sub(lambda match: " ".join(match.group().split()), text)


def from_json(text: str, where: str = "plan") -> Plan:
    """Read a plan back, also one of version 2 or 3; unknown keys and other versions are an InputError.

    What it says is believed: `planner.structure.sound` and `planner.search.verified.verified` are who asks.
    """
    data = document_of(text, where, version=SCHEMA_VERSION, command="plan --json", upgrades=_UPGRADES)
    claims: list[tuple[str, Any]] = [("missed", data["missed"])] if "missed" in data else []
    data = {key: value for key, value in data.items() if key != "missed"}
    if isinstance(estimate := data.get("estimate"), dict):
        derived = ("fit", "allocator_peak_bytes")
        claims += [(f"estimate.{key}", estimate[key]) for key in derived if key in estimate]
        data = {**data, "estimate": {key: value for key, value in estimate.items() if key not in derived}}
    if isinstance(others := data.get("alternatives"), list):
        records = [other if isinstance(other, dict) else {} for other in others]
        claims += [
            (f"alternatives.{i}.fit", other["fit"]) for i, other in enumerate(records) if "fit" in other
        ]
        kept = [
            {key: value for key, value in other.items() if key != "fit"} if isinstance(other, dict) else other
            for other in others
        ]
        data = {**data, "alternatives": kept}
    plan = structure(data, Plan, where)
    values = {f"estimate.{key}": value for key, value in _derived_of_estimate(plan.estimate).items()}
    values["missed"] = list(plan.campaign.missed) if plan.campaign else []
    values |= {f"alternatives.{i}.fit": other.fit for i, other in enumerate(plan.alternatives)}
    for key, claim in claims:
        if claim != values[key]:
            raise InputError(
                what=f"{where} contradicts itself",
                cause=f"{key} is {claim!r}, and its own numbers say {values[key]!r}",
                fix="write it again with `plan --json`, or leave the key out",
            )
    return plan


def _derived_of_estimate(estimate: Estimate) -> dict[str, Any]:
    """What a document says of an estimate beside its fields: the word of its chance, the allocator's peak."""
    allocated = [stage.allocated_bytes for stage in estimate.memory_by_stage]
    return {"fit": fit_of(estimate.out_of_memory_chance), "allocator_peak_bytes": max(allocated, default=0.0)}


def _from_2(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had `request.job.budget_usd`, a limit that nothing ever read."""
    request = data.get("request")
    job = request.get("job") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(job, dict):
        return data
    kept = {name: value for name, value in job.items() if name != "budget_usd"}
    return {**data, "request": {**request, "job": kept}}


_UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    2: _from_2,
    3: dict,  # had no `origin`
    4: dict,  # had no word of the chance of OOM, and no peak of the allocator
}
