"""How a row of measured runs says that its GPUs were split; degrees that are not stated are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.layout import AXIS_FIELDS, PLAIN_SCHEDULE, ParallelLayout, Recompute, Schedule
from costmodel.models.sizes import MOST_LAYERS
from costmodel.pipeline.schedules import RECORDS, schedule_named, usual_schedule
from costmodel.runs.cells import Row, UnsupportedRunError, count, yes_no_cell
from costmodel.runs.recipe import recipe_of
from costmodel.stack import stack_of_framework
from topology.base.errors import shown

LONGEST_COUNT = 6  # digits
END_SLOTS = 2  # some recipes count the embedding and the head as pipeline slots


def layout_of_row(row: Row) -> ParallelLayout:
    """How the row split its GPUs; degrees that are not stated are one, dp is what remains."""
    degrees: dict[str, Any] = {name: count(row, name, 1) for name in AXIS_FIELDS if name != "dp"}
    tp, pp, cp, ep = (degrees[name] for name in ("tp", "pp", "cp", "ep"))
    gpus = count(row, "num_gpus")
    dp = count(row, "dp", max(1, gpus // (tp * pp * cp)))
    if dp * tp * pp * cp != gpus:
        raise UnsupportedRunError(f"dp·cp·tp·pp = {dp}·{cp}·{tp}·{pp} = {dp * cp * tp * pp}, not {gpus} GPUs")
    if (dp * cp * tp) % ep:
        raise UnsupportedRunError(f"ep = {ep} does not divide dp·cp·tp = {dp * cp * tp}")
    virtual = count(row, "virtual_stages", _usual_chunks(row, pp))
    if pp * virtual > min(count(row, "num_layers") + END_SLOTS, MOST_LAYERS):
        raise UnsupportedRunError(f"pp·virtual_stages = {pp}·{virtual} stages for {row['num_layers']} layers")
    zero_stage = count(row, "zero_stage", 0)
    if zero_stage > 3:
        raise UnsupportedRunError(f"zero_stage = {zero_stage}, of which there are 0 to 3")
    return ParallelLayout(
        **degrees,
        dp=dp,
        virtual_stages=_virtual_stages(row, pp, virtual),
        microbatch_size=count(row, "microbatch_size", 1),
        schedule=_schedule(row, pp, virtual),
        zero_stage=zero_stage,
        shard_degree=_shard_degree(row, dp, cp),
        recompute=_recompute(row)[0],
        sequence_parallel=yes_no_cell(row, "sequence_parallel", default=False) and tp > 1,
    )


def chunk_layers_of(row: Row, layout: ParallelLayout) -> tuple[int, ...]:
    """Layers of every chunk in model order, if the column ``stage_layers`` states them (``7;8;8;6``)."""
    values = [cell.strip() for cell in row.get("stage_layers", "").split(";") if cell.strip()]
    if not values or layout.pp == 1:
        return ()
    chunks, layers = layout.pp * layout.virtual_stages, count(row, "num_layers")
    counted = tuple(int(cell) for cell in values if cell.isdecimal() and len(cell) < LONGEST_COUNT)
    if len(counted) != len(values) or len(values) != chunks or sum(counted) != layers:
        raise UnsupportedRunError(
            f"stage_layers = {shown(row['stage_layers'])} are not {layers} layers in {chunks} chunks"
        )
    return counted


def _shard_degree(row: Row, dp: int, cp: int) -> int | None:
    """Ranks that share the sharded state: so many of the dp ranks, each with its cp ranks; None for all."""
    shards = count(row, "shard_degree", dp)
    if shards in (dp, dp * cp):
        return None
    if dp % shards:
        raise UnsupportedRunError(f"shard_degree = {shards} does not divide dp = {dp}")
    return shards * cp


def _usual_chunks(row: Row, pp: int) -> int:
    """Chunks per rank where a row does not say: Megatron-Core recipes interleave layer by layer."""
    layers, stack = count(row, "num_layers"), stack_of_framework(row.get("framework", ""))
    interleaves = stack.supports.interleaves_by_default and not row.get("schedule") and layers % pp == 0
    return layers // pp if interleaves and pp > 1 else 1


def _schedule(row: Row, pp: int, virtual: int) -> Schedule:
    """The pipeline schedule a row names; several chunks per rank mean interleaving by default."""
    text = row.get("schedule", "").strip()
    schedule = schedule_named(text) if text else PLAIN_SCHEDULE
    if schedule is None:
        raise UnsupportedRunError(f"unknown schedule {shown(row['schedule'])}")
    if pp == 1:
        return PLAIN_SCHEDULE
    by_chunks = schedule in (usual_schedule(1), usual_schedule(2))
    return usual_schedule(virtual) if by_chunks else schedule


def _virtual_stages(row: Row, pp: int, virtual: int) -> int:
    """Chunks per rank; schedules that fold the model have their own number whatever the row says."""
    if pp == 1:
        return 1
    record = RECORDS[_schedule(row, pp, virtual)]
    return record.chunks if record.v_shaped and record.chunks else virtual


def _recompute(row: Row) -> tuple[Recompute, float]:
    """Recompute policy, and how many layers of a rank it names (infinite: all, or a share below one)."""
    text = row.get("recompute", "").lower()
    if not text and recipe_of(row).repeats:
        return "selective", 0.0
    if text.startswith("full:"):
        if not text[5:].isdecimal() or len(text) > len("full:9999"):
            raise UnsupportedRunError(f"recompute = {shown(text)} names no number of layers")
        return "full", float(text[5:])
    table: Mapping[str, tuple[Recompute, float]] = {
        "": ("none", 0.0),
        "none": ("none", 0.0),
        "selective": ("selective", 0.0),
        "selective-op": ("selective-op", 0.0),
        "selective-layer": ("full", 0.5),
        "full": ("full", float("inf")),
        "block": ("full", float("inf")),
        "uniform": ("full", float("inf")),
    }
    if text not in table:
        raise UnsupportedRunError(f"unknown recompute policy {shown(text)}")
    return table[text]


def recomputed_share(row: Row, layout: ParallelLayout) -> float:
    """Share of the layers recomputed in full: ``full:N`` names N layers of every pipeline rank."""
    policy, layers = _recompute(row)
    if policy != "full":
        return 0.0
    if layers < 1:
        return layers
    return min(1.0, layers * layout.pp / count(row, "num_layers"))
