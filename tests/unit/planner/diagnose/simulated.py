"""Steps of the pipeline simulator written as Kineto, with one fault of a known size.

Ranks are `pp` stages of `dp` replicas, stage by stage. Passes of the simulated schedule become kernels; what a
rank waits for between two passes is a receive. Gradients are reduced in buckets while the last backward
runs, and a last small all-reduce over all ranks ends a step, as gradient norms do.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from costmodel.layout import ParallelLayout
from costmodel.pipeline.simulator import StageSeconds, simulate_step

FAULTS = (
    "slow rank",
    "slow GPU",
    "loader",
    "synchronisation in the step",
    "host-bound",
    "overlap off",
    "slow link",
    "garbage collection",
    "checkpoint in the step",
    "precision",
    "unfused attention",
    "small buckets",
    "uneven stages",
    "last stage with head",
    "copies in the step",
    "allocator",
    "router imbalance",
    "dispatcher backend",
    "axis across nodes",
)
"""What can be injected; `slow GPU` is found as a slow rank."""
FORWARD_US, SEND_US = 2000.0, 60.0
LAYERS, STEPS, NOISE = 4, 3, 0.01
LAUNCH_US = 2.5
LATENCY_US, BYTES_PER_US, SICK = 40.0, 400e3, 8.0
"""Of a reduction; a sick link takes so many times as long."""
OF_EXPERTS = ("router imbalance", "dispatcher backend")
"""Faults of models with experts."""
IDLE_NAMES = {
    "loader": ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
    "garbage collection": ("<built-in function collect>", "python_function"),
    "checkpoint in the step": ("save_checkpoint", "user_annotation"),
    "allocator": ("cudaMalloc", "cuda_runtime"),
    "slow rank": ("preprocess", "user_annotation"),
}
"""Faults that are a stretch in which a rank's GPU is idle, and what the host is recorded to do."""


@dataclass(slots=True)
class Simulated:
    """A job of one fault; `truth_us` is what it costs a step."""

    fault: str
    pp: int
    dp: int
    rank: int | None = None
    truth_us: float = 0.0
    events: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    number: int = 0
    skew: dict[int, float] = field(default_factory=dict)
    """By rank: seconds of a pass over those of another rank, which its experts alone take longer."""
    host: dict[int, float] = field(default_factory=dict)
    """By rank, when the host is free: it launches as soon as it can, long before a GPU comes to it."""

    def on(self, rank: int, name: str, start: float, end: float, **how: Any) -> None:
        """One event of the host, or a kernel with its launch."""
        category = how.get("category", "kernel")
        thread = how.get("stream", 7 if category in ("kernel", "gpu_memcpy") else 1)
        args = dict(how.get("args", {}))
        if category in ("kernel", "gpu_memcpy"):
            self.number += 1
            args |= {"stream": thread, "correlation": self.number}
            launched = min(start - 3.0, self.host.get(rank, start))
            self.host[rank] = launched + LAUNCH_US
            self._event(
                rank,
                "cudaLaunchKernel",
                "cuda_runtime",
                launched,
                launched + 2.0,
                1,
                {"correlation": self.number},
            )
        self._event(rank, name, category, start, end, thread, args)

    def _event(
        self, rank: int, name: str, category: str, start: float, end: float, thread: int, args: dict[str, Any]
    ) -> None:
        self.events.setdefault(rank, []).append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": rank,
                "tid": thread,
                "ts": round(start, 3),
                "dur": round(end - start, 3),
                "args": args,
            }
        )

    @property
    def devices(self) -> int:
        """GPUs of a node."""
        return 2 if self.fault == "axis across nodes" else 8

    @property
    def replicas(self) -> str:
        """What ranks of a stage are to each other."""
        return "tp" if self.fault == "axis across nodes" else "dp"

    def groups(self, rank: int) -> list[tuple[str, tuple[int, ...]]]:
        """Axis and ranks of the groups that a rank is in; experts are spread over half of the replicas."""
        stage, replica = divmod(rank, self.dp)
        world, half = tuple(range(self.pp * self.dp)), self.dp // 2
        first = stage * self.dp + replica // half * half
        return [
            ("default_pg", world),
            (self.replicas, tuple(stage * self.dp + each for each in range(self.dp))),
            *([("ep", tuple(range(first, first + half)))] if self.fault in OF_EXPERTS else []),
            *([("pp", tuple(each * self.dp + replica for each in range(self.pp)))] if self.pp > 1 else []),
        ]

    def message(
        self, rank: int, axis: str, kind: str, elements: float, ranks: tuple[int, ...] | None = None
    ) -> dict[str, Any]:
        """What a kernel of a collective says."""
        of = ranks or dict(self.groups(rank))[axis]
        return {
            "Collective name": kind, "In msg nelems": int(elements), "Out msg nelems": int(elements), "dtype": "Float",
            "Group size": len(of), "Process Group Name": axis, "Process Group Description": axis, "Process Group Ranks": str(list(of)),
        }  # fmt: skip


