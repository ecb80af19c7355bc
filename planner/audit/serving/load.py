"""Under which load a server is judged: what a benchmark measured, what a client is told, or what was asked.

A client's result says its load and what came of it; a script that starts `vllm bench serve` or
`sglang.bench_serving` says the load alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.calibration.bench_files import Figures, figures_of
from planner.audit.launch import WITHIN, client_of
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE

MOST_LOADS = 8
"""That are judged of one server: each is a search of its own."""
LOAD_WORDS = {
    "--rate": "rate", "--concurrency": "concurrency", "--input": "input_tokens",
    "--output-tokens": "output_tokens", "--input-p99": "input_p99", "--output-p99": "output_p99",
    "--ttft": "ttft", "--tpot": "tpot", "--trace": "trace",
}  # fmt: skip
"""What may be said of the load of a server, and the field of `ServeFlags`."""
_RESULT_WORDS = ('"mean_ttft_ms"', '"time_to_first_token"')
_LENGTHS = {
    "input_tokens": (
        "random_input_len", "random_input", "sharegpt_input_len", "input_len", "synthetic_input_tokens_mean",
        "isl", "prompt_tokens_mean", "mean_input_tokens", "prompt_tokens",
    ),
    "output_tokens": (
        "random_output_len", "random_output", "sharegpt_output_len", "output_len", "output_tokens_mean",
        "osl", "mean_output_tokens", "output_tokens",
    ),
}  # fmt: skip
"""What clients call lengths: of vLLM and SGLang, genai-perf and aiperf, LLMPerf, guidellm."""
_IN_FLIGHT = ("max_concurrency", "concurrency", "num_concurrent_requests")
_ALL_AT_ONCE = ("batch_size", "num_prompts", "num_prompt")
"""What a benchmark with an engine of its own calls the requests that it sends at once."""
_PART = re.compile(r"[\"']?(\w+)[\"']?\s*[=:]\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """A load, in the words of `plan serve`, where it comes from, and what was measured under it.

    `compares` tells whether the best server of the same GPUs is looked for beside the one that is predicted.
    """

    flags: ServeFlags
    source: str
    figures: Figures | None = None
    compares: bool = True


def is_result(name: str, text: str) -> bool:
    """Whether a file is what a benchmark client wrote."""
    return Path(name).suffix in (".json", ".jsonl") and any(word in text for word in _RESULT_WORDS)


_K = 1024
_LENGTHS_IN_NAME = (
    re.compile(r"(?:^|[_.-])(?P<input>\d{1,3})k(?P<output>\d{1,3})k(?=[_.-]|$)", re.IGNORECASE),
    re.compile(
        r"(?:^|[_.-])isl[_-]?(?P<input>\d{2,6})[_-]osl[_-]?(?P<output>\d{2,6})(?=[_.-]|$)", re.IGNORECASE
    ),
)
_FLIGHT_IN_NAME = re.compile(r"(?:^|[_.-])(?:conc|concurrency)[_-]?(\d{1,6})(?=[_.-]|$)", re.IGNORECASE)


def asked_in_name(name: str, asked: ServeFlags) -> ServeFlags:
    """The load that the name of a file tells beside what is asked: lengths, and requests in flight.

    >>> flags = asked_in_name("r1-b200-8k1k_tp8_conc1024.yaml", ServeFlags())
    >>> flags.input_tokens, flags.output_tokens, flags.concurrency
    ('8192', '1024', '1024')
    """
    stem = name.rpartition("/")[2].rpartition(".")[0]
    for pattern, unit in zip(_LENGTHS_IN_NAME, (_K, 1), strict=True):
        if (match := pattern.search(stem)) is not None:
            asked = replace(
                asked,
                input_tokens=asked.input_tokens or str(int(match["input"]) * unit),
                output_tokens=asked.output_tokens or str(int(match["output"]) * unit),
            )
            break
    flight = _FLIGHT_IN_NAME.search(stem)
    return asked if flight is None else replace(asked, concurrency=asked.concurrency or flight[1])


def loads_of(
    results: Mapping[str, str],
    texts: Mapping[str, str],
    asked: ServeFlags,
    given: Mapping[str, str],
    names: Iterable[str] = (),
) -> tuple[ServedLoad, ...]:
    """Every load to judge a server under; none where nobody said one.

    Args:
        results: What benchmark clients wrote, by name; their loads are what was measured.
        texts: Scripts by name; the first client that one starts counts where nothing was measured.
        names: Of all files: one may tell the load that it is for, where nothing else does.
        asked: Load and limits in the user's words. Limits hold for every load; a load holds over the files'.
        given: Variables of the environment that scripts read.
    """
    if asked.trace is not None:
        replayed = replace(asked, input_tokens=None, output_tokens=None)
        return (ServedLoad(flags=replayed, source=asked.trace.name, compares=False),)
    if asked.rate or asked.concurrency:
        return (ServedLoad(flags=asked, source="as asked"),)
    loads = [
        ServedLoad(flags=_of_figures(asked, figures), source=path.rpartition("/")[2], figures=figures)
        for path, text in results.items()
        for figures in figures_of(text, path)
    ]
    if loads:
        return tuple(loads[:MOST_LOADS])
    for name, text in texts.items():
        client = client_of(text, given)
        if client is not None and (flags := _of_client(asked, client)) is not None:
            return (ServedLoad(flags=flags, source=f"the client that {name.rpartition('/')[2]} starts"),)
    for name in names:
        if (flags := asked_in_name(name, asked)).concurrency:
            return (ServedLoad(flags=flags, source=f"as the name of {name.rpartition('/')[2]} says"),)
    return ()


def _of_figures(asked: ServeFlags, figures: Figures) -> ServeFlags:
    """The load that a client measured; a burst has all its requests in flight until they end."""
    inputs, outputs, share = figures.input_tokens, figures.output_tokens, figures.lowest_length_share
    return replace(
        asked,
        concurrency=str(figures.burst or figures.concurrency),
        input_tokens=str(inputs),
        output_tokens=str(outputs),
        input_p99=asked.input_p99 or _p99_of_share(inputs, share),
        output_p99=asked.output_p99 or _p99_of_share(outputs, share),
    )


def _p99_of_share(mean: int, share: float | None) -> str | None:
    """The 99th percentile of lengths that are equally likely from this share of the longest on.

    >>> _p99_of_share(900, 0.8), _p99_of_share(900, 1.0), _p99_of_share(900, None)
    ('998', '900', None)
    """
    return None if share is None else str(round(mean * (0.99 + 0.01 * share) / ((1 + share) / 2)))


def _of_client(asked: ServeFlags, client: Mapping[str, str]) -> ServeFlags | None:
    """The load that a client is told; None where it sends all at once to a server or says no lengths."""
    arguments = {**dict(_PART.findall(client.get("data", ""))), **client}
    rate, limit = (
        arguments.get("request_rate", "inf"),
        next((arguments[w] for w in _IN_FLIGHT if w in arguments), None),
    )
    if "rate" in arguments:  # guidellm: what it counts is another thing for each kind of load
        kind = arguments.get("rate_type", arguments.get("profile", ""))
        rate = arguments["rate"] if kind in ("constant", "poisson") else rate
        limit = arguments["rate"] if kind == "concurrent" else limit
    limit = "1" if arguments.get("rate_type", arguments.get("profile")) == "synchronous" else limit
    if WITHIN in arguments:
        limit = next((arguments[word] for word in _ALL_AT_ONCE if word in arguments), None)
    lengths = {
        name: getattr(asked, name) or next((arguments[word] for word in words if word in arguments), None)
        for name, words in _LENGTHS.items()
    }
    flags = replace(
        asked, input_tokens=lengths["input_tokens"], output_tokens=lengths["output_tokens"],
        input_p99=asked.input_p99 or ALIKE, output_p99=asked.output_p99 or ALIKE,
    )  # fmt: skip
    if limit is not None and limit.isdecimal():
        return replace(flags, concurrency=limit)
    return None if rate == "inf" or not _RATE.fullmatch(rate) else replace(flags, rate=f"{rate}/s")


_RATE = re.compile(r"\d+(?:\.\d+)?")
