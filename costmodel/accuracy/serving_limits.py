"""Serving runs that cannot have been, or do not say where.

Tokens before their weights are read, prompts faster than the peak, replicas over machines none states.
"""

from __future__ import annotations

from costmodel.accuracy.checkpoint_names import checkpoint_model
from costmodel.accuracy.serving_runs import ServingRun, keeps_prompts
from costmodel.kernels.precisions import PRECISIONS
from costmodel.kernels.stand_ins import achievable
from costmodel.kernels.tables import Calibration
from costmodel.models.parameters import active_parameter_count
from costmodel.runs.cells import Row, UnsupportedRunError, degree
from topology.base.units import format_bandwidth, format_flop_per_s, format_seconds
from topology.catalog import gpu
from topology.fabric.hierarchy import Hierarchy


def refuse_faster_than_machine(cal: Calibration, run: ServingRun) -> None:
    """Refuse a mean time per token below one reading of a token's weights, or prompts below their FLOPs.

    The embedding is looked up, not read. A token passes every pipeline stage, so each stage's GPUs read their
    part one after another. Prompts count two FLOPs per parameter and token, attention none: those of one
    request alone, and those of c requests in flight, c/(TTFT + outputs·TPOT) a second.
    Prompts that the server had in its cache count none.
    """
    model, part, precision = checkpoint_model(run.model), gpu(run.gpu), PRECISIONS[run.weights]
    active = active_parameter_count(model) - model.vocab_size * model.hidden_size
    ranks, bandwidth = run.decode.layout.stage_gpus, part.memory_bandwidth_bytes_per_s
    weights_s = active * precision.weight_bytes / (ranks * bandwidth)
    if run.tpot_s < weights_s:
        raise UnsupportedRunError(
            f"tpot_s = {run.tpot_s:g}, yet {active:,} parameters of a token × {precision.weight_bytes:g} "
            f"bytes / ({ranks} × {format_bandwidth(bandwidth)}) = {format_seconds(weights_s)}: "
            "decoded speculatively?"
        )
    if keeps_prompts(run):
        return
    layout = (run.prefill or run.decode).layout
    peak = part.peak(precision.peak)
    prompt_s = 2 * active * run.input_tokens / (layout.num_gpus * peak)
    if run.ttft_s < prompt_s:
        raise UnsupportedRunError(
            f"ttft_s = {run.ttft_s:g}, yet 2 × {active:,} parameters × {run.input_tokens:,} tokens "
            f"/ ({layout.num_gpus} × {format_flop_per_s(peak)}) = {format_seconds(prompt_s)}: from a cache?"
        )
    pool = run.prefill or run.decode
    computed = run.input_tokens + (run.output_tokens if run.prefill is None else 0)
    requests_per_s = run.concurrency / (run.ttft_s + (run.output_tokens - 1) * run.tpot_s)
    flop_per_s, gpus = 2 * active * computed * requests_per_s, pool.workers * layout.num_gpus
    if flop_per_s > gpus * peak * (share := achievable(cal, part)):
        raise UnsupportedRunError(
            f"{run.concurrency} in flight are {requests_per_s:.3g} requests/s, and 2 × {active:,} parameters "
            f"× {computed:,} tokens of each {format_flop_per_s(flop_per_s)}; {gpus} × "
            f"{format_flop_per_s(peak)} × {share:.0%}, the most of a measured matmul, are "
            f"{format_flop_per_s(gpus * peak * share)}: from a cache?"
        )


def refuse_unstated_machines(row: Row, run: ServingRun, hierarchy: Hierarchy) -> None:
    """Refuse an aggregated replica whose experts are split twice over more GPUs than a machine has.

    Engines are told tp and ep of the same GPUs; tables that multiply the two read like replicas of several
    machines. `num_gpus` tells one from the other; without it neither is guessed.
    """
    layout, node = run.decode.layout, hierarchy.gpus_per_node
    expert_tp, ep = degree(row, "moe_tp"), degree(row, "moe_ep")
    if run.prefill is not None or min(expert_tp, ep) == 1 or layout.num_gpus <= node or row.get("num_gpus"):
        return
    raise UnsupportedRunError(
        f"moe_tp·moe_ep = {expert_tp}·{ep} = {layout.stage_gpus} GPUs of one replica are "
        f"{layout.num_gpus / node:.3g} machines of {node} {run.gpu}, which no num_gpus states: "
        "two degrees of the same GPUs?"
    )
