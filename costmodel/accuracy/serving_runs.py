"""Measured serving runs: the CSV schema, and what each row says was deployed and asked.

One row is one benchmark of one configuration: mean time to first token and mean time per output token of a
closed loop. The schema is that of ``serving_runs.csv``; columns a user does not have may be left empty. Only
columns say something: neither an id nor the lengths of requests do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from costmodel.accuracy.checkpoint_names import WEIGHTS_OF_NAME, checkpoint_model, checkpoint_weights
from costmodel.runs.cells import (
    MOST_IN_FLIGHT,
    Row,
    UnsupportedRunError,
    count,
    degree,
    number_cell,
    require_cells,
)
from costmodel.runs.model_names import refuse_hybrid
from costmodel.serving.benchmarks import (
    benchmark_named,
    benchmark_of_client,
    benchmark_of_table,
    served_checkpoint,
    started_server,
    tokens_read,
)
from costmodel.serving.deployment import Deployment, KvDtype, ServingLayout, Weights
from costmodel.serving.engine import ServingStack, at_version, serving_stack
from topology.base.errors import shortened, shown
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.datasheets import gpu_sheets

MOST_SIMULATED = 100_000
"""Requests in flight times workers: about five seconds of events; the largest published row has 90,112."""
_COMPARED = "mean ttft_s and tpot_s"
_OTHER_METRIC = re.compile(r"throughput|tokens?_per_s|per_second|goodput|(ttft|tpot|itl|e2e).*(p\d\d|median)")
REQUIRED_SERVING_COLUMNS = ("model", "gpu", "engine", "input_tokens", "output_tokens", "ttft_s", "tpot_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPool:
    """Equal workers of one phase.

    How each is split, how many there are, the requests each attention rank holds, and those that a worker
    runs at most, where its recipe says.
    """

    layout: ServingLayout
    workers: int = 1
    batch: int | None = None
    most_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """One measured row. `decode` is the only pool of an aggregated run.

    A disaggregated one also has `prefill`. `requests` are those that the client sent; None where that is not
    stated, and ten for each in flight. `token_budget` is that of a step of an attention rank and `max_batch`
    the requests that a replica runs at once, as launched, `prompt_graph_tokens` the tokens of the largest
    captured step with prompts; None where no source says them. `input_tokens` are what the server reads.
    `run_date` is the day, as 2026-05-18, empty where no source says it.
    """

    name: str
    model: str
    gpu: str
    engine: str
    engine_version: str
    benchmark: str
    lowest_length_share: float | None
    weights: Weights
    kv_dtype: KvDtype | None
    input_tokens: int
    output_tokens: int
    concurrency: int
    decode: MeasuredPool
    prefill: MeasuredPool | None
    ttft_s: float
    tpot_s: float
    requests: int | None = None
    token_budget: int | None = None
    max_batch: int | None = None
    memory_fraction: float | None = None
    prompt_graph_tokens: int | None = None
    run_date: str = ""

    @property
    def mode(self) -> str:
        """Whether prompts and outputs share GPUs."""
        return "disaggregated" if self.prefill else "aggregated"


def is_serving_schema(columns: set[str]) -> bool:
    """Whether a CSV header is that of serving runs, whatever of them was measured."""
    return "engine" in columns and bool(
        {"ttft_s", "tpot_s"} <= columns or {"input_tokens", "output_tokens"} <= columns
    )


def read_serving_run(row: Row, index: int) -> ServingRun:
    """Decode one row; raises `UnsupportedRunError` with the reason when it cannot be predicted."""
    _require_latencies(row)
    require_cells(row, REQUIRED_SERVING_COLUMNS)
    _require_trust(row)
    refuse_hybrid(row)
    disaggregated = _is_disaggregated(row)
    if disaggregated:
        _require_pools(row)
    decode = _pool(row, "decode_" if disaggregated else "")
    prefill = _pool(row, "prefill_") if disaggregated else None
    kv = row.get("kv_dtype", "").lower()
    concurrency = _concurrency(row, decode)
    workers = decode.workers + (prefill.workers if prefill else 0)
    benchmark = row.get("benchmark", "") or _benchmark(row)
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
        benchmark=benchmark,
        lowest_length_share=_lowest_share(row),
        weights=_weights(row),
        kv_dtype="fp8" if kv.startswith("fp8") else ("bf16" if kv else None),
        input_tokens=tokens_read(
            benchmark_named(benchmark),
            row["engine"],
            row.get("engine_version", ""),
            checkpoint_model(row["model"]).name,
            row.get("run_date", ""),
            count(row, "input_tokens"),
        ),
        output_tokens=count(row, "output_tokens"),
        concurrency=concurrency,
        decode=decode,
        prefill=prefill,
        ttft_s=number_cell(row, "ttft_s"),
        tpot_s=number_cell(row, "tpot_s"),
        token_budget=_budget(row, decode),
        max_batch=_most_running(row, decode),
        memory_fraction=_share(row, "memory_fraction"),
        prompt_graph_tokens=count(row, "graph_tokens") if row.get("graph_tokens") else None,
        run_date=row.get("run_date", ""),
    )


_RECIPE_BATCH = re.compile(r"(?<![a-z])ctx\d+_gen\d+_[a-z]+\d+_batch(\d{1,5})_")
"""Names of TensorRT-LLM's recipes of two pools: pools, split and batch limit of a decode rank
(ctx1_gen4_tep8_batch8_eplb0_mtp0_36.yaml has `max_batch_size: 8`)."""
_IGNORES_BATCH = ("sglang",)
"""Engines of which published runs go beyond the cap that their recipes state."""


def _benchmark(row: Row) -> str:
    """The benchmark of a row's client; of one that its table leaves empty that of the table's own jobs.

    A table without the column says nothing of clients.
    """
    if (client := row.get("client")) is None:
        return ""
    return benchmark_of_client(client) if client else benchmark_of_table(row.get("source", ""))


def _require_trust(row: Row) -> None:
    """Refuse a row that its table does not trust, or that may have speculated."""
    if (trust := row.get("trust") or "ok") != "ok":
        raise UnsupportedRunError(f"trust = {shown(trust)}: {shortened(row.get('note') or 'no note')}")
    if row.get("speculative") == "undeclared":
        raise UnsupportedRunError("speculative = undeclared: recipes with and without drafts fit it")


def _lowest_share(row: Row) -> float | None:
    """Shortest request over the nominal length: as stated alone, or the lower end of a range of shares."""
    lowest = row.get("length_range", "").partition("-")[0]
    cell = row if row.get("lowest_length_share") or not lowest else {"lowest_length_share": lowest}
    return _share(cell, "lowest_length_share")


def _budget(row: Row, decode: MeasuredPool) -> int | None:
    """Tokens of a step of an attention rank; SGLang states those of all ranks together."""
    if not row.get("token_budget"):
        return None
    together = decode.layout.attention_dp if row["engine"] == "sglang" else 1
    return max(count(row, "token_budget") // together, 1)


def _most_running(row: Row, decode: MeasuredPool) -> int | None:
    """Requests that a replica runs at once, of an engine whose cap is one of an attention rank."""
    if not row.get("max_batch") or row["engine"] in _IGNORES_BATCH:
        return None
    return count(row, "max_batch") * decode.layout.attention_dp


def _share(row: Row, name: str) -> float | None:
    """A share of at most one; None where the cell is empty."""
    if not row.get(name):
        return None
    if (value := number_cell(row, name)) > 1:
        raise UnsupportedRunError(f"{name} = {shown(row[name])} is no share of one")
    return value


def _require_latencies(row: Row) -> None:
    """Refuse a row of another metric (throughput, percentiles) by what it has instead."""
    metric = row.get("metric", "")
    if metric and "mean" not in metric.lower() and "average" not in metric.lower():
        raise UnsupportedRunError(f"metric = {shown(metric)}, and only {_COMPARED} are compared")
    missing = [name for name in ("ttft_s", "tpot_s") if not row.get(name)]
    others = [name for name, cell in row.items() if cell and _OTHER_METRIC.search(name)]
    if missing and others:
        raise UnsupportedRunError(
            f"no {', '.join(missing)}: {', '.join(others)} is another metric, only {_COMPARED} are compared"
        )


def _is_disaggregated(row: Row) -> bool:
    """Whether prompts and outputs have GPUs of their own."""
    mode = row.get("mode", "").lower()
    if mode and not mode.startswith(("agg", "disagg")):
        raise UnsupportedRunError(f"mode = {shown(mode)} is neither aggregated nor disaggregated")
    return mode.startswith("disagg")


def _require_pools(row: Row) -> None:
    """Refuse a disaggregated row without the workers that shared its load, or without its load."""
    missing = [name for name in ("prefill_workers", "decode_workers") if not row.get(name)]
    if not (row.get("concurrency") or row.get("decode_batch")):
        missing.append("concurrency or decode_batch")
    if missing:
        cells = [shortened(row.get(f"decode_{name}") or "?") for name in ("batch", "workers", "attention_dp")]
        raise UnsupportedRunError(
            f"no {', '.join(missing)} of a disaggregated run: decode_batch · decode_workers · "
            f"decode_attention_dp = {' · '.join(cells)} requests in flight"
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
    return plain if plain in gpu_sheets() else re.sub(r"-(sxm|nvl\d+)$", "", plain)


def _pool(row: Row, phase: str) -> MeasuredPool:
    """Workers of one phase of a disaggregated row, or the one worker of an aggregated row."""
    layout = _layout(row, phase)
    named = _RECIPE_BATCH.search(row.get("source_file@commit", "")) if phase == "decode_" else None
    return MeasuredPool(
        layout=layout,
        workers=degree(row, phase + "workers") if phase else 1,
        batch=count(row, phase + "batch") if phase and row.get(phase + "batch") else None,
        most_running=int(named[1]) * layout.attention_dp if named else None,
    )


def _layout(row: Row, phase: str) -> ServingLayout:
    """The degrees as they are stated; those of attention and of experts must be of the same GPUs."""
    tp, dp, pp = (degree(row, phase + name) for name in ("tp", "attention_dp", "pp"))
    expert_tp, ep = degree(row, phase + "moe_tp"), degree(row, phase + "moe_ep")
    gpus = f"{phase}tp·attention_dp = {tp}·{dp}"
    if (tp * dp) % ep:
        raise UnsupportedRunError(f"moe_ep = {ep} does not divide {gpus} = {tp * dp}")
    if expert_tp > 1 and expert_tp * ep != tp * dp:
        missing = "" if row.get(phase + "moe_ep") else f", and no {phase}moe_ep"
        raise UnsupportedRunError(
            f"{phase}moe_tp·moe_ep = {expert_tp}·{ep} = {expert_tp * ep}, not {gpus} = {tp * dp}{missing}"
        )
    stated = count(row, "num_gpus", 0) if not phase else 0
    if stated and stated % (tp * dp * pp):
        raise UnsupportedRunError(f"num_gpus = {stated} is no multiple of {gpus}·pp = {tp * dp * pp}")
    return ServingLayout(tp=tp, pp=pp, attention_dp=dp, ep=ep)


def _concurrency(row: Row, decode: MeasuredPool) -> int:
    """Requests in flight: stated, or the decode pool's batch over all its ranks.

    Tables state the concurrency of one attention rank of an aggregated run: every rank of a data-parallel
    attention is a replica of it.
    """
    if row.get("concurrency"):
        ranks = 1 if _is_disaggregated(row) else degree(row, "attention_dp")
        return count(row, "concurrency") * ranks
    if decode.batch:
        return decode.batch * decode.workers * decode.layout.attention_dp
    raise UnsupportedRunError("no concurrency")


def keeps_prompts(run: ServingRun) -> bool:
    """Whether the run's server had prompts in its cache that came before, and its client sent some again."""
    benchmark = benchmark_named(run.benchmark)
    started = started_server(benchmark, serving_stack(run.engine).name, run.engine_version)
    return started is not None and checkpoint_model(run.model).name in started.cached_models


