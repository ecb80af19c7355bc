"""How long requests are: as given, as traced, or spread as published loads are where only a mean is given.

Requests that are all alike are the easiest load there is. Where people state a mean, prompts and outputs are
log-normal with a 99th percentile of as many means as in the loads of Sarathi-Serve (OSDI 2024, table 2:
openchat_sharegpt4 and arxiv_summarization), whose logarithms spread by the mean of both. A closed loop is a
benchmark client, which sends requests of one length.
"""

from __future__ import annotations

from math import exp, log
from typing import Any

from costmodel.job import ServingJob
from costmodel.models.spec import ModelSpec
from costmodel.serving.simulation.load import NORMAL_P99, Load, most_p99_per_mean
from planner.questions.flags import ServeFlags
from topology.base.counts import parse_count
from topology.base.errors import InputError

DEFAULT_INPUT, DEFAULT_OUTPUT = 2000, 300
ALIKE = "alike"
"""The word for requests of one length, in place of a 99th percentile."""
NORMAL_P90 = 1.2815515655446004  # 90th percentile of the standard normal distribution
PUBLISHED = {"input": ((1730, 5696), (7059, 12985)), "output": ((415, 834), (208, 371))}
"""Median and 90th percentile of two loads, tokens: Sarathi-Serve, OSDI 2024, table 2."""


def request_lengths(flags: ServeFlags, trace: Load | None, model: ModelSpec) -> dict[str, Any]:
    """Mean and 99th percentile of input and output: as traced, as given, or as published loads spread.

    Args:
        flags: What was written.
        trace: Lengths of its own, if there is one.
        model: Its context holds the longest requests.
    """
    if trace is not None:
        import numpy as np

        return {
            "input_tokens": max(round(float(trace.input_tokens.mean())), 1),
            "output_tokens": max(round(float(trace.output_tokens.mean())), 1),
            "input_tokens_p99": round(float(np.percentile(trace.input_tokens, 99))),
            "output_tokens_p99": round(float(np.percentile(trace.output_tokens, 99))),
        }
    inputs = _mean(flags.input_tokens, "--input", DEFAULT_INPUT)
    outputs = _mean(flags.output_tokens, "--output", DEFAULT_OUTPUT)
    given = (_p99(flags.input_p99, inputs, "--input-p99"), _p99(flags.output_p99, outputs, "--output-p99"))
    usual: tuple[int | None, int | None] = (None, None)
    if flags.concurrency is None:
        usual = usual_p99(inputs, outputs, model.max_sequence_length)
    return {
        "input_tokens": inputs,
        "output_tokens": outputs,
        "input_tokens_p99": given[0] or usual[0],
        "output_tokens_p99": given[1] or usual[1],
    }


def p99_per_mean(side: str) -> float:
    """The 99th percentile over the mean of a log-normal that spreads as published loads do.

    >>> round(p99_per_mean("input"), 1), round(p99_per_mean("output"), 1)
    (4.0, 2.8)
    """
    sigmas = [log(p90 / median) / NORMAL_P90 for median, p90 in PUBLISHED[side]]
    sigma = sum(sigmas) / len(sigmas)
    return exp(NORMAL_P99 * sigma - sigma * sigma / 2)


def length_notes(flags: ServeFlags, job: ServingJob) -> list[str]:
    """What was taken for lengths that nobody gave."""
    if flags.trace is not None:
        return []
    notes = []
    if flags.input_tokens is None or flags.output_tokens is None:
        notes.append(
            f"requests of {job.input_tokens} input and {job.output_tokens} output tokens (--input, --output)"
        )
    taken = {"--input-p99": (flags.input_p99, job.input_tokens_p99, "prompts"),
             "--output-p99": (flags.output_p99, job.output_tokens_p99, "outputs")}  # fmt: skip
    values = {flag: f"{side} of {p99}" for flag, (given, p99, side) in taken.items() if not given and p99}
    if flags.concurrency is not None and not (flags.input_p99 or flags.output_p99):
        notes.append("requests of one length, as benchmark clients send (--input-p99, --output-p99)")
    if values:
        what = " and ".join(values.values())
        notes.append(f"lengths spread as published loads do, to {what} tokens at p99 ({', '.join(values)})")
    return notes


def usual_p99(inputs: int, outputs: int, context: int) -> tuple[int | None, int | None]:
    """99th percentiles of both sides as published loads spread, less where a context is shorter.

    Args:
        inputs: Mean tokens of a prompt.
        outputs: Mean tokens of an output.
        context: Most tokens of a request; where it holds no more than the means, neither has a percentile.

    Lengths of one token do not spread: none is less.
    """
    most = [p99_per_mean("input") * inputs, p99_per_mean("output") * outputs]
    room, wanted = context - inputs - outputs, sum(most) - inputs - outputs
    if room <= 0:
        return None, None
    share = min(room / wanted, 1.0)
    means = (inputs, outputs)
    longer = [int(mean + share * (p99 - mean)) for mean, p99 in zip(means, most, strict=True)]
    spreads = [p99 if mean > 1 else None for mean, p99 in zip(means, longer, strict=True)]
    return spreads[0], spreads[1]


def _mean(text: str | None, flag: str, default: int) -> int:
    """A mean as given."""
    return parse_count(text, flag) if text else default


def _p99(text: str | None, mean: int, flag: str) -> int | None:
    """A 99th percentile of lengths that some log-normal with this mean has; None where none is given."""
    if not text:
        return None
    if text.strip().lower() == ALIKE:
        return mean
    p99 = parse_count(text, flag)
    most = int(mean * most_p99_per_mean()) if mean > 1 else 1
    if not mean <= p99 <= most:
        raise InputError(
            what=f"{flag} {text} is not possible",
            cause=f"a log-normal with a mean of {mean} tokens has a 99th percentile of {mean} to {most}",
            fix=f"give one of those, {ALIKE}, or the lengths themselves by --trace",
        )
    return p99
