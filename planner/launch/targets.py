"""Every tool a plan can be written for, by name; what was written is read back before it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.engines.contract import Contract, read, write
from planner.engines.contracts import CONTRACTS, engine_aliases
from planner.engines.fields import Facts, facts_of
from planner.engines.formats import FORMATS, Files
from planner.engines.limit import Variable
from planner.engines.read_back import cost, export_error, is_the_plan, require_runnable, verdict_of
from planner.launch.machines import Exported
from planner.launch.nvrx import resilience
from planner.launch.slurm import export_slurm
from planner.plan import Plan
from planner.pricing import clusters_of_kinds
from topology.base.names import resolve
from topology.pools.kinds import stages_on

OTHERS: Mapping[str, Callable[[Plan], Exported]] = {
    "slurm": export_slurm,
}
"""Targets that are no engine, by name."""
TARGETS: tuple[str, ...] = (*FORMATS, *OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFiles:
    """What tells an engine a plan: its files, variables of every rank, and what is left to the user."""

    files: Files
    variables: tuple[Variable, ...]
    notes: tuple[str, ...]


def target_named(target: str) -> str:
    """The tool of a lenient name.

    Raises:
        InputError: nothing is written for a tool of that name.
    """
    return resolve(target, TARGETS, "export target", engine_aliases())


def export_plan(plan: Plan, target: str, *, nearest: bool = False) -> Exported:
    """Write a plan for a tool, leniently named.

    Args:
        plan: the plan.
        target: the tool.
        nearest: write what comes nearest where the tool cannot be told the plan, and say what it costs.

    Raises:
        InputError: the tool cannot run the plan, or cannot be told all of it.
    """
    name = target_named(target)
    if name not in FORMATS:
        return OTHERS[name](plan)
    settings = engine_files(plan, CONTRACTS[name], nearest=nearest)
    (main, text), *others = settings.files.items()
    every = (*settings.notes, *_places(plan))
    beside, values = resilience(plan, CONTRACTS[name])
    return Exported(
        target=name, file_name=main, text=text, notes=(*every, *values), others={**dict(others), **beside}
    )


def engine_files(plan: Plan, contract: Contract, *, nearest: bool = False) -> EngineFiles:
    """The files that tell an engine a plan, read back before they are handed out; see `export_plan`."""
    require_runnable(plan, contract)
    form, facts = FORMATS[contract.engine], facts_of(plan)
    environment = _variables(plan, contract, facts)
    files = form.render(plan, write(contract, facts), environment)
    reading = read(contract, form.parse(files, contract), plan.layout.num_gpus)
    verdict = verdict_of(plan, facts, contract, reading)
    notes = form.notes(plan)
    if not is_the_plan(plan, verdict):
        if not nearest:
            raise export_error(plan, contract, verdict)
        differs = (
            f"not the plan's: {name} = {there}, planned {value}" for name, value, there in verdict.differs
        )
        notes = (*notes, *differs, cost(plan, verdict))
    return EngineFiles(files=files, variables=environment, notes=notes)


def _variables(plan: Plan, contract: Contract, facts: Facts) -> tuple[Variable, ...]:
    """What an engine needs in the environment of every rank: what the GPUs of any kind need."""
    if plan.kind_of_stage:
        gpus = [cluster.gpu for cluster in clusters_of_kinds(plan.request.cluster)]
    else:
        gpus = [plan.problem.cluster.gpu]
    return tuple(
        variable for variable in contract.environment if any(variable.needed(facts, gpu) for gpu in gpus)
    )


def _places(plan: Plan) -> tuple[str, ...]:
    """Where ranks have to be that flags cannot say: nodes of one kind follow each other as stages do."""
    if not plan.kind_of_stage:
        return ()
    stages = ", ".join(stages_on(plan.request.cluster, plan.kind_of_stage))
    ranks = plan.layout.stage_ranks
    return (f"number the nodes so that ranks are in the order of stages, {ranks} a stage: {stages}",)
