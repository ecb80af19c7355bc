"""What clients write about a server: `vllm bench serve`, SGLang's `bench_serving`, genai-perf, aiperf.

vLLM writes one JSON object (`--save-result`), SGLang one a line (`--output-file`), genai-perf and aiperf one
object whose metrics have a unit and an average (`profile_export_genai_perf.json`,
`profile_export_aiperf.json`). Each is read as a `Figures`, and everything else that the file holds is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.models.sizes import LARGEST_SIZE
from costmodel.runs.cells import MOST_IN_FLIGHT, SMALLEST
from topology.base.decode import json_value
from topology.base.errors import InputError, shown
from topology.base.files import read_text

MOST_BYTES = 256 * 2**20  # a detailed result of vLLM holds every token's time and text
MOST_RUNS = 64
LONGEST_S = 86_400.0
TOOLS = "vllm bench serve, sglang.bench_serving, genai-perf or aiperf"
MILLI = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
ALIKE = 0.02  # lengths that differ by less are all alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one benchmark asked of a server and measured.

    `concurrency` are the requests in flight, `requests` those that were answered. `model` and `engine` are
    empty where the file does not tell them. `lowest_length_share` is the shortest request over the longest.
    The client printed `requests_per_s`, and sent `burst` requests at once where it had no rate and no limit.
    """

    tool: str
    model: str
    engine: str
    requests: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    lowest_length_share: float | None
    ttft_s: float
    tpot_s: float
    requests_per_s: float = 0.0
    burst: int = 0


def read_bench(path: Path) -> tuple[Figures, ...]:
    """Every benchmark of a file."""
    return figures_of(read_text(path, MOST_BYTES), str(path))


def figures_of(text: str, name: str) -> tuple[Figures, ...]:
    """Every benchmark of the text of a file, which errors call by this name."""
    documents = _documents(text.strip(), name)
    return tuple(
        _figures(document, _place(name, at, len(documents))) for at, document in enumerate(documents)
    )


def _place(name: str, at: int, count: int) -> str:
    return name if count == 1 else f"{name}, line {at + 1}"


def _documents(text: str, path: str) -> list[Mapping[str, Any]]:
    """The objects of JSON or JSON lines."""
    try:
        documents = [json_value(text)]
    except (ValueError, RecursionError) as whole:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > MOST_RUNS:
            raise _unreadable(
                path, f"it has {len(lines):,} lines, a benchmark result at most {MOST_RUNS}"
            ) from None
        try:
            documents = [json_value(line) for line in lines]
        except (ValueError, RecursionError):
            raise _unreadable(path, f"it is no JSON: {whole}") from None
    if not documents or not all(isinstance(item, dict) for item in documents):
        raise _unreadable(path, "it holds no JSON object")
    return documents


def _unreadable(where: object, cause: str) -> InputError:
    return InputError(
        what=f"{where} is no benchmark result",
        cause=cause,
        fix=f"give what {TOOLS} wrote as JSON or JSON lines",
    )


def _figures(document: Mapping[str, Any], where: str) -> Figures:
    """The figures of one result, by the tool whose names it has."""
    if isinstance(document.get("time_to_first_token"), Mapping):
        return _of_perf(document, where)
    if "mean_ttft_ms" in document:
        return _of_bench_serve(document, where)
    raise _unreadable(where, "it has neither mean_ttft_ms nor time_to_first_token")


def _of_bench_serve(document: Mapping[str, Any], where: str) -> Figures:
    """VLLM's and SGLang's results, which share an ancestor; only SGLang measures `mean_e2e_latency_ms`."""
    is_sglang = "mean_e2e_latency_ms" in document or "server_info" in document
    requests = _whole(document, "completed", where)
    inputs = round(_number(document, "total_input_tokens", where) / requests)
    outputs = round(_number(document, "total_output_tokens", where) / requests)
    ttft_s = _number(document, "mean_ttft_ms", where) * 1e-3
    tpot_s = _number(document, "mean_tpot_ms", where) * 1e-3
    rate_per_s = _number(document, "request_throughput", where)
    of_bench_serve = document.get("model_id") or _part(document, "server_info").get("model_path")
    return _checked(
        where,
        tool="sglang.bench_serving" if is_sglang else "vllm bench serve",
        model=of_bench_serve if isinstance(of_bench_serve, str) else "",
        engine="sglang"
        if is_sglang
        else ("vllm" if document.get("backend", "vllm") in ("vllm", "openai") else ""),
        requests=requests,
        concurrency=_in_flight(
            document.get("max_concurrency"), requests, rate_per_s * (ttft_s + outputs * tpot_s)
        ),
        input_tokens=inputs,
        output_tokens=outputs,
        lowest_length_share=_spread(document, is_sglang=is_sglang),
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        requests_per_s=rate_per_s,
        burst=_burst(document, requests),
    )


