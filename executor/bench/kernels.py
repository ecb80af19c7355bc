"""Microbenchmarks of this machine: matrix products, attention, memory, every collective, as `Measurement`s.

Each entry is warmed up, then repeated until it has run long enough, and reported by its median and tenth and
ninetieth percentile. On a CPU every rank is one thread and all ranks measure at once, because that is how
they will train.

Legend: ``m n k`` of a matrix product, ``B`` message bytes as in `costmodel.kernels.collectives`.
"""

from __future__ import annotations

import datetime as dt
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from costmodel.kernels.measurement import Measurement
from executor.bench.local_ranks import run_ranks
from executor.comm import collectives
from topology.base.units import KIB, MIB

WARM_UP_CALLS = 2
LEAST_REPEATS = 5
MOST_REPEATS = 50
LONG_ENOUGH_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """What to measure: shapes (m, n, k), attention (batch, heads, tokens, head size), bytes."""

    gemm: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    copy_bytes: tuple[int, ...]
    message_bytes: tuple[int, ...]
    collectives: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


CPU_SIZES = BenchSizes(
    gemm=tuple((m, n, k) for m in (128, 512) for n in (64, 256, 1024) for k in (64, 256, 1024)),
    attention=((1, 4, 128, 32), (1, 8, 512, 64)),
    copy_bytes=(256 * KIB, 4 * MIB, 64 * MIB),
    message_bytes=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
)
GPU_SIZES = BenchSizes(
    gemm=tuple(
        (m, n, k) for m in (1024, 4096, 16384) for n in (1024, 4096, 16384) for k in (1024, 4096, 16384)
    ),
    attention=((1, 32, 4096, 128), (1, 32, 16384, 128), (8, 16, 4096, 128)),
    copy_bytes=(MIB, 64 * MIB, 1024 * MIB),
    message_bytes=(64 * KIB, MIB, 16 * MIB, 256 * MIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one repetition: percentiles, and how many there were."""

    p10_s: float
    p50_s: float
    p90_s: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark's name, inputs and timing, before it is tied to a cluster."""

    what: str
    dtype: str
    inputs: Mapping[str, float]
    timing: Timing


def time_it(action: Callable[[], Any], finish: Callable[[], None], repeats: int | None = None) -> Timing:
    """Time an action; `finish` waits for what it started. Ranks that must agree give `repeats`."""
    for _ in range(WARM_UP_CALLS):
        action()
    finish()
    seconds: list[float] = []
    while len(seconds) < (repeats or LEAST_REPEATS) or (
        repeats is None and sum(seconds) < LONG_ENOUGH_S and len(seconds) < MOST_REPEATS
    ):
        start = time.perf_counter()
        action()
        finish()
        seconds.append(time.perf_counter() - start)
    return summarize(seconds)


def summarize(seconds: list[float]) -> Timing:
    """Percentiles of repetitions.

    >>> summarize([3.0, 1.0, 2.0, 4.0, 5.0]).p50_s
    3.0
    """
    deciles = statistics.quantiles(seconds, n=10, method="inclusive")
    return Timing(p10_s=deciles[0], p50_s=statistics.median(seconds), p90_s=deciles[-1], repeats=len(seconds))


def kernel_entries(sizes: BenchSizes, device: torch.device, dtype: torch.dtype) -> list[Benchmark]:
    """Time matrix products, causal attention and copies on one device."""
    finish = torch.cuda.synchronize if device.type == "cuda" else _nothing
    name = "bf16" if dtype is torch.bfloat16 else "fp32"
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    entries = []
    for m, n, k in sizes.gemm:
        a, b = torch.randn(m, k, **options), torch.randn(n, k, **options)
        timing = time_it(lambda a=a, b=b: a @ b.t(), finish)  # type: ignore[misc]
        entries.append(Benchmark(what="gemm", dtype=name, inputs={"m": m, "n": n, "k": k}, timing=timing))
    for batch, heads, tokens, size in sizes.attention:
        q = torch.randn(batch, heads, tokens, size, **options)
        timing = time_it(lambda q=q: _attend(q), finish)  # type: ignore[misc]
        inputs = {"batch": batch, "heads": heads, "kv_heads": heads, "query_tokens": tokens}
        inputs |= {"kv_tokens": tokens, "head_dim": size}
        entries.append(Benchmark(what="attention_prefill", dtype=name, inputs=inputs, timing=timing))
    for size in sizes.copy_bytes:
        source = torch.zeros(size // 2, device=device, dtype=torch.uint8)  # read one half, write the other
        target = torch.empty_like(source)
        timing = time_it(lambda s=source, t=target: t.copy_(s), finish)  # type: ignore[misc]
        entries.append(Benchmark(what="elementwise", dtype="", inputs={"bytes": size}, timing=timing))
    return entries


def _attend(q: torch.Tensor) -> torch.Tensor:
    """Causal attention of a tensor with itself."""
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def _nothing() -> None:
    """Wait for nothing: a CPU has finished when the call returns."""


def collective_entries(
    sizes: BenchSizes, device: torch.device, backend: str | None = None
) -> list[Benchmark]:
    """Time every collective over groups of 2, 4, … up to all ranks; every rank calls this."""
    world, rank = dist.get_world_size(), dist.get_rank()
    finish = torch.cuda.synchronize if device.type == "cuda" else _nothing
    entries, size = [], 2
    while size <= world:
        starts = range(0, world - size + 1, size)
        groups = [dist.new_group(list(range(start, start + size)), backend=backend) for start in starts]
        if rank < len(groups) * size:
            group = groups[rank // size]
            for what in sizes.collectives:
                for message in sizes.message_bytes:
                    action = collective_of(what, message, group, device)
                    timing = time_it(action, finish, repeats=repeats_of(message))
                    inputs = {"bytes": message, "size": size, "stride": 1}
                    entries.append(Benchmark(what=what, dtype="", inputs=inputs, timing=timing))
        dist.barrier()
        size *= 2
    return entries


def repeats_of(message_bytes: int) -> int:
    """Repetitions all ranks make, fewer of the large ones."""
    return 5 if message_bytes > MIB else 20


def collective_of(what: str, message_bytes: int, group: Any, device: torch.device) -> Callable[[], Any]:
    """One collective of a message whose bytes are counted as the cost model counts them."""
    n = dist.get_world_size(group)
    elements = max(n, message_bytes // 4 // n * n)
    whole = torch.zeros(elements, device=device)
    part = torch.zeros(elements // n, device=device)
    actions: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: collectives.all_reduce(whole, group),
        "all_gather": lambda: collectives.all_gather(part, 0, group),
        "reduce_scatter": lambda: collectives.reduce_scatter(whole, 0, group),
        "all_to_all": lambda: collectives.all_to_all(whole, None, None, group),
        "p2p": lambda: _pass_on(whole, group),
    }
    return actions[what]


def _pass_on(message: torch.Tensor, group: Any) -> None:
    """Even members send to the next odd one."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    peer = dist.get_global_rank(group, rank ^ 1) if (rank ^ 1) < n else None
    if peer is None:
        return
    if rank % 2 == 0:
        dist.send(message, peer, group=group)
    else:
        dist.recv(message, peer, group=group)


def bench_cpu(sizes: BenchSizes, ranks: int) -> list[Benchmark]:
    """Measure this CPU shared by `ranks` gloo processes of one thread each."""
    entries: list[Benchmark] = run_ranks(_cpu_rank, ranks, sizes, timeout_s=600.0)[0]
    return entries


def _cpu_rank(_rank: int, sizes: BenchSizes) -> list[Benchmark]:
    """One rank's measurements."""
    device = torch.device("cpu")
    return [*kernel_entries(sizes, device, torch.bfloat16), *collective_entries(sizes, device)]


def bench_gpu(sizes: BenchSizes, ranks: int) -> list[Benchmark]:
    """Measure the first GPU, and NCCL between `ranks` GPUs of this machine when there are several."""
    if ranks > 1:  # before this process touches CUDA: its children are forked
        messages: list[Benchmark] = run_ranks(_gpu_rank, ranks, sizes, timeout_s=600.0)[0]
    else:
        messages = []
    device = torch.device("cuda", 0)
    return [*kernel_entries(sizes, device, torch.bfloat16), *messages]


def _gpu_rank(rank: int, sizes: BenchSizes) -> list[Benchmark]:
    """One rank's collectives over NCCL."""
    torch.cuda.set_device(rank)
    return collective_entries(sizes, torch.device("cuda", rank), backend="nccl")


def measurements(entries: list[Benchmark], *, cluster: str, gpu: str) -> tuple[Measurement, ...]:
    """Tie entries to the cluster (by fingerprint) and GPU they were taken on."""
    software = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.cuda.is_available():
        software |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return tuple(
        Measurement(
            what=entry.what,
            cluster=cluster,
            gpu=gpu,
            dtype=entry.dtype,
            inputs=entry.inputs,
            value=entry.timing.p50_s,
            unit="s",
            repeats=entry.timing.repeats,
            p10=entry.timing.p10_s,
            p50=entry.timing.p50_s,
            p90=entry.timing.p90_s,
            software=software,
            when=today,
        )
        for entry in entries
    )
