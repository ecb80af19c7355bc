"""A pipeline rank: its stages of the model, and the program of computations and messages it runs each step.

One path serves every layout: without pipeline parallelism the program is that of one stage (forward,
backward, next microbatch). Losses are sums over tokens scaled by the caller, so gradients of microbatches
simply add.

Legend: ``M`` microbatches, ``B`` sequences of one, ``S`` sequence length of this rank, ``H`` hidden size.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.schedules import RECORDS
from costmodel.updates.adapters import Adapter
from executor.comm.collectives import ProcessGroup, arrive
from executor.comm.mesh import Meshes
from executor.model.attention.documents import Documents
from executor.model.delayed import DelayedGradients, WeightGradients, accumulate
from executor.model.linear import Linear, RowLinear
from executor.model.load_balance import Balance
from executor.model.low_rank import add_adapter
from executor.model.moe import Experts, balance_routers
from executor.model.products.formats import EightBits, multiply_in
from executor.model.transformer import CausalLM, build_model
from executor.parallel.compressed import Compressor, ReplicaErrors
from executor.parallel.parallelize import COMPUTE_DTYPES, ComputeDtype, parallelize
from executor.parallel.programs import Action, Step, consumer, programs, stages_of_rank
from executor.parallel.stages import check_split, even_layers, recompute_counts
from executor.torch_internals.annotations import annotated
from executor.torch_internals.sharded import forget_forwards, gradient_settler, reduce_gradients

MOST_SENDS = 2
"""Under way at once; messages leave in the order of a common clock, so waiting for old ones is safe."""

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output of the last stage, targets) → scalar, already this microbatch's share of the global mean."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """One stage: consecutive layers, with the embedding on the first and the loss on the last."""

    index: int
    module: CausalLM
    delayed: DelayedGradients | None = None
    balance: Balance | None = None

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters of this rank's part of the stage."""
        return list(self.module.parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When one computation ran, after its inputs had arrived; seconds of a monotonic clock."""

    action: Action
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """This rank's stages and everything a step needs to run them."""

    spec: ModelSpec
    layout: ParallelLayout
    meshes: Meshes
    stages: tuple[Stage, ...]
    program: tuple[Step, ...]
    num_stages: int
    hidden_shape: tuple[int, int, int]
    hidden_dtype: torch.dtype
    device: torch.device
    spans: list[Span] | None = field(default=None)
    after_compute: Callable[[], None] | None = None
    replica: ReplicaErrors | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.stages[0].index == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank computes the loss."""
        return any(stage.index == self.num_stages - 1 for stage in self.stages)

    @property
    def sequence_first(self) -> bool:
        """Whether stages leave hidden states with the sequence first in memory."""
        return self.layout.tp > 1 and self.layout.sequence_parallel

    def as_sent(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, S, H) in the shape in which they are sent, or those back from it."""
        return x.transpose(0, 1) if self.sequence_first else x


def build_pipeline(
    spec: ModelSpec,
    layout: ParallelLayout,
    meshes: Meshes,
    *,
    sequence_length: int,
    num_microbatches: int,
    layers_of_stage: Sequence[int] | None = None,
    recompute_of_stage: Sequence[int] | None = None,
    precision: ComputeDtype = "bf16",
    eight_bits: EightBits | None = None,
    overlaps: bool = False,
    router_loss: float | None = None,
    adapter: Adapter | None = None,
    compression: str | None = None,
    device: torch.device,
) -> Pipeline:
    """Build this rank's stages, without values (see `executor.parallel.weights.initialize`), and its program.

    Args:
        spec: The whole model.
        layout: How to split it.
        meshes: From `build_meshes` of the same layout.
        sequence_length: Tokens of a whole sequence.
        num_microbatches: M.
        layers_of_stage: Layers of each of the pp·V stages in model order; even by default.
        recompute_of_stage: Recomputed layers of each pipeline rank; all by default.
        precision: What passes compute in.
        eight_bits: Format of eight bits in which projections of layers multiply; as they compute by default.
        overlaps: Whether tensor-parallel messages run under their products.
        router_loss: Coefficient of the routers' balancing loss; the model's own by default.
        adapter: What is trained alone, beside frozen weights.
        compression: How replicas sum gradients, as a job says it; as they are stored by default.
        device: Where the stages live.
    """
    total = layout.pp * layout.virtual_stages
    split = tuple(layers_of_stage or even_layers(spec.num_layers, total))
    check_split(spec, split, total)
    ends = [sum(split[: i + 1]) for i in range(total)]
    rank = meshes.coordinate("pp")
    mine = stages_of_rank(layout.schedule, layout.pp, layout.virtual_stages, rank)
    recompute = recompute_counts(layout, [split[index] for index in mine], recompute_of_stage, rank)
    stages = []
    for index, recomputed in zip(mine, recompute, strict=True):
        layers = range(ends[index] - split[index], ends[index])
        module = build_model(spec, layers=layers, first=index == 0, last=index == total - 1)
        if adapter is not None:
            add_adapter(module, adapter)
        if eight_bits is not None:
            multiply_in(module.model.layers, eight_bits)
        parallelize(
            module,
            layout,
            meshes,
            sequence_length=sequence_length,
            recompute_layers=recomputed,
            precision=precision,
            overlaps=overlaps,
            alone=compression is not None,
        )
        balance = balance_routers(
            module,
            spec,
            coefficient=router_loss,
            sequence_length=sequence_length,
            global_batch_size=num_microbatches * layout.microbatch_size * layout.dp,
            groups=_sequence_groups(layout, meshes),
        )
        stages.append(Stage(index=index, module=module, delayed=_delay(module, layout), balance=balance))
    replica = None
    if compression is not None:
        models, group = [stage.module for stage in stages], meshes.dense["replicate"].get_group()
        replica = ReplicaErrors(compressor=Compressor.of(compression), models=models, group=group)
    parts = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    return Pipeline(
        spec=spec,
        layout=layout,
        meshes=meshes,
        stages=tuple(stages),
        program=programs(layout.schedule, layout.pp, layout.virtual_stages, num_microbatches)[rank],
        num_stages=total,
        hidden_shape=(layout.microbatch_size, sequence_length // parts, spec.hidden_size),
        hidden_dtype=COMPUTE_DTYPES[precision],
        device=device,
        replica=replica,
    )


def _sequence_groups(layout: ParallelLayout, meshes: Meshes) -> tuple[ProcessGroup, ...]:
    """Groups whose ranks hold parts of one sequence where routers see it."""
    split = {"tp": layout.tp > 1 and layout.sequence_parallel, "cp": layout.cp > 1}
    return tuple(meshes.group(axis) for axis, splits in split.items() if splits)


def _delay(module: CausalLM, layout: ParallelLayout) -> DelayedGradients | None:
    """Let the projections of a stage put weight gradients off when its schedule splits the backward."""
    if not RECORDS[layout.schedule].splits_backward:
        return None
    delayed = DelayedGradients()
    for part in module.modules():
        if isinstance(part, (Linear, RowLinear, Experts)):
            part.delayed = delayed
    return delayed


class _Run:
    """State of one step on this rank: activations in flight, messages under way, and backwards done."""

    def __init__(
        self,
        pipeline: Pipeline,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        loss: LossFunction,
        documents: Sequence[Documents] | None,
    ) -> None:
        self.pipeline, self.tokens, self.targets, self.loss_function = pipeline, tokens, targets, loss
        self.documents = documents
        self.stage = {stage.index: stage for stage in pipeline.stages}
        self.microbatches = tokens.shape[0]
        self.flying: dict[tuple[int, int], tuple[torch.Tensor, Any]] = {}
        self.inputs: dict[Action, tuple[torch.Tensor, Any]] = {}
        self.outgoing: dict[Action, torch.Tensor] = {}
        self.weight_gradients: dict[tuple[int, int], deque[WeightGradients]] = {}
        self.sent: deque[tuple[torch.Tensor, Any]] = deque()
        self.done: dict[int, int] = dict.fromkeys(self.stage, 0)
        self.loss = torch.zeros((), device=pipeline.device)
        self.ready_s = 0.0

    def through(self, program: Iterable[Step]) -> None:
        """Do the computations and messages of a program, one after the other."""
        compute = {"F": self.forward, "B": self.backward, "I": self.backward, "W": self.weights}
        for step in program:
            if step.what != "compute":
                (self.send if step.what == "send" else self.receive)(step.action, step.peer)
                continue
            start = time.perf_counter()
            with annotated("forward" if step.action.kind == "F" else "backward"):
                compute[step.action.kind](step.action)
            if self.pipeline.after_compute is not None:
                self.pipeline.after_compute()
            if (spans := self.pipeline.spans) is not None:
                start = max(start, self.ready_s)  # waiting for a message is not computing
                spans.append(Span(action=step.action, start_s=start, end_s=time.perf_counter()))

    def receive(self, action: Action, peer: int) -> None:
        """Start receiving what `action` computes on another rank."""
        pipeline = self.pipeline
        sequences, length, size = pipeline.hidden_shape
        shape = (length, sequences, size) if pipeline.sequence_first else pipeline.hidden_shape
        buffer = torch.empty(shape, dtype=pipeline.hidden_dtype, device=pipeline.device)
        work = dist.irecv(buffer, group=pipeline.meshes.group("pp"), group_src=peer)
        follower = consumer(action, self.pipeline.num_stages)
        if follower is None:
            raise RuntimeError(f"nothing waits for {action}")
        self.inputs[follower] = (pipeline.as_sent(buffer), work)

    def send(self, action: Action, peer: int) -> None:
        """Start sending the result of `action`."""
        tensor = self.outgoing.pop(action)
        while len(self.sent) >= MOST_SENDS:
            arrive(self.sent.popleft()[1])
        self.sent.append((tensor, dist.isend(tensor, group=self.pipeline.meshes.group("pp"), group_dst=peer)))

    def deliver(self, action: Action, result: torch.Tensor) -> None:
        """Keep a result for its message, or hand it to the next stage when that is on this rank too."""
        follower = consumer(action, self.pipeline.num_stages)
        if follower is None:
            return
        if follower.stage in self.stage:
            self.inputs[follower] = (result, None)
        else:
            self.outgoing[action] = self.pipeline.as_sent(result).contiguous()

    def arrived(self, action: Action) -> torch.Tensor:
        """Take the input of a computation, waiting for its message."""
        tensor, work = self.inputs.pop(action)
        if work is not None:
            arrive(work)
        self.ready_s = time.perf_counter()
        return tensor

    def forward(self, action: Action) -> None:
        """Compute a stage on a microbatch; on the last stage, its loss."""
        _, index, microbatch = action
        x = self.tokens[microbatch] if index == 0 else self.arrived(action).detach().requires_grad_()
        y = self.stage[index].module(x, None if self.documents is None else self.documents[microbatch])
        if index == self.pipeline.num_stages - 1:
            y = self.loss_function(y, self.targets[microbatch])
            self.loss += y.detach()
        if torch.is_grad_enabled():  # the edge alone: the values of y are no longer needed
            self.flying[index, microbatch] = (x, get_gradient_edge(y) if y.requires_grad else None)
        self.deliver(action, y.detach())

    def backward(self, action: Action) -> None:
        """Compute gradients of a stage: all of them, or (``I``) all but the products that can wait."""
        kind, index, microbatch = action
        stage = self.stage[index]
        x, y = self.flying.pop((index, microbatch))
        gradient = None
        if index < self.pipeline.num_stages - 1:
            gradient = self.arrived(Action("B", index, microbatch))
        last = self._count(index) if kind == "B" else False
        _set_gradient_reduction(stage.module, self.pipeline.layout, last=last)
        with _recording(stage.delayed, on=kind == "I"):
            if y is not None:  # a first stage of frozen weights alone has nothing to compute
                torch.autograd.backward((y,), None if gradient is None else (gradient,))
        if kind == "I" and stage.delayed is not None:
            self.weight_gradients[index, microbatch] = stage.delayed.take()
        if x.grad is not None:
            self.deliver(action, x.grad)

    def weights(self, action: Action) -> None:
        """Compute the weight gradients that were put off, each added and forgotten before the next."""
        delayed = self.weight_gradients.pop((action.stage, action.microbatch))
        settle = gradient_settler(self.stage[action.stage].module)
        with torch.no_grad():  # inputs remember how they were made; their products need not
            while delayed:
                for parameter, gradient in delayed.popleft()():
                    accumulate(parameter, gradient)
                    settle(parameter)
        self._count(action.stage)

    def _count(self, index: int) -> bool:
        """Count a finished backward; whether it was the stage's last."""
        self.done[index] += 1
        return self.done[index] == self.microbatches


@contextlib.contextmanager
def _recording(delayed: DelayedGradients | None, *, on: bool) -> Iterator[None]:
    """Put weight gradients off within the context."""
    if delayed is not None:
        delayed.recording = on
    yield
    if delayed is not None:
        delayed.recording = False


def _set_gradient_reduction(module: FSDPModule, layout: ParallelLayout, *, last: bool) -> None:
    """Tell FSDP what to do after this backward, by ZeRO stage.

    Every backward counts as the last to FSDP: buffers of a reduction then do not outlive its microbatch,
    and nothing is prefetched in the order of an earlier one. Gradients are reduced after the last microbatch
    (0, 1) or after every one (2, 3); weights stay gathered until the last microbatch (0, 1, 2) or not at all
    (3). Split backwards always reduce at the end.
    """
    split = RECORDS[layout.schedule].splits_backward
    if layout.pp > 1:
        forget_forwards(module)
    module.set_is_last_backward(not split)
    module.set_requires_gradient_sync(not split and (last or layout.zero_stage >= 2))
    module.set_reshard_after_backward(not split and (last or layout.zero_stage >= 3))


def run_step(
    pipeline: Pipeline,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    loss: LossFunction,
    documents: Sequence[Documents] | None = None,
) -> torch.Tensor:
    """Run forward and backward of a step's microbatches; gradients are left reduced over data-parallel ranks.

    Args:
        pipeline: From `build_pipeline`.
        tokens: (M, B, S) token ids of this rank (read on the first stage, shapes everywhere).
        targets: (M, B, S) next tokens (read on the last stage).
        loss: Turns the last stage's output into this microbatch's share of the loss.
        documents: Of every microbatch, on every stage; None where attention sees whole sequences.

    Returns:
        Sum of this rank's shares of the loss; zero unless it holds the last stage.
    """
    run = _Run(pipeline, tokens, targets, loss, documents)
    run.through(pipeline.program)
    with annotated("grad_sync"):
        for stage in pipeline.stages if RECORDS[pipeline.layout.schedule].splits_backward else ():
            reduce_gradients(stage.module)
        for _, work in run.sent:
            arrive(work)
        if pipeline.replica is not None:
            pipeline.replica.sum()
    return run.loss


def run_forward(
    pipeline: Pipeline,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    loss: LossFunction,
    documents: Sequence[Documents] | None = None,
) -> torch.Tensor:
    """Run the forward passes of `run_step` alone: the same shares of the loss, and nothing kept."""
    run = _Run(pipeline, tokens, targets, loss, documents)
    with torch.no_grad():
        run.through(step for step in pipeline.program if step.action.kind == "F")
    for _, work in run.sent:
        arrive(work)
    return run.loss
