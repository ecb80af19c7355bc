"""Measured serving runs: the CSV schema, and what each row says was deployed and asked.

One row is one benchmark of one configuration: mean time to first token and mean time per output token of a
closed loop. The schema is that of ``serving_runs.csv``; columns a user does not have may be left empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from costmodel.accuracy.cells import (
    MOST_IN_FLIGHT,
    Row,
    UnsupportedRunError,
    count,
    degree,
    number,
    require_cells,
)
from costmodel.accuracy.checkpoint_names import WEIGHTS_OF_NAME, checkpoint_model, checkpoint_weights
from costmodel.serving.deployment import Deployment, KvDtype, ServingLayout, Weights
from costmodel.serving.engine import ServingStack, at_version, serving_stack
from topology.base.errors import shortened
from topology.fabric.hierarchy import Hierarchy

MOST_SIMULATED = 100_000
"""Requests in flight times workers: about five seconds of events; the largest published row has 90,112."""
REQUIRED_SERVING_COLUMNS = ("model", "gpu", "engine", "input_tokens", "output_tokens", "ttft_s", "tpot_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal workers of one phase.

    How each is split, how many there are, and the requests each attention rank holds.
    """

    layout: ServingLayout
    workers: int = 1
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """One measured row. `decode` is the only pool of an aggregated run.

    A disaggregated one also has `prefill`.
    """

    name: str
    model: str
    gpu: str
    engine: str
    engine_version: str
    weights: Weights
    kv_dtype: KvDtype | None
    input_tokens: int
    output_tokens: int
    concurrency: int
    decode: Pool
    prefill: Pool | None
    ttft_s: float
    tpot_s: float

    @property
    def mode(self) -> str:
        """Whether prompts and outputs share GPUs."""
        return "disaggregated" if self.prefill else "aggregated"


def is_serving_schema(columns: set[str]) -> bool:
    """Whether a CSV header is that of serving runs."""
    return {"ttft_s", "tpot_s", "engine"} <= columns


def read_serving_run(row: Row, index: int) -> ServingRun:
    """Decode one row; raises `UnsupportedRunError` with the reason when it cannot be predicted."""
    require_cells(row, REQUIRED_SERVING_COLUMNS)
    disaggregated = row.get("mode", "").startswith("disagg")
    decode = _pool(row, "decode_") if disaggregated else Pool(layout=_aggregated_layout(row))
    prefill = _pool(row, "prefill_") if disaggregated else None
    kv = row.get("kv_dtype", "").lower()
    concurrency = _concurrency(row, decode, disaggregated=disaggregated)
    workers = decode.workers + (prefill.workers if prefill else 0)
    if concurrency > MOST_IN_FLIGHT or concurrency * workers > MOST_SIMULATED:
        raise UnsupportedRunError(
            f"{concurrency:,} requests in flight on {workers} workers are not simulated"
        )
    return ServingRun(
        name=row.get("id") or f"row {index}",
        model=row["model"],
        gpu=part_name(row["gpu"]),
        engine=row["engine"],
        engine_version=row.get("engine_version", ""),
        weights=_weights(row),
        kv_dtype="fp8" if kv.startswith("fp8") else ("bf16" if kv else None),
        input_tokens=count(row, "input_tokens"),
        output_tokens=count(row, "output_tokens"),
        concurrency=concurrency,
        decode=decode,
        prefill=prefill,
        ttft_s=number(row, "ttft_s"),
        tpot_s=number(row, "tpot_s"),
    )


def _weights(row: Row) -> Weights:
    """Precision of a row's weights; where no column says it, that of its checkpoint."""
    stated = row.get("precision", "").lower()
    if not stated:
        return checkpoint_weights(row["model"])
    if stated not in WEIGHTS_OF_NAME:
        raise UnsupportedRunError(f"unknown precision {shortened(stated)}")
    return WEIGHTS_OF_NAME[stated]