def deployment_of_run(
    run: ServingRun, pool: MeasuredPool, hierarchy: Hierarchy, stack: ServingStack | None = None
) -> Deployment:
    """Give the deployment of one pool of a run on this fabric.

    `stack` takes the place of the shipped profile of the run's engine. Where the row does not say, the cache
    is what the engine makes of the checkpoint.
    """
    stack = at_version(stack or serving_stack(run.engine), run.engine_version, run.run_date)
    if run.prompt_graph_tokens is not None:
        stack = replace(stack, prompt_graph_tokens=run.prompt_graph_tokens)
    named, benchmark = checkpoint_model(run.model).name, benchmark_named(run.benchmark)
    started = started_server(benchmark, stack.name, run.engine_version)
    if started is not None and started.warp_products:
        stack = replace(stack, warp_products=True)
    served = served_checkpoint(benchmark, named, run.weights)
    follows = stack.eight_bit_cache or run.model.startswith(stack.eight_bit_cache_of)
    eight_bit = follows and run.weights in ("fp8", "fp4")
    return Deployment(
        model=checkpoint_model(served or run.model),
        hierarchy=hierarchy,
        layout=pool.layout,
        stack=stack,
        weights=run.weights,
        kv_dtype=run.kv_dtype or ("fp8" if eight_bit else "bf16"),
    )
