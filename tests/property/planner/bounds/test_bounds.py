"""Every bound of the funnel against the exact score of every layout of random small spaces.

A layout's exact step is the least over all its splits that fit, by `tests.oracle.planner.search.plain_enumeration`. What the
funnel derives for the cut, the core, the placement, the pipeline and the ranks it came from may not be above.
"""

import numpy as np
import numpy.typing as npt
import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, num_microbatches
from planner.bounds.funnel import (
    columns_of,
    core_times,
    cut_times,
    least_bubble,
    placed_times,
    smallest_bubble,
    smallest_memory,
    step_bound,
)
from planner.bounds.priced import price
from planner.bounds.ranks import plain_bounds, variant_bounds
from planner.plan import PlanRequest
from planner.problem import Setting
from planner.rules.check import parse_pins
from planner.space.degrees import cores
from planner.space.unfold import eased, pipelines, placements, variants
from tests.oracle.planner.search.plain_enumeration import exact_steps, setting_of
from tests.oracle.planner.search.random_requests import case_of

CAL = load_calibration()
SEED, GROUPS, CASES_OF_GROUP, MOST_LAYOUTS = 21, 6, 20, 120
SLACK = 1 + 1e-9
CORE = ("tp", "cp", "pp", "dp", "microbatch_size", "ep", "expert_tp", "sequence_parallel")
PLACEMENT = (*CORE, "axis_order", "cp_kind")
PIPELINE = (*PLACEMENT, "schedule", "virtual_stages")
Vector = npt.NDArray[np.float64]


def index_of(rows: LayoutTable, sources: LayoutTable, names: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """For every row, the source that it was unfolded from."""
    keys = {key: i for i, key in enumerate(zip(*(getattr(sources, n).tolist() for n in names), strict=True))}
    return np.array([keys[key] for key in zip(*(getattr(rows, n).tolist() for n in names), strict=True)])


def bounds_of(s: Setting, request: PlanRequest) -> tuple[LayoutTable, dict[str, Vector], Vector]:
    """All layouts, what each stage of the funnel bounds them by, and the least memory of their cores."""
    pins = parse_pins(request.pins)
    core, _ = cores(s, pins)
    placed, _ = placements(s, pins, core)
    pipeline, placement, _ = pipelines(s, pins, placed)
    usual, _ = variants(s, pins, pipeline)
    table = LayoutTable.join([usual, eased(s, pins, usual)[0]])
    alone = {"pp": 1 + 0 * core.pp, "dp": 1 + 0 * core.dp}
    times = placed_times(s, placed, CAL)

    def step(of: LayoutTable, seconds: object, beta: Vector) -> Vector:
        return step_bound(s, seconds, columns_of(of), num_microbatches(of, s.job), beta)  # type: ignore[arg-type]

    of_core = index_of(table, core, CORE)
    priced = price(s, table, CAL)
    plain = plain_bounds(s, priced)
    cut = LayoutTable(**{n: alone.get(n, getattr(core, n)) for n in LayoutTable.__dataclass_fields__})
    bounds = {
        "cut": step(core, cut_times(s, cut, CAL), smallest_bubble(s, pins, core.pp))[of_core],
        "core": step(core, core_times(s, core, CAL), smallest_bubble(s, pins, core.pp))[of_core],
        "placement": step(placed, times, smallest_bubble(s, pins, placed.pp))[
            index_of(table, placed, PLACEMENT)
        ],
        "pipeline": step(pipeline, times.take(placement), least_bubble(pipeline))[
            index_of(table, pipeline, PIPELINE)
        ],
        "plain": plain,
        "ranks": variant_bounds(s, priced, plain, np.full(len(table), np.inf)),
    }
    return table, bounds, smallest_memory(s, core)[of_core]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_layout_beats_a_bound_of_what_it_was_unfolded_from(group: int) -> None:
    """Whatever fits is no faster than any bound of it, and its core was not said to need more memory."""
    checked, wrong = 0, []
    for number in range(group * CASES_OF_GROUP, (group + 1) * CASES_OF_GROUP):
        drawn = case_of(SEED, number, CAL, most_layouts=MOST_LAYOUTS)
        if drawn is None:
            continue
        request, _ = drawn
        s = setting_of(request)
        table, bounds, memory = bounds_of(s, request)
        exact = exact_steps(s, [table.layout(row) for row in range(len(table))], CAL)
        fits = np.isfinite(exact)
        checked += int(fits.sum())
        names = [name for name, bound in bounds.items() if np.any(bound[fits] > exact[fits] * SLACK)]
        names += ["memory"] if np.any(memory[fits] > s.memory_budget_bytes * SLACK) else []
        wrong += [(number, name) for name in names]
    assert wrong == []
    assert checked > CASES_OF_GROUP
