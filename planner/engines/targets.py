"""Every tool a plan can be written for, by name; what was written is read back before it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from planner.engines import torchtitan
from planner.engines.contract import Contract, read, write
from planner.engines.contracts import CONTRACTS
from planner.engines.deepspeed import export_accelerate, export_deepspeed
from planner.engines.facts import Exported
from planner.engines.fields import facts_of
from planner.engines.judge import cost, is_the_plan, judge, refusal
from planner.engines.limit import Variable
from planner.engines.megatron_lm import script
from planner.engines.schedulers import export_kubeflow, export_skypilot, export_slurm
from planner.plan import Plan
from planner.problem import setting_of, tables_of
from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How the words of an engine become a file, and a file words again.

    Attributes:
        file_name: What the file is called.
        render: Words and environment as text.
        parse: The words of such a text.
        notes: What is left to the user.
    """

    file_name: str
    render: Callable[[Mapping[str, Any], tuple[Variable, ...]], str]
    parse: Callable[[str, Contract], Mapping[str, Any]]
    notes: Callable[[Plan], tuple[str, ...]] = lambda _: ()


def _tokenizer(plan: Plan) -> tuple[str, ...]:
    size = plan.request.model.vocab_size
    return (f"choose the tokenizer: its vocabulary, at most {size:,}, is padded to the model's",)


FORMATS: Mapping[str, Format] = {
    "megatron": Format(
        file_name="megatron_args.sh", render=script.render, parse=script.parse, notes=_tokenizer
    ),
}
"""File of every engine that has a contract."""

OTHERS: Mapping[str, Callable[[Plan], Exported]] = {
    "torchtitan": torchtitan.export,
    "deepspeed": export_deepspeed,
    "accelerate": export_accelerate,
    "kubeflow": export_kubeflow,
    "skypilot": export_skypilot,
    "slurm": export_slurm,
}
TARGETS: tuple[str, ...] = (*FORMATS, *OTHERS)


def export_plan(
    plan: Plan, target: str, *, nearest: bool = False, cal: Calibration | None = None
) -> Exported:
    """Write a plan for a tool, leniently named.

    Args:
        plan: the plan.
        target: the tool.
        nearest: write what comes nearest where the tool cannot be told the plan, and say what it costs.
        cal: the tables of the plan's numbers; those it was made with, if not given.

    Raises:
        InputError: the tool cannot run the plan, or cannot be told all of it.
    """
    from topology.base.names import resolve

    name = resolve(target, TARGETS, "export target")
    if name not in FORMATS:
        return OTHERS[name](plan)
    contract, form = CONTRACTS[name], FORMATS[name]
    _require_runnable(plan, contract)
    gpu, facts = setting_of(plan.request).cluster.gpu, facts_of(plan)
    environment = tuple(one for one in contract.environment if one.needed(facts, gpu))
    text = form.render(write(contract, facts), environment)
    reading = read(contract, form.parse(text, contract), plan.layout.num_gpus)
    verdict = judge(plan, contract, reading, cal or tables_of(plan))
    exported = Exported(target=name, file_name=form.file_name, text=text, notes=form.notes(plan))
    if is_the_plan(plan, verdict):
        return exported
    if not nearest:
        raise refusal(plan, contract, verdict)
    differs = tuple(
        f"not the plan's: {field} = {told}, planned {said}" for field, said, told in verdict.differs
    )
    return replace(exported, notes=(*exported.notes, *differs, cost(plan, verdict)))


def _require_runnable(plan: Plan, contract: Contract) -> None:
    """Refuse a plan that breaks a limit of the engine: there is nothing near to write."""
    setting, row = setting_of(plan.request), LayoutTable.from_rows([plan.layout])
    for limit in contract.limits:
        if bool(limit.broken(setting, row)):
            equation, hint = limit.says(setting, plan.layout)
            raise InputError(
                what=f"{contract.engine} cannot run this plan: {contract.engine}-{limit.name}",
                cause=equation,
                fix=f"{hint}, as plan --for {contract.engine} does",
            )
