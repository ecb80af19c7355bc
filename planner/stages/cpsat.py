"""A door to OR-Tools CP-SAT that opens quickly.

`ortools.sat.python.cp_model` imports pandas, which takes longer than most plans; the solver itself and its
text format do not need it. So a model is written here in the solver's own text format and handed over.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from topology.base.units import MINUTE

Variable = int
"""Index of a variable; ~index is the negation of a boolean."""


@dataclass(slots=True)
class IntegerModel:
    """A linear model over integers under construction: variables, constraints, one objective to minimise."""

    _lines: list[str] = field(default_factory=list)
    _bounds: list[tuple[int, int]] = field(default_factory=list)
    _objective: str = ""
    _hint: dict[Variable, int] = field(default_factory=dict)

    def variable(self, low: int, high: int) -> Variable:
        """Add an integer variable within low…high."""
        self._bounds.append((low, high))
        return len(self._bounds) - 1

    def boolean(self) -> Variable:
        """Add a variable that is 0 or 1."""
        return self.variable(0, 1)

    def require(
        self,
        terms: Mapping[Variable, int],
        low: int | None,
        high: int | None,
        *,
        only_if: Iterable[Variable] = (),
    ) -> None:
        """Require low ≤ Σ coefficient·variable ≤ high; `only_if` literals must hold for it to bind."""
        literals = "".join(f"enforcement_literal:{literal} " for literal in only_if)
        lowest, highest = -(2**62) if low is None else low, 2**62 if high is None else high
        self._lines.append(
            f"constraints{{{literals}linear{{{_terms(terms)} domain:{lowest} domain:{highest}}}}}"
        )

    def minimise(self, terms: Mapping[Variable, int]) -> None:
        """Set the objective Σ coefficient·variable."""
        self._objective = f"objective{{{_terms(terms)}}}"

    def hint(self, values: Mapping[Variable, int]) -> None:
        """Suggest a solution to start from."""
        self._hint.update(values)

    def text(self) -> str:
        """Write the model in the text format of `CpModelProto`."""
        variables = [f"variables{{domain:{low} domain:{high}}}" for low, high in self._bounds]
        hint = "".join(f"vars:{variable} values:{value} " for variable, value in sorted(self._hint.items()))
        return "\n".join(
            [*variables, *self._lines, self._objective, f"solution_hint{{{hint}}}" if hint else ""]
        )


MOST_SECONDS = 600.0
"""Clock limit of one solve, a last resort: what the solver does not count as work could go on for ever.

The limit of work is reached in half a minute, so that only that decides, on a busy machine too.
"""
WORK_ROUNDING = 1e-3
"""Share of its limit of work that a solver may stop short of."""
STOPPED_BY_CLOCK = (
    f"the solver was stopped by the clock, after {MOST_SECONDS / MINUTE:g} min, not by its limit of work: "
    "another machine may find a better split"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverResult:
    """What the solver found: values of every variable (none when infeasible) and a bound.

    `by_clock` says that `MOST_SECONDS` ended it: the answer is no more than this machine came to.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    values: tuple[int, ...] = ()
    objective: int = 0
    bound: int = 0
    by_clock: bool = False


def solve(model: IntegerModel, *, work_limit: float) -> SolverResult:
    """Solve a model deterministically: one worker, a fixed seed, a limit counted in work.

    The search raises the lower bound by whole subtrees. The default one may raise it by a single unit per
    conflict, which never ends where the objective counts in billions, and hardly counts as work.

    Args:
        model: what to solve.
        work_limit: deterministic time of CP-SAT, close to seconds on one combination.
    """
    engine: Any = importlib.import_module("ortools.sat.python.cp_model_helper")

    proto = engine.CpModelProto()
    if not proto.parse_text_format(model.text()):
        raise ValueError("the solver refused the text of a model")
    parameters = engine.SatParameters()
    parameters.num_workers = 1
    parameters.random_seed = 1
    parameters.max_deterministic_time = work_limit
    parameters.optimize_with_lb_tree_search = True
    parameters.max_time_in_seconds = MOST_SECONDS
    parameters.catch_sigint_signal = False  # else Ctrl-C kills without a word after the first solve
    wrapper = engine.SolveWrapper()
    wrapper.set_parameters(parameters)
    response = wrapper.solve(proto)
    names: dict[str, Literal["optimal", "feasible", "infeasible", "unknown"]] = {
        "OPTIMAL": "optimal",
        "FEASIBLE": "feasible",
        "INFEASIBLE": "infeasible",
    }
    return SolverResult(
        status=names.get(response.status.name, "unknown"),
        values=tuple(response.solution),
        objective=round(response.objective_value),
        bound=round(response.best_objective_bound),
        by_clock=response.status.name not in ("OPTIMAL", "INFEASIBLE")
        and response.deterministic_time < work_limit * (1 - WORK_ROUNDING),
    )


def _terms(terms: Mapping[Variable, int]) -> str:
    return " ".join(
        f"vars:{variable} coeffs:{coefficient}" for variable, coefficient in terms.items() if coefficient
    )
