"""A plan at one glance: the layout, what a step costs, whether it fits, and how much stands behind that.

Every figure is one of the whole answer (`app.reports.plan`), which `--full` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.quantities import format_count, format_percent, format_share, format_sum, format_usd
from app.reports.answer import Facts
from app.reports.layout_words import idle_text, not_needed_text, plan_words
from app.reports.plan_headline import (
    band_text,
    days_text,
    evidence_text,
    finish_words,
    headline_of,
    price_text,
    unit_of_work,
)
from app.reports.single_changes import switch_words
from costmodel.estimate import PART_NAMES, throughput_change
from costmodel.memory.fit import fit_text
from planner.plan import RENTS_WHAT_IT_USES, Plan, PlanRequest
from planner.pricing import capacity_of_fullest
from planner.search.infeasible import share_text
from topology.base.counts import counted
from topology.base.units import format_bytes, format_seconds
from topology.fabric.degraded import left_out_words

if TYPE_CHECKING:
    from planner.analysis.switch_effects import SwitchEffect

_PARTS: Final = 2
"""Parts of the step that are named, the largest ones."""
_LEAST_SHARE: Final = 0.005


def brief_facts(plan: Plan, switch: SwitchEffect | None = None) -> Facts:
    """The layout, its step, speed, memory, money, proof, evidence and the switch worth most, a line each."""
    pairs = [
        ("layout", plan_words(plan)),
        ("step", f"{format_seconds(plan.estimate.step_time_s)}, 80 % band {band_text(plan.estimate)}"),
        ("spent on", _parts(plan)),
        ("speed", _speed(plan)),
        ("memory", _memory(plan)),
        ("money", _money(plan)),
        ("finish", finish_words(plan) if plan.request.job.total_tokens is not None else ""),
        ("idle", _idle(plan)),
        ("idle nodes", "" if plan.request.objective in RENTS_WHAT_IT_USES else idle_text(plan)),
        *(("left out", words) for words in left_out_words(plan.request.cluster)),
        ("proof", _proof(plan)),
        ("evidence", evidence_text(plan.request, plan.estimate) if plan.estimate.evidence else ""),
        ("next", _runner_up(plan)),
        ("change", switch_words(switch) if switch is not None else ""),
        ("more", "--full (stages, time, assumptions) · plan explain (what would help)"),
    ]
    return Facts(title="", pairs=tuple((name, text) for name, text in pairs if text))


def plan_sentence(plan: Plan) -> str:
    """The plan in one sentence: how the job is split, what a step takes, its end, risk and proof."""
    title, estimate = headline_of(plan).split(" · ")[0], plan.estimate
    split = f"Split {title} as {plan_words(plan)}" if plan.layout.num_gpus > 1 else f"Run {title}"
    words = [f"{format_seconds(estimate.step_time_s)} a step ({band_text(estimate)})"]
    if plan.request.job.total_tokens is not None:
        words.append(_end_words(plan))
    words.append(fit_text(estimate.out_of_memory_chance))
    return f"{split}: " + "; ".join([*words, *proof_words(plan)])


def proof_words(plan: Plan) -> tuple[str, ...]:
    """What is proven, in a word; nothing of a layout that was given."""
    match plan.optimality.status:
        case "proven":
            return ("proven",)
        case "best-found":
            return (f"at most {format_percent(plan.optimality.gap)} above the bound",)
        case _:
            return ()


def _end_words(plan: Plan) -> str:
    """When the last token is trained and what that costs, failures included."""
    from planner.campaign.finish import campaign_or_none  # nothing is loaded for a step alone

    run = campaign_or_none(plan)
    if run is None:
        return "never finished: failures leave this run no headway"
    money = "" if run.usd is None else f" for {format_sum(run.usd.p10)} – {format_sum(run.usd.p90)}"
    return f"finishes in {days_text(run.days)} days{money}"


def _parts(plan: Plan) -> str:
    """The largest parts of the step."""
    time, total = plan.estimate.time, plan.estimate.step_time_s
    shares = sorted(
        ((float(getattr(time, part)) / total, name) for part, name in PART_NAMES.items()), reverse=True
    )
    return ", ".join(f"{name} {format_share(x)}" for x, name in shares[:_PARTS] if x >= _LEAST_SHARE)


def _speed(plan: Plan) -> str:
    """Tokens (samples of a module) per second of a GPU and in all, and the MFU."""
    job, unit, estimate = plan.request.job, unit_of_work(plan.request), plan.estimate
    every = format_count(job.tokens_per_step / estimate.step_time_s)
    mfu = format_percent(estimate.mfu)
    return f"{estimate.tokens_per_s_per_gpu:,.0f} {unit}/s/GPU · {every} {unit}/s · MFU {mfu}"


def _memory(plan: Plan) -> str:
    """The peak beside the GPU's memory, and whether it fits."""
    estimate, capacity = plan.estimate, capacity_of_fullest(plan)
    peak = format_bytes(estimate.peak_memory_bytes)
    return f"{peak} of {format_bytes(capacity)}; {fit_text(estimate.out_of_memory_chance)}"


def _money(plan: Plan) -> str:
    """Dollars for a billion tokens, the rate that they come of, and its date."""
    request, price = plan.request, price_text(plan.request.cluster)
    if plan.estimate.usd_per_billion_tokens is None:
        return f"{price} (--set cluster.usd_per_gpu_hour=…)"
    as_of = f" ({request.cluster.price_as_of})" if request.cluster.price_as_of else ""
    money = format_usd(plan.estimate.usd_per_billion_tokens)
    alone = ", steps alone" if request.job.total_tokens is not None else ""
    return f"{money} per billion {unit_of_work(request)}{alone}; {price}/GPU-hour{as_of}"


def _idle(plan: Plan) -> str:
    """GPUs that the plan does without."""
    if not plan.idle_gpus:
        return ""
    if plan.request.objective in RENTS_WHAT_IT_USES:
        return not_needed_text(plan)
    return f"{plan.idle_gpus:,} GPUs, which money, MFU and tokens/s/GPU count"


def _proof(plan: Plan) -> str:
    """What is proven, of how many layouts."""
    optimality = plan.optimality
    if optimality.status == "given" or optimality.enumerated == 1:
        return ""
    of = f"of {counted(optimality.enumerated, 'layout')} in {format_seconds(plan.search_time_s)}"
    if optimality.bound_bytes is not None:
        return f"emptiest to within {format_percent(optimality.gap)}, {of}"
    if optimality.status == "proven":
        return f"optimal under the cost model{left_free_text(plan.request)}, {of}"
    return f"best found, at most {format_percent(optimality.gap)} above the bound, {of}"


def left_free_text(request: PlanRequest) -> str:
    """Which layouts were searched, where another share of memory is left free than a layout needs to fit."""
    if request.memory_headroom is None:
        return ""
    return f" of layouts that leave {share_text(request.memory_headroom)} % of memory free"


def _runner_up(plan: Plan) -> str:
    """The next plan, and how many more are tied with this one."""
    if not plan.alternatives or plan.request.objective != "step-time":
        return ""  # others are compared by their steps, which is not what was asked for
    other = plan.alternatives[0]
    change = format_share(throughput_change(1.0, 1.0 + other.slower_by), signed=True)
    return f"{plan_words(other)}: {change} tokens/s" + (", a tie" if other.tied else "")
