"""Best-first over cores by admissible bound, then over their variants, then CP-SAT on what survives.

Cores enter in the order of their bounds, in batches that grow. A batch is expanded into variants, bounded
rank by rank, and its best rows get a split from the dynamic program, which tightens the incumbent for all
that follow. When no core's bound can beat the incumbent, every layout whose bound still could is decided by
CP-SAT. So the result is optimal in the space of `planner.space`, and the counts say why each other layout
is not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.calibration import Calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.model import active_parameter_count, embedding_parameters
from planner.bounds import ROUNDING, Priced, core_bounds, price, smallest_memory, variant_bounds
from planner.candidates import Candidate, Choice, candidate, choice, decide, seed_choice
from planner.goals import Goal
from planner.space import cores, variants
from planner.violation import Setting

Vector = npt.NDArray[np.float64]
Progress = Callable[[str], None]

FIRST_BATCH = 32
"""Cores expanded at first; later batches double."""

ROWS_AT_ONCE = 100_000
"""Variants priced at once, to bound memory."""

FEW_GPUS = 64
"""Clusters up to this size need no coarse search before the full one."""

POOL_MARGIN = 1.2
"""Layouts up to this much above the incumbent are remembered as possible alternatives."""

TRAINING_FLOP_PER_PARAMETER = 6
"""Forward 2 and backward 4 multiply-adds' flop per parameter and token: no kernel runs above the peak."""


@dataclass(slots=True)
class Search:
    """What is asked, and what is known so far."""

    setting: Setting
    goal: Goal
    pins: Mapping[str, Any]
    cal: Calibration
    progress: Progress
    score: float = math.inf
    best: Choice | None = None
    bound: float = math.inf
    rejected: Counter[str] = field(default_factory=Counter)
    survivors: dict[ParallelLayout, tuple[float, Candidate]] = field(default_factory=dict)
    pool: dict[tuple[int, ...], tuple[float, ParallelLayout]] = field(default_factory=dict)
    solved: int = 0
    proven: bool = True

    @property
    def beat(self) -> float:
        """Score below which a layout would improve on the incumbent."""
        return self.score * (1 - ROUNDING)

    def offer(self, found: Choice) -> None:
        """Make a choice the incumbent if it is better."""
        score = float(self.goal.score(found.layout.num_gpus, found.step_time_s))
        if score < self.beat:
            self.score, self.best = score, found


def run(search: Search) -> None:
    """Search the whole space; the outcome stands in `search`."""
    if search.setting.cluster.num_gpus > FEW_GPUS:
        search.progress("looking for a first plan")
        _coarse(search)
    search.progress("enumerating layouts")
    table = _all_cores(search)
    search.progress(f"bounding {len(table):,} combinations of degrees")
    for batch in _by_bound(search, table):
        _expand(search, batch)
    search.progress(f"deciding {len(search.survivors)} layouts with the solver")
    _solve(search)


def _coarse(search: Search) -> None:
    """Find an incumbent among usual choices on more than half of the GPUs; it proves nothing."""
    least = search.setting.cluster.num_gpus // 2 + 1
    table, _ = cores(search.setting, search.pins, least_gpus=least, coarse=True)
    table = _fitting(search.setting, table)
    if len(table) == 0:
        return
    bounds = search.goal.score(table.num_gpus, core_bounds(search.setting, table, search.cal, placed=False))
    size = FIRST_BATCH
    while search.best is None and size < 64 * FIRST_BATCH:
        _expand(search, table.take(np.argsort(bounds, kind="stable")[:size]))
        size *= 4
    search.rejected.clear()


def _fitting(setting: Setting, table: LayoutTable) -> LayoutTable:
    """Cores with some variant that might fit."""
    return table.take(smallest_memory(setting, table) <= setting.memory_budget_bytes * (1 + ROUNDING))


def _all_cores(search: Search) -> LayoutTable:
    """Every core that might fit and use GPUs enough to beat the incumbent."""
    table, rejected = cores(search.setting, search.pins, least_gpus=_least_gpus(search))
    search.rejected.update(rejected)
    if math.isfinite(search.score):
        loose = search.goal.score(
            table.num_gpus, core_bounds(search.setting, table, search.cal, placed=False)
        )
        search.rejected["compute-bound"] += int((loose >= search.beat).sum())
        table = table.take(loose < search.beat)
    kept = _fitting(search.setting, table)
    search.rejected["memory"] += len(table) - len(kept)
    return kept


def _least_gpus(search: Search) -> float:
    """GPUs below which even peak flop/s misses the incumbent; no limit for goals that save GPUs."""
    if not math.isfinite(search.score) or search.goal.objective not in ("step-time", "memory"):
        return 1.0
    s = search.setting
    parameters = active_parameter_count(s.model) - embedding_parameters(s.model)
    flop = TRAINING_FLOP_PER_PARAMETER * parameters * s.job.tokens_per_step
    fastest = max(s.cluster.gpu.peak_flop_per_s.values())
    return flop / (fastest * search.score)


