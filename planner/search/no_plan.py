"""Why there is no plan, as the three lines of an error."""

from __future__ import annotations

from collections.abc import Mapping

from planner.search.infeasible import Infeasible
from topology.base.counts import counted
from topology.base.errors import NoFeasiblePlanError


def no_plan(found: Infeasible) -> NoFeasiblePlanError:
    """Say why there is no plan, and the nearest change that gives one."""
    request = found.request
    what = f"no layout of {request.model.name} on {counted(request.cluster.num_gpus, 'GPU')} is possible"
    return NoFeasiblePlanError(what=what, cause=cause_of(found), fix=fix_of(found), answer=found)


def cause_of(found: Infeasible) -> str:
    """The broken rules in full, or how many layouts each rule rejected."""
    if found.violations:
        return "; ".join(f"{violation.rule}: {violation.message}" for violation in found.violations)
    return f"every layout was rejected: {rejected_text(found.rejected)}"


def rejected_text(rejected: Mapping[str, int]) -> str:
    """Rules by how many layouts they rejected, most first."""
    ordered = sorted(
        ((rule, count) for rule, count in rejected.items() if count), key=lambda item: (-item[1], item[0])
    )
    return ", ".join(f"{rule} {count:,}" for rule, count in ordered)


def fix_of(found: Infeasible) -> str:
    """The nearest change that helps, else the hint of the first rule."""
    if found.nearest:
        nearest = found.nearest[0]
        return f"{nearest.change} ({nearest.flag})" if nearest.flag else nearest.change
    if found.violations:
        return found.violations[0].hint
    return "use more GPUs, GPUs with more memory, or fewer pinned fields"