def part_name(name: str) -> str:
    """A GPU's name without the form factor that some tables add to rack-scale parts.

    >>> part_name("gb200_sxm"), part_name("gb300-nvl72"), part_name("a100_sxm"), part_name("h200_sxm")
    ('gb200', 'gb300', 'a100', 'h200-sxm')
    """
    plain = name.strip().lower().replace("_", "-")
    ambiguous = plain.startswith("gb") or plain == "a100-sxm"
    return re.sub(r"-(sxm|nvl\d+)$", "", plain) if ambiguous else plain


def _aggregated_layout(row: Row) -> ServingLayout:
    """Layout of an aggregated row.

    Some published tables multiply the tensor- and the expert-parallel degree of one and the same group of
    GPUs, so that tp = moe_tp·moe_ep = n² (or attention_dp when attention is data parallel). The row's name
    tells, where it states the degrees (``tp4_ep4``); otherwise a square larger than a scale-up domain of
    eight is read as its root.
    """
    tp, dp = degree(row, "tp"), degree(row, "attention_dp")
    expert_tp, ep = degree(row, "moe_tp"), degree(row, "moe_ep")
    named = re.search(r"_tp(\d{1,4})(?:_0)?_ep(\d{1,4})(?:_0)?_", row.get("id", ""))
    gpus = tp * dp
    squared = (
        expert_tp == ep > 1 and gpus == ep * ep and (gpus > SCALEUP_GPUS or (named and int(named[1]) == ep))
    )
    if squared:
        tp, dp = (ep, 1) if dp == 1 else (1, ep)
    if (tp * dp) % ep:
        raise UnsupportedRunError(f"moe_ep = {ep} does not divide tp·attention_dp = {tp * dp}")
    return ServingLayout(tp=tp, pp=degree(row, "pp"), attention_dp=dp, ep=ep)


SCALEUP_GPUS = 8


def _pool(row: Row, phase: str) -> Pool:
    """Workers of one phase of a disaggregated row.

    Data-parallel attention with whole experts means expert parallel.
    """
    tp, dp, ep = (
        degree(row, phase + "tp"),
        degree(row, phase + "attention_dp"),
        degree(row, phase + "moe_ep"),
    )
    if dp > 1 and ep < dp:
        ep = dp
    if (tp * dp) % ep:
        ep = 1
    return Pool(
        layout=ServingLayout(tp=tp, attention_dp=dp, ep=ep),
        workers=degree(row, phase + "workers"),
        batch=count(row, phase + "batch") if row.get(phase + "batch") else None,
    )


def _concurrency(row: Row, decode: Pool, *, disaggregated: bool) -> int:
    """Requests in flight: stated, or the decode pool's batch over all its ranks, or ``_c64_`` in the name.

    Published tables state the concurrency of one attention rank of an aggregated run: every rank of a
    data-parallel attention is a replica of it.
    """
    if row.get("concurrency"):
        ranks = 1 if disaggregated else degree(row, "attention_dp")
        return count(row, "concurrency") * ranks
    if decode.batch:
        return decode.batch * decode.workers * decode.layout.attention_dp
    named = re.search(r"_c(\d{1,5})_", row.get("id", ""))
    if named:
        return int(named[1])
    raise UnsupportedRunError("no concurrency")


def deployment_of_run(
    run: ServingRun, pool: Pool, hierarchy: Hierarchy, stack: ServingStack | None = None
) -> Deployment:
    """Give the deployment of one pool of a run on this fabric.

    `stack` takes the place of the shipped profile of the run's engine. Where the row does not say, the cache
    is what the engine makes of the checkpoint.
    """
    stack = at_version(stack or serving_stack(run.engine), run.engine_version)
    eight_bit = stack.eight_bit_cache and run.weights in ("fp8", "fp4")
    return Deployment(
        model=checkpoint_model(run.model),
        hierarchy=hierarchy,
        layout=pool.layout,
        stack=stack,
        weights=run.weights,
        kv_dtype=run.kv_dtype or ("fp8" if eight_bit else "bf16"),
    )