def _burst(document: Mapping[str, Any], requests: int) -> int:
    """Requests that were sent at once: all, of a client without a rate and without a limit; else 0.

    >>> _burst({"request_rate": "inf", "max_concurrency": None}, 50), _burst({"request_rate": 4.0}, 50)
    (50, 0)
    """
    endless = str(document.get("request_rate", "")).lower() in ("inf", "infinity")
    limited = document.get("max_concurrency") is not None
    return requests if endless and not limited else 0


def _spread(document: Mapping[str, Any], *, is_sglang: bool) -> float | None:
    """Shortest over longest request: of the lengths written, or of the range that random ones have.

    SGLang's `random_range_ratio` is that share itself; vLLM's is what lengths differ from the mean by.
    """
    written = document.get("output_lens")
    if isinstance(written, Sequence) and written and all(isinstance(n, int) and n > 0 for n in written):
        return float(min(written) / max(written))
    ratio = document.get("random_range_ratio")
    if document.get("dataset_name") != "random" or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        return None
    return max(float(ratio), SMALLEST) if is_sglang else max((1 - ratio) / (1 + ratio), SMALLEST)


def _of_perf(document: Mapping[str, Any], where: str) -> Figures:
    """genai-perf's and aiperf's results: every metric with its unit and its statistics."""
    asked = _part(document, "input_config")
    endpoint, loadgen = _part(asked, "endpoint") or asked, _part(asked, "loadgen") or asked
    names = next((endpoint[key] for key in ("model_names", "model") if endpoint.get(key)), "")
    model = names[0] if isinstance(names, Sequence) and not isinstance(names, str) else names
    ttft_s, tpot_s = (
        _metric(document, name, where) for name in ("time_to_first_token", "inter_token_latency")
    )
    outputs = round(_metric(document, "output_sequence_length", where, unit=1.0))
    rate_per_s = _metric(document, "request_throughput", where, unit=1.0)
    in_flight = rate_per_s * (ttft_s + outputs * tpot_s)
    requests = (
        round(_metric(document, "request_count", where, unit=1.0)) if "request_count" in document else 0
    )
    stimulus = _part(_part(asked, "perf_analyzer"), "stimulus")
    limit = loadgen.get("concurrency") or stimulus.get("concurrency")
    concurrency = _in_flight(limit, requests or MOST_IN_FLIGHT, in_flight)
    lengths = document["output_sequence_length"]
    alike = all(isinstance(lengths.get(end), int | float) for end in ("min", "max")) and lengths["max"] > 0
    return _checked(
        where,
        tool="aiperf" if "loadgen" in asked or "aiperf_version" in document else "genai-perf",
        model=model if isinstance(model, str) else "",
        engine="",
        requests=requests or 10 * concurrency,
        concurrency=concurrency,
        input_tokens=round(_metric(document, "input_sequence_length", where, unit=1.0)),
        output_tokens=outputs,
        lowest_length_share=max(lengths["min"] / lengths["max"], SMALLEST) if alike else None,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
    )


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within an object; an empty one where there is none."""
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}


def _in_flight(limit: object, requests: int, by_little: float) -> int:
    """Requests in flight: the client's limit, else what rate and mean stay say (Little), never all above."""
    known = limit if isinstance(limit, int | float) and math.isfinite(limit) and limit >= 1 else by_little
    return max(min(round(known), requests), 1) if math.isfinite(known) else 0


def _metric(document: Mapping[str, Any], name: str, where: str, *, unit: float | None = None) -> float:
    """Average of a metric in SI units, or in the unit that it always has."""
    metric = document.get(name)
    if not isinstance(metric, Mapping):
        raise _unreadable(where, f"it has no {name}")
    scale = unit if unit is not None else MILLI.get(str(metric.get("unit", "ms")))
    if scale is None:
        raise _unreadable(where, f"{name} is in {shown(str(metric.get('unit')))}")
    return _number(metric, "avg", f"{where}, {name}") * scale


def _number(document: Mapping[str, Any], name: str, where: str) -> float:
    """A positive number."""
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not SMALLEST <= value <= LARGEST_SIZE:
        raise _unreadable(where, f"{name} = {shown(str(value))} is not a positive number")
    return float(value)


def _whole(document: Mapping[str, Any], name: str, where: str) -> int:
    value = _number(document, name, where)
    if value != int(value):
        raise _unreadable(where, f"{name} = {value:g} is not a whole number")
    return int(value)


def _checked(where: str, **figures: Any) -> Figures:
    """The figures, if a server can have given them."""
    checked = Figures(**figures)
    if checked.output_tokens < 2 or checked.input_tokens < 1:
        lengths = f"{checked.input_tokens} input and {checked.output_tokens} output tokens"
        raise _unreadable(where, f"requests of {lengths} have no time per token")
    if (
        not 1 <= checked.concurrency <= MOST_IN_FLIGHT
        or checked.ttft_s > LONGEST_S
        or checked.tpot_s > LONGEST_S
    ):
        raise _unreadable(
            where, f"{checked.concurrency:,} requests in flight, first token after {checked.ttft_s:g} s"
        )
    return checked
