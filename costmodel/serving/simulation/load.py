"""The requests a serving fleet receives: when they arrive, how long they are, and how a trace file says so.

A `Load` is either open (arrival times are given) or closed (`concurrency` requests are always in flight;
the next one is sent when one finishes). Everything is drawn from a seed, so the same question has the same
answer.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np

from costmodel.job import LONGEST_S
from costmodel.models.sizes import LARGEST_SIZE
from topology.base.arrays import Floats, Ints
from topology.base.errors import InputError, shown
from topology.base.files import read_text

MOST_REQUESTS = 500_000
"""Requests of a trace: an hour of the busiest published service."""
CUT = 2
"""99th percentiles of lengths beyond which none is drawn."""
TAIL = 1e-12  # levels of a distribution nearer to its ends are not drawn
NORMAL_P99 = 2.3263478740408408  # 99th percentile of the standard normal distribution
TRACE_COLUMNS = {
    "arrival_s": ("arrival_s", "arrived_at", "timestamp", "arrival_time"),
    "input_tokens": (
        "input_tokens", "contexttokens", "num_prefill_tokens", "input_length", "request tokens", "input_toks",
    ),
    "output_tokens": (
        "output_tokens", "generatedtokens", "num_decode_tokens", "output_length", "response tokens",
        "output_toks",
    ),
}  # fmt: skip
"""Of one's own files, the Azure LLM traces, Vidur's, Mooncake's, BurstGPT's and LLMServingSim's."""
Policy = Literal["round-robin", "least-loaded", "prefix-aware"]
Router = Literal["", "round-robin", "least-loaded", "prefix-aware"]
"""A policy, or none where caches are not followed."""
HASHES = "hash_ids"
HASH_BLOCK_TOKENS = 512
"""Tokens that one hash of a prefix stands for in the Mooncake traces (github.com/kvcache-ai/Mooncake)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of one side of a request: their nominal number, and how it spreads.

    `p99` gives a log-normal with `mean` and that 99th percentile, whose few longest are cut at `CUT` times
    that; `lowest_share` a uniform distribution from that share of `mean` up to `mean` itself (how benchmark
    clients randomise); neither gives a constant.
    """

    mean: float
    p99: float | None = None
    lowest_share: float | None = None

    @property
    def longest(self) -> float:
        """The most that is drawn."""
        return CUT * self.p99 if self.p99 is not None and self.p99 > self.mean else self.mean

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw `count` lengths in tokens, each at least one."""
        if self.p99 is not None and self.p99 > self.mean:
            mu, sigma = lognormal_parameters(self.mean, self.p99)
            drawn = np.minimum(np.exp(mu + sigma * _normals(count, rng)), self.longest)
        elif self.lowest_share is not None:
            drawn = rng.uniform(self.lowest_share * self.mean, self.mean, count)
        else:
            drawn = np.full(count, self.mean)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


def _normals(count: int, rng: np.random.Generator) -> Floats:
    """Standard normal numbers in random order, one from each of `count` equally likely strata.

    Few requests of a long tail have then the mean and the percentiles of all, whatever the seed.
    """
    levels = (rng.permutation(count) + rng.random(count)) / count
    inverse = NormalDist().inv_cdf
    return np.array([inverse(min(max(level, TAIL), 1 - TAIL)) for level in levels.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests in order of arrival, and how they are sent.

    `arrival_s` is empty in a closed loop, where `concurrency` says how many are in flight.
    `cached_tokens` are prompt tokens whose KV a prefix cache already holds. `block_hashes` name the blocks of
    `hash_block_tokens` tokens of each prompt, where a trace does, each with all before it. Where a `router`
    of this policy is in front, caches are followed: it sends each request to a `replica`, where that waits
    `lookup_s` for what is read of its cache. Both are empty of requests sent by turns.
    """

    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    arrival_s: Floats
    concurrency: int | None = None
    block_hashes: tuple[tuple[int, ...], ...] = ()
    hash_block_tokens: int = HASH_BLOCK_TOKENS
    replica: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    lookup_s: Floats = field(default_factory=lambda: np.empty(0))
    router: Router = ""
    filling: int = 0
    """First requests of an open load, which fill what serves it: nothing is averaged while they arrive."""

    def __len__(self) -> int:
        """Count of requests."""
        return len(self.input_tokens)