def simulate(
    seed: int, fault: str = "", *, cured: bool = False, shape: tuple[int, int] | None = None
) -> Simulated:
    """A job with a fault, or a healthy one; `cured` is the same job, with the same noise, without the fault.

    `shape` are stages and replicas, else drawn. Uneven stages are cured by layers that move: all stages then take the mean.
    """
    random = Random(f"{fault}/{seed}")
    staged = fault in ("uneven stages", "last stage with head", "slow link")
    pp, dp = random.choice([(2, 2), (4, 2), (2, 4)] if staged else [(1, 4), (1, 8), (2, 2), (4, 2)])
    pp, dp = shape or (pp, dp)
    if fault in ("overlap off", "small buckets"):
        pp, dp = 1, random.choice([4, 8])
    job = Simulated(fault=fault, pp=pp, dp=dp)
    if fault in ("router imbalance", "dispatcher backend", "axis across nodes"):
        pp, dp = 1, random.choice([4, 8])
        job = Simulated(fault=fault, pp=pp, dp=dp)
    if fault in ("slow rank", "slow GPU", "router imbalance"):
        job.rank = random.randrange(pp * dp)
    microbatches = 1 if pp == 1 else 2 * pp
    slow = dict.fromkeys(range(pp * dp), 1.0)
    if fault == "slow GPU":
        slow[job.rank or 0] = random.uniform(1.3, 1.6)
    if fault == "router imbalance":
        slow[job.rank or 0] = job.skew[job.rank or 0] = 1.0 + random.uniform(0.2, 0.4)
    if fault == "uneven stages":
        stage = random.randrange(pp - 1)
    elif fault == "last stage with head":
        stage = pp - 1
    if fault in ("uneven stages", "last stage with head"):
        factor = random.uniform(1.5, 1.8)
        slow |= {rank: factor for rank in slow if rank // dp == stage}
    step_us = 3 * FORWARD_US * microbatches
    if cured:
        job.fault, job.rank = "", None
        slow = dict.fromkeys(slow, statistics.mean(slow.values()) if staged else 1.0)
    idle = random.uniform(0.3, 0.6) * step_us if fault in IDLE_NAMES else 0.0
    sick = random.randrange(pp) if fault == "slow link" else -1
    if cured:
        idle, sick = 0.0, -1
    now = 1000.0
    costs = []
    for number in range(1, STEPS + 1):
        now, cost = _step(job, random, number, now, microbatches, slow, idle, sick)
        costs.append(cost)
    job.truth_us = sum(costs) / len(costs)
    return job


def _step(
    job: Simulated,
    random: Random,
    number: int,
    start: float,
    microbatches: int,
    slow: dict[int, float],
    idle: float,
    sick: int,
) -> tuple[float, float]:
    """One step of all ranks; when it is over, and what the fault cost."""
    ready, cost, computed = dict[int, float](), 0.0, dict[int, float]()
    reduces: dict[int, list[tuple[int, float]]] = {}
    for replica in range(job.dp):
        ranks = [stage * job.dp + replica for stage in range(job.pp)]
        noisy = {rank: slow[rank] * random.lognormvariate(0.0, NOISE) for rank in ranks}
        growth = 2.0 if job.fault == "precision" else 1.0
        forward = tuple(FORWARD_US * noisy[rank] * growth * 1e-6 for rank in ranks)
        backward = tuple(2 * each for each in forward)
        seconds = StageSeconds(
            forward_s=forward,
            input_s=tuple(b / 2 for b in backward),
            weight_s=tuple(b / 2 for b in backward),
            send_s=SEND_US * 1e-6 * (job.pp > 1),
        )
        line = simulate_step(ParallelLayout(pp=job.pp, dp=1), microbatches, seconds)
        delay = {
            rank: idle if job.fault in IDLE_NAMES and job.rank in (None, rank) else 0.0 for rank in ranks
        }
        late = max(delay.values())
        for rank in ranks:
            passes = sorted(
                (each for each in line.events if each.rank == rank // job.dp), key=lambda each: each.start_s
            )
            if delay[rank]:
                name, category = IDLE_NAMES[job.fault]
                job.on(rank, name, start, start + delay[rank], category=category)
            free = start + delay[rank]
            job.host[rank] = free + 1.0
            for each in passes:
                begins, ends = start + late + each.start_s * 1e6, start + late + each.end_s * 1e6
                if begins - free > 1.0 and job.pp > 1:
                    before, after = rank - job.dp, rank + job.dp
                    from_before = (
                        each.kind.startswith("forward") and before >= 0
                    ) or after >= job.pp * job.dp
                    peer = before if from_before else after
                    pair = (min(rank, peer), max(rank, peer))
                    job.on(
                        rank,
                        "ncclDevKernel_SendRecv",
                        free,
                        begins,
                        stream=20,
                        args=job.message(rank, "pp", "sendrecv", 1e6, pair),
                    )
                _kernels(job, rank, begins, ends, each.kind)
                computed[rank] = computed.get(rank, 0.0) + ends - begins
                free = ends
            reduces[rank] = _buckets(job, passes[-1], start + late, free)
            ready[rank] = free
    ready, sent = _reduce(job, random, reduces, ready, sick)
    ready, own = _extra(job, random, ready, 3 * FORWARD_US * microbatches)
    for rank in ready:
        job.on(rank, "multi_tensor_adam", ready[rank], ready[rank] + 100.0)
    last = max(ready.values()) + 130.0
    for rank in ready:
        message = job.message(rank, "default_pg", "allreduce", 1)
        job.on(rank, "ncclDevKernel_AllReduce_Sum_f32", ready[rank] + 101.0, last, stream=30, args=message)
        job.on(rank, f"ProfilerStep#{number}", start, last, category="user_annotation")
    cost = own + sent
    mean = sum(computed.values()) / len(computed)
    cost += {"precision": 0.8, "unfused attention": 0.2}.get(job.fault, 0.0) * mean
    if job.fault in IDLE_NAMES:
        cost = idle
    if job.rank is not None and not job.skew:
        others = [
            value
            for rank, value in computed.items()
            if rank != job.rank and rank // job.dp == job.rank // job.dp
        ]
        cost += computed[job.rank] - statistics.median(others)
    if job.skew:
        of_experts = [
            spent * (0.3 + job.skew.get(rank, 1.0) - 1.0) / job.skew.get(rank, 1.0)
            for rank, spent in computed.items()
        ]
        cost = max(of_experts) - statistics.mean(of_experts)
    if job.fault in ("uneven stages", "last stage with head"):
        stages = [
            sum(value for rank, value in computed.items() if rank // job.dp == stage) / job.dp
            for stage in range(job.pp)
        ]
        cost = max(stages) - sum(stages) / job.pp
    return last + 10.0, cost


EXPERTS = "moe_grouped_gemm"
_SPENT: dict[str, tuple[tuple[str, float], ...]] = {
    "": (("nvjet_hsh_gemm", 0.6), ("flash_fwd_kernel", 0.2), ("vectorized_elementwise_kernel", 0.2)),
    **dict.fromkeys(
        OF_EXPERTS,
        (
            ("nvjet_hsh_gemm", 0.3),
            (EXPERTS, 0.3),
            ("flash_fwd_kernel", 0.2),
            ("vectorized_elementwise_kernel", 0.2),
        ),
    ),
    "precision": (("ampere_sgemm_128x64_nn", 0.8), ("vectorized_elementwise_kernel", 0.2)),
    "unfused attention": (
        ("nvjet_hsh_gemm", 0.6),
        ("softmax_warp_forward", 0.2),
        ("vectorized_elementwise_kernel", 0.2),
    ),
}
"""Kernels of a layer and their shares."""


def _kernels(job: Simulated, rank: int, begins: float, ends: float, kind: str) -> None:
    """Layers of one pass, back to back."""
    shares = _SPENT.get(job.fault, _SPENT[""])
    skew = job.skew.get(rank, 1.0)
    at = begins
    for _ in range(LAYERS):
        for name, of_pass in shares:
            share = (of_pass + (skew - 1.0) * (name == EXPERTS)) / skew
            lasts = (ends - begins) / LAYERS * share
            job.on(rank, name, at, at + lasts)
            at += lasts


def _buckets(job: Simulated, last: Any, start: float, free: float) -> list[tuple[int, float]]:
    """Elements of each bucket, and when its gradients are there."""
    begins, ends = start + last.start_s * 1e6, start + last.end_s * 1e6
    if job.fault == "axis across nodes":
        return []  # there are no replicas
    if job.fault == "small buckets":
        return [(50_000, free) for _ in range(60)]
    if job.fault == "overlap off":
        return [(20_000_000, free) for _ in range(LAYERS)]
    return [(20_000_000, begins + (ends - begins) * (layer + 1) / LAYERS) for layer in range(LAYERS)]


def _reduce(
    job: Simulated,
    random: Random,
    reduces: dict[int, list[tuple[int, float]]],
    ready: dict[int, float],
    sick: int,
) -> tuple[dict[int, float], float]:
    """Gradients of each stage, bucket after bucket, each when its last rank has it; and what a fault costs."""
    done, cost = dict(ready), 0.0
    for stage in range(job.pp):
        ranks = [stage * job.dp + replica for replica in range(job.dp)]
        free = dict.fromkeys(ranks, 0.0)
        for bucket in range(len(reduces[ranks[0]])):
            arrives = {rank: max(reduces[rank][bucket][1], free[rank]) for rank in ranks}
            elements = reduces[ranks[0]][bucket][0]
            lasts = LATENCY_US + elements * 4 / BYTES_PER_US * (SICK if stage == sick else 1.0)
            if job.fault == "overlap off":
                lasts *= 6
            ends = max(arrives.values()) + lasts * random.lognormvariate(0.0, NOISE)
            latency = LATENCY_US * (bucket > 0)
            costs = {"overlap off": ends - max(arrives.values()), "small buckets": latency}
            cost += costs.get(job.fault, elements * 4 / BYTES_PER_US * (SICK - 1) * (stage == sick))
            for rank in ranks:
                job.on(
                    rank,
                    "ncclDevKernel_ReduceScatter_Sum_f32",
                    arrives[rank],
                    ends,
                    stream=30,
                    args=job.message(rank, job.replicas, "reduce_scatter", elements),
                )
                free[rank] = ends + 1.0
        for rank in ranks:
            done[rank] = max(done[rank], free[rank])
    return done, cost


def _extra(
    job: Simulated, random: Random, ready: dict[int, float], step_us: float
) -> tuple[dict[int, float], float]:
    """Faults that come after the backward on every rank, and what they cost; those of a part cost what it takes."""
    cost, after = 0.0, dict(ready)
    size = random.uniform(0.3, 0.5) * step_us
    if job.fault in (*OF_EXPERTS, "axis across nodes"):
        return _layers_talk(job, ready, LATENCY_US if job.fault == "router imbalance" else size / LAYERS)
    for rank, at in ready.items():
        if job.fault == "copies in the step":
            job.on(
                rank,
                "Memcpy HtoD (Pinned -> Device)",
                at,
                at + size,
                category="gpu_memcpy",
                args={"bytes": 1e9},
            )
            after[rank], cost = at + size, size
        elif job.fault == "synchronisation in the step":
            job.on(rank, "cudaStreamSynchronize", at - 500.0, at + 5.0, category="cuda_runtime")
            job.host[rank] = at + size - 3.0
            after[rank], cost = at + size, size
        elif job.fault == "host-bound":
            pieces, each = 100, size / 100 - 2.0
            for piece in range(pieces):
                begins = at + piece * (each + 2.0)
                job.on(rank, "aten::add", begins, begins + each, category="cpu_op")
                job.host[rank] = begins + each - 3.0
                job.on(rank, "vectorized_elementwise_kernel", begins + each, begins + each + 2.0)
            after[rank], cost = at + pieces * (each + 2.0), pieces * each
    return after, cost


def _layers_talk(job: Simulated, ready: dict[int, float], lasts: float) -> tuple[dict[int, float], float]:
    """What layers send, exposed: tokens among ranks of an expert group, or partial sums among those of tp."""
    axis, kind = ("ep", "all_to_all") if job.fault in OF_EXPERTS else ("tp", "allreduce")
    after = dict(ready)
    for _ in range(LAYERS):
        for group in {dict(job.groups(rank))[axis] for rank in ready}:
            over = max(after[rank] for rank in group) + lasts
            for rank in group:
                message = job.message(rank, axis, kind, 1e6)
                job.on(rank, "ncclDevKernel_SendRecv", after[rank], over, stream=40, args=message)
                after[rank] = over
    return after, lasts * LAYERS * (job.fault != "router imbalance")


def write_ranks(job: Simulated, folder: Path) -> list[Path]:
    """One Kineto file for each rank."""
    paths = []
    for rank, events in job.events.items():
        groups = [
            {"pg_name": axis, "pg_desc": axis, "pg_size": len(ranks), "ranks": list(ranks)}
            for axis, ranks in job.groups(rank)
        ]
        info = {"backend": "nccl", "rank": rank, "world_size": job.pp * job.dp, "pg_config": groups}
        path = folder / f"rank{rank}.json"
        devices = [{"id": each} for each in range(job.devices)]
        document = {"distributedInfo": info, "deviceProperties": devices, "traceEvents": events}
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths


def cause_of(fault: str) -> str:
    """The cause that a fault is one of."""
    return "slow rank" if fault == "slow GPU" else fault
