"""Which engine a plan is for, and which profile prices it: what was written, or what fits the other.

A plan is for the engine of its profile unless said otherwise, so that it can be launched; where that engine
cannot run the model or the GPU at all, it is planned freely, and that is said.
"""

from __future__ import annotations

from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.stack import stack as find_stack
from planner.engines.contract import Contract
from planner.engines.contracts import CONTRACTS, engine_named, engine_of_stack
from planner.plan import FREE, PlanRequest, problem_of
from topology.base.errors import InputError

DEFAULT_STACK = "megatron-core"
ONE_GPU = ParallelLayout()


def stack_and_engine(stack: str | None, engine: str | None) -> tuple[str, str | None]:
    """The profile and the engine that were written; no engine where that is left to us.

    >>> stack_and_engine(None, "megatron@0.17"), stack_and_engine("torchtitan", None)
    (('megatron-core', 'megatron'), ('torchtitan', None))
    """
    named = find_stack(stack).name if stack else None
    if engine is None:
        return named or DEFAULT_STACK, None
    name, _, version = engine.partition("@")
    text = engine_named(name)
    if text == FREE:
        return named or DEFAULT_STACK, FREE
    contract = CONTRACTS[text]
    _require_version(contract, version)
    if named is not None and named not in contract.stacks:
        raise InputError(
            what=f"--stack {named} does not price {text}",
            cause=f"{contract.title} is priced by {', '.join(contract.stacks)}",
            fix=f"use --stack {contract.stacks[0]}, or --for {engine_of_stack(named)}",
        )
    return named or contract.stacks[0], text


def _require_version(contract: Contract, version: str) -> None:
    """Refuse a version that the contract does not describe."""
    first, last = contract.releases
    parts = version.split(".")
    if version and not (
        all(part.isdigit() for part in parts) and _key(first) <= _key(version)[:2] <= _key(last)
    ):
        raise InputError(
            what=f"{contract.engine}@{version} is not described here",
            cause=f"the contract is that of {contract.package} {first} to {last}",
            fix=f"use --for {contract.engine}@{last}, or --for {contract.engine}",
        )


def _key(version: str) -> tuple[int, ...]:
    """A version in numbers."""
    return tuple(int(part) for part in version.split(".") if part.isdigit() and len(part) < 6)


def usual_engine(request: PlanRequest) -> tuple[str, tuple[str, ...]]:
    """The engine of a request's profile; none where it can run no layout at all, with why."""
    engine = engine_of_stack(request.stack)
    if engine == FREE:
        return FREE, ()
    problem = problem_of(request, load_calibration())  # of which limits read nothing
    for limit in CONTRACTS[engine].limits:
        if not limit.reads and bool(limit.broken(problem, LayoutTable.from_rows([ONE_GPU]))):
            message, *_ = limit.says(problem, ONE_GPU)
            return FREE, (f"planned for any engine, not for {engine}: {message}",)
    return engine, ()
