"""A ladder as text: how far one knob goes before a job no longer fits, and which switch takes it furthest."""

from __future__ import annotations

from app.errors import ANSWERED, NO_FEASIBLE_PLAN
from app.quantities import format_count
from app.reports.answer import Answer, Table, json_text
from costmodel.layout import layout_words
from costmodel.memory.fit import DOES_NOT_FIT_ABOVE, FITS_BELOW, fit_of
from planner.analysis.ladder import Eased, Ladder, Rung
from topology.base.units import format_bytes, format_chance, format_seconds

WORDS = {
    "length": ("sequence length", "tokens"),
    "microbatch": ("microbatch", "sequences a GPU"),
    "rank": ("adapter rank", "rank"),
    "gpus": ("GPUs", "GPUs"),
}


def ladder_answer(ladder: Ladder, name: str) -> Answer:
    """Everything `plan ladder` says: the last value that fits, rungs, switches.

    Args:
        ladder: What was found.
        name: Of the model.
    """
    what, unit = WORDS[ladder.knob]
    rungs = sorted({rung.value: rung for rung in (*ladder.rungs, *_last(ladder))}.values(), key=_place)
    table = Table(
        title="Rungs",
        columns=(unit, "verdict", "OOM", "peak memory", "of", "step time", "tokens/s"),
        rows=tuple(_row(rung) for rung in (reversed(rungs) if ladder.knob == "gpus" else rungs)),
        align="rlrrrrr",
        note=f"{fit_of(0.0)}: a chance below {100 * FITS_BELOW:.0f} %; "
        f"{fit_of(1.0)}: above {100 * DOES_NOT_FIT_ABOVE:.0f} %",
    )
    switches = Table(
        title="One switch more",
        columns=("set", f"{'fewest' if ladder.knob == 'gpus' else 'largest'} {unit}", *table.columns[2:]),
        rows=tuple((each.flag, *_cells(each)) for each in ladder.eased),
        align="lrrrrrr",
    )
    return Answer(
        headline=f"{name}: {_headline(ladder, what)}",
        sections=(table, *((switches,) if ladder.eased else ())),
        document=lambda: json_text(ladder.document()),
        records=tuple(rung.row() for rung in rungs),
        exit_code=ANSWERED if ladder.last or ladder.eased else NO_FEASIBLE_PLAN,
    )


def _headline(ladder: Ladder, what: str) -> str:
    """The last value that fits with the layout that is held, or why none does, and what takes it furthest."""
    best = ladder.eased[0] if ladder.eased else None
    more = f"; {best.flag} takes it to {best.rung.value:,}" if best else ""
    if ladder.refused:
        return f"refused at the first {what}, {ladder.rungs[0].value:,}: {ladder.refused}{more}"
    held = f" with {layout_words(ladder.layout)}" if ladder.layout else ""
    if ladder.last is None:
        return f"no {what} that was tried leaves room{held}{more}"
    if ladder.knob == "gpus":
        return f"the fewest GPUs tried that hold it are {ladder.last.value:,}{held}{more}"
    return f"the largest {what} that fits is {ladder.last.value:,}{held}{more}"


def _last(ladder: Ladder) -> tuple[Rung, ...]:
    return () if ladder.last is None else (ladder.last,)


def _place(rung: Rung) -> int:
    """Where a rung stands."""
    return rung.value


def _cells(each: Eased) -> tuple[str, ...]:
    """A switch's rung without its verdict: it fits."""
    value, _, *rest = _row(each.rung)
    return (value, *rest)


def _row(rung: Rung) -> tuple[str, ...]:
    """One rung as cells; without a plan, why there is none."""
    row = rung.row()
    if rung.plan is None:
        return (f"{rung.value:,}", f"refused: {rung.reason}"[:60], *("–",) * 5)
    return (
        f"{rung.value:,}",
        rung.verdict,
        format_chance(row["out_of_memory_chance"]),
        format_bytes(row["peak_memory_bytes"]),
        format_bytes(row["capacity_bytes"]),
        format_seconds(row["step_time_s"]),
        format_count(row["tokens_per_s"]),
    )
