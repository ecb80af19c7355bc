"""The layout guide: proven layouts of usual models on usual GPUs, searched once and kept with their date.

`tools/write_recipes.py` fills the table; a row holds the flags that ask for it anew.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from app.quantities import format_percent
from app.reports.answer import NO_BREAK, Answer, Table, json_text
from app.reports.layout_words import plan_words
from planner.questions.flags import Flags
from topology.base.files import read_text
from topology.base.units import format_chance, format_seconds, format_seconds_band, three_digits

TABLE: Final = Path(__file__).with_name("recipes.csv")
COLUMNS: Final = (
    "model", "gpu", "num_gpus", "batch", "layout", "step_time_s", "lower_s", "upper_s", "mfu",
    "tokens_per_s_per_gpu", "peak_memory_gib", "out_of_memory_chance", "fit", "status", "reason", "as_of",
)  # fmt: skip
_DIGITS: Final = 6


def recipe(flags: Flags) -> dict[str, str]:
    """Search one cell of the guide.

    Args:
        flags: Model, kind and number of GPUs, and batch; the rest as `plan` takes it.
    """
    from costmodel.kernels.saved import calibration_for
    from costmodel.memory.fit import fit_of
    from planner.questions.training import understand
    from planner.search.infeasible import Infeasible, cause_of
    from planner.search.search import search
    from topology.base.units import GIB

    request = understand(flags).request
    row = {"model": request.model.name, "gpu": flags.gpu or "", "num_gpus": str(request.cluster.num_gpus)}
    row["batch"] = flags.global_batch_size or ""
    plan = search(request, calibration_for(request.cluster), or_tight=False)
    if isinstance(plan, Infeasible):
        return {**row, "status": "infeasible", "reason": cause_of(plan).partition(":")[0]}
    costs = plan.estimate
    numbers = {
        "step_time_s": costs.step_time_s,
        "lower_s": costs.lower_s,
        "upper_s": costs.upper_s,
        "mfu": costs.mfu,
        "tokens_per_s_per_gpu": costs.tokens_per_s_per_gpu,
        "peak_memory_gib": costs.peak_memory_bytes / GIB,
        "out_of_memory_chance": costs.out_of_memory_chance,
    }
    return {
        **row,
        "layout": plan_words(plan),
        **{name: f"{value:.{_DIGITS}g}" for name, value in numbers.items()},
        "fit": fit_of(costs.out_of_memory_chance),
        "status": plan.optimality.status,
    }


@lru_cache(maxsize=1)
def recipes() -> tuple[dict[str, str], ...]:
    """Every row of the table."""
    return tuple(csv.DictReader(io.StringIO(read_text(TABLE))))


def command_of(row: dict[str, str]) -> str:
    """The command line that searches a row anew."""
    return f"plan --model {row['model']} --gpu {row['gpu']} --gpus {row['num_gpus']} --batch {row['batch']}"


def recipes_answer(rows: Sequence[dict[str, str]]) -> Answer:
    """Rows of the guide as a table; the command of the first says how any is asked anew."""
    cells = tuple(_cells(row) for row in rows)
    dates = sorted({row["as_of"] for row in rows})
    anew = command_of(rows[0]).replace(" ", NO_BREAK)
    note = f"searched {' to '.join(dict.fromkeys((dates[0], dates[-1])))}; anew: {anew}"
    table = Table(
        title="",
        columns=("model", "GPU", "GPUs", "tokens", "layout", "step", "80 % band", "MFU", "GiB", "OOM"),
        rows=cells, align="llrrlrrrrr", note=note,
    )  # fmt: skip
    records: tuple[dict[str, Any], ...] = tuple({**row, "command": command_of(row)} for row in rows)
    return Answer(
        headline=f"{len(rows)} layouts, each proven the fastest under the cost model, or no layout",
        sections=(table,), document=lambda: json_text({"recipes": list(records)}), records=records,
    )  # fmt: skip


def _cells(row: dict[str, str]) -> tuple[str, ...]:
    """A row as people read it."""
    asked = (row["model"], row["gpu"], f"{int(row['num_gpus']):,}", row["batch"].removesuffix("tok"))
    if not row["step_time_s"]:
        return (*asked, f"none: {row['reason']}", *("–",) * 5)
    step, low, high = (float(row[name]) for name in ("step_time_s", "lower_s", "upper_s"))
    return (
        *asked, row["layout"], format_seconds(step), format_seconds_band(step, low, high),
        format_percent(float(row["mfu"])), three_digits(float(row["peak_memory_gib"])),
        format_chance(float(row["out_of_memory_chance"])),
    )  # fmt: skip
