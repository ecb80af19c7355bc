"""How much faster a pipeline job is without stragglers, and what slows it: a worker, a stage, or its work.

The method is that of arXiv:2505.05713. Operations of all ranks are played anew in their recorded order:
computation takes its recorded time, communication what it took after its last rank had come. `S` is that step
time over the step time in which every operation takes the mean of its kind (of communication the median). A
share says how much of the difference goes away where some operations alone take their mean.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.finding import StepFinding
from planner.traces.pipeline_tables import PipelineRows
from topology.base.arrays import Floats
from topology.base.errors import InputError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE: Final = (FORWARD, BACKWARD)
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
EMBEDDING, NORMS, CLIP = (
    "embedding-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "optimizer-clip-main-grad",
)
COLLECTOR, OPTIMIZER = "gc", "optimizer"
MESSAGES: Final = ("forward-send", "forward-recv", "backward-send", "backward-recv")
REPLICATED: Final = (GATHER, SCATTER, SEPARATE, CLIP)
"""Communication that waits for all replicas."""
COMMUNICATION: Final = (*MESSAGES, GATHER, SCATTER, SEPARATE, EMBEDDING, NORMS, CLIP)
KNOWN: Final = frozenset((*COMPUTE, *COMMUNICATION, COLLECTOR, OPTIMIZER))
STRAGGLING: Final = 1.1
"""From this slowdown on the paper counts a job as straggling (its section 4)."""
CORRELATED: Final = 0.9
"""From this correlation of forward and backward on, the paper names lengths of sequences as cause (5.3)."""
MAJORITY: Final = 0.5
"""Of the loss: a cause explains more of it than all others together."""

Key = tuple[int, str, int]
"""Stage, kind and place of an operation."""


def _cured(share: float) -> str:
    """A share of the loss; above 1 the others are faster than the mean.

    >>> _cured(0.42), _cured(1.22)
    ('42 %', 'all of it')
    """
    return "all of it" if share >= 1 else f"{100 * share:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSlowdown:
    """Slowdowns of a job."""

    seconds: float
    """Mean step without delays of launches."""
    ideal_s: float
    """The same with every operation at the mean of its kind."""
    slowdown: float
    """`S`, their ratio."""
    by_replica: Mapping[int, float]
    """Slowdown with the recorded times of this replica alone."""
    by_stage: Mapping[int, float]
    by_operation: Mapping[str, float]
    by_rank: Mapping[int, float]
    """The smaller of a rank's replica's and its stage's: what neither explains is not the rank's."""
    worst_ranks: tuple[int, ...]
    """The worst 3 % of the ranks."""
    worker_share: float
    """`M_W`: what repairing the worst ranks cures of the loss."""
    stage_share: float
    """`M_S`: what repairing the last stage cures; above 1 where other stages are faster than the mean."""
    work_share: float
    """What it cures that all microbatches of a stage take the same time."""
    correlation: float
    """Of forward and backward times of microbatches, within each stage; 0 where they do not vary."""

    def findings(self) -> tuple[StepFinding, ...]:
        """The cause of the most of the loss, if the job straggles."""
        if self.slowdown < STRAGGLING:
            return ()
        lost_s = self.seconds - self.ideal_s
        share = lost_s / self.seconds
        whole = f"S = {self.slowdown:.3f}: {lost_s:.3g} s of {self.seconds:.3g} s"

        def finding(
            cause: str, cured: float, evidence: str, fix: str, rank: int | None = None
        ) -> StepFinding:
            part = min(max(cured, 0.0), 1.0)
            return StepFinding(
                cause=cause,
                rank=rank,
                seconds=lost_s * part,
                share=share * part,
                evidence=f"{whole}; {evidence}",
                fix=fix,
            )

        if self.worker_share >= MAJORITY:
            ranks = ", ".join(map(str, self.worst_ranks))
            evidence = f"repairing rank {ranks} cures {_cured(self.worker_share)}"
            fix = f"replace the node of rank {ranks}, or read its clocks, ECC counts and host load"
            return (finding("slow rank", self.worker_share, evidence, fix, self.worst_ranks[0]),)
        if self.work_share >= MAJORITY and self.correlation >= CORRELATED:
            evidence = (
                f"equal microbatches cure {self.work_share:.0%}; forward and backward times of a microbatch "
                f"go together (correlation {self.correlation:.2f})"
            )
            fix = "pack sequences so that microbatches have equal sums of squared lengths"
            return (finding("sequence imbalance", self.work_share, evidence, fix),)
        last = max(self.by_stage)
        if self.stage_share >= MAJORITY:
            evidence = f"repairing the last stage ({last}) cures {_cured(self.stage_share)}"
            fix = "give the last stage fewer layers, as it has the head and the loss"
            return (finding("last stage with head", self.stage_share, evidence, fix),)
        worst = max(self.by_stage, key=lambda stage: self.by_stage[stage])
        cured = (self.by_stage[worst] - 1) / (self.slowdown - 1)
        if cured >= MAJORITY:
            evidence = f"stage {worst} alone makes the step {self.by_stage[worst]:.3f} times as long"
            return (finding("uneven stages", cured, evidence, f"give stage {worst} fewer layers"),)
        return ()


def stragglers_of(rows: PipelineRows) -> JobSlowdown:
    """Slowdowns of a job by replica, stage, operation and rank, and the shares that name its cause.

    Raises:
        InputError: Operations are missing, or are in no order in which the job can run.
    """
    job = _Job(rows)
    recorded, ideal = job.recorded, job.ideal
    seconds, ideal_s = job.step_s(recorded), job.step_s(ideal)

    def slowdown(chosen: Callable[[Key], bool], replica: int | None = None) -> float:
        """With the recorded times of some operations alone."""
        return job.step_s(job.mixed(ideal, recorded, chosen, replica)) / ideal_s

    def cured(times: Mapping[Key, Floats]) -> float:
        """Of the loss, with other times."""
        return (seconds - job.step_s(times)) / (seconds - ideal_s) if seconds > ideal_s else 0.0

    by_replica = {replica: slowdown(lambda _: True, replica) for replica in range(job.replicas)}
    by_stage = {stage: slowdown(lambda key, stage=stage: key[0] == stage) for stage in range(job.stages)}  # type: ignore[misc]
    kinds = sorted({_named(kind) for _, kind, _ in recorded})
    by_operation = {kind: slowdown(lambda key, kind=kind: _named(key[1]) == kind) for kind in kinds}  # type: ignore[misc]
    by_rank = {
        rank: min(by_replica[replica], by_stage[stage]) for (replica, stage), rank in job.ranks.items()
    }
    count = -(-len(by_rank) * 3 // 100)
    worst = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))[:count]
    repaired: Mapping[Key, Floats] = recorded
    for (replica, stage), rank in job.ranks.items():
        if rank in worst:
            repaired = job.mixed(repaired, ideal, lambda key, stage=stage: key[0] == stage, replica)  # type: ignore[misc]
    last = job.mixed(recorded, ideal, lambda key: key[0] == job.stages - 1, None)
    return JobSlowdown(
        seconds=seconds,
        ideal_s=ideal_s,
        slowdown=seconds / ideal_s,
        by_replica=by_replica,
        by_stage=by_stage,
        by_operation=by_operation,
        by_rank=by_rank,
        worst_ranks=tuple(worst),
        worker_share=cured(repaired),
        stage_share=cured(last),
        work_share=cured(job.even_work()),
        correlation=job.correlation(),
    )


def _named(kind: str) -> str:
    """A kind of operation as slowdowns are listed: both sides of a message are one."""
    return f"{kind.partition('-')[0]}-pp-comm" if kind in MESSAGES else kind


class _Job:
    """The operations of a job as arrays of steps and replicas, what each waits for, and who synchronises."""

    def __init__(self, rows: PipelineRows) -> None:
        unknown = sorted({rows.kinds[place] for place in np.unique(rows.kind)} - KNOWN)
        if unknown:
            fix = f"name operations as arXiv:2505.05713 does: {', '.join(sorted(KNOWN))}"
            raise InputError(f"{rows.source} has unknown operations", ", ".join(unknown), fix)
        self.source = rows.source
        steps, step = np.unique(rows.step, return_inverse=True)
        self.replicas, self.stages = int(rows.dp_rank.max()) + 1, int(rows.stage.max()) + 1
        self.shape = len(steps), self.replicas
        self.ranks = {
            (int(replica), int(stage)): int(rank)
            for replica, stage, rank in np.unique(np.stack((rows.dp_rank, rows.stage, rows.rank)), axis=1).T
        }
        self.start: dict[Key, Floats] = {}
        self.length: dict[Key, Floats] = {}
        self.chunk: dict[Key, int] = {}
        self.work: dict[Key, tuple[int, int]] = {}
        """Of computation the virtual stage in the model and the microbatch."""
        self._read(rows, step)
        self.after = self._order()
        self.groups = self._groups()
        self.recorded = self._transfers()
        self.ideal = self._means()
        self._sorted = self._topological()

    def _read(self, rows: PipelineRows, step: NDArray[np.int64]) -> None:
        """Starts and durations of each operation by step and replica."""
        order = np.lexsort((rows.sequence, rows.kind, rows.stage))
        fields = np.stack((rows.stage[order], rows.kind[order], rows.sequence[order]))
        cuts = np.flatnonzero(np.any(np.diff(fields, axis=1) != 0, axis=0)) + 1
        need = self.shape[0] * self.shape[1]
        for places in np.split(order, cuts):
            first = places[0]
            key = int(rows.stage[first]), rows.kinds[rows.kind[first]], int(rows.sequence[first])
            if len(places) != need:
                cause = f"{key[1]} {key[2]} of stage {key[0]} is recorded {len(places):,} times, not {need:,}"
                fix = "keep the steps of which every replica has recorded all operations"
                raise InputError(f"{self.source} is not complete", cause, fix)
            start, length = np.full(self.shape, np.nan), np.full(self.shape, np.nan)
            start[step[places], rows.dp_rank[places]] = rows.start_s[places]
            length[step[places], rows.dp_rank[places]] = rows.duration_s[places]
            if np.isnan(start).any():
                cause = f"{key[1]} {key[2]} of stage {key[0]} is recorded twice in a step"
                raise InputError(f"{self.source} is not complete", cause, "number operations by seq_id")
            self.start[key], self.length[key] = start, length
            self.chunk[key] = int(rows.chunk[first])
            self.work[key] = int(rows.model_chunk[first]), int(rows.microbatch[first])

    def _of(self, stage: int, *kinds: str) -> list[Key]:
        """Operations of some kinds of a stage, in the order in which they start."""
        keys = [key for key in self.start if key[0] == stage and key[1] in kinds]
        return sorted(keys, key=lambda key: (float(self.start[key][0, 0]), key[2], key[1]))

    # ── what waits for what ───────────────────────────────────────────────────────────────────────────────

    def _order(self) -> dict[Key, set[Key]]:
        """Of each operation those of its rank that come before it."""
        after: dict[Key, set[Key]] = {key: set() for key in self.start}
        for stage in range(self.stages):
            computing = self._of(stage, *COMPUTE)
            if not computing:
                cause = f"stage {stage} has no {FORWARD} and {BACKWARD}"
                raise InputError(f"{self.source} is not complete", cause, "record all stages")
            _chain(after, computing)
            for kind in (*MESSAGES, GATHER):
                _chain(after, self._of(stage, kind))
            self._messages(after, stage, computing)
            self._gathers(after, stage)
            self._tail(after, stage, computing)
        return after

    def _messages(self, after: dict[Key, set[Key]], stage: int, computing: Sequence[Key]) -> None:
        """A message is sent after its computation, and awaited once the one before has been computed."""
        for way in ("forward", "backward"):
            same = [key for key in computing if key[1] == f"{way}-compute"]
            for side in ("send", "recv"):
                messages = self._of(stage, f"{way}-{side}")
                for message, work in zip(
                    messages, self._with_message(same, way, side, len(messages)), strict=True
                ):
                    if side == "send":
                        after[message].add(work)
                    else:
                        after[work].add(message)
                        after[message] |= set(same[max(0, same.index(work) - 1) : same.index(work)])
        first = next((place for place, key in enumerate(computing) if key[1] == BACKWARD), 0)
        if first >= 2:  # the first messages of backward are awaited beside the last forward before it
            for kind in ("backward-send", "backward-recv"):
                for message in self._of(stage, kind)[:1]:
                    after[message].add(computing[first - 2])

    def _with_message(self, same: Sequence[Key], way: str, side: str, count: int) -> list[Key]:
        """The computations whose input comes from, or whose output goes to, another stage."""
        chunks = [self.work[key][0] for key in self.work if key[1] in COMPUTE]
        outer = max(chunks) if (way == "forward") == (side == "send") else 0
        having = [key for key in same if self.work[key][0] != outer]
        if len(having) != count:
            stage = same[0][0] if same else 0
            cause = f"stage {stage} has {count} {way}-{side} for {len(having)} computations that need one"
            raise InputError(
                f"{self.source} is not complete", cause, "record the messages between stages alone"
            )
        return having

    def _gathers(self, after: dict[Key, set[Key]], stage: int) -> None:
        """The first forward of a virtual stage waits for its weights."""
        last = {self.chunk[key]: key for key in self._of(stage, GATHER)}
        for chunk, gather in last.items():
            work = next((key for key in self._of(stage, FORWARD) if self.chunk[key] == chunk), None)
            if work is not None:
                after[work].add(gather)

    def _tail(self, after: dict[Key, set[Key]], stage: int, computing: Sequence[Key]) -> None:
        """What follows the last computation: gradients of norms, embeddings and weights, then the update."""
        scatters, separate = self._of(stage, SCATTER), self._of(stage, SEPARATE)
        head = [*self._of(stage, COLLECTOR), *self._of(stage, NORMS), *self._of(stage, EMBEDDING)]
        if separate:  # gradients are reduced beside the backward pass
            _chain(after, scatters)
            for scatter in scatters:
                work = [k for k in computing if k[1] == BACKWARD and self.chunk[k] == self.chunk[scatter]]
                after[scatter] |= set(work[-1:])
            middle = separate
            for key in self._of(stage, NORMS)[:1]:
                after[key] |= set(scatters[-1:])
        else:
            middle = scatters
        _chain(after, [computing[-1], *head, *middle, *self._of(stage, CLIP), *self._of(stage, OPTIMIZER)])

    def _groups(self) -> dict[Key, tuple[Key, ...]]:
        """Operations of several stages that are over together, by each of them."""
        groups: dict[Key, tuple[Key, ...]] = {key: (key,) for key in self.start if key[1] in REPLICATED}
        messages = defaultdict[tuple[str, int, int], list[Key]](list)
        for stage in range(self.stages):
            for way, step in (("forward", 1), ("backward", -1)):
                same = self._of(stage, f"{way}-compute")
                for side in ("send", "recv"):
                    keys = self._of(stage, f"{way}-{side}")
                    for key, work in zip(keys, self._with_message(same, way, side, len(keys)), strict=True):
                        chunk, microbatch = self.work[work]
                        messages[way, chunk + step * (side == "send"), microbatch].append(key)
        shared = [*messages.values(), [key for key in self.start if key[1] == EMBEDDING]]
        clips = [key for key in self.start if key[1] == CLIP]
        for keys in (*shared, clips):
            groups |= dict.fromkeys(keys, tuple(keys))
        return groups

    # ── times ─────────────────────────────────────────────────────────────────────────────────────────────

    def _transfers(self) -> dict[Key, Floats]:
        """What each operation takes: of communication from when its last rank has come."""
        times = dict(self.length)
        for keys in set(self.groups.values()):
            came = np.maximum.reduce([self.start[key] for key in keys])
            if keys[0][1] in REPLICATED:
                came = came.max(axis=1, keepdims=True)
            for key in keys:
                times[key] = np.maximum(self.start[key] + self.length[key] - came, 0.0)
        return times

    def _means(self) -> dict[Key, Floats]:
        """Every operation at the mean of its kind, of communication at the median."""
        kinds = defaultdict[str, list[Floats]](list)
        for key, times in self.recorded.items():
            kinds[key[1]].append(times)
        usual = {
            kind: float(np.median(times) if kind in COMMUNICATION else np.mean(times))
            for kind, times in kinds.items()
        }
        return {key: np.full(self.shape, usual[key[1]]) for key in self.recorded}

    def even_work(self) -> dict[Key, Floats]:
        """Recorded times with every microbatch of a stage at the mean of its stage."""
        even = dict(self.recorded)
        for stage in range(self.stages):
            for kind in COMPUTE:
                keys = self._of(stage, kind)
                for chunk in {self.chunk[key] for key in keys}:
                    same = [key for key in keys if self.chunk[key] == chunk]
                    mean = float(np.mean([self.recorded[key] for key in same]))
                    even |= {key: np.full(self.shape, mean) for key in same}
        return even

    def correlation(self) -> float:
        """Of forward and backward times of the same microbatch, each less the mean of its stage."""
        forward, backward = [], []
        for stage in range(self.stages):
            back = {self.work[key]: self.recorded[key] for key in self._of(stage, BACKWARD)}
            pairs = [
                (self.recorded[k], back[self.work[k]])
                for k in self._of(stage, FORWARD)
                if self.work[k] in back
            ]
            if pairs:
                sides = np.array(pairs)
                forward.append((sides[:, 0] - sides[:, 0].mean()).ravel())
                backward.append((sides[:, 1] - sides[:, 1].mean()).ravel())
        if not forward or min(np.concatenate(forward).std(), np.concatenate(backward).std()) == 0:
            return 0.0
        return float(np.corrcoef(np.concatenate(forward), np.concatenate(backward))[0, 1])

    def mixed(
        self,
        times: Mapping[Key, Floats],
        other: Mapping[Key, Floats],
        chosen: Callable[[Key], bool],
        replica: int | None,
    ) -> dict[Key, Floats]:
        """Times with others for some operations, of one replica or of all."""
        result = dict(times)
        for key in times:
            if chosen(key):
                if replica is None:
                    result[key] = other[key]
                else:
                    result[key] = times[key].copy()
                    result[key][:, replica] = other[key][:, replica]
        return result

    def _topological(self) -> list[tuple[Key, ...]]:
        """Operations in an order in which each comes after what it waits for; those of a group together."""
        units = {self.groups.get(key, (key,)) for key in self.start}
        needs = {
            unit: {self.groups.get(b, (b,)) for key in unit for b in self.after[key]} - {unit}
            for unit in units
        }
        ready, order = [unit for unit in units if not needs[unit]], list[tuple[Key, ...]]()
        waited = defaultdict[tuple[Key, ...], list[tuple[Key, ...]]](list)
        for unit, before in needs.items():
            for other in before:
                waited[other].append(unit)
        while ready:
            unit = ready.pop()
            order.append(unit)
            for other in waited[unit]:
                needs[other].discard(unit)
                if not needs[other]:
                    ready.append(other)
        if len(order) != len(units):
            cause = f"{len(units) - len(order)} of {len(units)} operations wait for each other"
            raise InputError(f"{self.source} has no order", cause, "record starts on synchronised clocks")
        return order

    def step_s(self, times: Mapping[Key, Floats]) -> float:
        """The mean step, every operation starting when all that it waits for is over."""
        over: dict[Key, Floats] = {}
        nothing = np.zeros(self.shape)
        for unit in self._sorted:
            came = _latest((over[before] for key in unit for before in self.after[key]), nothing)
            if unit[0][1] in REPLICATED:
                came = np.broadcast_to(came.max(axis=1, keepdims=True), self.shape)
            for key in unit:
                over[key] = came + times[key]
        return float(_latest(over.values(), nothing).max(axis=1).mean())


def _latest(ends: Iterable[Floats], nothing: Floats) -> Floats:
    """The latest of some times."""
    latest = nothing
    for end in ends:
        latest = np.maximum(latest, end)
    return latest


def _chain(after: dict[Key, set[Key]], keys: Sequence[Key]) -> None:
    """Let each wait for the one before."""
    for before, key in itertools.pairwise(keys):
        after[key].add(before)
