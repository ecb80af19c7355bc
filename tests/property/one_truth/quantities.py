"""The quantities that surfaces name, and the labels under which each of them prints one.

A pattern is read against ``place › label: text`` of a line. Its group ``v`` holds one number, ``r`` a range (two
quantities, ``…_low`` and ``…_high``), ``x`` a number with all its digits (JSON, CSV), ``w`` words, ``b``
true or false; a group ``key`` is appended to the quantity's name, so that rows of a table are compared with
themselves alone (``index`` is the same, counted from 0).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.property.one_truth.lines import Line
from tests.property.one_truth.values import NUMBER, RANGE, Interval, ends, exact, interval

_DAY_S = 86400.0
V, R, X, W = rf"(?P<v>{NUMBER})", rf"(?P<r>{RANGE})", r"(?P<x>-?[\d.]+(?:e[+-]?\d+)?)$", r"(?P<w>.+?)"

_CHANCE = rf"chance (?:of )?(?P<v>{NUMBER})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How one quantity is printed somewhere; `scale` turns exact numbers into SI, `unit` is that of bare ones.

    A factor of the best is `beyond` it by 1 less than it says.
    """

    quantity: str
    text: str
    scale: float = 1.0
    unit: str = ""
    beyond: float = 0.0


def _rows(
    quantity: str, *texts: str, scale: float = 1.0, unit: str = "", beyond: float = 0.0
) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(quantity=quantity, text=text, scale=scale, unit=unit, beyond=beyond) for text in texts
    )


