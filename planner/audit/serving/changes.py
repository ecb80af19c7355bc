"""What would let a server carry more: the best of its GPUs as a whole, and one thing at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.kernels.tables import Calibration
from costmodel.serving.engine import scheduler_default, serving_stack
from planner.audit.serving.refused import converts_e4m3
from planner.audit.serving.running import RunningServer, running
from planner.audit.serving.server import Server
from planner.audit.serving.start import roomier_split
from planner.deployment.vllm_sglang import engine_words, trtllm_options
from planner.serving.plan import PoolPlan, ServingPlan, ServingRequest
from planner.serving.replica import Rejected
from planner.serving.space import partition_words
from topology.fabric.hierarchy import Hierarchy

LEAST_GAIN = 0.01
"""Share of requests that a change gains, at least, to be told: less is the simulation's own step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """Words to set, or to leave out, and the requests a second that the server then carries.

    `whole` is all that the best server does otherwise; the others change one thing, such as a `narrower`
    cache, which changes answers. Latencies are medians under the load that was asked, seconds.
    """

    set: tuple[str, ...]
    plan: ServingPlan
    requests_per_s: float
    whole: bool = False
    narrower: bool = False

    @property
    def ttft_s(self) -> float:
        """The median time to the first token."""
        return self.plan.estimate.ttft.p50_s

    @property
    def tpot_s(self) -> float:
        """The median time per further token."""
        return self.plan.estimate.tpot.p50_s


def best_per_s(plan: ServingPlan) -> float:
    """What the best server carries: what it answers in a closed loop, else what it was found to serve."""
    return plan.estimate.served_per_s


def server_changes(
    cal: Calibration,
    server: Server,
    request: ServingRequest,
    hierarchy: Hierarchy,
    *,
    now: RunningServer,
    best: ServingPlan | None,
) -> tuple[ServerChange, ...]:
    """What carries more requests within the same limits: all of the best server, then what gains alone.

    Args:
        cal: Kernel and collective tables.
        server: As it was started.
        request: Its load and its GPUs.
        hierarchy: Their fabric.
        now: What it does.
        best: The best server of these GPUs.
    """
    changes = []
    split = roomier_split(server, request, hierarchy)
    for other in (*_neighbours(server, hierarchy), *([] if split is None else [split])):
        job = replace(request.job, kv_dtype=other.kv_dtype, memory_fraction=other.memory_fraction)
        then = running(cal, other, replace(request, job=job), hierarchy)
        if isinstance(then, Rejected) or (then.broken and not now.broken):
            continue
        if then.requests_per_s > (1 + LEAST_GAIN) * now.requests_per_s:
            alike = replace(then.plan.decode, max_batch=now.plan.decode.max_batch)
            left_out = [
                flags[server.engine]
                for flags, dropped in (
                    (_BATCH, server.max_batch is not None and other.max_batch is None),
                    (_NO_OVERLAP, other.overlaps and not server.overlaps),
                )
                if dropped
            ]
            words = tuple(f"without {flag}" for flag in left_out) or _otherwise(now.plan, then.plan, alike)
            if other.layout != server.layout:
                words = (partition_words(server.engine, other.layout.layers),)
            narrower = other.kv_dtype != server.kv_dtype
            changes.append(
                ServerChange(set=words, plan=then.plan, requests_per_s=then.requests_per_s, narrower=narrower)
            )
    alone = max((change.requests_per_s for change in changes if not change.narrower), default=0.0)
    if best is not None and best_per_s(best) > (1 + LEAST_GAIN) * max(now.requests_per_s, alone):
        words = _otherwise(now.plan, best, best.decode)
        changes.append(ServerChange(set=words, plan=best, requests_per_s=best_per_s(best), whole=True))
    return tuple(sorted(changes, key=lambda change: (not change.whole, -change.requests_per_s)))


def best_with(best: ServingPlan | None, changes: Sequence[ServerChange]) -> ServingPlan | None:
    """The best server: that of one change where it carries more, as a search for sure limits may miss it."""
    if best is None:
        return None
    alike = (change.plan for change in changes if not change.narrower)
    return max((best, *alike), key=best_per_s)


def pool_changes(*, now: RunningServer, best: ServingPlan | None) -> tuple[ServerChange, ...]:
    """All that the best pools of the same GPUs have otherwise, by pool."""
    if best is None or best_per_s(best) <= (1 + LEAST_GAIN) * now.requests_per_s:
        return ()
    words: list[str] = []
    pools = dict(now.plan.pools)
    for role, pool in best.pools:
        old = pools.get(role)
        if old is None:
            continue
        before, after = _start_flags(now.plan, old, role), _start_flags(best, pool, role)
        changed = [f"{flag} {value}".strip() for flag, value in after.items() if before.get(flag) != value]
        gone = [f"without {flag}" for flag in before if flag not in after]
        copies = [f"{pool.workers} workers"] if pool.workers != old.workers else []
        words += [f"{role}: {word}" for word in (*copies, *changed, *gone)]
    return (ServerChange(set=tuple(words), plan=best, requests_per_s=best_per_s(best), whole=True),)


_BATCH = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "trtllm": "--max_batch_size"}
_NO_OVERLAP = {
    "vllm": "--no-async-scheduling", "sglang": "--disable-overlap-schedule",
    "trtllm": "disable_overlap_scheduler: true",
}  # fmt: skip


def _neighbours(server: Server, hierarchy: Hierarchy) -> Iterator[Server]:
    """The server with one thing otherwise: the engine's own limits, another chunk, a smaller cache format."""
    stack = serving_stack(server.engine)
    default = scheduler_default(stack, hierarchy.gpu)
    if server.max_batch is not None:
        yield replace(server, max_batch=None)
    if not server.overlaps:
        yield replace(server, overlaps=True)
    budgets = {default.token_budget, *stack.chunk_sizes} if stack.chunked else set()
    for budget in sorted(budgets - {server.token_budget or default.token_budget}):
        yield replace(server, token_budget=budget)
    waits = {(stack.balance_steps, 0), (0, 0)} - {(server.balance_steps, server.gather_steps)}
    for steps, more in sorted(waits) if server.layout.attention_dp > 1 else ():
        yield replace(server, balance_steps=steps, gather_steps=more)
    leaves_room = stack.fraction_of != "static"  # else what the server takes by itself is no constant
    if leaves_room and server.memory_fraction is not None and server.memory_fraction < stack.memory_fraction:
        yield replace(server, memory_fraction=None)
    if server.kv_dtype != "fp8" and converts_e4m3(server.gpu):
        yield replace(server, kv_dtype="fp8")


def _otherwise(now: ServingPlan, then: ServingPlan, pool: PoolPlan) -> tuple[str, ...]:
    """Words of an engine that a pool has and the server has not, as one would write them."""
    old, new = _start_flags(now, now.decode), _start_flags(then, pool)
    changed = [f"{flag} {value}".strip() for flag, value in new.items() if old.get(flag) != value]
    gone = [f"without {flag}" for flag in old if flag not in new]
    copies = [f"{then.decode.workers} such servers"] if then.decode.workers != now.decode.workers else []
    return (*changed, *gone, *copies)


def _start_flags(plan: ServingPlan, pool: PoolPlan, role: str = "") -> dict[str, str]:
    """Flags of the command that starts a pool and their values, and what its options file holds."""
    flags: dict[str, str] = {}
    flag = ""
    for word in engine_words(plan, pool, role):
        if word.startswith("--"):
            flag = word
            flags[flag] = ""
        elif flag:
            flags[flag] = f"{flags[flag]} {word}".strip()
    if plan.request.engine == "trtllm" and (options := trtllm_options(plan, pool, role)):
        flags["--extra_llm_api_options"] = f"FILE of {' '.join(options.split())}"
    return flags
