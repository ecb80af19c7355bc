"""Settings that decide memory, that no file states and no contract knows: no verdict may rest on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from costmodel.layout import RECOMPUTES, ParallelLayout
from costmodel.stack import SoftwareStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """One setting that decides memory and that nobody states.

    Attributes:
        field: Its canonical field (`planner.engines.fields`), as ``layout.zero_stage``.
        taken: The value that is priced.
        leanest: The value with which the job takes least memory; None where nothing bounds it.
        why: Why it is not known.
    """

    field: str
    taken: Any
    leanest: Any
    why: str

    @property
    def words(self) -> str:
        """It in a line."""
        if self.taken is None:
            return self.why
        return f"{self.field.rpartition('.')[2]} {self.taken}: {self.why}"


def leanest_value(field: str, layout: ParallelLayout, stack: SoftwareStack) -> Any:
    """The value of a field of a layout with which a GPU keeps least; None where nothing bounds it."""
    supports = stack.supports
    stages = supports.zero_stages_with_pipeline if layout.pp > 1 else supports.zero_stages
    offered = [policy for policy in RECOMPUTES if policy in supports.recomputes]
    bounds: dict[str, Any] = {
        "layout.zero_stage": max(stages, default=layout.zero_stage) if layout.replicas > 1 else 0,
        "layout.recompute": "full" if "full" in offered else layout.recompute,
        "layout.sequence_parallel": layout.tp > 1,
        "layout.expert_tp": layout.tp,
        "layout.microbatch_size": 1,
    }
    return bounds.get(field)


def with_leanest(layout: ParallelLayout, unsettled: Iterable[Unsettled]) -> ParallelLayout | None:
    """A layout with every unsettled field at its leanest; None where nothing bounds one of them."""
    fields = tuple(unsettled)
    if any(field.leanest is None for field in fields):
        return None
    parts = {
        field.field.removeprefix("layout."): field.leanest for field in fields if field.field[:7] == "layout."
    }
    return replace(layout, **parts)
