"""The client that checks a plan: `vllm bench serve` with the load that was planned for.

Requests of one length are its random ones. Where lengths spread, a file in the columns of the BurstGPT trace
says those of every request: vLLM's reader takes lengths from it, makes prompts that share no prefix, and
sends them at the rate that is asked (`BurstGPTDataset` of vLLM 0.33, which reads the rows of one model name).
"""

from __future__ import annotations

import numpy as np

from costmodel.job import ServingJob
from costmodel.serving.simulation.load import Lengths
from planner.deployment.kubernetes import PORT
from planner.deployment.remote_code import trusting
from planner.serving.plan import ServingPlan

REQUESTS = 1000
LENGTHS_FILE = "lengths.csv"
_COLUMNS = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
_MODEL, _LOG = "GPT-4", "API log"
"""Of the rows that the reader takes."""


def client_words(plan: ServingPlan, checkpoint: str, *, from_file: bool = False) -> list[str]:
    """The words that start the client.

    Args:
        plan: What was planned.
        checkpoint: What the servers serve, whose tokenizer the client takes.
        from_file: Whether the lengths of requests are read from `LENGTHS_FILE`, where they spread.
    """
    job = plan.request.job
    load = (
        ["--max-concurrency", str(job.concurrency), "--num-prompts", str(10 * job.concurrency)]
        if job.concurrency is not None
        else ["--request-rate", f"{plan.estimate.request_rate_per_s:.4g}", "--num-prompts", str(REQUESTS)]
    )
    lengths = [
        "--dataset-name", "random", "--random-input-len", str(job.input_tokens),
        "--random-output-len", str(job.output_tokens),
    ]  # fmt: skip
    if from_file and spreads(job):
        lengths = ["--dataset-name", "burstgpt", "--dataset-path", LENGTHS_FILE]
    return [
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", f"http://localhost:{PORT}",
        "--model", checkpoint, *trusting("vllm", checkpoint), *lengths, "--ignore-eos", *load,
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99",
    ]  # fmt: skip


def spreads(job: ServingJob) -> bool:
    """Whether requests differ in length.

    >>> alike = ServingJob(input_tokens=9, output_tokens=9, input_tokens_p99=9)
    >>> spreads(alike), spreads(ServingJob(input_tokens=9, output_tokens=9, output_tokens_p99=30))
    (False, True)
    """
    return (job.input_tokens_p99 or 0) > job.input_tokens or (job.output_tokens_p99 or 0) > job.output_tokens


def client_notes(plan: ServingPlan) -> tuple[str, ...]:
    """What of the load a command alone does not send."""
    text = f"the benchmark sends the mean lengths alone; --save-dir DIR writes {LENGTHS_FILE}, the plan's"
    return (text,) if spreads(plan.request.job) else ()


def lengths_file(job: ServingJob) -> str:
    """The lengths of the client's requests, a row each, as the simulation draws them.

    >>> rows = lengths_file(ServingJob(input_tokens=10, output_tokens=5, input_tokens_p99=40)).splitlines()
    >>> rows[1]
    '0,GPT-4,7,5,12,API log'
    """
    rng = np.random.default_rng(0)
    inputs = Lengths(mean=job.input_tokens, p99=job.input_tokens_p99).draw(REQUESTS, rng).tolist()
    outputs = Lengths(mean=job.output_tokens, p99=job.output_tokens_p99).draw(REQUESTS, rng).tolist()
    rows = (
        f"{i},{_MODEL},{asked},{answered},{asked + answered},{_LOG}"
        for i, (asked, answered) in enumerate(zip(inputs, outputs, strict=True))
    )
    return "\n".join([_COLUMNS, *rows, ""])