def _by_bound(search: Search, table: LayoutTable) -> Any:
    """Batches of cores in the order of their bounds, while they can beat the incumbent."""
    if len(table) == 0:
        return
    bounds = core_bounds(search.setting, table, search.cal, placed=True)
    bounds = search.goal.score(table.num_gpus, bounds)
    order = np.argsort(bounds, kind="stable")
    start, size = 0, FIRST_BATCH
    while start < len(order):
        batch = order[start : start + size]
        batch = batch[bounds[batch] < search.beat]
        if len(batch) == 0:
            break
        yield table.take(batch)
        start, size = start + len(batch), 2 * size
    search.rejected["core-bound"] += len(order) - start


def _expand(search: Search, table: LayoutTable) -> None:
    """Expand cores into variants and look at the promising ones, a bounded number at a time."""
    found, rejected = variants(search.setting, search.pins, table)
    search.rejected.update(rejected)
    for start in range(0, len(found), ROWS_AT_ONCE):
        part = found.take(np.arange(start, min(start + ROWS_AT_ONCE, len(found))))
        _look(search, price(search.setting, part, search.cal))


def _look(search: Search, priced: Priced) -> None:
    """Bound rows rank by rank, then split the best ones until no bound can beat the incumbent."""
    num_gpus = priced.table.num_gpus
    cutoff_s = search.goal.cutoff_s(num_gpus, search.score * POOL_MARGIN)
    bounds = search.goal.score(num_gpus, variant_bounds(search.setting, priced, cutoff_s))
    reason = "stage-bound" if math.isfinite(search.score) else "memory"
    search.rejected[reason] += int((~np.isfinite(bounds)).sum())
    order = np.argsort(bounds, kind="stable")
    hopeful = order[np.isfinite(bounds[order])]
    if len(hopeful):
        _remember(search, priced.table, hopeful, bounds)
    for position, row in enumerate(hopeful):
        if bounds[row] >= search.beat:
            search.rejected["stage-bound"] += len(hopeful) - position
            break
        _split(search, priced, int(row), float(bounds[row]))


def _split(search: Search, priced: Priced, row: int, bound: float) -> None:
    """Split one layout with the dynamic program; it survives if its bound can still beat the incumbent."""
    found = candidate(search.setting, priced, row)
    G = found.layout.num_gpus
    bound = max(bound, float(search.goal.score(G, found.known.bound_s)))
    seed = seed_choice(found)
    survives = bound < search.beat
    if seed is not None:
        search.offer(seed)
    if survives:
        search.survivors[found.layout] = (bound, found)
    else:
        search.rejected["split-bound"] += 1


def _remember(search: Search, table: LayoutTable, rows: npt.NDArray[np.intp], bounds: Vector) -> None:
    """Keep the best row of every combination of degrees; `rows` come best first."""
    shapes = np.stack([column[rows] for column in (table.tp, table.pp, table.cp, table.ep)], axis=1)
    _, first = np.unique(shapes, axis=0, return_index=True)
    for position in np.sort(first):
        key, score = tuple(int(degree) for degree in shapes[position]), float(bounds[rows[position]])
        if key not in search.pool or score < search.pool[key][0]:
            search.pool[key] = (score, table.layout(int(rows[position])))


def _solve(search: Search) -> None:
    """Decide every layout whose bound can still win, and the incumbent's own, best bound first."""
    incumbent = search.best
    pending = sorted(search.survivors.values(), key=lambda item: item[0])
    for bound, found in pending:
        own = incumbent is not None and _same(found, incumbent)
        if bound >= search.beat and not own:
            search.rejected["split-bound"] += 1
            continue
        search.solved += 1
        cutoff_s = math.inf if own else float(search.goal.cutoff_s(found.layout.num_gpus, search.beat))
        solution = decide(found, cutoff_s)
        search.proven &= solution.status != "best-found" and solution.bound_s > 0
        search.bound = min(search.bound, float(search.goal.score(found.layout.num_gpus, solution.bound_s)))
        if solution.split is not None:
            search.offer(choice(found.layout, found.costs, solution.split, solution.step_time_s))
    search.bound = min(search.bound, search.score)


def _same(found: Candidate, incumbent: Choice) -> bool:
    """Whether the incumbent is a split of this layout (recomputing nothing has another name)."""
    return found.layout in (incumbent.layout, _as_full(incumbent.layout))


def _as_full(layout: ParallelLayout) -> ParallelLayout:
    from dataclasses import replace

    return replace(layout, recompute="full")
