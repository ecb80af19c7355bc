"""From a deployment to the step times its replica is simulated with, and to the limits of its throughput.

The per-step model adds the parts of `costmodel.serving.ops`; this file tabulates them over batch sizes and
contexts, once per deployment, in the form the simulation reads (`StepTimes`).

Legend: ``b`` decoding requests of the replica, ``K`` tokens in their caches, ``m`` tokens of one rank in a
step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.compute import gemm_time
from costmodel.kernels.tables import Calibration
from costmodel.serving.deployment import Deployment, draft_of, drafter_of, stages_of
from costmodel.serving.engine import ServingStack
from costmodel.serving.ops import (
    ACTIVATION_BYTES,
    decode_attention_s,
    head_s,
    launches_s,
    linear_s,
    prefill_attention_s,
)
from costmodel.serving.step_table import AttentionGrid, StepTimes
from topology.base.arrays import Floats


def step_times(
    cal: Calibration,
    deployment: Deployment,
    *,
    max_batch: int,
    token_budget: int,
    input_tokens: int,
    output_tokens: int,
) -> StepTimes:
    """Tabulate the steps of one replica for batches up to `max_batch` and steps up to `token_budget` tokens.

    Attention is linearised in the cached tokens around the contexts of the job (input … input + output).
    """
    layout, stack = deployment.layout, deployment.stack
    width = 1 + deployment.draft_tokens
    per_rank = -(-max_batch // layout.attention_dp)
    largest = max(token_budget, per_rank * width) + per_rank * width
    linear = prompt_linear_s(cal, deployment, largest)
    apart = layout.attention_dp > 1 and deployment.model.is_moe
    shared = linear - prompt_linear_s(cal, deployment, largest, shared=False) if apart else linear[:0]
    graph, attention, slope = decode_tables(cal, deployment, per_rank, input_tokens, output_tokens)
    ranks = np.arange(max_batch + 1)
    rank_of = -(-ranks // layout.attention_dp)
    cached = ranks / layout.attention_dp * (input_tokens + output_tokens / 2)
    host = host_s(
        stack, rank_of.astype(np.float64), graph[rank_of] + attention[rank_of] + slope[rank_of] * cached
    )
    times = StepTimes(
        linear_s=tuple(linear.tolist()),
        shared_s=tuple(shared.tolist()),
        graph_linear_s=tuple((graph[rank_of] + host).tolist()),
        decode_attention_s=tuple(attention[rank_of].tolist()),
        decode_attention_s_per_token=tuple((slope[rank_of] / layout.attention_dp).tolist()),
        prefill_attention=prompt_attention(cal, deployment, input_tokens),
        ranks=layout.attention_dp,
        stages=layout.pp,
        passing=later_stages(cal, deployment, token_budget),
        tokens_per_step=deployment.tokens_per_step,
        request_s=stack.request_s,
        response_s=stack.response_s,
    )
    vars(times)["linear"] = linear  # which bounds look at before anything is simulated
    return times


def host_s(stack: ServingStack, requests: Floats, step_s: Floats) -> Floats:
    """Host seconds that a decode step of `step_s` on the GPU does not hide, with `requests` on a rank.

    One after the other: host = fixed + per request · requests. An engine that prepares the next step while
    one runs waits for the slower of the two: max(step + fixed, loop + loop per request · requests) − step.
    """
    if not stack.hides_requests:
        return stack.host_s + stack.host_s_per_request * requests
    return np.maximum(stack.host_s, stack.loop_s + stack.loop_s_per_request * requests - step_s)


def prompt_linear_s(cal: Calibration, deployment: Deployment, largest: int, *, shared: bool = True) -> Floats:
    """Seconds of the linear part of a step with prompt tokens, at 0…`largest` tokens of one rank.

    Shape (largest+1,). Without `shared`, what attention ranks do together is left out.
    """
    knots = token_knots(largest)
    stack = deployment.stack
    seconds = stack.sustained * slowest_linear_s(cal, deployment, knots, shared=shared)
    seconds = seconds + head_s(cal, stages_of(deployment)[-1], np.minimum(knots, 32))
    draft = draft_of(deployment)
    if draft is not None:  # its cache is filled as well
        seconds = seconds + stack.sustained * draft_linear_s(cal, deployment, draft, knots, captured=False)
    seconds = seconds + stack.host_s + stage_send_s(cal, deployment, knots)
    return spread(knots, seconds, largest)


def decode_tables(
    cal: Calibration, deployment: Deployment, per_rank: int, input_tokens: int, output_tokens: int
) -> tuple[Floats, Floats, Floats]:
    """Linear seconds, attention intercept.

    Attention slope per cached token of a decode round, by requests per rank.

    A pipeline of p stages works on p microbatches at once: a round is p times the slowest stage at b/p
    requests. With k < p microbatches it is no less than one microbatch's way through all stages. Of more
    requests than graphs hold, a round lasts at least as long as its launches.
    """
    pp, width, held = deployment.layout.pp, 1 + deployment.draft_tokens, deployment.stack.graph_batch
    knots = token_knots(per_rank)
    if held is not None:
        knots = np.union1d(knots, [at for at in (held, held + 1.0) if 1 <= at <= per_rank])
    micro = np.maximum(np.ceil(knots / pp), 1)
    rows = micro * width
    first_context, last_context = max(input_tokens, 1), max(input_tokens + output_tokens, input_tokens + 2)
    sent, stages = stage_send_s(cal, deployment, rows), stages_of(deployment)
    products = [linear_s(cal, stage, rows, captured=True) + sent for stage in stages]
    batches = np.minimum(knots, pp)
    first, last = (
        [decode_attention_s(cal, stage, micro, context) for stage in stages]
        for context in (first_context, last_context)
    )
    round_s = round_of(products, batches) if len(stages) > 1 else pp * products[0]
    at_first, at_last = (
        round_of([linear + core for linear, core in zip(products, cores, strict=True)], batches) - round_s
        if len(stages) > 1
        else pp * cores[0]
        for cores in (first, last)
    )
    linear = round_s + head_s(cal, stages[-1], rows) + drafting_s(cal, deployment, knots)
    draft, drafts = draft_of(deployment), deployment.draft_tokens
    if draft is not None:
        at_first = at_first + drafts * decode_attention_s(cal, draft, knots, first_context)
        at_last = at_last + drafts * decode_attention_s(cal, draft, knots, last_context)
    slope = np.maximum(at_last - at_first, 0.0) / (knots * (last_context - first_context))
    intercept = np.maximum(at_first - slope * knots * first_context, 0.0)
    if held is not None:
        launched_s = pp * launches_s(deployment) + (drafts * launches_s(draft) if draft is not None else 0.0)
        least_s = launched_s - (intercept + slope * knots * (first_context + last_context) / 2)
        linear = np.where(knots > held, np.maximum(linear, least_s), linear)
    return spread(knots, linear, per_rank), spread(knots, intercept, per_rank), spread(knots, slope, per_rank)


def round_of(stages_s: Sequence[Floats], microbatches: Floats) -> Floats:
    """Seconds in which so many microbatches pass all stages once, each stage one microbatch at a time.

    Round = max(Σ stages, microbatches · slowest stage): a cycle of a line of machines is as long as one job's
    way, or as the busiest machine's work on all jobs.

    >>> round_of([np.array([1.0]), np.array([3.0])], np.array([1.0])).tolist()
    [4.0]
    >>> round_of([np.array([1.0]), np.array([3.0])], np.array([2.0])).tolist()
    [6.0]
    """
    each = np.stack(list(stages_s))
    return np.asarray(np.maximum(each.sum(axis=0), microbatches * each.max(axis=0)), dtype=np.float64)


def slowest_linear_s(cal: Calibration, deployment: Deployment, tokens: Floats, *, shared: bool) -> Floats:
    """Seconds of the linear part of the slowest stage, of a step with prompt tokens."""
    seconds = [linear_s(cal, stage, tokens, captured=False, shared=shared) for stage in stages_of(deployment)]
    return np.asarray(np.maximum.reduce(seconds), dtype=np.float64)


def later_stages(cal: Calibration, deployment: Deployment, tokens: int) -> float:
    """Stages that a prompt's last chunk has still to pass when the slowest has had its time, in such times.

    Of stages that are alike all but one: p − 1; else Σ stages / slowest − 1, of a full step's products.
    """
    stages = stages_of(deployment)
    if len(stages) == 1:
        return float(deployment.layout.pp - 1)
    m = np.array([float(tokens)])
    seconds = [float(linear_s(cal, stage, m, captured=False)[0]) for stage in stages]
    return sum(seconds) / max(seconds) - 1


def drafting_s(cal: Calibration, deployment: Deployment, requests: Floats) -> Floats:
    """Seconds that a step drafts for `requests` of a rank, without attention; 0 without a drafter.

    n drafts are n passes of the drafter, one after the other, each with the output projection. The first has
    all tokens that the step before computed, n + 1 a request, the others one.
    """
    draft, drafts = draft_of(deployment), deployment.draft_tokens
    if draft is None:
        return np.zeros_like(requests)
    later = draft_linear_s(cal, deployment, draft, requests, captured=True)
    first = draft_linear_s(cal, deployment, draft, requests * (1 + drafts), captured=True)
    return first + (drafts - 1) * later + drafts * head_s(cal, draft, requests)


def draft_linear_s(
    cal: Calibration, deployment: Deployment, draft: Deployment, tokens: Floats, *, captured: bool
) -> Floats:
    """Seconds of the drafter's layers at `tokens` of a rank, and of joining hidden states before them."""
    kind, hidden = drafter_of(deployment.drafter), draft.model.hidden_size
    layers = linear_s(cal, draft, tokens, captured=captured)
    if not kind.joined:
        return layers
    gpu, level = draft.hierarchy.gpu, draft.stack.kernel_level
    joining = gemm_time(cal, gpu, "bf16", tokens, hidden / draft.layout.tp, kind.joined * hidden)
    return layers + joining.seconds * level