def most_p99_per_mean() -> float:
    """Largest 99th percentile of any log-normal over its mean: e^(z²/2), at σ = z.

    >>> round(most_p99_per_mean(), 2)
    14.97
    """
    return float(np.exp(NORMAL_P99**2 / 2))


def lognormal_parameters(mean: float, p99: float) -> tuple[float, float]:
    """Location and scale of the log-normal with this mean and 99th percentile.

    ln mean = μ + σ²/2 and ln p99 = μ + z·σ, hence σ = z − √(z² − 2·ln(p99/mean)), z the normal 99th
    percentile. Beyond p99/mean = exp(z²/2) ≈ 15 no log-normal exists; the widest one is returned.

    >>> mu, sigma = lognormal_parameters(500.0, 2000.0)
    >>> round(float(np.exp(mu + sigma**2 / 2))), round(float(np.exp(mu + NORMAL_P99 * sigma)))
    (500, 2000)
    """
    inside = max(NORMAL_P99**2 - 2 * float(np.log(p99 / mean)), 0.0)
    sigma = NORMAL_P99 - inside**0.5
    return float(np.log(mean)) - sigma**2 / 2, sigma


def open_load(
    *,
    rate_per_s: float,
    count: int,
    inputs: Lengths,
    outputs: Lengths,
    cached_share: float = 0.0,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Load:
    """Requests arriving at a mean rate.

    `burstiness` is the coefficient of variation of the gaps (1 = Poisson).

    Gaps are gamma distributed with shape 1/burstiness², as in the benchmark clients of vLLM and SGLang, and
    add up to count/rate, so that the load has the rate asked for: Poisson arrivals, given how many there are.
    """
    if not 0 < rate_per_s < float("inf"):
        raise InputError(
            what="no load to serve",
            cause=f"the request rate is {rate_per_s} per second",
            fix="give a positive rate, such as --rate 20/s",
        )
    rng = np.random.default_rng(seed)
    shape = 1.0 / burstiness**2
    gaps = rng.gamma(shape, 1.0 / (rate_per_s * shape), count)
    if not gaps.sum() > 0:
        raise InputError(
            what="burstiness is too large for a load of this size",
            cause=f"with burstiness = {burstiness:g} all of {count} gaps between requests are nothing",
            fix="give a smaller one, such as 10",
        )
    gaps *= count / (rate_per_s * gaps.sum())
    drawn_inputs, drawn_outputs = inputs.draw(count, rng), outputs.draw(count, rng)
    return Load(
        input_tokens=drawn_inputs,
        output_tokens=drawn_outputs,
        cached_tokens=_cached(drawn_inputs, cached_share),
        arrival_s=np.cumsum(gaps),
    )


def closed_load(
    *,
    concurrency: int,
    count: int,
    inputs: Lengths,
    outputs: Lengths,
    cached_share: float = 0.0,
    seed: int = 0,
) -> Load:
    """`count` requests of which `concurrency` are always in flight.

    All start together, as benchmark clients do.
    """
    rng = np.random.default_rng(seed)
    drawn_inputs, drawn_outputs = inputs.draw(count, rng), outputs.draw(count, rng)
    return Load(
        input_tokens=drawn_inputs,
        output_tokens=drawn_outputs,
        cached_tokens=_cached(drawn_inputs, cached_share),
        arrival_s=np.empty(0),
        concurrency=concurrency,
    )


def prompts_of(load: Load) -> Load:
    """The part of a load that a worker of prompts sees: it ends with the first token."""
    return replace(load, output_tokens=np.ones(len(load), dtype=np.int64))


def outputs_of(load: Load) -> Load:
    """The part of a load that a worker of outputs sees: prompts that were computed elsewhere."""
    return replace(load, cached_tokens=load.input_tokens)


def thin(load: Load, replicas: int, which: int = 0) -> Load:
    """The share of an open load that one of `replicas` receives, by turns unless a router has sent them."""
    pick = (
        np.flatnonzero(load.replica == which) if len(load.replica) else np.arange(which, len(load), replicas)
    )
    return _picked(load, pick)


def within(load: Load, longest: int) -> Load:
    """The requests of at most so many tokens, prompt and output: a server refuses longer ones."""
    return _picked(load, np.flatnonzero(load.input_tokens + load.output_tokens <= longest))


def _picked(load: Load, pick: Ints) -> Load:
    """Some of the requests, which no router has sent."""
    return Load(
        input_tokens=load.input_tokens[pick],
        output_tokens=load.output_tokens[pick],
        cached_tokens=load.cached_tokens[pick],
        arrival_s=load.arrival_s[pick],
        concurrency=load.concurrency,
        block_hashes=tuple(load.block_hashes[i] for i in pick) if load.block_hashes else (),
        hash_block_tokens=load.hash_block_tokens,
        lookup_s=load.lookup_s[pick] if len(load.lookup_s) else load.lookup_s,
    )


def read_trace(path: Path) -> Load:
    """Read a trace: CSV or JSON lines of arrival_s, input_tokens, output_tokens; cached_tokens if known.

    The names of the Azure, BurstGPT and Mooncake traces are understood too; Mooncake's lines tell times in
    milliseconds, and `hash_ids` of the prompt's blocks (in a CSV with spaces between them). Times may be
    numbers of seconds or ISO timestamps; they are shifted to start at zero. Every bad row is named by its
    line.
    """
    rows, first_line = _trace_rows(path)
    columns = _trace_columns(path, rows[0])
    values: dict[str, list[float]] = {name: [] for name in columns}
    for line, row in enumerate(rows, start=first_line):
        for name, column in columns.items():
            values[name].append(
                _trace_number(path, line, column, row[column] or "", time=name == "arrival_s")
            )
    order = np.argsort(np.array(values["arrival_s"]), kind="stable")
    arrival = np.array(values["arrival_s"])[order]
    hashes = _hashes(path, rows) if HASHES in rows[0] else []
    cached = values.get("cached_tokens", [0.0] * len(rows))
    return Load(
        input_tokens=np.array(values["input_tokens"], dtype=np.int64)[order],
        output_tokens=np.array(values["output_tokens"], dtype=np.int64)[order],
        cached_tokens=np.array(cached, dtype=np.int64)[order],
        arrival_s=arrival - arrival[0],
        block_hashes=tuple(hashes[i] for i in order) if hashes else (),
    )


def _hashes(path: Path, rows: list[dict[str, str | None]]) -> list[tuple[int, ...]]:
    """Hashes of the blocks of every prompt."""
    hashes = []
    for number, row in enumerate(rows, start=1):
        text = row.get(HASHES) or ""
        try:
            hashes.append(tuple(int(word) for word in text.split()))
        except ValueError as problem:
            raise InputError(
                what=f"the trace {path} is malformed",
                cause=f"request {number}: {HASHES} = {shown(text)} are not whole numbers",
                fix="write them with spaces between them, or as a list in JSON lines",
            ) from problem
    return hashes


def mean_rate_per_s(load: Load) -> float:
    """Requests per second of an open load over the time it spans."""
    span = float(load.arrival_s[-1] - load.arrival_s[0]) if len(load.arrival_s) > 1 else 0.0
    return len(load) / span if span > 0 else float("inf")


def _cached(inputs: Ints, share: float) -> Ints:
    """Prompt tokens held by the prefix cache; the last token of a prompt is always computed."""
    return np.asarray(np.minimum(np.floor(inputs * share), inputs - 1), dtype=np.int64)


def _trace_rows(path: Path) -> tuple[list[dict[str, str | None]], int]:
    """Rows of the file as dictionaries, with lower-case column names, and the line of the first."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _json_rows(path, text), 1
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [
            {(k or "").strip().lower(): v for k, v in row.items()}
            for row in itertools.islice(reader, MOST_REQUESTS + 1)
        ]
    except csv.Error as problem:
        raise InputError(
            what=f"cannot read the trace {path}", cause=str(problem), fix="give a readable CSV file in UTF-8"
        ) from problem
    if len(rows) > MOST_REQUESTS:
        raise InputError(
            what=f"the trace {path} is too long",
            cause=f"it has more than {MOST_REQUESTS:,} requests",
            fix="give a part of it",
        )
    if not rows:
        raise InputError(
            what=f"the trace {path} has no requests", cause="no row below the header", fix=_TRACE_FIX
        )
    return rows, 2


def _json_rows(path: Path, text: str) -> list[dict[str, str | None]]:
    """Rows of JSON lines in the words of a CSV; Mooncake's milliseconds become seconds."""
    rows: list[dict[str, str | None]] = []
    for line, text_line in enumerate(text.splitlines(), start=1):
        if len(rows) == MOST_REQUESTS:
            raise InputError(
                what=f"the trace {path} is too long",
                cause=f"it has more than {MOST_REQUESTS:,} requests",
                fix="give a part of it",
            )
        if not text_line.strip():
            continue
        try:
            fields = json.loads(text_line)
            row: dict[str, str | None] = {
                str(key).strip().lower(): " ".join(map(str, value)) if isinstance(value, list) else str(value)
                for key, value in fields.items()
            }
            if "input_length" in row and row.get("timestamp"):
                row["timestamp"] = repr(float(str(row["timestamp"])) / 1e3)
        except (ValueError, AttributeError, RecursionError) as problem:
            raise InputError(
                what=f"the trace {path} is malformed",
                cause=f"line {line}: {shown(text_line[:80])} is not a request in JSON",
                fix=_JSON_FIX,
            ) from problem
        if rows and row.keys() != rows[0].keys():
            raise InputError(
                what=f"the trace {path} is malformed",
                cause=f"line {line} has other keys than the first",
                fix="give every request the same keys",
            )
        rows.append(row)
    return rows


_TRACE_FIX = "write a CSV with the columns arrival_s,input_tokens,output_tokens"
_JSON_FIX = (
    "write one object a line, with the keys arrival_s, input_tokens, output_tokens (or Mooncake's own)"
)


def _trace_columns(path: Path, row: dict[str, str | None]) -> dict[str, str]:
    """Which column of the file holds which quantity."""
    columns = {
        name: next((alias for alias in aliases if alias in row), "")
        for name, aliases in TRACE_COLUMNS.items()
    }
    missing = [name for name, column in columns.items() if not column]
    if missing:
        raise InputError(
            what=f"the trace {path} is malformed",
            cause=f"no column {', '.join(missing)} among {', '.join(sorted(row))}",
            fix=_TRACE_FIX,
        )
    return columns | ({"cached_tokens": "cached_tokens"} if "cached_tokens" in row else {})


def _trace_number(path: Path, line: int, column: str, text: str, *, time: bool) -> float:
    """One number of the trace: tokens are whole and positive, times are finite."""
    try:
        value = _time_s(text) if time else float(int(text))
    except (ValueError, OverflowError):
        value = float("nan")
    least, most = (-LONGEST_S, LONGEST_S) if time else (0 if column == "cached_tokens" else 1, LARGEST_SIZE)
    if not least <= value <= most:
        kind = "a time in seconds" if time else "a positive whole number of tokens"
        raise InputError(
            what=f"the trace {path} is malformed",
            cause=f"line {line}: {column} = {shown(text)} is not {kind}",
            fix=_TRACE_FIX,
        )
    return value


def _time_s(text: str) -> float:
    """Seconds of a number or of an ISO timestamp."""
    try:
        return float(text)
    except ValueError:
        from datetime import UTC, datetime

        moment = datetime.fromisoformat(text.strip()[:26])
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