TRAINING: tuple[Pattern, ...] = (
    *_rows("step_time", rf"^ › step time: {V}", rf"^tile › Step time: {V}", rf"^json › estimate\.step_time_s: {X}",
           rf"^csv › 0 › step_time_s: {X}", rf"Where does the step go.*of the {V} step", rf"^delta › no: {V}"),
    *_rows("step_band", rf"^ › step time: .*80 % band {R}", rf"step {R} \(80 % band\)"),
    *_rows("step_band_low", rf"^json › estimate\.lower_s: {X}", rf"^csv › 0 › lower_s: {X}"),
    *_rows("step_band_high", rf"^json › estimate\.upper_s: {X}", rf"^csv › 0 › upper_s: {X}"),
    *_rows("tokens_per_s_per_gpu", rf"^ › throughput: {V} tokens/s/GPU", rf"^tile › Tokens/s/GPU: {V}",
           rf"^json › estimate\.tokens_per_s_per_gpu: {X}"),
    *_rows("mfu", rf"^ › MFU: {V}", rf"^tile › MFU: {V}", rf"^json › estimate\.mfu: {X}"),
    *_rows("peak_memory", rf"^ › peak memory: {V}", rf"^tile › Peak memory: {V}", rf"is fullest with {V} of",
           rf"is fullest: {V} of", rf"^json › estimate\.peak_memory_bytes: {X}", rf"^csv › 0 › peak_memory_bytes: {X}"),
    *_rows("peak_band", rf"^ › peak memory: .*80 % band {R}", rf"the 80 % band is {R}"),
    *_rows("peak_band_low", rf"^json › estimate\.memory_lower_bytes: {X}"),
    *_rows("peak_band_high", rf"^json › estimate\.memory_upper_bytes: {X}"),
    *_rows("gpu_memory", rf"^ › peak memory: \S+ \S+ of {V}", rf"is fullest with \S+ \S+ of {V}",
           rf"is fullest: \S+ \S+ of {V}", rf"^Memory per stage, GiB of {V}", rf"^Cluster › GPU: \S+, {V}"),
    *_rows("out_of_memory_chance", rf"^ › peak memory: .*?{V} chance of OOM", rf"is fullest.*?{V} chance of OOM",
           rf"^tile › (?:OOM|Chance of OOM|OOM chance|Risk of OOM): {V}", rf"^json › estimate\.out_of_memory_chance: {X}",
           rf"^csv › 0 › out_of_memory_chance: {X}"),
    *_rows("full_out_of_memory_chance", rf"^Without headroom › memory: .*?{V} chance of OOM"),
    *_rows("evidence_runs", rf"^ › evidence: {V} measured runs", rf"^(?:caption|chip|tile|\S.* caption) › : {V} measured runs of",
           rf"^json › estimate\.evidence\[0\]\.runs: {X}"),
    *_rows("usd_per_billion_tokens", rf"^ › money, energy: {V} per billion tokens", rf"^json › estimate\.usd_per_billion_tokens: {X}"),
    *_rows("usd_per_gpu_hour", rf"^ › money, energy: .*at {V} per GPU-hour", rf"^json › request\.cluster\.usd_per_gpu_hour: {X}",
           rf"^Cluster › price: {V} per GPU hour"),
    *_rows("layout", r"^Layout › degrees: (?P<w>.+)$", ),
    *_rows("layout_words", rf"^ › headline: Split .+ as {W}: ", r"^caption › : Layout of the plan: (?P<w>.+)$"),
    *_rows("enumerated", rf"^Proof › search: {V} layouts enumerated", rf"best of {V} layouts", rf"^json › optimality\.enumerated: {X}"),
    *_rows("gap", rf"^json › optimality\.gap: {X}"),
    *_rows("tied", r"^csv › (?P<key>\d+) › tied: (?P<b>True|False)$", r"^json › alternatives\[(?P<index>\d+)\]\.tied: (?P<b>true|false)$"),
    *_rows("bound", rf"^Proof › answer: .*bound {V}", rf"^json › optimality\.bound_s: {X}"),
    *_rows("alternative_step", rf"^Also considered › (?P<key>[^›]+) › step time: {V}",
           rf" › (?P<key>[^›]+) › step time: {V}$"),
    *_rows("alternative_peak", rf" › (?P<key>[^›]+) › peak memory: {V}$"),
    *_rows("alternative_slower", rf" › (?P<key>[^›]+) › slower by: {V}"),
    *_rows("busiest_level", rf"The busiest level is .*?: {V} busy", rf"is busy for {V} of the step"),
)  # fmt: skip
CAMPAIGN: tuple[Pattern, ...] = (
    *_rows("days", rf"^Campaign › median: {V}", rf"^ › time to train: {V} in the median", rf"^tile › Time to train: {V}"),
    *_rows("days", rf"^json › campaign\.days\.p50: {X}", rf"^tile › Days: {V}", scale=_DAY_S, unit="days"),
    *_rows("days_band", rf"^Campaign › whole run: finished in {R}", rf"^ › time to train: .*?, {R} in 8 of 10 runs", unit="days"),
    *_rows("days_band_low", rf"^json › campaign\.days\.p10: {X}", scale=_DAY_S),
    *_rows("days_band_high", rf"^json › campaign\.days\.p90: {X}", scale=_DAY_S),
    *_rows("days_band_high", rf"Deadline of .*?; nine runs in ten take up to {V}"),
    *_rows("dollars", rf"^Campaign › median: [^,]+, {V}", rf"^ › time to train: .*? in 8 of 10 runs · {V}",
           rf"^tile › (?:\$ for all tokens|Dollars): {V}", rf"^json › campaign\.usd\.p50: {X}"),
    *_rows("dollars_band", rf"^Campaign › whole run: finished in [^,]+, {R}"),
    *_rows("dollars_band_low", rf"^json › campaign\.usd\.p10: {X}"),
    *_rows("dollars_band_high", rf"^json › campaign\.usd\.p90: {X}", rf"Budget of .*?; nine runs in ten take up to {V}"),
    *_rows("goodput", rf"^Campaign › median: .*?, {V} useful", rf"^tile › (?:Useful|Goodput): {V}", rf"^json › campaign\.useful_share\.p50: {X}"),
    *_rows("mean_goodput", rf"^Campaign › as estimated: .*?: {V} useful",
           rf"^json › campaign\.mean_useful_share: {X}"),
    *_rows("days_as_estimated", rf"^Campaign › as estimated: {V}", rf"failures at the mean rate › total › time: {V}"),
    *_rows("steps_alone_days", rf"^ › steps alone: .*steps of {V}", rf"One run of many possible: {V} of work"),
    *_rows("steps_alone_usd", rf"^ › steps alone: .*steps of \S+ \S+ and {V}"),
    *_rows("interruptions", rf"^Campaign › interruptions: {V};", rf"^tile › Interruptions: {V}", rf"^json › campaign\.interruptions\.p50: {X}"),
    *_rows("interruptions_band", rf"^Campaign › interruptions: {R};"),
    *_rows("interruptions_band_low", rf"^json › campaign\.interruptions\.p10: {X}"),
    *_rows("interruptions_band_high", rf"^json › campaign\.interruptions\.p90: {X}"),
    *_rows("checkpoint_interval", rf"^Campaign › checkpoint: every {V}", rf"^tile › Saved every: {V}",
           rf"^json › campaign\.checkpoint_interval_s: {X}"),
    *_rows("spare_nodes", rf"^Campaign › spares: {V} nodes", rf"^tile › Spare nodes: {V}", rf"^json › campaign\.spare_nodes: {X}"),
    *_rows("deadline_chance", rf"[Dd]eadline of [^;·]*?{_CHANCE}", rf"^Campaign › deadline: .*?{_CHANCE}", rf"^json › campaign\.deadline_chance: {X}"),
    *_rows("budget_chance", rf"[Bb]udget of [^;·]*?{_CHANCE}", rf"^Campaign › budget: .*?{_CHANCE}",
           rf"^json › campaign\.budget_chance: {X}"),
)  # fmt: skip
SERVING: tuple[Pattern, ...] = (
    *_rows("gpus", rf"^ › headline: .* on {V} × \S+", rf"^tile › GPUs: {V}", rf"^json › num_gpus: {X}"),
    *_rows("usd_per_hour", rf"^Throughput and cost › cost: {V} an hour", rf"^tile › (?:Cost|\$ per hour|Per hour|\$ an hour): {V}",
           rf"^json › estimate\.usd_per_hour: {X}"),
    *_rows("ttft_p50", rf"time to first token › p50: {V}", rf"^json › estimate\.ttft\.p50_s: {X}"),
    *_rows("ttft_p90", rf"time to first token › p90: {V}", rf"^json › estimate\.ttft\.p90_s: {X}"),
    *_rows("ttft_p99", rf"time to first token › p99: {V}", rf"^json › estimate\.ttft\.p99_s: {X}"),
    *_rows("tpot_p50", rf"time per output token › p50: {V}", rf"^json › estimate\.tpot\.p50_s: {X}"),
    *_rows("tpot_p90", rf"time per output token › p90: {V}", rf"^json › estimate\.tpot\.p90_s: {X}"),
    *_rows("tpot_p99", rf"time per output token › p99: {V}", rf"^json › estimate\.tpot\.p99_s: {X}"),
    *_rows("ttft_chance", rf"time to first token: .*?with a (?:chance|probability) of {V}", rf"^json › estimate\.limits\.ttft\.chance: {X}"),
    *_rows("tpot_chance", rf"time per output token: .*?with a (?:chance|probability) of {V}", rf"^json › estimate\.limits\.tpot\.chance: {X}"),
    *_rows("serving_runs", rf"^Configuration › measured: {V} runs", rf"^json › evidence\.rows: {X}", rf"^tile › Runs: {V}"),
    *_rows("busy", rf"^Throughput and cost › busy: {V}", rf"^json › estimate\.utilisation: {X}"),
    *_rows("mean_queue", rf"mean queue {V}", rf"^json › estimate\.mean_queue: {X}"),
    *_rows("goodput", rf"goodput {V}/s", rf"^json › estimate\.goodput_requests_per_s: {X}"),
    *_rows("kv_tokens", rf"^Configuration › (?:replicas|decode pool): .*cache of {V} tokens of such requests",
           rf"^Configuration › start: starts: {V} tokens of cache", rf"^json › decode\.(?:kv_capacity|cache)_tokens: {X}",
           rf"^json › kv_cache_tokens: {X}"),
    *_rows("prefill_kv_tokens", rf"^Configuration › prefill pool: .*cache of {V} tokens of such requests",
           rf"^json › prefill\.(?:kv_capacity|cache)_tokens: {X}"),
    *_rows("gap", rf"^json › optimality\.gap: {X}"),
    *_rows("tokens_per_s_per_gpu", rf"{V} per GPU in use", rf"^json › estimate\.tokens_per_s_per_gpu: {X}", rf"^tile › Tokens/s/GPU: {V}"),
)  # fmt: skip
AUDIT: tuple[Pattern, ...] = (
    *_rows("predicted", rf"^Times › predicted: {V}", rf"^tile › Predicted: {V}", rf"^json › predicted\.step_time_s: {X}"),
    *_rows("predicted_band", rf"^Times › predicted: .*80 % band {R}"),
    *_rows("predicted_band_low", rf"^json › predicted\.lower_s: {X}"),
    *_rows("predicted_band_high", rf"^json › predicted\.upper_s: {X}"),
    *_rows("measured", rf"^Times › measured: {V}", rf"^tile › Measured: {V}", rf"^json › measured\.step_time_s: {X}"),
    *_rows("peak_memory", rf"^Times › peak memory: {V}", rf"^tile › Peak memory: {V}", rf"^json › predicted\.peak_memory_bytes: {X}"),
    *_rows("out_of_memory_chance", rf"^Times › peak memory: .*?{V} chance of OOM", rf"^As it runs caption › .*?{V} chance of OOM",
           rf"^json › predicted\.out_of_memory_chance: {X}"),
    *_rows("best_out_of_memory_chance", rf"^Times › its memory: .*?{V} chance of OOM", rf"^The best plan caption › .*?{V} chance of OOM",
           rf"^json › best\.out_of_memory_chance: {X}"),
    *_rows("best_peak_memory", rf"^Times › its memory: {V}", rf"^The best plan caption › .*?is fullest with {V}", rf"^json › best\.peak_memory_bytes: {X}"),
    *_rows("best", rf"^Times › best: {V}", rf"^tile › Best: {V}", rf"^json › best\.step_time_s: {X}"),
    *_rows("best_layout", r"^Times › best: [^:]+: (?P<w>.+?) · proven", r"^json › best\.words: (?P<w>.+)$"),
    *_rows("gap", rf"^json › best\.gap: {X}"),
    *_rows("distance", rf"^Times › distance: (?:measured |predicted )?{V}(?![\d.]| times)", rf"^json › slower_by: {X}"),
    *_rows("distance", rf"^Times › distance: (?:measured |predicted )?{V} times the best", beyond=1.0),
)  # fmt: skip
PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    "training": TRAINING, "campaign": (*TRAINING, *CAMPAIGN), "serving": SERVING, "audit": AUDIT,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One surface's value of a quantity, the line it stands in, and where: from and to in the line's `whole`."""

    line: Line
    value: Interval | str
    span: tuple[int, int] = (0, 0)


def statements(lines: Iterable[Line], patterns: Sequence[Pattern]) -> Mapping[str, list[Statement]]:
    """Read every named quantity out of rendered lines."""
    compiled = [(pattern, re.compile(pattern.text)) for pattern in patterns]
    stated: dict[str, list[Statement]] = defaultdict(list)
    for line in lines:
        whole = line.whole
        for pattern, expression in compiled:
            match = expression.search(whole)
            if match is not None:
                span = match.span(match.lastgroup) if match.lastgroup else (0, 0)
                for name, value in _values(pattern, match.groupdict()):
                    stated[name].append(Statement(line=line, value=value, span=span))
    return stated


def values_in(whole: str, patterns: Sequence[Pattern], quantity: str) -> list[Interval | str]:
    """The values of one quantity in a string of the form of `Line.whole`."""
    matches = [(pattern, re.search(pattern.text, whole)) for pattern in patterns]
    pairs = [pair for pattern, match in matches if match for pair in _values(pattern, match.groupdict())]
    return [value for name, value in pairs if name == quantity]


def _values(pattern: Pattern, groups: Mapping[str, str | None]) -> list[tuple[str, Interval | str]]:
    """What a match says: one value, or both ends of a range."""
    key = groups.get("key") or (str(int(groups["index"] or 0) + 1) if groups.get("index") else "")
    name = f"{pattern.quantity} of {key}" if key else pattern.quantity
    if text := groups.get("b"):
        return [(name, exact("1" if text.lower() == "true" else "0"))]
    if text := groups.get("v"):
        value = interval(text, pattern.unit, directed=name.endswith("chance"))
        return [(name, Interval(value.low - pattern.beyond, value.high - pattern.beyond))]
    if text := groups.get("x"):
        return [(name, exact(text, pattern.scale))]
    if text := groups.get("r"):
        low, high = ends(text, pattern.unit)
        return [(f"{name}_low", low), (f"{name}_high", high)]
    return [(name, " ".join((groups.get("w") or "").split()))]


def contradictions(stated: Mapping[str, Sequence[Statement]]) -> list[str]:
    """Pairs of surfaces that give one quantity two values, as sentences; the first pair of each quantity."""
    unequal = []
    for name, all_of_it in stated.items():
        for number, left in enumerate(all_of_it):
            right = next(
                (other for other in all_of_it[number + 1 :] if not _same(left.value, other.value)), None
            )
            if right is not None:
                unequal.append(f"{name}: {_quoted(left)}, and {_quoted(right)}")
                break
    return unequal


def _same(left: Interval | str, right: Interval | str) -> bool:
    if isinstance(left, Interval) and isinstance(right, Interval):
        return left.meets(right)
    return left == right


def _quoted(statement: Statement) -> str:
    line = statement.line
    return f"{line.surface} says “{line.whole[:160]}” ({statement.value})"
