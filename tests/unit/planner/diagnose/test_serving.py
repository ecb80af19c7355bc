"""Steps of a server: what annotations say of them, what makes the slowest token slow, and whose time p99 is."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from planner.diagnose.beside import beside_traces
from planner.diagnose.diagnosis import Diagnosis, diagnosed
from planner.questions.flags import Flags
from planner.traces.events import Events, TraceEvent
from planner.traces.server_metrics import quantile
from planner.traces.server_steps import server_steps
from tests.unit.planner.traces.micro import host, kernel, write

DECODE, CHUNK = "execute_context_0(0)_generation_8(8)", "execute_context_1(512)_generation_8(8)"


@pytest.mark.parametrize(
    ("name", "kind", "prompts", "tokens", "requests", "cached"),
    [
        ("execute_context_2(700)_generation_30(30)", "prefill and decode", 2, 700, 30, None),
        ("execute_context_0(0)_generation_30(30)", "decode", 0, 0, 30, None),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            "decode", 0, 0, 32, 55086,
        ),
        ("execute_new_3_cached_5", "prefill and decode", 3, None, 5, None),
        ("step[DECODE bs=16]", "decode", 0, None, 16, None),
        ("step[EXTEND bs=2 toks=4096]", "prefill", 2, 4096, 0, None),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", "prefill", 2, 12, 0, None),
        ("prefill[bs=2 tok=16384]", "prefill", 2, 16384, 0, None),
    ],
)  # fmt: skip
def test_annotations_of_each_server(
    name: str, kind: str, prompts: int, tokens: int | None, requests: int, cached: int | None
) -> None:
    """Names are those in recorded traces of vLLM, SGLang and ATOM."""
    row = TraceEvent(name=name, category="annotation", start_s=1.0, duration_s=0.5)
    (step,) = server_steps(Events.of_rows([row]))
    assert (step.kind, step.prompts, step.prompt_tokens) == (kind, prompts, tokens)
    assert (step.requests, step.cached_tokens) == (requests, cached)


def test_other_annotations_are_no_steps_of_a_server() -> None:
    names = ("step 7", "ProfilerStep#3", "execute_", "prefill", "step[", "decode_context_1(2)")
    rows = [TraceEvent(name=n, category="annotation", start_s=i, duration_s=0.5) for i, n in enumerate(names)]
    assert server_steps(Events.of_rows(rows)) == ()


def served(tmp_path: Path, steps: list[tuple[str, float, float]]) -> Diagnosis:
    """Steps by annotation, idle time before and busy time of the GPU; the host runs one step ahead."""
    events, at = list[list[dict[str, Any]]](), 500.0
    for number, (name, idle, busy) in enumerate(steps, start=1):
        begun = at + idle - 300.0
        events.append(host(name, begun, begun + 50.0))
        graph = kernel("nvjet_gemm", at + idle, at + idle + busy, number, launched_us=begun + 10.0)
        graph[0]["name"] = "cudaGraphLaunch"
        events.append(graph)
        at += idle + busy
    return diagnosed([write(tmp_path / "rank0.json", *events)], Flags())


def test_steps_by_what_they_do(tmp_path: Path) -> None:
    diagnosis = served(tmp_path, [(DECODE, 0.0, 400.0), (CHUNK, 0.0, 900.0), (DECODE, 100.0, 400.0)] * 3)
    assert diagnosis.served is not None
    decode, mixed = diagnosis.served.kinds
    assert (decode.kind, decode.steps, decode.requests, decode.graph_share) == ("decode", 6, 8, 1.0)
    assert (mixed.kind, mixed.steps, mixed.prompt_tokens) == ("prefill and decode", 3, 512)
    assert decode.busy_s == pytest.approx(400e-6)
    assert mixed.wall_s == pytest.approx(1000e-6)  # until the next one's first kernel
    assert mixed.idle_s == pytest.approx(100e-6)
    assert diagnosis.job.steps == 9
    assert sum(diagnosis.job.mean_part(part) for part in ("GEMM", "launch gaps", "unexplained")) == (
        pytest.approx(diagnosis.job.step_s)
    )


@pytest.mark.parametrize(
    ("slow", "by"),
    [
        ((CHUNK, 0.0, 3000.0), "prefill"),
        ((DECODE, 0.0, 3000.0), "decode"),
        ((DECODE, 2600.0, 400.0), "waiting"),
    ],
)
def test_what_the_slowest_token_waits_for(tmp_path: Path, slow: tuple[str, float, float], by: str) -> None:
    """49 steps of 400 µs and one of 3 ms: 1 of 100 tokens sees that one."""
    diagnosis = served(tmp_path, [(DECODE, 0.0, 400.0)] * 30 + [slow] + [(DECODE, 0.0, 400.0)] * 19)
    assert diagnosis.served is not None
    assert diagnosis.served.slowest_by == by
    assert diagnosis.served.token_gap_p99_s is not None
    assert 400e-6 < diagnosis.served.token_gap_p99_s <= 3000e-6


BOUNDS = ("0.3", "0.5", "1.0", "5.0", "20.0", "+Inf")


def metrics(counts: dict[str, tuple[int, ...]]) -> str:
    """`/metrics` of a server: requests between the bounds, by histogram."""
    lines = []
    for name, of in counts.items():
        lines += [f"# HELP vllm:{name} Histogram.", f"# TYPE vllm:{name} histogram"]
        for bound, count in zip(BOUNDS, accumulate(of), strict=True):
            lines.append(f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="m"}} {float(count)}')
        lines.append(f'vllm:{name}_count{{engine="0",model_name="m"}} {float(sum(of))}')
    return "\n".join(lines) + "\n"


QUICK, SLOW = (1000, 0, 0, 0, 0, 0), (900, 0, 0, 0, 100, 0)


@pytest.mark.parametrize(
    ("phase", "cause"), [("queue", "queueing"), ("prefill", "prefill"), ("decode", "decode")]
)
def test_p99_of_a_server_is_of_the_slow_phase(tmp_path: Path, phase: str, cause: str) -> None:
    counts = {f"request_{each}_time_seconds": QUICK for each in ("queue", "prefill", "decode")}
    counts |= {f"request_{phase}_time_seconds": SLOW, "e2e_request_latency_seconds": SLOW}
    path = tmp_path / "metrics.txt"
    path.write_text(metrics(counts))
    first = beside_traces([path]).findings[0]
    assert first.cause == cause
    assert first.seconds == pytest.approx(5.0 + 15.0 * (0.99 * 1000 - 900) / 100)
    assert first.share == pytest.approx(1.0)


def test_quantiles_are_those_of_prometheus() -> None:
    """Of its `histogram_quantile`: linear in a bucket, the last finite bound beyond it, nothing of nothing."""
    infinite = float("inf")
    assert quantile({1.0: 0.0, 2.0: 50.0, 4.0: 100.0, infinite: 100.0}, 0.5) == pytest.approx(2.0)
    assert quantile({1.0: 0.0, 2.0: 50.0, 4.0: 100.0, infinite: 100.0}, 0.75) == pytest.approx(3.0)
    assert quantile({1.0: 1.0, infinite: 100.0}, 0.99) == pytest.approx(1.0)
    assert quantile({1.0: 0.0, infinite: 0.0}, 0.99) is None