def prompt_attention(cal: Calibration, deployment: Deployment, input_tokens: int) -> AttentionGrid:
    """Prefill attention of the slowest stage on a grid of chunk and past tokens up to twice the prompt."""
    top = max(2 * input_tokens, 4096)
    query = np.unique(np.rint(np.geomspace(1, top, 24)))
    past = np.concatenate([[0.0], np.unique(np.rint(np.geomspace(64, top, 16)))])
    each = [prefill_attention_s(cal, stage, query[:, None], past[None, :]) for stage in stages_of(deployment)]
    seconds = np.maximum.reduce(each)
    draft = draft_of(deployment)
    if draft is not None:
        seconds = seconds + prefill_attention_s(cal, draft, query[:, None], past[None, :])
    seconds = seconds * deployment.stack.sustained
    return AttentionGrid(
        query_tokens=tuple(query.tolist()),
        past_tokens=tuple(past.tolist()),
        seconds=tuple(tuple(row) for row in seconds.tolist()),
    )


def stage_send_s(cal: Calibration, deployment: Deployment, tokens: Floats) -> Floats:
    """Seconds to send a stage's activations to the next one; zero without a pipeline."""
    layout = deployment.layout
    if layout.pp == 1:
        return np.zeros_like(tokens)
    message = tokens * deployment.model.hidden_size * ACTIVATION_BYTES / layout.tp
    return collective_time(cal, deployment.hierarchy, "p2p", message, 2, layout.stage_gpus)


def token_knots(largest: int) -> Floats:
    """Token counts at which a curve up to `largest` is evaluated.

    Every small one, then about eight an octave.
    """
    if largest <= 1:
        return np.array([1.0])
    grid = np.geomspace(1, largest, 1 + 6 * int(np.ceil(np.log2(largest))))
    return np.unique(np.rint(grid))


def spread(knots: Floats, values: Floats, largest: int) -> Floats:
    """Values at every whole number 0…largest, linear between knots."""
    return np.interp(np.arange(largest + 1), knots, values)
